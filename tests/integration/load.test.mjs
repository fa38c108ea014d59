// Many jobs at once: per thread no overlap and in order; small threads are not starved by large ones.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, slow } from '../lib/rig.mjs';
import { say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();

/** All `event` fields of the queue's event stream, read in pieces while it grows. */
async function events(r) {
  const all = [];
  let from = '-';
  for (;;) {
    const piece = await r.redis.xrange(`${r.P}events`, from, '+', 'COUNT', 5000);
    for (const [, f] of piece) all.push(Object.fromEntries(f.flatMap((v, i) => (i % 2 ? [] : [[v, f[i + 1]]]))));
    if (piece.length < 5000) return all;
    from = `(${piece.at(-1)[0]}`;
  }
}

async function untilDone(r, count, ms) {
  await waitFor(async () => {
    const { completed, failed } = await r.queue.getJobCounts('completed', 'failed');
    return completed + failed >= count;
  }, { what: `${count} jobs done`, timeout: ms * slow, interval: 200 });
}

test('5,000 jobs over 50 threads on 3 replicas: in order, one at a time per thread', async (t) => {
  const total = slow > 1 ? 2000 : 5000;
  const threads = 50;
  const r = await makeRig(t, redis, { replicas: 0, events: false, maxEvents: 1_000_000, env: { LOG_LEVEL: 'info' } });
  for (const name of ['a', 'b', 'c']) r.startWorker({ WORKER_NAME: name });
  const threadOf = {};
  const started = Date.now();
  for (let i = 0; i < total; i += 500) {
    const jobs = await r.queue.addBulk(Array.from({ length: 500 }, (_, k) => {
      const n = i + k;
      const steps = n % 97 === 0 ? [say(`${n}`), wait(20)] : [say(`${n}`)];
      return { name: 'execute', data: { code: script(...steps), threadId: `t${n % threads}` }, opts: {} };
    }));
    jobs.forEach((job, k) => (threadOf[job.id] = (i + k) % threads));
  }
  await untilDone(r, total, 120_000);
  t.diagnostic(`${total} jobs in ${Date.now() - started} ms`);
  const log = await events(r);
  assert.equal(log.filter((e) => e.event === 'failed').length, 0);
  const running = new Map();
  const last = new Map();
  let finished = 0;
  for (const e of log) {
    const thread = threadOf[e.jobId];
    if (e.event === 'active') {
      assert.equal(running.get(thread), undefined, `${e.jobId} and ${running.get(thread)} overlap in thread ${thread}`);
      assert.ok(Number(e.jobId) > (last.get(thread) ?? 0), `${e.jobId} after ${last.get(thread)} in thread ${thread}`);
      running.set(thread, e.jobId);
      last.set(thread, Number(e.jobId));
    } else if (e.event === 'completed') {
      assert.equal(running.get(thread), e.jobId);
      running.delete(thread);
      finished++;
      assert.equal(JSON.parse(e.returnvalue).stdout, `${Number(e.jobId) - 1}`, e.returnvalue);
    }
  }
  assert.equal(finished, total);
  const owners = await Promise.all(Object.keys(threadOf).map((id) => r.redis.hget(r.P + id, 'pb')));
  assert.equal(new Set(owners).size, 3, 'all replicas took part');
  for (const pattern of ['lease:*', 'parked:*']) assert.deepEqual(await r.redis.keys(r.P + pattern), [], `no ${pattern} is left`);
  assert.equal(await r.redis.exists(`${r.P}index:parked`), 0);
});

for (const priority of [undefined, 5]) {
  test(`small threads are not starved (${priority ? 'prioritized' : 'plain'})`, async (t) => {
    const r = await makeRig(t, redis, { replicas: 0, events: false, maxEvents: 1_000_000, env: { WORKER_CONCURRENCY: '4', LOG_LEVEL: 'info' } });
      const add = (threadId) => ({ name: 'execute', data: { code: script(say('x')), threadId, reply: false }, opts: { priority } });
    await r.queue.addBulk(Array.from({ length: 2400 }, (_, i) => add(`big${i % 8}`)));
    const small = await r.queue.addBulk(Array.from({ length: 20 }, (_, i) => add(`small${i}`)));
    r.startWorker();
    await waitFor(async () => (await Promise.all(small.map((j) => j.getState()))).every((s) => s === 'completed'),
      { what: 'the small threads done', timeout: 30_000 * slow, interval: 50 });
    const wanted = new Set(small.map((j) => j.id));
    const order = (await events(r)).filter((e) => e.event === 'completed').map((e) => e.jobId);
    const last = Math.max(...[...wanted].map((id) => order.indexOf(id)));
    t.diagnostic(`the last of the 20 was number ${last + 1}`);
    assert.ok(last + 1 <= 60, `the last of the 20 was number ${last + 1}`);
    await untilDone(r, 2420, 60_000);
  });
}

test('one hot thread of 1,500 jobs does not hold up another conversation', async (t) => {
  const r = await makeRig(t, redis, { env: { WORKER_CONCURRENCY: '2', LOG_LEVEL: 'info' } });
  await r.queue.addBulk(Array.from({ length: 1500 }, () => ({ name: 'execute', data: { code: script(wait(5)), threadId: 'hot' } })));
  await sleep(300);
  for (let i = 0; i < 5; i++) {
    const begun = Date.now();
    await r.run([say('x')], { threadId: `other${i}` });
    assert.ok(Date.now() - begun < 1000 * slow, `${Date.now() - begun} ms`);
  }
  await untilDone(r, 1505, 60_000);
});

test('no growth: 2,000 short jobs with replies leave a bounded set of keys', async (t) => {
  const r = await makeRig(t, redis, { events: false, env: { LOG_LEVEL: 'info', REPLY_TTL_MS: '1000' } });
  for (let i = 0; i < 4; i++) {
    await r.queue.addBulk(Array.from({ length: 500 }, (_, k) => ({
      name: 'execute', data: { code: script(say('x')), threadId: `t${k % 10}` }, opts: { removeOnComplete: 10 } })));
    await waitFor(async () => (await r.queue.getJobCountByTypes('wait', 'active', 'delayed')) === 0,
      { what: 'idle', timeout: 60_000 * slow, interval: 100 });
  }
  await sleep(1500);
  const keys = await r.redis.keys(`${r.P}*`);
  assert.ok(keys.length < 50, `${keys.length} keys: ${keys.slice(0, 60)}`);
  assert.ok((await r.redis.xlen(`${r.P}events`)) < 12_000);
});
