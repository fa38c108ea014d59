// Jobs a second, CPU, memory and Redis time of the worker (SCRIPTED driver, empty script) beside a stock BullMQ 6.7.0
// Node Worker whose jobs do nothing: same run, same Redis, in turns, medians. Prints a table and writes
// build/bench.json: rows {figure, unit, ours, peer, ratio}; ratio is ours / peer, null without a peer.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Queue, QueueEvents } from 'bullmq';

process.env.WORKER_BIN ??= 'build/test/sandpiper';
const { cleanUp, sleep, start, waitFor } = await import('../lib/process.mjs');
const { startRedis } = await import('../lib/redis.mjs');
const { workerBin, workerEnv } = await import('../lib/rig.mjs');

const quick = Boolean(process.env.QUICK);
const rounds = quick ? 1 : 3;
const concurrencies = quick ? { 1: 1000, 10: 2000, 100: 2000 } : { 1: 5000, 10: 15_000, 100: 15_000 }; // -> jobs
const ticks = 100; // of /proc/<pid>/stat a second
const redis = await startRedis();
const client = redis.client();
const out = fileURLToPath(new URL('../../build/bench.json', import.meta.url));

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const rssKb = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]);
function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /s, '').split(' ');
  return (Number(fields[11]) + Number(fields[12])) / ticks;
}
async function redisCounters() {
  const text = await client.info('everything');
  const usec = (name) => Number(new RegExp(`cmdstat_${name}:.*?usec=(\\d+)`).exec(text)?.[1] ?? 0);
  const value = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(text)[1]);
  return {
    script: usec('evalsha') + usec('eval'), // the time of what scripts call is in it
    cpu: 1e6 * (value('used_cpu_user') + value('used_cpu_sys')),
    input: value('total_net_input_bytes'),
  };
}

/** A worker of either kind on a queue of its own, idle and ready. */
async function launch(kind, concurrency, env = {}) {
  const name = `bench-${kind}-${concurrency}`;
  const queue = new Queue(name, { connection: redis.connection });
  const process_ = kind === 'ours'
    ? start(workerBin, [], { env: workerEnv({ REDIS_URL: redis.url, QUEUE_NAME: name, LOG_LEVEL: 'warn', WORKER_CONCURRENCY: String(concurrency), ...env }) })
    : start(process.execPath, [fileURLToPath(new URL('peer.mjs', import.meta.url)), String(redis.port), name, String(concurrency)]);
  await waitFor(async () => (await queue.getWorkers()).length > 0, { what: `${name} is there`, timeout: 15_000 });
  return { kind, name, queue, pid: process_.pid, process: process_ };
}

const empty = { name: 'execute', data: { code: '', idempotent: true, reply: false }, opts: { removeOnComplete: true } };

/** Adds jobs while the queue is paused, resumes it, and waits until none is left. */
async function drain(w, jobs, job = empty) {
  await w.queue.pause();
  for (let i = 0; i < jobs; i += 1000) await w.queue.addBulk(Array(Math.min(1000, jobs - i)).fill(job));
  const before = { cpu: cpuSeconds(w.pid), redis: await redisCounters() };
  const begun = performance.now();
  await w.queue.resume();
  const P = `bull:${w.name}:`;
  for (;;) {
    const [[, waiting], [, active]] = await client.pipeline().llen(`${P}wait`).llen(`${P}active`).exec();
    if (waiting + active === 0) break;
    await sleep(4);
  }
  const seconds = (performance.now() - begun) / 1000;
  const after = { cpu: cpuSeconds(w.pid), redis: await redisCounters() };
  if (await w.queue.getFailedCount()) throw new Error(`${w.name}: ${(await w.queue.getFailed())[0].failedReason}`);
  return {
    rate: jobs / seconds,
    cpu: (after.cpu - before.cpu) * 1000 / jobs,
    script: (after.redis.script - before.redis.script) / jobs,
    redisCpu: (after.redis.cpu - before.redis.cpu) / jobs,
  };
}

async function stop(w) {
  await w.process.stop();
  await w.queue.obliterate({ force: true });
  await w.queue.close();
}

const rows = [];
function row(figure, unit, ours, peer = null) {
  rows.push({ figure, unit, ours, peer, ratio: peer === null ? null : ours / peer });
}

async function throughput(concurrency, jobs) {
  const both = [await launch('ours', concurrency), await launch('peer', concurrency)];
  await sleep(500);
  const idle = both.map((w) => rssKb(w.pid) / 1024);
  for (const w of both) await drain(w, Math.min(jobs, 500)); // warm
  const runs = { ours: [], peer: [] };
  for (let i = 0; i < rounds; i++) for (const w of both) runs[w.kind].push(await drain(w, jobs));
  const mid = (kind, what) => median(runs[kind].map((run) => run[what]));
  const figure = (text, unit, what) => row(`${text}, concurrency ${concurrency}`, unit, mid('ours', what), mid('peer', what));
  if (concurrency === 1) row('memory when idle', 'MiB', ...idle);
  figure('no-op jobs', '1/s', 'rate');
  figure('CPU for 1,000 jobs', 's', 'cpu');
  figure('scripts in Redis for a job', 'us', 'script');
  figure('CPU of Redis for a job', 'us', 'redisCpu');
  if (concurrency === 100) row('memory after the load', 'MiB', ...both.map((w) => rssKb(w.pid) / 1024));
  for (const w of both) await stop(w);
}

/** Output: jobs that print a line to their reply, and 1 MB of prints in lines of 100 bytes. */
async function output() {
  const w = await launch('ours', 10);
  const jobs = quick ? 500 : 3000;
  const line = { ...empty, data: { code: JSON.stringify({ stdout: 'hello\n' }) } };
  await drain(w, 200, line);
  const runs = [];
  for (let i = 0; i < rounds; i++) runs.push(await drain(w, jobs, line));
  row('jobs that print a line (reply, mark), concurrency 10', '1/s', median(runs.map((run) => run.rate)));
  row('scripts in Redis for such a job', 'us', median(runs.map((run) => run.script)));

  const events = new QueueEvents(w.name, { connection: redis.connection });
  await events.waitUntilReady();
  const bytes = [];
  for (let i = 0; i < rounds; i++) {
    const code = JSON.stringify({ stdout: `${'x'.repeat(99)}\n`, times: 10_000 });
    const before = (await redisCounters()).input;
    const job = await w.queue.add('execute', { code }, { removeOnComplete: true });
    await job.waitUntilFinished(events, 30_000);
    bytes.push((await redisCounters()).input - before);
  }
  row('sent to Redis for 1 MB of prints', 'bytes', median(bytes));
  await events.close();
  await stop(w);
}

const shown = (n) => (n === null ? '' : n >= 100 ? Math.round(n).toLocaleString('en') : n.toPrecision(3));

try {
  for (const [concurrency, jobs] of Object.entries(concurrencies)) await throughput(Number(concurrency), jobs);
  await output();
  mkdirSync(fileURLToPath(new URL('../../build', import.meta.url)), { recursive: true });
  writeFileSync(out, `${JSON.stringify(rows, null, 1)}\n`);
  console.log(`${'figure'.padEnd(54)} ${'ours'.padStart(10)} ${'peer'.padStart(10)} ${'ratio'.padStart(7)}`);
  for (const r of rows) {
    console.log(`${`${r.figure} (${r.unit})`.padEnd(54)} ${shown(r.ours).padStart(10)} ${shown(r.peer).padStart(10)} ${shown(r.ratio).padStart(7)}`);
  }
} catch (error) {
  console.log(error.stack);
  process.exitCode = 1;
} finally {
  await cleanUp();
  process.exit();
}
