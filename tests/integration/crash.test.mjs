// Workers that die or freeze: code runs at most once, threads go on, and no dead hand writes afterwards.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow, workerBin } from '../lib/rig.mjs';
import { fail, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const lockMs = Number(shortLocks.LOCK_DURATION_MS);
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const said = (r, job) => waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: `${job.id} says something` });

/** The worker that runs this job now, found by the job's processedBy; WORKER_NAME must tell them apart. */
async function owner(r, job) {
  const name = await waitFor(async () => (await r.hash(job)).pb, { what: 'processedBy' });
  return r.workers.splice(r.workers.findIndex((w) => w.label === name), 1)[0];
}
function startNamed(r, ...labels) {
  for (const label of labels) r.startWorker({ WORKER_NAME: label }).label = label;
}

test('kill -9 in mid-run with the default settings: WorkerLost within 25 s, then the thread goes on', async (t) => {
  const r = await makeRig(t, redis, { replicas: 0 });
  startNamed(r, 'a', 'b');
  const job = await r.add([say('counted\n'), wait(60_000), say('never')], { threadId: 't' }, { attempts: 5 });
  const next = await r.add([say('next')], { threadId: 't' });
  await said(r, job);
  const victim = await owner(r, job);
  const killed = Date.now();
  await victim.kill9();
  const reason = await r.failure(job, 26_000);
  const took = Date.now() - killed;
  assert.match(reason, /^WorkerLost/);
  assert.ok(took < 25_000, `${took} ms`);
  assert.equal((await r.result(next, 5000)).stdout, 'next');
  t.diagnostic(`failed after ${took} ms, the next job ${Date.now() - killed} ms after the kill`);

  const lost = await r.reply(job);
  assert.deepEqual(lost.map((m) => m.type), ['started', 'stdout', 'done']);
  assert.deepEqual([lost.at(-1).state, lost.at(-1).reason, lost.at(-1).error], ['failed', 'worker_lost', reason]);
  const hash = await r.hash(job);
  assert.equal(hash['sp:run'], undefined, 'the mark is cleared');
  assert.equal(await r.state(job), 'failed');
  await r.redis.hset(r.P + job.id, 'data', JSON.stringify({ code: script(say('by hand')), threadId: 't' }));
  await (await r.queue.getJob(job.id)).retry('failed');
  assert.equal((await r.result(job)).stdout, 'by hand');
  const again = await r.reply(job);
  assert.deepEqual(again.map((m) => [m.seq, m.type]), [[1, 'started'], [2, 'stdout'], [3, 'done']]);
});

test('kill -9 with many jobs running and parked', async (t) => {
  const r = await rig(t, { replicas: 0 });
  startNamed(r, 'a');
  const running = [];
  for (let i = 0; i < 8; i++) running.push(await r.add([say('once'), wait(60_000)], { threadId: `t${i}` }, { attempts: 3 }));
  for (const job of running) await said(r, job);
  const parked = [];
  for (let i = 0; i < 16; i++) parked.push(await r.add([say(`${i}`)], { threadId: `t${i % 8}` }));
  const dead = r.workers.shift();
  await dead.kill9();
  startNamed(r, 'b', 'c');
  for (const job of running) assert.match(await r.failure(job), /^WorkerLost/);
  for (const [i, job] of parked.entries()) assert.equal((await r.result(job)).stdout, `${i}`);
  for (const job of running) {
    assert.equal((await r.reply(job)).filter((m) => m.type === 'started').length, 1);
    assert.equal((await r.hash(job)).atm, '1');
  }
});

test('an idempotent job is run again', async (t) => {
  const r = await rig(t, { replicas: 0 });
  startNamed(r, 'a', 'b');
  const job = await r.add([say('x'), wait(4000 * slow), say('y')], { threadId: 't', idempotent: true });
  await said(r, job);
  await (await owner(r, job)).kill9();
  assert.equal((await r.result(job, 30_000)).stdout, 'xy');
  const reply = await r.reply(job);
  assert.equal(reply.filter((m) => m.type === 'started').length, 2);
  assert.equal(reply.filter((m) => m.type === 'done').length, 1);
});

test('killed before the code was delivered: another replica runs it', async (t) => {
  const r = await rig(t, { replicas: 0 });
  startNamed(r, 'a', 'b');
  const job = await r.add([{ prepare: 3000 * slow }, say('ran')], { threadId: 't' });
  const next = await r.add([say('next')], { threadId: 't' });
  await waitFor(async () => (await r.state(job)) === 'active', { what: 'active' });
  await sleep(500);
  assert.equal((await r.hash(job))['sp:run'], undefined, 'no mark before delivery');
  await (await owner(r, job)).kill9();
  assert.equal((await r.result(job, 30_000)).stdout, 'ran');
  assert.equal((await r.hash(job)).stc, '1');
  assert.equal((await r.result(next)).stdout, 'next');
  const reply = await r.reply(job);
  assert.equal(reply.filter((m) => m.type === 'started').length, 1);
});

