// Order inside threads and fairness between them, counted; the answers to what the model (tests/model) found.
import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startProxy, startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const patient = { timeout: 60_000 };
const completed = (log) => log.filter((e) => e.event === 'completed').map((e) => e.jobId);

/**
 * Adds `count` copies of jobs that a stock client has just added (their ids in `templates`, taken in turn, or one after
 * the other when not `interleaved`), as that client would have: 40,000 calls of it take half a minute.
 */
const copy = `
local P, count, interleaved, n = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', #ARGV - 3
for i = 0, count - 1 do
  local from = redis.call('HGETALL', P .. ARGV[4 + (interleaved and i % n or math.floor(i / (count / n)))])
  local id, priority = redis.call('INCR', P .. 'id'), 0
  redis.call('HSET', P .. id, unpack(from))
  for k = 1, #from, 2 do if from[k] == 'priority' then priority = tonumber(from[k + 1]) end end
  if priority > 0 then
    redis.call('ZADD', P .. 'prioritized', priority * 0x100000000 + redis.call('INCR', P .. 'pc') % 0x100000000, id)
  else
    redis.call('LPUSH', P .. 'wait', id)
  end
end`;

for (const interleaved of [false, true]) {
  for (const priority of [undefined, 5]) {
    test(`8 threads of 5,000 ahead of 100 of one, 4 slots: ${interleaved ? 'interleaved' : 'thread by thread'}, ${priority ? 'prioritized' : 'plain'}`, async (t) => {
      const r = await makeRig(t, redis, { replicas: 0, events: false, maxEvents: 1_000_000, checks: false, env: { WORKER_CONCURRENCY: '4', LOG_LEVEL: 'info' } });
      const job = (threadId) => ({ name: 'execute', data: { code: script(say('x')), threadId, reply: false }, opts: { priority, removeOnComplete: true } });
      const firsts = await r.queue.addBulk(Array.from({ length: 8 }, (_, i) => job(`big${i}`)));
      await r.redis.eval(copy, 0, r.P, 8 * 4999, interleaved ? '1' : '', ...firsts.map((j) => j.id));
      const wanted = new Set((await r.queue.addBulk(Array.from({ length: 100 }, (_, i) => job(`small${i}`)))).map((j) => j.id));
      assert.equal(await r.queue.getJobCountByTypes('wait', 'prioritized'), 40_100);
      r.startWorker();
      const order = await waitFor(async () => {
        const done = completed(await r.eventLog());
        return done.filter((id) => wanted.has(id)).length === 100 && done;
      }, { what: 'the 100 done', interval: 100, ...patient });
      await r.workers[0].done();
      const last = order.findLastIndex((id) => wanted.has(id)) + 1;
      t.diagnostic(`the last of the 100 was number ${last}`);
      assert.ok(last <= 200, `the last of the 100 was number ${last}`);
      await r.redis.flushall();
    });
  }
}

test('order inside threads: retries, stalls, cancels and removals change nobody\'s place', async (t) => {
  const r = await makeRig(t, redis, { replicas: 2, maxEvents: 100_000, env: { ...shortLocks, WORKER_CONCURRENCY: '3' } });
  const threads = 6;
  const fate = {};
  const ids = [];
  let victim;
  for (let i = 0; i < 180; i++) {
    const kind = i % 12;
    const steps = kind === 3 ? [fail('no_sandbox', 1), say('x')] : kind === 7 ? [say('x'), wait(15)] : [say('x')];
    const job = await r.add(steps, { threadId: `t${i % threads}`, reply: false }, { attempts: 3, backoff: i % 24 === 3 ? 40 : undefined });
    ids.push(job.id);
    if (kind === 9) {
      fate[job.id] = 'cancelled';
      await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', job.id);
    } else if (kind === 11) {
      fate[job.id] = 'removed';
      await job.remove().catch(() => {}); // one that runs already cannot be removed
    }
    if (i === 60) victim = r.workers.pop().kill9();
    if (i === 90) r.startWorker();
  }
  await victim;
  await waitFor(async () => (await r.queue.getJobCountByTypes('wait', 'active', 'delayed', 'prioritized', 'paused')) === 0, { what: 'all ended', ...patient, interval: 100 });
  const log = await r.eventLog();
  const ends = new Map();
  for (const e of log) {
    if (e.event === 'completed' || e.event === 'failed') ends.set(e.jobId, (ends.get(e.jobId) ?? 0) + 1);
  }
  for (const id of ids) {
    if (fate[id] === 'removed') assert.ok((ends.get(id) ?? 0) <= 1, `${id} ended ${ends.get(id)} times`);
    else assert.equal(ends.get(id), 1, `${id} ended once`);
  }
  for (let thread = 0; thread < threads; thread++) {
    const mine = ids.filter((_, i) => i % threads === thread && !fate[ids[i]]);
    const place = new Map(mine.map((id, i) => [id, i]));
    const done = log.filter((e) => (e.event === 'completed' || e.event === 'failed') && place.has(e.jobId)).map((e) => place.get(e.jobId));
    assert.deepEqual(done, [...done].sort((a, b) => a - b), `thread ${thread} in order`);
  }
});

