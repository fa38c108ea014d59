// The queue's rows: throughput, Redis time, worker CPU, memory, start and pickup, each beside the stock Worker.
import { performance } from 'node:perf_hooks';
import { Queue, QueueEvents } from 'bullmq';
import { sleep, waitFor } from '../lib/process.mjs';
import { cpu, median, quantile, quick, rss } from './measure.mjs';
import { addJobs, bare, drain, inThreads, inTurns, launch, sizes, startKind } from './workers.mjs';

const rounds = quick ? 1 : 3;
const jobs = quick ? { 1: 500, 10: 1000, 100: 1500 } : { 1: 4000, 10: 10_000, 100: 12_000 };
const THREADS = 1000;
const targets = { 1: 'ratio >= 1.1', 10: 'ratio >= 1.3', 100: 'ratio >= 1.2' };
const mid = (runs, what) => median(runs.map((run) => run[what]));

async function stopAll(...all) {
  for (const w of all) await w.stop();
}

/** No-op jobs at one concurrency. */
async function noop(rows, redis, concurrency) {
  const ours = await launch('ours', redis, { concurrency });
  const peer = await launch('peer', redis, { concurrency });
  const n = jobs[concurrency];
  for (const w of [ours, peer]) await drain(w, Math.min(n, 500)); // warm
  const runs = await inTurns(rounds, { ours: () => drain(ours, n), peer: () => drain(peer, n) });
  const figure = (text, unit, what, target) => rows.add(text, unit, mid(runs.ours, what), mid(runs.peer, what), target);
  figure(`no-op jobs, concurrency ${concurrency}`, '1/s', 'rate', targets[concurrency]);
  if (concurrency === 10) figure('Redis time of a job, bare', 'µs', 'script', 'ratio <= 1.0');
  if (concurrency === 100) {
    figure('worker CPU of a job, concurrency 100', 'µs', 'cpu', 'ratio <= 1/8');
    figure('CPU of the whole Redis for a job, bare, concurrency 100', 'µs', 'redisCpu');
    rows.add('memory after the load', 'MiB', rss(ours.pid), rss(peer.pid));
  }
  await stopAll(ours, peer);
}

/** Jobs of 1,000 threads with mark and replies, beside a Node Worker that does so by hand. */
async function threads(rows, redis, concurrency) {
  const ours = await launch('ours', redis, { concurrency });
  const hand = await launch('hand', redis, { concurrency });
  const n = jobs[concurrency];
  for (const w of [ours, hand]) await drain(w, Math.min(n, 500), inThreads(THREADS));
  const competitors = { ours: () => drain(ours, n, inThreads(THREADS)), hand: () => drain(hand, n, inThreads(THREADS)) };
  const stock = concurrency === 10 ? await launch('peer', redis, { concurrency }) : null;
  if (stock) {
    competitors.only = () => drain(ours, n, inThreads(THREADS, bare));
    // No job waits for another of its thread, so none is sent to the back of the line once.
    competitors.onlyOwn = () => drain(ours, n, (i) => ({ ...bare, threadId: `own${i}` }));
    competitors.own = () => drain(ours, n, (i) => ({ threadId: `own${i}` }));
    competitors.stock = () => drain(stock, n);
  }
  const runs = await inTurns(rounds, competitors);
  rows.add(`jobs of 1,000 threads with mark and replies, concurrency ${concurrency}`, '1/s', mid(runs.ours, 'rate'), mid(runs.hand, 'rate'), 'ratio >= 1.5');
  if (stock) {
    const bareStock = mid(runs.stock, 'script');
    rows.add('Redis time of a job, with threads, beside a bare one of stock', 'µs', mid(runs.only, 'script'), bareStock, 'ratio <= 1.25');
    rows.add('the same, each job of a thread of its own', 'µs', mid(runs.onlyOwn, 'script'), bareStock);
    rows.add('Redis time of a job, with threads, mark and replies, beside a bare one', 'µs', mid(runs.ours, 'script'), bareStock, 'ratio <= 1.7');
    rows.add('the same with mark and replies, each job of a thread of its own', 'µs', mid(runs.own, 'script'), bareStock);
    await stock.stop();
  }
  if (concurrency === 100) {
    rows.add('worker CPU of a job with mark and replies, concurrency 100', 'µs', mid(runs.ours, 'cpu'), mid(runs.hand, 'cpu'));
    rows.add('CPU of the whole Redis for a job with mark and replies', 'µs', mid(runs.ours, 'redisCpu'), mid(runs.hand, 'redisCpu'));
  }
  await stopAll(ours, hand);
}

export async function throughput(rows, redis) {
  for (const concurrency of [1, 10, 100]) await noop(rows, redis, concurrency);
  for (const concurrency of [1, 10, 100]) await threads(rows, redis, concurrency);
}

