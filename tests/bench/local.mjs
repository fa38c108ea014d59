// LOCAL's rows: the first run of a new thread and warm runs through the queue, beside kernels driven by jupyter_client.
import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { start, waitFor, within } from '../lib/process.mjs';
import { Through } from './e2b.mjs';
import { median, quantile, quick } from './measure.mjs';
import { launch } from './workers.mjs';

const code = 'print("hello")';

async function direct(fresh, warm) {
  const program = start('/usr/bin/python3', [fileURLToPath(new URL('kernels.py', import.meta.url)), String(fresh), String(warm), code]);
  const line = await program.waitLine(/^\{/, { timeout: 120_000 });
  await program.exited;
  return JSON.parse(line);
}

export async function local(rows, redis) {
  const threads = quick ? 3 : 7;
  const warmRuns = quick ? 60 : 300;
  const env = { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', LOG_LEVEL: 'debug' };
  const w = await launch('ours', redis, { concurrency: 2, env });
  const ours = new Through(w, redis);
  const run = async (sessionId) => {
    const begun = performance.now();
    const { stdout } = await ours.execute(code, [], { sessionId });
    if (stdout !== 'hello\n') throw new Error(`LOCAL printed ${JSON.stringify(stdout)}`);
    return performance.now() - begun;
  };
  const kernelsMade = () => w.processes[0].lines.filter((line) => /starting -> ready/.test(line)).length;
  const first = [];
  await run('start'); // LOCAL is made, and a first spare kernel with it
  for (let i = 0; i < threads; i++) {
    // The thread's own kernel was the spare of the one before it: of i + 1 threads so far each has its own, and one is ahead.
    await waitFor(() => kernelsMade() >= i + 2, { what: `a spare kernel for thread ${i}`, timeout: 60_000 });
    first.push(await run(`t${i}`));
    if (i) await w.queue.add('release', { workspaceId: 'w', threadId: `t${i - 1}` }, { removeOnComplete: true });
  }
  for (let i = 0; i < 5; i++) await run('start');
  const warm = [];
  for (let i = 0; i < warmRuns; i++) warm.push(await run('start'));
  ours.close();
  await w.stop({ graceMs: 30_000 });
  const theirs = await within(180_000, direct(quick ? 2 : 5, warmRuns), 'kernels driven directly');
  rows.add('LOCAL: first run of a new thread, beside a fresh kernel by jupyter_client', 'ms', median(first), median(theirs.fresh), 'ours <= 100');
  rows.add('LOCAL: warm run p50, beside a warm kernel driven directly', 'ms', median(warm), median(theirs.warm));
  rows.add('LOCAL: warm run p99', 'ms', quantile(warm, 0.99), quantile(theirs.warm, 0.99), 'ours <= 40');
}