test('a prioritized job behind a parked one that went to the back once does not spin', async (t) => {
  const r = await makeRig(t, redis, { replicas: 0, env: { WORKER_CONCURRENCY: '4' } });
  const hold = (name, more) => r.add([say(name), { hang: true }], { threadId: 't' }, more);
  const first = await hold('first');
  const second = await r.add([say('second')], { threadId: 't' });
  const prio = await r.add([say('prio')], { threadId: 't' }, { priority: 1 });
  // As after a turn to the back: `first` and `second` went there, and the thread had run after they were added.
  await r.redis.hset(`${r.P}${first.id}`, 'sp:t', ':t', 'sp:b', 1);
  await r.redis.hset(`${r.P}${second.id}`, 'sp:t', ':t', 'sp:b', 2);
  await r.redis.hset(`${r.P}thread::t`, 'back', 2, 'through', 0);
  await r.redis.expire(`${r.P}thread::t`, 600);
  r.startWorker();
  await waitFor(async () => (await r.redis.zcard(`${r.P}parked::t`)) === 2, { what: 'both parked', ...patient });
  assert.equal(await r.redis.zcard(`${r.P}prioritized`), 0, 'parked, not put back in line');
  await waitFor(async () => (await r.replyNow(first)).some((m) => m.type === 'stdout'), { what: 'the code of the first runs', ...patient });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', first.id);
  assert.equal((await r.result(first)).reason, 'cancelled');
  await r.result(prio);
  assert.deepEqual(completed(await r.eventLog()), [first.id, second.id, prio.id]);
});

test('who went to the back is not overtaken when the last of them is removed', async (t) => {
  const r = await makeRig(t, redis, { replicas: 0, env: { WORKER_CONCURRENCY: '1' } });
  const late = await r.add([say('c')], { threadId: 't' });
  const [a, b] = [await r.add([say('a')], { threadId: 't' }), await r.add([say('b')], { threadId: 't' })];
  await r.redis.hset(`${r.P}${a.id}`, 'sp:t', ':t', 'sp:b', 1);
  await r.redis.hset(`${r.P}${b.id}`, 'sp:t', ':t', 'sp:b', 2);
  await r.redis.hset(`${r.P}thread::t`, 'back', 2, 'through', 0);
  await r.redis.expire(`${r.P}thread::t`, 600);
  await b.remove();
  r.startWorker();
  await Promise.all([r.result(a), r.result(late)]);
  const later = await r.add([say('d')], { threadId: 't' });
  await r.result(later);
  assert.deepEqual(completed(await r.eventLog()), [a.id, late.id, later.id]);
});

test('a worker that was stopped between mark and delivery does not run what was given up as lost', async (t) => {
  const proxy = await startProxy(redis.port);
  const locks = { LOCK_DURATION_MS: String(4000 * slow), LOCK_RENEW_MS: String(1000 * slow), STALLED_INTERVAL_MS: String(800 * slow) };
  const r = await makeRig(t, redis, { replicas: 0, env: locks });
  const stopped = r.startWorker({ REDIS_URL: proxy.url, WORKER_NAME: 'stopped', STREAM_INTAKE: 'false' });
  await waitFor(async () => (await r.redis.zcard(`${r.P}index:replicas`)) === 1, { what: 'the worker', ...patient });
  proxy.delayMs = 800 * slow; // what Redis answers comes so much later, and the stop before it
  const listener = r.redis.duplicate();
  await listener.subscribe(`${r.P}reply:given-up`);
  listener.once('message', () => stopped.kill('SIGSTOP'));
  const job = await r.add([say('must not run')], { threadId: 't' }, { jobId: 'given-up' });
  await waitFor(async () => (await r.hash(job))['sp:run'], { what: 'the mark', ...patient });
  r.startWorker({ WORKER_NAME: 'other' });
  assert.match(await r.failure(job, 60_000), /^WorkerLost/);
  const next = await r.add([say('next')], { threadId: 't' });
  assert.equal((await r.result(next)).stdout, 'next');
  proxy.delayMs = 0;
  stopped.kill('SIGCONT');
  await stopped.waitLine(/the mark is too old|is lost|not ours any more|fenced/, { timeout: 60_000 });
  const third = await r.add([say('third')], { threadId: 't' });
  await r.result(third);
  listener.disconnect();
  const states = stopped.lines.filter((line) => line.includes('"given-up"') && /running/.test(line));
  assert.deepEqual(states, [], 'its code was never delivered');
  assert.deepEqual((await r.reply(job)).map((m) => m.type), ['started', 'done']);
});
