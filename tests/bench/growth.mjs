// What a job costs Redis while ever more is there: parked jobs, threads, active jobs; and the longest script call meanwhile.
import { sleep, waitFor } from '../lib/process.mjs';
import { median, quick, slowest } from './measure.mjs';
import { addJobs, bare, drain, inThreads, launch, sizes } from './workers.mjs';

const LONG = 240_000;
const STALLED_MS = 2000; // passes and renewals come often, so that some are seen; each does the same as ever
const env = { STALLED_INTERVAL_MS: String(STALLED_MS), LOCK_RENEW_MS: '2000', LOCK_DURATION_MS: '15000', DRAIN_TIMEOUT_MS: '100' };
const HOLDERS = 10;
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

/** Script time of a job and the longest script call (ms) with n of what `fill` makes. */
async function at(redis, fill, n) {
  const w = await launch('ours', redis, { concurrency: fill === active ? n : 32, env });
  const longest = slowest(w.client);
  await longest.reset();
  await fill(w, n);
  const runs = [];
  await drain(w, 300, inThreads(1000, bare)); // warm
  for (let i = 0; i < 5; i++) runs.push((await drain(w, quick ? 400 : 1000, inThreads(1000, bare))).script);
  await sleep(2.5 * STALLED_MS); // two stalled passes and two renewals at least
  const result = { script: median(runs), longest: await longest.read() };
  for (const one of w.processes) one.kill('SIGKILL'); // its runs never end
  await w.stop();
  await redis.client().flushall();
  return result;
}

export async function growth(rows, redis) {
  const kinds = [
    ['parked jobs', parked, quick ? 10_000 : 100_000], ['threads', threads, quick ? 10_000 : 100_000], ['active jobs', active, quick ? 1000 : 10_000],
  ];
  for (const [what, fill, most] of kinds) {
    const few = await at(redis, fill, 10);
    for (const n of most > 10_000 ? [1000, most] : [most]) {
      const many = await at(redis, fill, n);
      const of = `${n.toLocaleString('en')} ${what}`;
      rows.add(`Redis time of a job with ${of}, beside 10`, 'µs', many.script, few.script, 'ratio <= 1.2');
      rows.add(`longest script call with ${of}, beside 10`, 'ms', many.longest, few.longest, 'ours <= 10');
    }
  }
}
