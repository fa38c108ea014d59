// The same jobs by our worker and by a stock BullMQ 6.7.0 Worker: the same hash fields, sets and events are left.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Worker } from 'bullmq';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig } from '../lib/rig.mjs';
import { fail, raise, say, script } from '../lib/scripted.mjs';

const redis = await startRedis();
// Keys that only our worker makes, by name.
const ours = /^(reply|file|lease|parked|thread|replica|secret):|^index:(parked|replicas)$|^stream:(jobs|dead|control)$|^stats:queue$|^settings:runtime$/;
const transient = /^(marker|stalled|stalled-check)$|:lock$/; // wake-up tokens and passes, not a job's state

const job = (steps, opts = {}, data = {}) => ({ name: 'execute', data: { code: script(...steps), ...data }, opts });
const ok = [say('x')];
// Each scenario's jobs run one after the other.
const scenarios = {
  plain: [job(ok)],
  'custom id': [job(ok, { jobId: 'custom' })],
  'with a thread': [job(ok, {}, { threadId: 't', workspaceId: 'w' }), job(ok, {}, { threadId: 't', workspaceId: 'w' })],
  priority: [job(ok, { priority: 4 })],
  lifo: [job(ok, { lifo: true })],
  delayed: [job(ok, { delay: 120 })],
  'removed on completion': [job(ok, { removeOnComplete: true })],
  'kept by count': [job(ok, { removeOnComplete: 1 }), job(ok, { removeOnComplete: 1 }), job(ok, { removeOnComplete: 1 })],
  'kept by age and count': [job(ok, { removeOnComplete: { age: 100, count: 2 } }), job(ok), job(ok, { removeOnComplete: { age: 100, count: 2 } })],
  'an exception': [job([raise()])],
  failed: [job([fail('driver_error')])],
  'removed on failure': [job([fail('driver_error')], { removeOnFail: true })],
  'failed after three attempts': [job([fail('no_sandbox')], { attempts: 3 })],
  'failed after backoff': [job([fail('no_sandbox')], { attempts: 2, backoff: { type: 'fixed', delay: 60 } })],
  'good after backoff': [job([fail('no_sandbox', 2), ...ok], { attempts: 3, backoff: { type: 'exponential', delay: 40 } })],
  'good after an immediate retry': [job([fail('no_sandbox', 1), ...ok], { attempts: 2 })],
  'a retry with priority': [job([fail('no_sandbox', 1), ...ok], { attempts: 2, priority: 7 })],
  'a retry with lifo': [job([fail('no_sandbox', 1), ...ok], { attempts: 2, lifo: true })],
  'bad data': [job(ok, { attempts: 4 }, { timeoutMs: -1 })],
  'no traces kept': [job([fail('no_sandbox')], { attempts: 3, stackTraceLimit: 1 })],
  deduplicated: [job(ok, { deduplication: { id: 'd' } })],
  'deduplicated, failed': [job([fail('no_sandbox')], { deduplication: { id: 'd' } })],
  'deduplicated with time': [job(ok, { deduplication: { id: 'd', ttl: 60_000 } })],
  'a scheduler\'s iteration is left to its own issue': [],
};

/** Everything under the queue's prefix that is a job's or a set's, times and tokens replaced. */
async function snapshot(client, P) {
  const state = {};
  for (const key of (await client.keys(`${P}*`)).sort()) {
    const suffix = key.slice(P.length);
    if (ours.test(suffix) || transient.test(suffix)) continue;
    const type = await client.type(key);
    state[suffix] = await readers[type](client, key, suffix);
  }
  return state;
}

