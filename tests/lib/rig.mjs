// A queue of its own with workers on it: what nearly every integration test needs.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as bullmq6 from 'bullmq';
import * as bullmq5 from 'bullmq-5';
import * as bullmq540 from 'bullmq-540';
import { checkResult } from './contract.mjs';
import { atEnd, isAlive, start, within } from './process.mjs';
import { follow, gather, readStream } from './reader.mjs';
import { script } from './scripted.mjs';
import { everywhere } from './tls.mjs';

export const clients = { '6.7.0': bullmq6, '5.81.5': bullmq5, '5.40.0': bullmq540 };

const root = fileURLToPath(new URL('../..', import.meta.url));
const chosen = process.env.WORKER_BIN ?? 'build/test/sandpiper';
export const workerBin = isAbsolute(chosen) ? chosen : resolve(root, chosen);
/** Deadlines are stretched by this under sanitizers and valgrind. */
export const slow = Number(process.env.TEST_SLOW ?? (/\/san[^/]*\/sandpiper$/.test(chosen) ? 3 : 1));
if (!existsSync(workerBin)) throw new Error(`no worker at ${workerBin}: build it with make TEST_BUILD=1`);

/** Short settings, so that what needs a lock to expire is seen within seconds. */
export const shortLocks = {
  LOCK_DURATION_MS: String(2000 * slow),
  LOCK_RENEW_MS: String(600 * slow),
  STALLED_INTERVAL_MS: String(800 * slow),
};

const passed = ['PATH', 'HOME', 'LANG', 'TMPDIR', 'ASAN_OPTIONS', 'UBSAN_OPTIONS', 'LSAN_OPTIONS', 'ASAN_SYMBOLIZER_PATH'];

/** The environment of a worker: nothing but what a shell has, and what a test sets. */
export function workerEnv(env) {
  const base = Object.fromEntries(passed.filter((k) => process.env[k]).map((k) => [k, process.env[k]]));
  return {
    ASAN_OPTIONS: 'detect_leaks=1:abort_on_error=0:exitcode=99',
    UBSAN_OPTIONS: 'print_stacktrace=1:halt_on_error=1',
    ...base,
    CODE_INTERPRETER_TYPE: 'SCRIPTED',
    LOG_FORMAT: 'json',
    LOG_LEVEL: 'debug',
    DRAIN_TIMEOUT_MS: '2000',
    WORKER_CONCURRENCY: '32',
    STATUS_PORT: '0', // replicas of one machine would want the same; a test that looks at it says -1
    ...everywhere?.env,
    ...env,
  };
}

const workers = new Set();

/** A sanitizer's report where there is one, else the last lines of the log. */
function lastWords(worker) {
  const report = worker.lines.findIndex((line) => /ERROR: (Address|Leak)Sanitizer|runtime error:/.test(line));
  return (report < 0 ? worker.lines.slice(-40) : worker.lines.slice(report, report + 40)).join('\n');
}

/** Starts a worker process; `done(wanted)` stops it by SIGTERM and checks its exit code. */
export function startWorker(env) {
  const prefix = process.env.WORKER_WRAPPER?.split(' ') ?? []; // e.g. valgrind
  const [program, ...args] = [...prefix, workerBin];
  const worker = start(program, args, { env: workerEnv(env) });
  workers.add(worker);
  worker.done = async ({ code = 0, graceMs = 60_000 * slow } = {}) => {
    if (!workers.delete(worker)) return worker.exit;
    const wasAlive = worker.exit === null;
    worker.ending = true;
    const exit = await worker.stop(graceMs);
    assert.ok(wasAlive, `worker ${worker.pid} ended by itself (${JSON.stringify(exit)}):\n${lastWords(worker)}`);
    assert.equal(exit.code, code, `worker's exit ${JSON.stringify(exit)}:\n${lastWords(worker)}`);
    return exit;
  };
  worker.kill9 = async () => {
    workers.delete(worker);
    worker.ending = true;
    worker.kill('SIGKILL');
    await worker.exited;
    assert.ok(!isAlive(worker.pid));
  };
  return worker;
}

atEnd(async () => {
  for (const worker of workers) await worker.stop(15_000 * slow);
});

let count = 0;

/**
 * A rig for test `t`: queue, QueueEvents, `workers` replicas with `env`. When the test ends the workers are
 * stopped (exit code 0) and every reply left in Redis and every key's expiry are checked.
 */
