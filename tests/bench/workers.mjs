// Both kinds of worker on queues of their own, and runs of jobs through them with what these cost.
import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Queue } from 'bullmq';
import { sleep, start, waitFor } from '../lib/process.mjs';
import { workerBin, workerEnv } from '../lib/rig.mjs';
import { cpu, difference, producer, redisCounters } from './measure.mjs';

let count = 0;
const launched = new Set();
const peerProgram = fileURLToPath(new URL('peer.mjs', import.meta.url));

/** Starts a process of either kind on `name`: `ours`, `peer` (does nothing) or `hand` (does by hand what ours does). */
export function startKind(kind, redis, name, concurrency, env = {}) {
  if (kind !== 'ours') return start(process.execPath, [peerProgram, String(redis.port), name, String(concurrency), kind]);
  const all = { REDIS_URL: redis.url, QUEUE_NAME: name, LOG_LEVEL: 'warn', WORKER_CONCURRENCY: String(concurrency), ...env };
  return start(workerBin, [], { env: workerEnv(all) });
}

/** A queue of its own with `replicas` workers on it, all ready. stop() ends them and takes the queue away. */
export async function launch(kind, redis, { concurrency = 10, env = {}, replicas = 1 } = {}) {
  const name = `bench-${kind}-${++count}`;
  const queue = new Queue(name, { connection: { ...redis.connection, connectionName: producer } });
  queue.on('error', () => {});
  const processes = Array.from({ length: replicas }, () => startKind(kind, redis, name, concurrency, env));
  const self = { kind, name, queue, P: `bull:${name}:`, processes, pid: processes[0].pid, client: redis.client() };
  launched.add(self);
  await waitFor(async () => {
    const dead = processes.find((one) => one.exit);
    if (dead) throw new Error(`${kind} ended: ${dead.tail()}`);
    return (await queue.getWorkers()).length >= replicas;
  }, { what: `${name} has ${replicas} workers`, timeout: 60_000 });
  /** One more worker on the same queue. */
  self.add = ({ concurrency: own, env: more }) => processes.push(startKind(kind, redis, name, own, more));
  self.stop = async ({ graceMs = 10_000 } = {}) => {
    launched.delete(self);
    await Promise.all(processes.map((one) => one.stop(graceMs)));
    await queue.close();
    const keys = await self.client.keys(`${self.P}*`);
    for (let i = 0; i < keys.length; i += 10_000) await self.client.unlink(...keys.slice(i, i + 10_000));
    self.client.disconnect();
  };
  return self;
}

/** Ends the workers that a section which failed has left. */
export function killLaunched() {
  for (const { processes } of launched) for (const one of processes) one.kill('SIGKILL');
  launched.clear();
}

/** A job that does nothing: no thread, no reply, no mark. */
export const bare = { idempotent: true, reply: false };
/** The same data for each job, or what data(i) gives. */
const job = (data, i) => ({ name: 'execute', data: { code: '', ...(typeof data === 'function' ? data(i) : data) }, opts: { removeOnComplete: true } });

/** data(i) with one of `threads` thread ids, in an order that is random and always the same. */
export function inThreads(threads, data = {}) {
  let state = 1;
  return () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return { ...data, threadId: `t${(state >>> 8) % threads}` };
  };
}

export async function addJobs(queue, jobs, data) {
  for (let i = 0; i < jobs; i += 1000) {
    await queue.addBulk(Array.from({ length: Math.min(1000, jobs - i) }, (_, k) => job(data, i + k)));
  }
}

/** How many jobs are in each list of a queue. */
export async function sizes({ client, P }) {
  const answers = await client.pipeline().llen(`${P}wait`).llen(`${P}active`).zcard(`${P}delayed`).zcard(`${P}prioritized`).exec();
  const [wait, active, delayed, prioritized] = answers.map(([, n]) => n);
  return { wait, active, delayed, prioritized, all: wait + active + delayed + prioritized };
}

/**
 * Adds jobs while the queue is paused, resumes it, and waits until no more jobs are there than before. The result: `rate`
 * (1/s), and for a job `cpu` (µs, all replicas), `script` and `redisCpu` (µs); `redisShare` is Redis's CPU over the time.
 */
export async function drain(w, jobs, data = bare) {
  const rest = (await sizes(w)).all;
  await w.queue.pause();
  await addJobs(w.queue, jobs, data);
  const workers = () => w.processes.reduce((sum, one) => sum + cpu(one.pid), 0);
  const before = { worker: workers(), ...await redisCounters(w.client) };
  const begun = performance.now();
  await w.queue.resume();
  const deadline = begun + 300_000;
  while ((await sizes(w)).all > rest) {
    if (performance.now() > deadline) throw new Error(`${w.name}: jobs do not end: ${JSON.stringify(await sizes(w))}`);
    await sleep(4);
  }
  const seconds = (performance.now() - begun) / 1000;
  const used = difference({ worker: workers(), ...await redisCounters(w.client) }, before);
  if (await w.queue.getFailedCount()) throw new Error(`${w.name}: ${(await w.queue.getFailed(0, 0))[0].failedReason}`);
  return {
    rate: jobs / seconds, cpu: used.worker * 1e6 / jobs, script: used.script / jobs, redisCpu: used.cpu / jobs,
    redisShare: used.cpu / 1e4 / seconds,
  };
}

/** Runs each [name, function] in turns, `rounds` times; gives {name: median of each number that it gives}. */
export async function inTurns(rounds, competitors) {
  const results = Object.fromEntries(Object.keys(competitors).map((name) => [name, []]));
  for (let i = 0; i < rounds; i++) {
    for (const [name, run] of Object.entries(competitors)) results[name].push(await run());
  }
  return results;
}