/** Memory of workers that wait for work, and of workers with 100 runs that print a line ten times a second. */
export async function memory(rows, redis) {
  const both = [await launch('ours', redis, { concurrency: 100 }), await launch('hand', redis, { concurrency: 100 })];
  await sleep(1000);
  rows.add('memory, idle', 'MiB', ...both.map((w) => rss(w.pid)), 'ours <= 12, ratio <= 1/6');
  const seconds = quick ? 2 : 5;
  const code = Array.from({ length: seconds * 10 }, (_, i) => `{"stdout":"line ${i} ${'x'.repeat(50)}\\n"}\n{"sleep":100}`).join('\n');
  const streaming = [];
  for (const w of both) {
    const before = cpu(w.pid);
    await addJobs(w.queue, 100, (i) => ({ code, threadId: `t${i}` }));
    const seen = [];
    await waitFor(async () => {
      const { active, all } = await sizes(w);
      if (active === 100) seen.push(rss(w.pid));
      return all === 0;
    }, { what: `${w.name}: 100 runs that stream`, timeout: 60_000 });
    if (!seen.length) throw new Error(`${w.name}: 100 runs were never active together`);
    streaming.push({ rss: Math.max(...seen), cpu: (cpu(w.pid) - before) * 1e6 / (100 * seconds * 10) });
  }
  rows.add('memory, 100 runs streaming', 'MiB', ...streaming.map((one) => one.rss), 'ours <= 25, ratio <= 1/6');
  rows.add('worker CPU of a line that is streamed', 'µs', ...streaming.map((one) => one.cpu));
  await stopAll(...both);
}

/** From the start of a process to its first claim of a job that is there already. */
async function startToClaim(kind, redis, name) {
  const queue = new Queue(name, { connection: redis.connection });
  const events = new QueueEvents(name, { connection: redis.connection, lastEventId: '0-0' });
  await events.waitUntilReady();
  await addJobs(queue, 1, bare);
  const active = new Promise((resolve) => events.once('active', resolve));
  const begun = performance.now();
  const worker = startKind(kind, redis, name, 1);
  await active;
  const ms = performance.now() - begun;
  await waitFor(async () => (await queue.getJobCountByTypes('wait', 'active')) === 0, { what: 'the job ended' });
  await worker.stop();
  await events.close();
  await queue.obliterate({ force: true });
  await queue.close();
  return ms;
}

export async function starts(rows, redis) {
  let n = 0;
  const runs = await inTurns(quick ? 3 : 9, {
    ours: () => startToClaim('ours', redis, `start-${++n}`),
    peer: () => startToClaim('peer', redis, `start-${++n}`),
  });
  rows.add('start to first claim', 'ms', median(runs.ours), median(runs.peer), 'ours <= 50');
}

/** From `add` to the message that the run has started, as a subscriber sees it, on a worker that waits for work. */
export async function pickup(rows, redis) {
  const both = { ours: await launch('ours', redis), hand: await launch('hand', redis) };
  const listener = redis.client();
  const waiting = new Map(); // channel -> {started, done}
  listener.on('pmessage', (_, channel, text) => {
    const { type } = JSON.parse(text);
    waiting.get(channel)?.[type]?.(performance.now());
  });
  await listener.psubscribe(`${both.ours.P}reply:*`, `${both.hand.P}reply:*`);
  let n = 0;
  const sample = async (w) => {
    const jobId = `p-${++n}`;
    const channel = `${w.P}reply:${jobId}`;
    const seen = {};
    const started = new Promise((resolve) => { seen.started = resolve; });
    const done = new Promise((resolve) => { seen.done = resolve; });
    waiting.set(channel, seen);
    const begun = performance.now();
    await w.queue.add('execute', { code: '' }, { jobId, removeOnComplete: true });
    const ms = await started - begun;
    await done;
    await sleep(10); // it waits again
    waiting.delete(channel);
    return ms;
  };
  // What no worker can do without: from `add` to a client that waits on the marker.
  const alone = { queue: new Queue('pickup-alone', { connection: redis.connection }), client: redis.client() };
  const marker = 'bull:pickup-alone:marker';
  const woken = async () => {
    await alone.client.del(marker);
    const popped = alone.client.bzpopmin(marker, 60).then(() => performance.now());
    await sleep(10); // it waits
    const begun = performance.now();
    await alone.queue.add('execute', { code: '' }, { removeOnComplete: true });
    return await popped - begun;
  };
  for (const w of Object.values(both)) for (let i = 0; i < 20; i++) await sample(w);
  const runs = await inTurns(quick ? 100 : 400, { ours: () => sample(both.ours), hand: () => sample(both.hand), alone: woken });
  for (const [name, q] of [['p50', 0.5], ['p99', 0.99]]) {
    rows.add(`pickup on an idle worker (add to started), ${name}`, 'ms', quantile(runs.ours, q), quantile(runs.hand, q), 'ratio <= 1/2');
  }
  const share = median(runs.alone);
  rows.add('pickup: add to the end of a wait on the marker, no worker, p50', 'ms', share);
  rows.add('pickup p50 without that', 'ms', median(runs.ours) - share, median(runs.hand) - share);
  listener.disconnect();
  alone.client.disconnect();
  await alone.queue.obliterate({ force: true });
  await alone.queue.close();
  await stopAll(...Object.values(both));
}

/** One to eight replicas on one Redis. */
export async function replicas(rows, redis) {
  for (const count of [1, 2, 4, 8]) {
    const ours = await launch('ours', redis, { concurrency: 25, replicas: count });
    const peer = await launch('peer', redis, { concurrency: 25, replicas: count });
    const n = quick ? 1500 : 8000;
    for (const w of [ours, peer]) await drain(w, 300);
    const runs = await inTurns(rounds, { ours: () => drain(ours, n), peer: () => drain(peer, n) });
    const of = count === 1 ? '1 replica' : `${count} replicas`;
    rows.add(`no-op jobs, ${of}`, '1/s', mid(runs.ours, 'rate'), mid(runs.peer, 'rate'));
    rows.add(`Redis's share of a core, ${of}`, '%', mid(runs.ours, 'redisShare'), mid(runs.peer, 'redisShare'));
    await stopAll(ours, peer);
  }
}
