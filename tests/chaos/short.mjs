// The short run, as `make test` makes it; by itself it prints its findings as one line of JSON (for planted.mjs).
import { fileURLToPath } from 'node:url';
import { cleanUp } from '../lib/process.mjs';
import { chaos } from './chaos.mjs';

/** SIDES=0 leaves out the queues with sandboxes and kernels. */
export function shortRun(seed) {
  const sides = process.env.SIDES !== '0' && {
    emulated: { count: 50, threads: 6, replicas: 2 }, kernels: { count: 12, threads: 2, replicas: 1 }, local: { count: 16, threads: 3, replicas: 1 },
  };
  return chaos({ seed, jobs: 800, threads: 30, replicas: 3, seconds: 36, everyMs: 600, ...sides, verbose: Boolean(process.env.V) });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { findings, counts } = await shortRun(process.env.SEED || '1');
  await cleanUp();
  console.log(JSON.stringify({ findings, counts }));
  process.exit(0);
}