export async function makeRig(t, redis, { env = {}, replicas = 1, version = '6.7.0', name, events = true,
  checks = true, url = redis.url, prefix = 'bull', maxEvents = 10_000 } = {}) {
  const { Queue, QueueEvents } = clients[version];
  const self = { name: name ?? `q${process.pid}-${++count}`, workers: [], version, prefix };
  self.P = `${prefix}:${self.name}:`;
  self.redis = redis.client();
  self.queue = new Queue(self.name, { connection: redis.connection, prefix, streams: { events: { maxLen: maxEvents } } });
  self.queue.on('error', () => {});
  if (events) {
    self.events = new QueueEvents(self.name, { connection: redis.connection, prefix, lastEventId: '0-0' });
    self.events.on('error', () => {});
    self.events.setMaxListeners(0);
    await self.events.waitUntilReady();
  }
  self.startWorker = (more = {}) => {
    const worker = startWorker({ REDIS_URL: url, QUEUE_NAME: self.name, QUEUE_PREFIX: prefix, ...env, ...more });
    self.workers.push(worker);
    worker.exited.then((exit) => {
      if (worker.ending || !self.workers.includes(worker)) return;
      self.crashed = new Error(`worker ${worker.pid} ended by itself (${JSON.stringify(exit)}):\n${lastWords(worker)}`);
      for (const reject of self.waiters) reject(self.crashed);
    });
    return worker;
  };
  self.waiters = new Set();
  /** The promise, or the crash of a worker, whichever comes first: no test waits for a worker that is gone. */
  self.unlessCrashed = async (promise) => {
    let reject;
    const crash = new Promise((_, no) => {
      reject = no;
      self.waiters.add(reject);
      if (self.crashed) no(self.crashed);
    });
    crash.catch(() => {});
    try {
      return await Promise.race([promise, crash]);
    } finally {
      self.waiters.delete(reject);
    }
  };
  for (let i = 0; i < replicas; i++) self.startWorker();
  self.worker = self.workers[0];
  addVerbs(self);
  t.after(async () => {
    try {
      for (const worker of self.workers) await worker.done();
      if (checks) await within(60_000, checkLeftovers(self), 'a look at what is left in Redis');
    } finally {
      await closeClients(self);
    }
  });
  return self;
}

/** Also when a test has failed and left Redis dead: then closing them would wait for ever. */
async function closeClients(self) {
  const clients = [self.queue, self.events].filter(Boolean);
  try {
    await within(30_000, Promise.allSettled(clients.map((one) => one.close())), 'clients closed');
  } finally {
    for (const one of clients) one.disconnect().catch(() => {});
    self.redis.disconnect();
  }
}

function addVerbs(self) {
  const key = (id) => `${self.P}reply:${id}`;
  /** Adds an `execute` job: steps for the SCRIPTED driver (array), or code (string); more data and options. */
  self.add = (steps, data = {}, opts = {}) => self.queue.add('execute', {
    v: 1, code: Array.isArray(steps) ? script(...steps) : steps, ...data,
  }, opts);
  /** waitUntilFinished: the result (checked against the contract), or throws BullMQ's Error(failedReason). */
  self.result = async (job, ms = 60_000) => {
    return checkResult(await self.unlessCrashed(job.waitUntilFinished(self.events, ms * slow)));
  };
  /** The failedReason of a job that must fail. */
  self.failure = async (job, ms = 60_000) => {
    let value;
    try {
      value = await self.unlessCrashed(job.waitUntilFinished(self.events, ms * slow));
    } catch (error) {
      if (error === self.crashed) throw error;
      assert.doesNotMatch(error.message, /timed out before finishing/, `job ${job.id} did not end`);
      return error.message;
    }
    throw new assert.AssertionError({ message: `job ${job.id} completed: ${JSON.stringify(value).slice(0, 500)}` });
  };
  self.run = async (steps, data, opts) => self.result(await self.add(steps, data, opts));
  /** The whole reply of a job that has ended or will. */
  self.reply = async (job, ms = 60_000) => {
    await self.unlessCrashed(follow(self.redis, key(job.id ?? job), { timeout: ms * slow }));
    return readStream(self.redis, key(job.id ?? job));
  };
  self.replyNow = (job) => readStream(self.redis, key(job.id ?? job), { whole: false });
  self.gathered = async (job, ms) => gather(await self.reply(job, ms));
  self.follow = (job, options = {}) =>
    self.unlessCrashed(follow(self.redis, key(job.id ?? job), { ...options, timeout: (options.timeout ?? 60_000) * slow }));
  self.state = async (job) => self.queue.getJobState(job.id ?? job);
  self.hash = async (job) => self.redis.hgetall(self.P + (job.id ?? job));
  /** The queue's events as [{event, ...fields}], oldest first. */
  self.eventLog = async (jobId) => (await self.redis.xrange(`${self.P}events`, '-', '+'))
    .map(([, f]) => Object.fromEntries(f.flatMap((v, i) => (i % 2 ? [] : [[v, f[i + 1]]]))))
    .filter((e) => jobId === undefined || e.jobId === String(jobId));
}

const expiring = /^(reply|file|lease|parked|thread|replica|secret):/;

/** What must hold of a queue at rest: replies well-formed, nothing of ours kept for ever. */
async function checkLeftovers(self) {
  for (const key of await self.redis.keys(`${self.P}*`)) {
    const suffix = key.slice(self.P.length);
    if (/^reply:/.test(suffix)) await readStream(self.redis, key, { whole: false });
    if (expiring.test(suffix) && (await self.redis.type(key)) !== 'none') {
      assert.notEqual(await self.redis.pttl(key), -1, `${key} never expires`);
    }
  }
}
