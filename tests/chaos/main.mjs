// The long run, by hand: make test-chaos JOBS=20000 THREADS=200 REPLICAS=6 MINUTES=10 SEED=1
import { mkdirSync, writeFileSync } from 'node:fs';
import { cleanUp } from '../lib/process.mjs';
import { chaos, describe } from './chaos.mjs';

const number = (name, preset) => Number(process.env[name] || preset);
const [jobs, threads, replicas, minutes] = [number('JOBS', 20_000), number('THREADS', 200), number('REPLICAS', 6), number('MINUTES', 10)];
const seed = process.env.SEED || String(Math.floor(Math.random() * 1e9));
const share = (most, part) => Math.max(2, Math.min(most, Math.round(jobs * part)));
console.log(`seed ${seed}: ${jobs} jobs, ${threads} threads, ${replicas} replicas, ${minutes} minutes of faults; again with SEED=${seed}`);

const side = process.env.SIDES !== '0'; // 0: SCRIPTED only
const report = await chaos({
  seed, jobs, threads, replicas, seconds: minutes * 60, everyMs: number('EVERY_MS', 2000), lockMs: number('LOCK_MS', 3000), verbose: Boolean(process.env.V),
  ...(side && {
    emulated: { count: share(1000, 0.05), threads: Math.min(threads, 30), replicas: 2 },
    kernels: { count: share(200, 0.01), threads: 3, replicas: 1 },
    local: { count: share(300, 0.015), threads: Math.min(threads, 10), replicas: 2 },
  }),
});
console.log(describe(report));
for (const [name, found] of Object.entries(report.findings)) {
  console.log(`${found.length ? 'BROKEN' : 'holds'}: ${name}`);
  for (const text of found.slice(0, 10)) console.log(`    ${text}`);
}
const broken = Object.values(report.findings).flat();
if (broken.length) { // what the workers said of the first jobs concerned
  const dir = new URL('../../build/chaos/', import.meta.url);
  mkdirSync(dir, { recursive: true });
  const ids = [...new Set(broken.join('\n').match(/\b(mass|emulated|kernels|local)-(last-t)?\d+\b/g) ?? [])].slice(0, 30);
  const file = new URL(`seed-${seed}.log`, dir);
  writeFileSync(file, [broken.join('\n'), ...ids.map((id) => `== ${id}\n${report.logsOf(id).join('\n')}`)].join('\n\n'));
  console.log(`what the workers said of these jobs: ${file.pathname}`);
}
await cleanUp();
process.exit(broken.length ? 1 : 0);
