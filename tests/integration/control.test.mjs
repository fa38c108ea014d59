// Cancels by the control stream: running, waiting and parked jobs, threads, release with force.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options) => makeRig(t, redis, options);
const hang = { hang: true };

const cancel = (r, id) => r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', id);
const cancelThread = (r, thread) => r.redis.xadd(`${r.P}stream:control`, '*', 'cancel-thread', thread);
const dones = async (r, job) => (await r.reply(job)).filter((m) => m.type === 'done');

test('a running job: interrupted, partial output kept, its thread goes on', async (t) => {
  const r = await rig(t, { replicas: 2 });
  const job = await r.add([say('partial'), { file: 'a.txt', content: 'x' }, hang], { threadId: 't' });
  const next = await r.add([say('next')], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'output' });
  const asked = Date.now();
  await cancel(r, job.id);
  await cancel(r, job.id);
  const result = await r.result(job);
  assert.ok(Date.now() - asked < 20_000, `${Date.now() - asked} ms`);
  assert.deepEqual([result.state, result.reason, result.exitCode, result.stdout], ['error', 'cancelled', 130, 'partial']);
  assert.equal(result.files.length, 1);
  assert.equal((await r.result(next)).stdout, 'next');
  assert.equal((await dones(r, job)).length, 1);
});

test('a waiting job and a parked one fail as cancelled, though no slot is free', async (t) => {
  const r = await rig(t, { env: { WORKER_CONCURRENCY: '1' } });
  const running = await r.add([say('x'), hang], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(running)).some((m) => m.type === 'stdout'), { what: 'output' });
  const waiting = await r.add([say('never')], { threadId: 'other' });
  const delayed = await r.add([say('never')], { threadId: 't' }, { delay: 60_000 });
  for (const job of [waiting, delayed]) {
    await cancel(r, job.id);
    assert.match(await r.failure(job), /cancelled/);
    const [done] = await dones(r, job);
    assert.deepEqual([done.state, done.reason], ['failed', 'cancelled']);
  }
  await cancel(r, running.id);
  assert.equal((await r.result(running)).reason, 'cancelled');
});

test('a cancel that comes before its job, and one for a job that has ended', async (t) => {
  const r = await rig(t);
  await cancel(r, 'later');
  await sleep(300);
  const job = await r.add([say('never')], {}, { jobId: 'later' });
  assert.match(await r.failure(job), /cancelled/);
  const ended = await r.add([say('x')], {});
  await r.result(ended);
  await cancel(r, ended.id);
  assert.equal((await r.run([say('y')])).stdout, 'y');
  assert.equal(await ended.getState(), 'completed');
  await job.retry();
  assert.equal((await r.result(job)).stdout, 'never', 'a retry by hand runs');
});

test('cancel-thread: running, parked and waiting ones; later jobs run', async (t) => {
  const r = await rig(t, { replicas: 2 });
  const running = await r.add([say('x'), hang], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(running)).some((m) => m.type === 'stdout'), { what: 'output' });
  const parked = await Promise.all([1, 2, 3].map(() => r.add([say('never')], { threadId: 't' })));
  const other = await r.add([say('other'), wait(500)], { threadId: 'u' });
  await waitFor(async () => (await r.redis.zcard(`${r.P}parked::t`)) === 3, { what: 'three parked' });
  await cancelThread(r, ':t');
  assert.equal((await r.result(running)).reason, 'cancelled');
  for (const job of parked) assert.match(await r.failure(job), /cancelled/);
  assert.equal((await r.result(other)).stdout, 'other');
  await sleep(20);
  assert.equal((await r.run([say('after')], { threadId: 't' })).stdout, 'after');
  assert.equal(await r.redis.exists(`${r.P}lease::t`), 0);
});

test('release with force cancels what is before it', async (t) => {
  const r = await rig(t);
  const running = await r.add([say('x'), hang], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(running)).some((m) => m.type === 'stdout'), { what: 'output' });
  const parked = await r.add([say('never')], { threadId: 't' });
  await sleep(20);
  const release = await r.queue.add('release', { threadId: 't', force: true });
  assert.equal((await r.result(running)).reason, 'cancelled');
  assert.match(await r.failure(parked), /cancelled/);
  assert.equal((await r.result(release)).reason, 'ok');
});

test('a cancel said while the worker\'s connections are cut is heard when they are back', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('x'), hang], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'output' });
  await r.redis.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  await cancel(r, job.id);
  assert.equal((await r.result(job)).reason, 'cancelled');
});