const readers = {
  async hash(client, key, suffix) {
    const fields = await client.hgetall(key);
    for (const name of Object.keys(fields)) {
      if (name.startsWith('sp:') || name === 'pb') delete fields[name];
      else if (/^(timestamp|processedOn|finishedOn)$/.test(name)) fields[name] = /^\d{13}$/.test(fields[name]) ? '<ms>' : fields[name];
    }
    if (fields.opts) fields.opts = JSON.parse(fields.opts);
    if (fields.returnvalue) fields.returnvalue = JSON.parse(fields.returnvalue);
    if (fields.stacktrace) fields.stacktrace = JSON.parse(fields.stacktrace).map((s) => typeof s);
    if (suffix === 'meta') delete fields.version;
    return fields;
  },
  async string(client, key) {
    return { value: await client.get(key), expires: (await client.pttl(key)) > 0 };
  },
  list: (client, key) => client.lrange(key, 0, -1),
  set: async (client, key) => (await client.smembers(key)).sort(),
  zset: async (client, key, suffix) => {
    const flat = await client.zrange(key, 0, -1, 'WITHSCORES');
    return flat.map((v, i) => (i % 2 && /^(completed|failed)$/.test(suffix) ? /^\d{13}$/.test(v) : v));
  },
  async stream(client, key) {
    const entries = await client.xrange(key, '-', '+');
    return entries.map(([, f]) => f.map((v, i) => {
      const name = f[i - 1];
      if (i % 2 === 0) return v;
      if (name === 'delay') return /^\d{13}$/.test(v) ? '<ms>' : v;
      return name === 'returnvalue' ? JSON.parse(v) : v;
    }));
  },
};

/** Adds a scenario's jobs one by one; each ends before the next is added. */
async function play(queue, jobs) {
  const added = [];
  for (const { name, data, opts } of jobs) {
    const one = await queue.add(name, data, opts);
    added.push(one);
    await waitFor(async () => /completed|failed|unknown/.test(await one.getState()), { what: `job ${one.id} ended` });
  }
  return added;
}

/** What our worker made of each job, by id: {value} or {reason}, from the events (jobs may be removed). */
function outcomes(events) {
  const byId = {};
  for (const fields of events) {
    const e = Object.fromEntries(fields.flatMap((v, i) => (i % 2 ? [] : [[v, fields[i + 1]]])));
    if (e.event === 'completed') byId[e.jobId] = { value: e.returnvalue };
    if (e.event === 'failed') byId[e.jobId] = { reason: e.failedReason };
  }
  return byId;
}

for (const version of ['6.7.0', '5.81.5']) {
  for (const [what, jobs] of Object.entries(scenarios)) {
    if (jobs.length === 0) continue;
    test(`added by ${version}: ${what}`, async (t) => {
      const r = await makeRig(t, redis, { version, events: false });
      await play(r.queue, jobs);
      await waitFor(async () => (await r.redis.llen(`${r.P}active`)) === 0, { what: 'idle' });
      const left = await snapshot(r.redis, r.P);
      const made = outcomes(left.events);

      const name = `${r.name}-stock`;
      const { Queue } = clients[version];
      const queue = new Queue(name, { connection: redis.connection });
      const plan = (one) => one.data.code.split('\n').map((line) => JSON.parse(line)).find((step) => step.fail);
      const worker = new Worker(name, async (one) => {
        const outcome = made[one.id];
        const failing = plan(one);
        if (outcome.reason !== undefined || (failing?.times ?? 0) > one.attemptsMade) {
          const error = new Error(outcome.reason ?? (await failedReasonOf(r, one)));
          if (!failing) error.name = 'UnrecoverableError';
          throw error;
        }
        return outcome.value;
      }, { connection: redis.connection });
      t.after(async () => {
        await worker.close();
        await queue.close();
      });
      await play(queue, jobs);
      await waitFor(async () => (await r.redis.llen(`bull:${name}:active`)) === 0, { what: 'idle' });
      const stock = await snapshot(r.redis, `bull:${name}:`);
      assert.deepEqual(left, stock);
    });
  }
}

/** The reason our worker gave for the attempts that failed before a good one. */
async function failedReasonOf(r, one) {
  return (await r.hash(one)).failedReason;
}
