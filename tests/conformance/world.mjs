// One side of a comparison: an empty Redis database, clients of one producer version, and workers of one kind.
import * as bullmq6 from 'bullmq';
import { sleep, waitFor } from '../lib/process.mjs';
import { clients, slow, startWorker } from '../lib/rig.mjs';
import { script } from '../lib/scripted.mjs';
import { processor } from './processor.mjs';

const prefixOf = (options) => options.prefix ?? 'bull';
let lastDb = 0;

/** kind: 'stock' (Node Worker 6.7.0) or 'ours' (Sandpiper, driver SCRIPTED). Workers take BullMQ's worker options. */
export class World {
  constructor(server, kind, version, { threads = false, queue = 'work', prefix } = {}) {
    this.db = ++lastDb;
    this.kind = kind;
    this.version = version;
    this.threads = threads;
    this.queueName = queue;
    this.prefix = prefix;
    this.connection = { ...server.connection, db: this.db };
    this.url = `${server.url}/${this.db}`;
    this.redis = server.client({ db: this.db });
    this.notes = [];
    this.queues = new Map();
    this.workers = [];
    this.closing = [];
  }

  /** The client library of a version; by default that of this world's producer. */
  api(version = this.version) {
    return clients[version];
  }

  queue(name = this.queueName, version = this.version) {
    const key = `${version}|${name}`;
    if (!this.queues.has(key)) {
      const queue = new (this.api(version).Queue)(name, { connection: this.connection, prefix: this.prefix });
      queue.on('error', () => {});
      this.queues.set(key, queue);
    }
    return this.queues.get(key);
  }

  get flow() {
    if (!this.producer) {
      this.producer = new (this.api().FlowProducer)({ connection: this.connection, prefix: this.prefix });
      this.producer.on('error', () => {});
    }
    return this.producer;
  }

  /** The data of a job that does these steps. */
  data(steps = [{ stdout: 'x' }], more = {}) {
    return { v: 1, code: script(...steps), ...(this.threads ? { threadId: 't', workspaceId: 'w' } : {}), ...more };
  }

  add(opts = {}, steps, more) {
    return this.queue().add('execute', this.data(steps, more), opts);
  }

  /** A node of a flow. */
  node(queueName, steps, opts = {}, children) {
    return { name: 'execute', queueName, data: this.data(steps), opts, ...(children ? { children } : {}) };
  }

  /** Starts a worker. options: BullMQ's; jobLog, jobProgress: our settings of that name. */
  async work(options = {}, name = this.queueName) {
    const full = { concurrency: 1, name: 'w', ...options };
    const worker = this.kind === 'stock' ? await this.#stock(full, name) : await this.#ours(full, name);
    this.workers.push(worker);
    return worker;
  }

  async #stock({ jobLog, jobProgress, ...options }, name) {
    const worker = new bullmq6.Worker(name, processor({ jobLog, jobProgress, redis: this.redis }),
      { connection: this.connection, prefix: this.prefix, ...options });
    worker.on('error', () => {});
    await worker.waitUntilReady();
    return { stop: () => worker.close() };
  }

  async #ours(options, name) {
    const json = (v) => (v === undefined ? undefined : JSON.stringify(v));
    const worker = startWorker(Object.fromEntries(Object.entries({
      REDIS_URL: this.url,
      QUEUE_NAME: name,
      QUEUE_PREFIX: prefixOf(this),
      WORKER_NAME: options.name,
      WORKER_CONCURRENCY: String(options.concurrency),
      LOCK_DURATION_MS: String(options.lockDuration ?? 30_000),
      LOCK_RENEW_MS: String(Math.floor((options.lockDuration ?? 30_000) / 3)),
      STALLED_INTERVAL_MS: String(options.stalledInterval ?? 30_000),
      MAX_STALLED_COUNT: json(options.maxStalledCount),
      MAX_STARTED_ATTEMPTS: json(options.maxStartedAttempts),
      LIMITER_MAX: json(options.limiter?.max),
      LIMITER_DURATION_MS: json(options.limiter?.duration),
      METRICS_MAX_DATA_POINTS: json(options.metrics?.maxDataPoints),
      REMOVE_ON_COMPLETE: json(options.removeOnComplete),
      REMOVE_ON_FAIL: json(options.removeOnFail),
      JOB_LOG: json(options.jobLog),
      JOB_PROGRESS: json(options.jobProgress),
    }).filter(([, v]) => v !== undefined)));
    await worker.waitLine(/redis \(marker\): greeting -> ready/, { timeout: 15_000 * slow });
    return { stop: () => worker.done(), log: worker };
  }

  /** A worker of nobody claims the next job and dies: its lock expires. */
  async claimAndDie(lockDuration = 300) {
    const worker = new bullmq6.Worker(this.queueName, null,
      { connection: this.connection, prefix: this.prefix, name: 'dead', lockDuration, autorun: false });
    worker.on('error', () => {});
    const job = await worker.getNextJob('dead-token', { block: false });
    await worker.close(true);
    if (!job) throw new Error('there was no job to claim');
    await waitFor(() => this.redis.exists(`${prefixOf(this)}:${this.queueName}:${job.id}:lock`).then((n) => n === 0),
      { what: 'the lock of the dead worker expired' });
    return job;
  }

  /** Remembers a value that both sides must have alike. */
  note(name, value) {
    this.notes.push([name, value === undefined ? null : JSON.parse(JSON.stringify(value))]);
  }

  /** The same of a promise that may fail: its value or its error's text. */
  async noteOf(name, promise) {
    try {
      this.note(name, await promise);
    } catch (error) {
      this.note(name, `error: ${error.message}`);
    }
  }

  /** Until every job has ended, but for those said to stay. */
  async idle({ delayed = 0, waitingChildren = 0, wait = 0, timeout = 20_000, queues = [this.queueName] } = {}) {
    const want = { delayed, waitingChildren, wait };
    let last;
    const still = async () => {
      const count = { delayed: 0, waitingChildren: 0, wait: 0, active: 0 };
      for (const name of queues) {
        const P = `${prefixOf(this)}:${name}:`;
        const n = await Promise.all([this.redis.zcard(`${P}delayed`), this.redis.zcard(`${P}waiting-children`),
          this.redis.llen(`${P}wait`), this.redis.llen(`${P}paused`), this.redis.zcard(`${P}prioritized`), this.redis.llen(`${P}active`)]);
        count.delayed += n[0];
        count.waitingChildren += n[1];
        count.wait += n[2] + n[3] + n[4];
        count.active += n[5];
      }
      last = count;
      return count.active === 0 && Object.entries(want).every(([k, v]) => v === count[k]);
    };
    try {
      await waitFor(async () => (await still()) && (await sleep(80), await still()), { timeout: timeout * slow, what: 'idle' });
    } catch {
      throw new Error(`${this.kind}: not idle, but ${JSON.stringify(last)}`);
    }
  }

  async state(id, state, name = this.queueName) {
    await waitFor(async () => (await this.queue(name).getJobState(id)) === state,
      { timeout: 15_000 * slow, what: `${this.kind}: job ${id} ${state}` });
  }

  async close() {
    const all = [...this.workers.map((w) => w.stop()), ...[...this.queues.values()].map((q) => q.close()), this.producer?.close()];
    const failed = (await Promise.allSettled(all)).find((r) => r.status === 'rejected');
    await this.redis.flushdb();
    this.redis.disconnect();
    if (failed) throw failed.reason;
  }
}