test('killed before delivery too often: failed as stalled, said once', async (t) => {
  const r = await rig(t, { replicas: 0, env: { MAX_STALLED_COUNT: '0' } });
  startNamed(r, 'a', 'b');
  const job = await r.add([{ prepare: 60_000 }, say('never')], { threadId: 't' });
  await waitFor(async () => (await r.state(job)) === 'active', { what: 'active' });
  await (await owner(r, job)).kill9();
  assert.match(await r.failure(job, 20_000), /stalled more than allowable limit/);
  const reply = await r.reply(job);
  assert.deepEqual(reply.map((m) => [m.type, m.reason]), [['done', 'stalled']]);
  assert.equal((await r.run([say('on')], { threadId: 't' })).stdout, 'on');
});

test('killed while its job waits for a retry: the thread is not stuck', async (t) => {
  const r = await rig(t, { replicas: 0 });
  startNamed(r, 'a');
  const job = await r.add([fail('no_sandbox', 1), say('good try')], { threadId: 't' }, { attempts: 3, backoff: 1500 });
  await waitFor(async () => (await r.state(job)) === 'delayed', { what: 'waiting for its retry' });
  const next = await r.add([say('next')], { threadId: 't' });
  await r.workers.shift().kill9();
  startNamed(r, 'b');
  assert.equal((await r.result(job)).stdout, 'good try');
  assert.equal((await r.result(next)).stdout, 'next');
});

for (const removeOnFail of [false, true]) {
  test(`frozen beyond its lock, then woken: it writes nothing more (removeOnFail: ${removeOnFail})`, async (t) => {
    const r = await rig(t, { replicas: 0 });
    startNamed(r, 'a', 'b');
    const ticks = Array.from({ length: 600 }, (_, i) => [say(`${i} `), wait(50)]).flat();
    const job = await r.add([...ticks, { file: 'late.txt', content: 'late' }], { threadId: 't' }, { removeOnFail });
    await said(r, job);
    const next = await r.add([say('next'), wait(300)], { threadId: 't' });
    const frozen = await owner(r, job);
    r.workers.push(frozen);
    frozen.kill('SIGSTOP');
    assert.match(await r.failure(job, 30_000), /^WorkerLost/);
    assert.equal((await r.result(next)).stdout, 'next');
    const look = async () => {
      const state = { completed: await r.redis.zrange(`${r.P}completed`, 0, -1), failed: await r.redis.zrange(`${r.P}failed`, 0, -1) };
      for (const key of await r.redis.keys(`${r.P}*`)) {
        const suffix = key.slice(r.P.length);
        if (suffix === job.id) state.hash = await r.redis.hgetall(key);
        else if (suffix === `reply:${job.id}`) state.reply = await r.redis.xrange(key, '-', '+');
        else if (suffix.startsWith(`${job.id}:`) || suffix.startsWith(`file:${job.id}`)) state[suffix] = 'there';
      }
      if (state.hash) delete state.hash.data;
      return state;
    };
    const before = await look();
    frozen.kill('SIGCONT');
    await sleep(2500);
    assert.deepEqual(await look(), before);
    assert.equal(await r.redis.exists(r.P + job.id), removeOnFail ? 0 : 1);
    const done = await Promise.all([0, 1, 2, 3].map((i) => r.run([say('x')], { threadId: `after${i}` })));
    assert.equal(done.length, 4, 'and it goes on working');
  });
}

test('a job whose hash is deleted while it runs', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('x'), wait(1200)], { threadId: 't' });
  await said(r, job);
  await r.redis.del(r.P + job.id, `${r.P}${job.id}:lock`);
  await sleep(2000);
  assert.equal(await r.redis.exists(r.P + job.id), 0, 'it is not brought back');
  const reply = await r.reply(job);
  assert.equal(reply.at(-1).reason, 'removed');
  assert.equal((await r.run([say('on')], { threadId: 't' })).stdout, 'on');
});

test('SIGTERM: the running job ends well, waiting ones stay, exit code 0', async (t) => {
  const r = await rig(t, { env: { WORKER_CONCURRENCY: '1', DRAIN_TIMEOUT_MS: '10000' } });
  const job = await r.add([say('x'), wait(1500), say('y')]);
  await said(r, job);
  const waiting = await r.add([say('later')]);
  const worker = r.workers.shift();
  worker.kill('SIGTERM');
  const exit = await worker.exited;
  assert.deepEqual(exit, { code: 0, signal: null }, worker.tail());
  assert.equal((await r.result(job)).stdout, 'xy');
  assert.equal(await r.state(waiting), 'waiting');
  assert.equal((await r.queue.getWorkers()).length, 0);
  r.startWorker();
  assert.equal((await r.result(waiting)).stdout, 'later');
});

test('SIGTERM while Redis is away: it still ends', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { events: false, env: shortLocks, checks: false });
  const job = await r.add([say('x')]);
  await r.gathered(job);
  await own.kill();
  const worker = r.workers.shift();
  const begun = Date.now();
  worker.kill('SIGTERM');
  await worker.exited;
  assert.equal(worker.exit.code, 0, worker.tail());
  assert.ok(Date.now() - begun < 6000 * slow, `${Date.now() - begun} ms`);
});

test(`no bad line in a worker's log after all this (${workerBin.split('/').at(-1)})`, async (t) => {
  const r = await rig(t);
  await r.run([say('x')]);
  for (const line of r.worker.lines) {
    const parsed = JSON.parse(line);
    assert.ok(parsed.msg && parsed.level, line);
    assert.doesNotMatch(parsed.level, /error|warn/i, line);
  }
  assert.ok(lockMs > 0);
});
