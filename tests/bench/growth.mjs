// What a job costs Redis while ever more is there: parked jobs, threads, active jobs; and the longest script call meanwhile.
import { setPriority } from 'node:os';
import { sleep, waitFor } from '../lib/process.mjs';
import { median, quick, slowest } from './measure.mjs';
import { addJobs, bare, drain, inThreads, launch, sizes } from './workers.mjs';

const LONG = 240_000;
const STALLED_MS = quick ? 1000 : 1500; // passes and renewals come often, so that some are seen; each does the same as ever
const env = { STALLED_INTERVAL_MS: String(STALLED_MS), LOCK_RENEW_MS: String(STALLED_MS), LOCK_DURATION_MS: '15000', DRAIN_TIMEOUT_MS: '100' };
const HOLDERS = 10;
const WINDOWS = quick ? 1 : 3;
const forever = JSON.stringify({ sleep: 3_600_000 });

/** n jobs wait for threads that are busy. */
async function parked(w, n) {
  await addJobs(w.queue, HOLDERS, (i) => ({ ...bare, code: forever, threadId: `busy${i}` }));
  await waitFor(async () => (await sizes(w)).active === HOLDERS, { what: 'threads are busy', timeout: LONG });
  await addJobs(w.queue, n, (i) => ({ ...bare, threadId: `busy${i % HOLDERS}` }));
  await waitFor(async () => (await sizes(w)).delayed === n, { what: `${n} jobs are parked`, timeout: LONG });
}

/** n threads have had a job. */
async function threads(w, n) {
  await drain(w, n, (i) => ({ ...bare, threadId: `had${i}` }));
}

/** n jobs run, in a worker of their own that has no slot left. */
async function active(w, n) {
  await w.queue.pause();
  await addJobs(w.queue, n, (i) => ({ ...bare, code: forever, threadId: `runs${i}` }));
  await w.queue.resume();
  await waitFor(async () => (await sizes(w)).active === n, { what: `${n} jobs are active`, timeout: LONG });
  w.add({ concurrency: 10, env });
  await waitFor(async () => (await w.queue.getWorkers()).length === 2, { what: 'a second worker', timeout: LONG });
}

/** n jobs that another worker holds, written as BullMQ leaves them: more than one process may have. */
async function foreign(w, n) {
  for (let i = 0; i < n; i += 1000) {
    const pipeline = w.client.pipeline();
    for (let k = i; k < Math.min(n, i + 1000); k++) {
      const job = { name: 'execute', data: '{"code":""}', opts: '{"attempts":0}', timestamp: Date.now(), delay: 0, priority: 0, ats: 1, processedOn: Date.now() };
      pipeline.hset(`${w.P}foreign-${k}`, job).set(`${w.P}foreign-${k}:lock`, 'another', 'PX', LONG).lpush(`${w.P}active`, `foreign-${k}`);
    }
    await pipeline.exec();
  }
}

/**
 * Script time of a job (µs) and the longest script calls (ms) with n of what `fill` makes: while they came, and then; and
 * the script time of a stock Worker's job on a queue of its own, which has nothing to do with what is there.
 */
async function at(redis, fill, n) {
  const stock = await launch('peer', redis, { concurrency: 32 });
  const w = await launch('ours', redis, { concurrency: fill === active ? n : 32, env });
  const longest = slowest(w.client);
  await longest.reset();
  await fill(w, n);
  const coming = await longest.read();
  await drain(w, 300, inThreads(1000, bare)); // warm
  await drain(stock, 300);
  const [runs, windows, elsewhere] = [[], [], []];
  for (let i = 0; i < WINDOWS; i++) {
    for (let k = 0; k < 2; k++) elsewhere.push(await drain(stock, quick ? 300 : 1000));
    // Each window sees a stalled pass, a renewal and jobs. The median of their maxima is not a moment when Redis had no core.
    await longest.reset();
    for (let k = 0; k < 2; k++) runs.push(await drain(w, quick ? 300 : 1000, inThreads(1000, bare)));
    await sleep(1.2 * STALLED_MS);
    windows.push(await longest.read());
  }
  for (const one of w.processes) one.kill('SIGKILL'); // its runs never end
  await w.stop();
  await stock.stop();
  await redis.client().flushall();
  return {
    script: median(runs.map((run) => run.script)), elsewhere: median(elsewhere.map((run) => run.script)), coming,
    workers: median(windows.map((one) => one.workers)), producers: median(windows.map((one) => one.producers)),
  };
}

/** Redis gets a core when it wants one, where that is allowed: its times are those of its work. */
function prefer(pid, nice) {
  try {
    setPriority(pid, nice);
  } catch {
    // not for a normal user
  }
}

export async function growth(rows, redis) {
  const kinds = [
    ['parked jobs', parked, quick ? [3000] : [1000, 100_000]], ['threads', threads, quick ? [3000] : [1000, 100_000]],
    ['active jobs', active, quick ? [500] : [1000, 10_000]], ['active jobs of others', foreign, quick ? [3000] : [100_000]],
  ];
  prefer(redis.process.pid, -15);
  for (const [what, fill, counts] of kinds) {
    const few = await at(redis, fill, 10);
    for (const n of counts) {
      const many = await at(redis, fill, n);
      const of = `${n.toLocaleString('en')} ${what}`;
      rows.add(`Redis time of a job with ${of}, beside 10`, 'µs', many.script, few.script, 'ratio <= 1.2');
      rows.add(`Redis time of a stock Worker's job on another queue then, beside 10`, 'µs', many.elsewhere, few.elsewhere);
      rows.add(`longest script call with ${of}, beside BullMQ's add`, 'ms', many.workers, many.producers, 'ours <= 10');
      rows.add(`longest script call while they came, ${of}, beside BullMQ's add`, 'ms', many.coming.workers, many.coming.producers, 'ours <= 10');
    }
  }
  prefer(redis.process.pid, 0);
}
