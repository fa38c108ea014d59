// Whatever is done by hand to the job that holds a thread: the thread goes on, within the near horizon, and in order.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const near = 8000; // lock duration and two stalled passes of these settings, and some
const thread = { threadId: 't', workspaceId: 'w' };

const until = (r, job, state) => waitFor(async () => (await r.state(job)) === state, { what: `${job.id} ${state}`, timeout: near * slow });

/** A holder in `state`, two jobs parked behind it, and act(holder) done to it: both must then run, in order. */
function holder(name, { steps, opts, state = 'active', version = '6.7.0', env }, act) {
  test(`${version}: ${name}`, async (t) => {
    const r = await makeRig(t, redis, { version, env: { ...shortLocks, ...env } });
    const job = await r.add(steps ?? [wait(2500 * slow), say('held')], thread, opts);
    await until(r, job, state);
    if (state === 'delayed') await waitFor(async () => (await r.hash(job)).atm === '1', { what: 'its first failure' });
    const behind = [await r.add([say('1')], thread), await r.add([say('2')], thread)];
    for (const one of behind) await until(r, one, 'delayed');
    await act(r, job);
    for (const one of behind) assert.equal((await r.result(one, near)).state, 'completed');
    const started = (await r.eventLog()).filter((e) => e.event === 'active').map((e) => e.jobId);
    assert.ok(started.indexOf(behind[0].id) < started.indexOf(behind[1].id), `in order: ${started}`);
    await waitFor(async () => (await r.redis.exists(`${r.P}lease:w:t`)) === 0 && (await r.redis.exists(`${r.P}parked:w:t`)) === 0,
      { what: 'nobody holds the thread', timeout: near * slow });
    return r;
  });
}

const backoff = { steps: [fail('no_sandbox', 1), say('again')], opts: { attempts: 2, backoff: 600_000 }, state: 'delayed' };
const tokenOf = (r, job) => r.redis.get(`${r.P}${job.id}:lock`);
const full = (r, job) => r.queue.getJob(job.id);

for (const version of ['6.7.0', '5.81.5', '5.40.0']) {
  holder('a holder in its backoff is removed', { ...backoff, version }, (r, job) => job.remove());
  holder('a holder in its backoff is promoted', { ...backoff, version }, async (r, job) => (await full(r, job)).promote());
  holder('a holder that runs is moved to failed by hand', { version }, async (r, job) =>
    (await full(r, job)).moveToFailed(new Error('by hand'), await tokenOf(r, job), false));
  holder('a holder that runs is moved to delayed by hand', { version }, async (r, job) =>
    (await full(r, job)).moveToDelayed(Date.now() + 500, await tokenOf(r, job)));
}
holder('a holder in its backoff gets another delay', backoff, async (r, job) => (await full(r, job)).changeDelay(200));
holder('a holder in its backoff gets a priority', backoff, async (r, job) => {
  await (await full(r, job)).changePriority({ priority: 9 });
  await (await full(r, job)).promote();
});
holder('a holder in its backoff is cleaned away', backoff, async (r, job) => {
  const seen = Number((await r.hash(job)).timestamp);
  await r.redis.hset(`${r.P}${job.id}`, 'timestamp', seen - 100_000, 'processedOn', seen - 100_000); // clean takes what is older than its grace
  await r.queue.clean(50_000, 1, 'delayed');
});
holder('a holder that runs is moved to completed by hand', {}, async (r, job) =>
  (await full(r, job)).moveToCompleted({ by: 'hand' }, await tokenOf(r, job), false));
holder('a holder that runs is moved to wait by hand', {}, async (r, job) => (await full(r, job)).moveToWait(await tokenOf(r, job)));
holder('a holder that runs loses its lock and is taken out of active', {}, async (r, job) => {
  await r.redis.del(`${r.P}${job.id}:lock`);
  await r.redis.lrem(`${r.P}active`, 1, job.id);
});
holder('a holder\'s hash is deleted', backoff, (r, job) => r.redis.del(`${r.P}${job.id}`));
holder('all failed jobs are retried while a thread is parked', {}, async (r) => {
  await r.queue.retryJobs();
  await r.queue.promoteJobs({ count: 100 }); // the parked ones, too: they are parked again
});

test('a holder that waits (its queue was paused) is drained away', async (t) => {
  const r = await makeRig(t, redis, { env: shortLocks });
  const job = await r.add([fail('no_sandbox', 1), say('x')], thread, { attempts: 2, backoff: 700 });
  await waitFor(async () => (await r.hash(job)).atm === '1', { what: 'its first failure' });
  const behind = await r.add([say('1')], thread);
  await until(r, behind, 'delayed');
  await r.queue.pause();
  await (await full(r, job)).promote();
  assert.match(await r.state(job), /waiting|paused/);
  await r.queue.drain();
  await r.queue.resume();
  assert.equal((await r.result(behind, near)).stdout, '1');
});

test('a parent moved to waiting-children by hand while it runs gives its thread to the child', async (t) => {
  const r = await makeRig(t, redis, { env: shortLocks });
  const parent = await r.add([wait(4000 * slow)], thread);
  await until(r, parent, 'active');
  const child = await r.add([say('child')], thread, { parent: { id: parent.id, queue: `bull:${r.name}` } });
  await (await full(r, parent)).moveToWaitingChildren(await tokenOf(r, parent));
  assert.equal((await r.result(child, near)).stdout, 'child');
  // Its code had been delivered once: it is not run again.
  assert.match(await r.failure(parent, near), /^WorkerLost/);
  assert.equal((await r.run([say('free')], thread)).stdout, 'free');
});

test('parent and children of one thread, the children added late: no deadlock, at any depth', async (t) => {
  const r = await makeRig(t, redis, { env: { ...shortLocks, WORKER_CONCURRENCY: '1' } });
  const flow = new clients['6.7.0'].FlowProducer({ connection: redis.connection });
  t.after(() => flow.close());
  const node = (text, children) => ({ name: 'execute', queueName: r.name, data: { v: 1, code: JSON.stringify(say(text)), ...thread }, children });
  const { job } = await flow.add(node('a', [node('b', [node('c'), node('d')]), node('e', [node('f')])]));
  assert.equal((await r.result(job, near)).stdout, 'a');
  await r.queue.pause();
  const parent = await r.add([say('p')], thread);
  const late = await r.add([say('late')], thread, { parent: { id: parent.id, queue: `bull:${r.name}` } });
  await r.queue.resume();
  assert.equal((await r.result(parent, near)).stdout, 'p');
  assert.equal((await r.result(late, near)).stdout, 'late');
  assert.deepEqual(Object.keys(await (await full(r, parent)).getChildrenValues()), [`${r.P}${late.id}`]);
  const log = (await r.eventLog(parent.id)).map((e) => e.event);
  assert.deepEqual(log, ['added', 'waiting', 'active', 'waiting-children', 'waiting', 'active', 'completed']);
});

test('a scheduler\'s jobs in one thread: one at a time, none left out', async (t) => {
  const r = await makeRig(t, redis, { env: shortLocks, replicas: 2 });
  await r.queue.upsertJobScheduler('s', { every: 150, limit: 4 }, { name: 'execute',
    data: { v: 1, code: JSON.stringify(wait(250)), ...thread } });
  await waitFor(async () => (await r.queue.getCompletedCount()) === 4, { what: 'four iterations', timeout: near * slow });
  await sleep(200);
  const active = [];
  for (const e of await r.eventLog()) {
    if (e.event === 'active') active.push(e.jobId);
    if (e.event === 'completed') assert.equal(active.pop(), e.jobId);
    assert.ok(active.length <= 1);
  }
});
