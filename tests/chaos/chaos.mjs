// One run: a world of Redis, replicas, sandboxes and producers, faults dealt to it, and what the checker finds.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { startE2b } from '../lib/e2b.mjs';
import { sleep, tempDir, waitFor } from '../lib/process.mjs';
import { invariants, longestWait, reasonOf } from './checker.mjs';
import { startCounter } from './counter.mjs';
import { gatherFacts } from './facts.mjs';
import { dealFaults } from './faults.mjs';
import { emulatedJob, kernelJob, produce, scriptedJob } from './load.mjs';
import { randomOf } from './random.mjs';
import { makePlace } from './replicas.mjs';
import { startServer } from './server.mjs';

const settleMs = 120_000; // without any job ending: something is stuck

async function makeQueues(world, { jobs, threads, replicas, emulated, kernels, local }) {
  const dir = tempDir('sandpiper-chaos-');
  const queue = (name, more) => ({ name, P: `bull:${name}:`, jobs: new Map(), heard: new Map(), cancelled: new Set(), refusals: new Map(), clockMs: 0, env: {}, ...more });
  const journal = join(dir, 'journal');
  const queues = [queue('mass', { plan: { count: jobs, threads }, replicas, make: scriptedJob, journal, cancels: true,
    env: { CODE_INTERPRETER_TYPE: 'SCRIPTED', SCRIPTED_JOURNAL: journal } })];
  for (const [name, plan, settings, make] of [['emulated', emulated, { scripted: true }, emulatedJob], ['kernels', kernels, { warm: 1 }, kernelJob]]) {
    if (!plan) continue;
    const e2b = await startE2b({ settings });
    queues.push(queue(name, { plan, replicas: plan.replicas, make, e2b, clockMs: 10, threadless: 0.1,
      env: { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env, E2B_STALL_TIMEOUT_MS: '5000' } }));
  }
  if (local) {
    const counter = await startCounter();
    const make = (r, id) => ({ ...emulatedJob(r, id), code: counter.code(id, r.int(5, 500)), text: `${id}\n` });
    queues.push(queue('local', { plan: local, replicas: local.replicas, make, counter, clockMs: 10,
      env: { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', CODE_INTERPRETER_LOCAL_DIR: dir, WORKER_CONCURRENCY: '4' } }));
  }
  world.queues = queues;
  world.marks.push(dir);
}

/** Counts the `done` that are published; what is published while we are away is not heard, so it is a lower bound. */
async function listen(world) {
  const redis = world.server.client();
  // The checker reads all events. Queues say so too, but a fault may take what they say.
  for (const { P } of world.queues) await redis.hset(`${P}meta`, 'opts.maxLenEvents', 10_000_000);
  await redis.psubscribe('bull:*:reply:*');
  const queues = new Map(world.queues.map((queue) => [queue.name, queue]));
  redis.on('pmessage', (_, channel, text) => {
    if (!text.includes('"type":"done"')) return;
    const [, name, , id] = channel.split(':');
    queues.get(name).heard.set(id, (queues.get(name).heard.get(id) ?? 0) + 1);
  });
}

const lines = ['wait', 'active', 'paused'], sets = ['delayed', 'prioritized', 'waiting-children'];
async function leftOf(redis, queue) {
  const pipeline = redis.pipeline();
  for (const name of lines) pipeline.llen(queue.P + name);
  for (const name of sets) pipeline.zcard(queue.P + name);
  pipeline.xlen(`${queue.P}stream:jobs`);
  return (await pipeline.exec()).map(([, n]) => n);
}

/** Waits until nothing is left to do; the names of the queues where no job has ended for settleMs. */
async function settle(world) {
  const redis = world.server.client();
  const stuck = [];
  for (const queue of world.queues) {
    for (let last = '', since = Date.now();;) {
      const left = await leftOf(redis, queue);
      if (left.every((n) => n === 0)) break;
      const ended = (await redis.zcard(`${queue.P}completed`)) + (await redis.zcard(`${queue.P}failed`)) + (await redis.xlen(`${queue.P}events`));
      if (`${left} ${ended}` !== last) [last, since] = [`${left} ${ended}`, Date.now()];
      if (Date.now() - since > settleMs) {
        const ids = [...await redis.lrange(`${queue.P}active`, 0, 9), ...await redis.lrange(`${queue.P}wait`, 0, 9), ...await redis.zrange(`${queue.P}delayed`, 0, 9)];
        stuck.push(`${queue.name}: ${[...lines, ...sets, 'stream'].map((name, i) => `${name} ${left[i]}`).join(', ')}; ${ids}`);
        break;
      }
      await sleep(100);
    }
  }
  redis.disconnect();
  return stuck;
}

const kept = /^(stream:(jobs|dead|control)|settings:runtime|e2b:deployment)$/;
const ours = /^(reply|file|lease|parked|thread|replica|secret|index|turn|stats|cancelled):/;

/** Keys of ours that would stay for ever, before and after the queue is obliterated. */
async function leftKeys(world, queue) {
  const redis = world.server.client();
  const wrong = [];
  const forever = async (when, all) => {
    const keys = (await redis.keys(`${queue.P}*`)).map((key) => key.slice(queue.P.length)).filter((key) => !kept.test(key) && (all || ours.test(key)));
    for (let i = 0; i < keys.length; i += 1000) {
      const pipeline = redis.pipeline();
      for (const key of keys.slice(i, i + 1000)) pipeline.pttl(queue.P + key);
      (await pipeline.exec()).forEach(([, ttl], j) => ttl === -1 && wrong.push(`${queue.name}: ${keys[i + j]} has no TTL ${when}`));
    }
  };
  await forever('at rest', false);
  const { Queue } = await import('bullmq');
  const client = new Queue(queue.name, { connection: world.server.current.connection });
  await client.obliterate({ force: true, count: 100_000 });
  await client.close();
  await forever('after obliterate', true);
  redis.disconnect();
  return wrong;
}

/** Each live thread has one sandbox, and there is no other: a last job of each thread says which it is in. */
async function checkSandboxes(world, queue) {
  const wrong = [];
  const threads = new Set([...queue.jobs.values()].map((job) => job.thread).filter(Boolean));
  const orphans = (box) => box.metadata?.twentySessionId === undefined; // of runs without a thread whose worker was killed: they expire
  const boxes = (await queue.e2b.sandboxes()).filter((box) => !orphans(box) && box.state !== 'killing');
  const owners = new Map();
  for (const box of boxes) owners.set(box.metadata.twentySessionId, [...(owners.get(box.metadata.twentySessionId) ?? []), box.id]);
  for (const [thread, ids] of owners) {
    if (ids.length > 1) wrong.push(`${queue.name}: thread ${thread} has ${ids.length} sandboxes: ${ids}`);
    if (!threads.has(thread.slice(1))) wrong.push(`${queue.name}: nobody's sandbox: ${thread} ${ids}`);
  }
  for (const thread of threads) if (!owners.has(`:${thread}`)) wrong.push(`${queue.name}: thread ${thread} has no sandbox`);
  return wrong;
}

/** One more job a thread when all is quiet: it must run, and brings back what a fault took. */
async function lastRound(world, queue) {
  const { Queue } = await import('bullmq');
  const client = new Queue(queue.name, { connection: world.server.current.connection, streams: { events: { maxLen: 10_000_000 } } });
  const r = world.random(`last of ${queue.name}`);
  const threads = new Set([...queue.jobs.values()].map((job) => job.thread).filter(Boolean));
  for (const thread of threads) {
    const id = `${queue.name}-last-${thread}`;
    const job = { id, ...queue.make(r, id), thread, ordered: true, accepted: true, door: client, last: true };
    queue.jobs.set(id, job);
    await client.add('execute', { v: 1, code: job.code, threadId: thread, ...job.data }, { ...job.opts, jobId: id });
  }
  await client.close();
}

/** Processes that hold one of the marks in their command line, besides us. */
function processesWith(marks) {
  return readdirSync('/proc').filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid).flatMap((pid) => {
    try {
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
      return marks.some((mark) => command.includes(mark)) ? [`${pid} ${command}`] : [];
    } catch {
      return [];
    }
  });
}

/**
 * Runs it all. The result: {seed, findings: {invariant: [what broke it]}, counts: {jobs, ends, faults, runs, waits}}.
 * seconds: of faults; everyMs: between two of them on the average.
 */
export async function chaos({ seed, jobs, threads, replicas, seconds, everyMs, lockMs = 2000, emulated, kernels, local, verbose = false }) {
  const world = { server: await startServer(), lockMs, random: (name) => randomOf(seed, name), places: [], workers: [], deaths: new Map(),
    broken: [], faults: new Map(), producerRelays: [], marks: [], dealt: 0,
    log: (text) => verbose && console.log(`${new Date().toISOString().slice(11, 23)} ${text}`) };
  world.workerEnv = { LOCK_DURATION_MS: String(lockMs), LOCK_RENEW_MS: String(Math.round(lockMs * 0.3)), STALLED_INTERVAL_MS: String(Math.round(lockMs * 0.4)),
    DRAIN_TIMEOUT_MS: '1500', DRAIN_DELAY_MS: '1000', WORKER_CONCURRENCY: '40' };
  await makeQueues(world, { jobs, threads, replicas, emulated, kernels, local });
  await listen(world);
  for (const queue of world.queues) {
    queue.places = [];
    for (let i = 0; i < queue.replicas; i++) queue.places.push(await makePlace(world, queue, i));
    world.places.push(...queue.places);
  }
  const begun = Date.now();
  const until = begun + seconds * 1000;
  const load = Promise.all(world.queues.map((queue) => produce(world, queue, { ...queue.plan, ms: seconds * 950 })));
  await dealFaults(world, { until, everyMs });
  world.log('faults are over');
  for (const queue of world.queues) if (queue.e2b) await queue.e2b.clearFaults();
  await load;
  world.log('all is added');
  const stuck = await settle(world);
  for (const queue of world.queues) await lastRound(world, queue);
  stuck.push(...(await settle(world)));
  world.log('all is quiet');
  return judge(world, seed, { stuck, tookMs: Date.now() - begun });
}

const atRest = {
  stuck: 'nothing is stuck once the faults stop',
  sandboxes: 'sandboxes left are those of live threads',
  keys: 'no key without TTL, none left after obliterate',
  processes: 'no worker ends by itself, and no process is left',
};
export const allInvariants = [...Object.keys(invariants), ...Object.values(atRest)];

async function judge(world, seed, { stuck, tookMs }) {
  const findings = Object.fromEntries(Object.keys(invariants).map((name) => [name, []]));
  const counts = { jobs: 0, unknown: 0, runs: 0, ends: {}, faults: Object.fromEntries([...world.faults].sort()), waits: {}, refusals: {}, seconds: Math.round(tookMs / 1000) };
  findings[atRest.stuck] = stuck;
  const sandboxes = findings[atRest.sandboxes] = [];
  for (const queue of world.queues) {
    const known = await gatherFacts(world, queue);
    for (const [name, check] of Object.entries(invariants)) findings[name].push(...check({ ...known, queue }).map((text) => `${queue.name}: ${text}`));
    for (const fact of known.facts.values()) {
      if (fact.ends.length) counts.jobs++;
      else if (!fact.job.accepted) counts.unknown++;
      counts.runs += fact.runs.length;
      const reason = fact.ends.length ? reasonOf(fact) : 'never there';
      counts.ends[reason] = (counts.ends[reason] ?? 0) + 1;
    }
    for (const [why, n] of queue.refusals) counts.refusals[why] = (counts.refusals[why] ?? 0) + n;
    counts.waits[queue.name] = longestWait(known);
    if (queue.e2b) sandboxes.push(...(await checkSandboxes(world, queue)));
  }
  await Promise.all(world.places.map((place) => place.drain()));
  const keys = findings[atRest.keys] = [];
  for (const queue of world.queues) keys.push(...(await leftKeys(world, queue)));
  const alive = () => [...world.workers.filter(({ worker }) => worker.exit === null).map(({ name }) => name), ...processesWith(world.marks)];
  await waitFor(() => alive().length === 0, { timeout: 30_000, interval: 200, what: 'no process is left' }).catch(() => {});
  findings[atRest.processes] = [...world.broken, ...alive().map((text) => `left: ${text}`)];
  return { seed, findings, counts, logsOf: (id) => world.workers.flatMap(({ name, worker }) => worker.lines.filter((line) => line.includes(`"${id}"`)).map((line) => `${name} ${line}`)) };
}

/** The counts as text. */
export function describe({ seed, counts, findings }) {
  const list = (table) => Object.entries(table).sort((a, b) => b[1] - a[1]).map(([name, n]) => `${n} ${name}`).join(', ');
  const faults = Object.values(counts.faults).reduce((a, b) => a + b, 0);
  const broken = Object.values(findings).flat().length;
  return [`seed ${seed}: ${counts.jobs} jobs ended in ${counts.seconds} s, ${counts.runs} runs of code, ${counts.unknown} adds never arrived`,
    `adds without an answer that says they are in: ${list(counts.refusals)}`, `ends: ${list(counts.ends)}`, `${faults} faults: ${list(counts.faults)}`,
    `longest wait of a thread: ${Object.entries(counts.waits).map(([name, { ms, thread }]) => `${name} ${(ms / 1000).toFixed(1)} s (${thread})`).join(', ')}`,
    broken ? `${broken} findings` : 'no invariant was broken'].join('\n');
}
