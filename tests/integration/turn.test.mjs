// Many jobs in one turn of the worker's loop: they are ended and claimed together, and each fares as it would alone.
import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig, shortLocks } from '../lib/rig.mjs';
import { say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { WORKER_CONCURRENCY: '64', ...options.env } });
/** The result of a job that may be removed when it ends. */
const result = async (r, job) => JSON.parse((await waitFor(async () => (await r.eventLog(job.id)).find((e) => e.event === 'completed'),
  { what: `${job.id} ends`, timeout: 60_000 })).returnvalue);
const ended = async (r, job) => (await r.eventLog(job.id)).filter((e) => e.event === 'completed').length;

test('jobs of every kind that end together', async (t) => {
  const r = await rig(t);
  const flow = new clients['6.7.0'].FlowProducer({ connection: redis.connection });
  t.after(() => flow.close());
  await r.queue.pause();
  const child = (text) => ({ name: 'execute', queueName: r.name, data: { code: script(say(text)) } });
  const trees = await Promise.all([1, 2, 3].map(() => flow.add({ ...child('parent'), children: [child('a'), child('b')] })));
  const kinds = [
    [{}, {}], [{}, { removeOnComplete: true }], [{}, { removeOnComplete: 1000 }], [{}, { removeOnComplete: { age: 3600, count: 2000 } }],
    [{}, { deduplication: { id: 'one' } }], [{ reply: false, idempotent: true }, { removeOnComplete: true }],
    [{ threadId: 't' }, {}], [{ threadId: 't' }, { removeOnComplete: true }], [{}, { priority: 2 }],
  ];
  const jobs = [];
  for (let i = 0; i < 45; i++) {
    const [data, opts] = kinds[i % kinds.length];
    const deduplication = opts.deduplication ? { id: `one-${i}` } : undefined;
    jobs.push(await r.add([say(`${i}`)], data, { ...opts, ...(deduplication && { deduplication }) }));
  }
  await r.queue.resume();
  for (const [i, job] of jobs.entries()) assert.equal((await result(r, job)).stdout, `${i}`);
  for (const tree of trees) {
    assert.equal((await result(r, tree.job)).stdout, 'parent');
    assert.equal(Object.keys((await tree.job.getDependencies()).processed).length, 2);
  }
  for (const job of jobs) assert.equal(await ended(r, job), 1, `${job.id} completed once`);
  for (const [i, job] of jobs.entries()) {
    const opts = kinds[i % kinds.length][1];
    if (opts.removeOnComplete === true) assert.equal(await r.redis.exists(r.P + job.id), 0, 'removed');
    if (Object.keys(opts).length === 0) assert.equal(await r.state(job), 'completed');
    if (opts.deduplication) assert.equal(await r.redis.exists(`${r.P}de:one-${i}`), 0, 'the deduplication id is free');
    if (kinds[i % kinds.length][0].reply === undefined) assert.equal((await r.reply(job)).at(-1).type, 'done');
  }
  await waitFor(async () => (await r.redis.llen(`${r.P}active`)) + (await r.redis.llen(`${r.P}wait`)) === 0, { what: 'nothing is left' });
  assert.deepEqual(await r.redis.keys(`${r.P}*:lock`), []);
  await waitFor(async () => (await r.eventLog()).at(-1).event === 'drained', { what: 'drained' });
});

test('a job whose keys are spoilt does not take along those that end with it', async (t) => {
  const r = await rig(t, { checks: false });
  const jobs = [];
  for (let i = 0; i < 12; i++) jobs.push(await r.add([wait(1500), say('well')], { reply: false, idempotent: true }, { removeOnComplete: true }));
  await waitFor(async () => (await r.redis.llen(`${r.P}active`)) === jobs.length, { what: 'all run' });
  const spoilt = jobs[5];
  await r.redis.multi().del(r.P + spoilt.id).set(r.P + spoilt.id, 'not a hash').exec();
  for (const job of jobs.filter((one) => one !== spoilt)) {
    assert.equal((await result(r, job)).stdout, 'well');
    assert.equal(await ended(r, job), 1);
    await waitFor(async () => (await r.redis.exists(r.P + job.id)) === 0, { what: `${job.id} is removed` });
  }
  assert.equal(await ended(r, spoilt), 0);
  await r.redis.del(r.P + spoilt.id);
  assert.equal((await r.run([say('on')])).stdout, 'on');
});

test('more active jobs than one call of the stalled pass looks at: all come back', async (t) => {
  const r = await rig(t, { replicas: 0, env: { ...shortLocks, WORKER_CONCURRENCY: '100' } });
  const count = 2500; // more than the marks of a call, and far more than its looks
  const data = JSON.stringify({ code: '', reply: false, idempotent: true });
  for (let from = 0; from < count; from += 500) {
    const pipe = r.redis.pipeline();
    for (let i = from; i < from + 500; i++) {
      pipe.hset(`${r.P}lost-${i}`, 'name', 'execute', 'data', data, 'opts', '{"removeOnComplete":true}', 'timestamp', Date.now(),
        'delay', 0, 'priority', 0, 'processedOn', Date.now(), 'ats', 1);
      pipe.lpush(`${r.P}active`, `lost-${i}`);
    }
    await pipe.exec();
  }
  r.startWorker();
  await waitFor(async () => (await r.redis.llen(`${r.P}active`)) + (await r.redis.llen(`${r.P}wait`)) === 0, { what: 'all are done', timeout: 120_000 });
  const log = await r.eventLog();
  const of = (event) => new Set(log.filter((e) => e.event === event).map((e) => e.jobId)).size;
  assert.deepEqual([of('stalled'), of('completed')], [count, count]);
  assert.equal(await r.redis.scard(`${r.P}stalled`), 0);
});
