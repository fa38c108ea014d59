// The comparison sees what it is there for: a planted deviation in each type of key, and in the events, is found.
import assert from 'node:assert/strict';
import test from 'node:test';
import { atEnd } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { difference, snapshot } from './snapshot.mjs';
import { World } from './world.mjs';

const server = await startRedis({ args: ['--databases', '64'] });

/** Leaves keys of every type: jobs of all ends, logs, dependencies, deduplication, priorities that wait, a scheduler. */
async function play(world, workerOptions = {}) {
  const { job } = await world.flow.add(world.node('work', [{ stdout: 'x' }], { jobId: 'p' }, [
    world.node('work', [{ stdout: 'x' }], { jobId: 'a' }), world.node('work', [{ fail: 'no_sandbox' }], { jobId: 'b' }),
    world.node('work', [{ fail: 'no_sandbox' }], { jobId: 'c', ignoreDependencyOnFailure: true })]));
  await job.log('a row');
  await world.add({ jobId: 'd', deduplication: { id: 'd', ttl: 600_000 } });
  await world.queue().upsertJobScheduler('s', { pattern: '0 0 1 1 *' }, { name: 'execute', data: world.data() });
  const worker = await world.work({ metrics: { maxDataPoints: 5 }, ...workerOptions });
  await world.idle({ delayed: 1, waitingChildren: 1 });
  await worker.stop();
  world.workers.length = 0;
  await world.add({ jobId: 'e', priority: 3 });
  await world.add({ jobId: 'f' });
}

const P = 'bull:work:';
const plants = {
  'hash: a job\'s field': (r) => r.hset(`${P}a`, 'atm', '2'),
  'hash: a field too many': (r) => r.hset(`${P}a`, 'stray', '1'),
  'hash: a field missing': (r) => r.hdel(`${P}a`, 'pb'),
  'hash: a time that is none': (r) => r.hset(`${P}a`, 'finishedOn', 'soon'),
  'hash: a return value unlike its event\'s': (r) => r.hset(`${P}a`, 'returnvalue', '{"v":1}'),
  'hash: a failure\'s reason': (r) => r.hset(`${P}b`, 'failedReason', 'other'),
  'hash: a stack of another length': (r) => r.hset(`${P}b`, 'stacktrace', '[]'),
  'hash: a job gone': (r) => r.del(`${P}a`),
  'hash: children\'s values': (r) => r.hdel(`${P}p:processed`, `${P}a`),
  'hash: failed children': (r) => r.hset(`${P}p:failed`, `${P}c`, 'x'),
  'hash: metrics': (r) => r.hincrby(`${P}metrics:completed`, 'count', 1),
  'hash: meta': (r) => r.hset(`${P}meta`, 'paused', '1'),
  'hash: a scheduler': (r) => r.hincrby(`${P}repeat:s`, 'ic', 1),
  'string: the id counter': (r) => r.incr(`${P}id`),
  'string: a deduplication key': (r) => r.set(`${P}de:d`, 'a', 'KEEPTTL'),
  'string: its expiry': (r) => r.persist(`${P}de:d`),
  'string: a lock left': (r) => r.set(`${P}a:lock`, 't'),
  'list: wait': (r) => r.lpush(`${P}wait`, 'x'),
  'list: active': (r) => r.lpush(`${P}active`, 'x'),
  'list: logs': (r) => r.rpush(`${P}p:logs`, 'another row'),
  'list: paused': (r) => r.lpush(`${P}paused`, 'x'),
  'set: dependencies': (r) => r.sadd(`${P}p:dependencies`, 'x'),
  'set: stalled': (r) => r.sadd(`${P}stalled`, 'x'),
  'zset: completed, one too many': (r) => r.zadd(`${P}completed`, Date.now(), 'x'),
  'zset: completed, one missing': (r) => r.zrem(`${P}completed`, 'a'),
  'zset: a score that is no time': (r) => r.zadd(`${P}completed`, 5, 'a'),
  'zset: prioritized, another score': (r) => r.zadd(`${P}prioritized`, 5, 'e'),
  'zset: delayed': (r) => r.zadd(`${P}delayed`, 1, 'x'),
  'zset: waiting-children': (r) => r.zrem(`${P}waiting-children`, 'p'),
  'zset: marker': (r) => r.zadd(`${P}marker`, 7, '0'),
  'events: one too many': (r) => r.xadd(`${P}events`, '*', 'event', 'drained'),
  'events: one missing': async (r) => r.xdel(`${P}events`, (await r.xrange(`${P}events`, '-', '+'))[7][0]),
  'events: another field': (r) => r.xadd(`${P}events`, '*', 'event', 'completed', 'jobId', 'a', 'returnvalue', '{}', 'prev', 'active'),
  'events: no JSON': (r) => r.xadd(`${P}events`, '*', 'event', 'progress', 'jobId', 'a', 'data', '{'),
  'a key of another type': async (r) => (await r.del(`${P}id`), r.lpush(`${P}id`, '9')),
  'a key of nobody': (r) => r.set(`${P}extra`, '1'),
};
const allowed = {
  'our own keys': async (r) => {
    await r.set(`${P}lease:w:t`, 'a');
    await r.xadd(`${P}reply:a`, '*', 'm', '{}');
    await r.set(`${P}file:a:1`, 'bytes');
  },
  'our own fields': (r) => r.hset(`${P}a`, 'sp:t', 'w:t'),
  'the producer\'s version': (r) => r.hset(`${P}meta`, 'version', 'bullmq:1.2.3'),
};

const worlds = [];
const world = (kind) => {
  const w = new World(server, kind, '6.7.0');
  worlds.push(w);
  return w;
};
atEnd(() => Promise.all(worlds.map((w) => w.close())));

const [stock, ours] = [world('stock'), world('ours')];
await Promise.all([play(stock), play(ours)]);
const reference = await snapshot(stock.redis, 'stock');

test('both sides leave the same before anything is planted', async () => {
  assert.deepEqual(difference(reference, await snapshot(ours.redis, 'ours')), []);
});

/** Runs plant on a copy of the database. */
async function planted(plant) {
  const copy = world('ours');
  for (const key of await ours.redis.keys('*')) await ours.redis.copy(key, key, 'DB', copy.db);
  await plant(copy.redis);
  return difference(reference, await snapshot(copy.redis, 'ours').catch((error) => ({ error: error.message })));
}

for (const [what, plant] of Object.entries(plants)) {
  test(`found: ${what}`, async () => assert.notDeepEqual(await planted(plant), []));
}
for (const [what, plant] of Object.entries(allowed)) {
  test(`no deviation: ${what}`, async () => assert.deepEqual(await planted(plant), []));
}

test('found: a worker that keeps other jobs, records no metrics, has another name', async () => {
  for (const options of [{ removeOnComplete: { count: 1 } }, { metrics: undefined }, { name: 'other' }]) {
    const other = world('ours');
    await play(other, options);
    assert.notDeepEqual(difference(reference, await snapshot(other.redis, 'ours')), [], JSON.stringify(options));
  }
});
