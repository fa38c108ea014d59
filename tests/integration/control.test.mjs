// Cancels by the control stream: running, waiting and parked jobs, threads, release with force.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks } from '../lib/rig.mjs';
import { fail, say, wait } from '../lib/scripted.mjs';

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

const parkedCount = (r, n) => waitFor(async () => (await r.redis.zcard(`${r.P}parked::t`)) === n, { what: `${n} parked` });
const prints = (r, job) => waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: `${job.id} prints` });

test('an answer within a second: running, waiting and parked', async (t) => {
  const r = await rig(t, { replicas: 2, env: { WORKER_CONCURRENCY: '2' } });
  const took = { running: [], waiting: [], parked: [] };
  const answered = async (kind, job) => {
    const said = Number((await cancel(r, job.id)).split('-')[0]);
    await dones(r, job);
    const ends = (await r.redis.xrevrange(`${r.P}events`, '+', '-', 'COUNT', 50)).filter(([, f]) => /completed|failed/.test(f) && f.includes(job.id));
    took[kind].push(Number(ends[0][0].split('-')[0]) - said); // both by Redis's clock
  };
  for (let round = 0; round < 4; round++) { // the best of them counts: this machine may be busy
    const holders = await Promise.all([0, 1, 2, 3].map((i) => r.add([say('x'), hang], { threadId: i === 0 ? 't' : `u${i}` })));
    for (const job of holders) await prints(r, job);
    const waiting = await r.add([say('never')], { threadId: 'w' });
    const parked = await r.add([say('never')], { threadId: 't' }, { delay: 600_000 });
    await answered('waiting', waiting);
    await answered('parked', parked);
    for (const job of holders) await answered('running', job);
  }
  t.diagnostic(JSON.stringify(took));
  for (const [kind, all] of Object.entries(took)) assert.ok(Math.min(...all) < 1000, `${kind}: ${all} ms`);
});

test('cancels that are said while no worker is there', async (t) => {
  const r = await rig(t, { replicas: 1, env: shortLocks });
  const claimed = await r.add([{ prepare: 600_000 }, say('never')], { threadId: 'c' });
  await waitFor(async () => (await r.state(claimed)) === 'active', { what: 'it is claimed' });
  await r.workers.shift().kill9();
  const jobs = [claimed, await r.add([say('never')]), await r.add([say('never')], { threadId: 't' }), await r.add([say('never')], { threadId: 't' })];
  for (const job of jobs.slice(0, 2)) await cancel(r, job.id);
  await cancelThread(r, ':t');
  await sleep(20);
  const after = await r.add([say('after')], { threadId: 't' });
  r.startWorker();
  for (const job of jobs) assert.match(await r.failure(job), /cancelled/);
  assert.equal((await r.result(after)).stdout, 'after');
});

test('a cancel counts once: not for a retry by hand, not for what was added since, not on a replica that starts later', async (t) => {
  const r = await rig(t, { replicas: 2, env: { WORKER_CONCURRENCY: '1' } });
  const holder = await r.add([say('x'), hang], { threadId: 't' });
  const other = await r.add([say('x'), hang], { threadId: 'u' });
  for (const job of [holder, other]) await prints(r, job);
  const byId = await r.add([say('by id')], { threadId: 'v' });
  const flaky = await r.add([fail('no_sandbox', 1), say('flaky')], { threadId: 't' }, { attempts: 2 });
  const delayed = await r.add([say('delayed')], { threadId: 't' }, { delay: 600_000 });
  await cancel(r, byId.id);
  await cancelThread(r, ':t');
  await cancel(r, delayed.id);
  await cancel(r, other.id);
  for (const job of [byId, delayed, flaky]) assert.match(await r.failure(job), /cancelled/);
  for (const job of [holder, other]) assert.equal((await r.result(job)).reason, 'cancelled');
  // Retried by hand, one of them in two attempts.
  const again = async (job, text) => {
    await job.retry();
    await waitFor(async () => (await r.replyNow(job)).at(-1)?.reason === 'ok', { timeout: 60_000, what: `${text} runs` });
    assert.equal((await r.hash(job)).returnvalue.includes(text), true);
  };
  await again(byId, 'by id');
  await again(flaky, 'flaky');
  // Another replica starts, and reads what was said: its slots are the only free ones.
  const holders = await Promise.all(['t', 'u'].map((threadId) => r.add([say('x'), hang], { threadId })));
  for (const job of holders) await prints(r, job);
  const since = await r.add([say('since')], { threadId: 't' });
  await delayed.retry();
  r.startWorker({ WORKER_CONCURRENCY: '2' });
  await parkedCount(r, 2);
  const there = await r.add([say('x'), hang], { threadId: 'there' });
  await prints(r, there);
  await cancel(r, there.id); // read after all that was said before
  assert.equal((await r.result(there)).reason, 'cancelled');
  assert.equal((await r.run([say('quiet')])).stdout, 'quiet');
  for (const job of holders) await cancel(r, job.id);
  assert.equal((await r.result(since)).stdout, 'since');
  await waitFor(async () => (await r.replyNow(delayed)).at(-1)?.reason === 'ok', { timeout: 60_000, what: 'the delayed one runs' });
});
