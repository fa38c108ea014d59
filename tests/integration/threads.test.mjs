// Threads: one job at a time, in order, over all replicas; nothing a user does to parked jobs gets a thread stuck.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const counter = { state: 'n' };

/** Ids in the order of their `active` events; fails when two of `jobs` were active at once. */
async function runOrder(r, jobs) {
  const ids = new Set(jobs.map((j) => j.id));
  const order = [];
  let active = null;
  for (const e of await r.eventLog()) {
    if (!ids.has(e.jobId)) continue;
    if (e.event === 'active') {
      assert.equal(active, null, `${e.jobId} became active while ${active} was`);
      active = e.jobId;
      order.push(e.jobId);
    } else if (e.jobId === active && e.event !== 'progress') {
      active = null; // completed, failed, delayed or waiting again
    }
  }
  return order;
}
const ids = (...jobs) => jobs.map((j) => j.id);
const parked = (r, job, ms = 5000) =>
  waitFor(async () => (await r.state(job)) === 'delayed', { what: `${job.id} parked`, timeout: ms * slow });
const active = (r, job) => waitFor(async () => (await r.state(job)) === 'active', { what: `${job.id} active` });

test('state is kept within a thread and shared with nobody', async (t) => {
  const r = await rig(t);
  const first = await r.run([counter], { threadId: 't1', workspaceId: 'w1' });
  const second = await r.run([counter], { threadId: 't1', workspaceId: 'w1' });
  assert.deepEqual([first.stdout.trim(), second.stdout.trim()], ['1', '2']);
  assert.deepEqual(first.sandbox, { reused: false, resumed: false, stateLost: null });
  assert.deepEqual(second.sandbox, { reused: true, resumed: false, stateLost: null });
  for (const other of [{ threadId: 't1', workspaceId: 'w2' }, { threadId: 't1' }, { threadId: 't2', workspaceId: 'w1' },
    { threadId: 'T1', workspaceId: 'w1' }, {}, {}]) {
    assert.equal((await r.run([counter], other)).stdout.trim(), '1', JSON.stringify(other));
  }
  assert.equal((await r.run([counter], { threadId: 't1', workspaceId: 'w1' })).stdout.trim(), '3');
});

test('names that look alike are different threads', async (t) => {
  const r = await rig(t);
  const pairs = [['a:b', 'c'], ['a', 'b:c'], ['a%3Ab', 'c'], ['', 'a:b:c'], ['a%', '3Ab:c'], ['ü', '日本'], ['x', 'undefined'],
    ['x', 'null'], ['x', ' '], ['x', '*'], ['x', 'a b\n"\'']];
  for (const [workspaceId, threadId] of pairs) {
    const a = await r.run([counter], { workspaceId, threadId });
    assert.equal(a.stdout.trim(), '1', `${workspaceId}|${threadId} is new`);
    const b = await r.run([counter], { workspaceId, threadId });
    assert.equal(b.stdout.trim(), '2', `${workspaceId}|${threadId} is kept`);
  }
});

test('jobs of a thread run one at a time, in order, on any replica', async (t) => {
  const r = await rig(t, { replicas: 3 });
  const jobs = [];
  for (let i = 0; i < 30; i++) jobs.push(await r.add([say(`${i}`), wait(i % 3 ? 5 : 30)], { threadId: 't' }));
  await Promise.all(jobs.map((job) => r.result(job)));
  assert.deepEqual(await runOrder(r, jobs), ids(...jobs));
});

test('two threads run in parallel, on one replica and on two', async (t) => {
  for (const replicas of [1, 2]) {
    const r = await rig(t, { replicas });
    await r.run([say('warm')]);
    const jobs = await Promise.all(['a', 'b', 'c'].map((threadId) => r.add([wait(1000)], { threadId })));
    await waitFor(async () => (await r.redis.llen(`${r.P}active`)) === 3, { what: 'three active at once', timeout: 900 * slow });
    await Promise.all(jobs.map((job) => r.result(job)));
  }
});

test('a busy thread takes no slot: others run past its queue', async (t) => {
  const r = await rig(t, { env: { WORKER_CONCURRENCY: '2' } });
  const holder = await r.add([wait(1500)], { threadId: 'busy' });
  await active(r, holder);
  const queue = [];
  for (let i = 0; i < 20; i++) queue.push(await r.add([say('x')], { threadId: 'busy' }));
  const other = await r.add([say('other')], { threadId: 'free' });
  assert.equal((await r.result(other, 1000)).stdout, 'other');
  assert.equal(await r.state(holder), 'active');
  for (const job of queue) {
    const stored = await r.queue.getJob(job.id);
    assert.equal(stored.attemptsStarted, 0);
    assert.equal(stored.attemptsMade, 0);
    assert.equal(stored.processedOn, undefined);
  }
  await Promise.all(queue.map((job) => r.result(job)));
  assert.deepEqual(await runOrder(r, [holder, ...queue]), ids(holder, ...queue));
});

test('parked jobs appear as delayed, use no attempt, and show up in counts', async (t) => {
  const r = await rig(t);
  const holder = await r.add([wait(1200)], { threadId: 't' });
  await active(r, holder);
  const [a, b] = [await r.add([say('a')], { threadId: 't' }), await r.add([say('b')], { threadId: 't' })];
  await parked(r, a);
  await parked(r, b);
  assert.equal(await r.queue.getDelayedCount(), 2);
  assert.deepEqual((await r.queue.getDelayed()).map((j) => j.id).sort(), ids(a, b).sort());
  await r.result(b);
  for (const job of [a, b]) {
    const stored = await r.queue.getJob(job.id);
    assert.equal(stored.attemptsMade, 1);
    assert.equal(stored.attemptsStarted, 1);
    assert.equal(stored.delay, 0);
  }
  assert.deepEqual(await runOrder(r, [holder, a, b]), ids(holder, a, b));
  assert.equal((await r.eventLog()).filter((e) => e.event === 'drained').length, 1, 'one drained, at the end');
  assert.deepEqual(await r.redis.keys(`${r.P}parked:*`), [], 'an empty park is no key');
  assert.deepEqual(await r.redis.keys(`${r.P}lease:*`), [], 'a free thread has no lease');
});

test('a job waiting for its retry keeps its place, with and without backoff', async (t) => {
  const r = await rig(t);
  for (const backoff of [undefined, 400]) {
    const threadId = `t${backoff}`;
    const first = await r.add([fail('no_sandbox', 2), say('a')], { threadId }, { attempts: 3, backoff });
    const rest = [];
    for (let i = 0; i < 3; i++) rest.push(await r.add([say('x')], { threadId }));
    await Promise.all([first, ...rest].map((job) => r.result(job)));
    assert.deepEqual(await runOrder(r, [first, ...rest]), [first.id, first.id, first.id, ...ids(...rest)]);
  }
});

test('failures, exceptions and timeouts let the thread go on', async (t) => {
  const r = await rig(t);
  const threadId = 't';
  const jobs = [
    await r.add([fail('driver_error')], { threadId }),
    await r.add([raise()], { threadId }),
    await r.add([{ hang: true }], { threadId, timeoutMs: 300 }),
    await r.add([{ die: 9 }], { threadId }),
    await r.add([say('x')], { threadId, startBy: 1 }),
    await r.queue.add('nonsense', { code: '', threadId }),
    await r.add([say('x')], { threadId, timeoutMs: -5 }),
    await r.add([{ lost: true }], { threadId }),
    await r.add([say('last')], { threadId }),
  ];
  assert.equal((await r.result(jobs.at(-1))).stdout, 'last');
  const states = await Promise.all(jobs.map((j) => r.state(j)));
  assert.deepEqual(states, ['failed', 'completed', 'completed', 'completed', 'failed', 'failed', 'failed', 'completed', 'completed']);
  await runOrder(r, jobs);
});

test('opts.group.id serves as threadId', async (t) => {
  const r = await rig(t);
  const a = await r.run([counter], {}, { group: { id: 'g' } });
  const b = await r.run([counter], { threadId: 'g' });
  const c = await r.run([counter], { threadId: 'g' }, { group: { id: 'g' } });
  assert.deepEqual([a, b, c].map((x) => x.stdout.trim()), ['1', '2', '3']);
  const conflict = await r.add([counter], { threadId: 'g' }, { group: { id: 'h' } });
  assert.match(await r.failure(conflict), /group|threadId/);
  const odd = await r.add([counter], {}, { group: { id: 7 } });
  assert.match(await r.failure(odd), /group/);
  assert.equal((await r.run([counter], { threadId: 'g' })).stdout.trim(), '4');
});

test('priority and lifo act before a thread\'s order; a parked one then keeps its place', async (t) => {
  const r = await rig(t, { replicas: 0 });
  const threadId = 't';
  const slowJob = await r.add([wait(200)], { threadId }, { priority: 5 });
  const low = await r.add([wait(50)], { threadId }, { priority: 9 });
  const high = await r.add([wait(50)], { threadId }, { priority: 1 });
  r.startWorker();
  await Promise.all([slowJob, low, high].map((job) => r.result(job)));
  assert.deepEqual(await runOrder(r, [slowJob, low, high]), ids(high, slowJob, low));
});

test('removing a parked job, the parked head, or a holder in its retry delay', async (t) => {
  const r = await rig(t);
  const threadId = 't';
  const holder = await r.add([wait(1000)], { threadId });
  await active(r, holder);
  const jobs = [];
  for (let i = 0; i < 4; i++) jobs.push(await r.add([say('x')], { threadId }));
  for (const job of jobs) await parked(r, job);
  await jobs[0].remove();
  await jobs[2].remove();
  await r.result(jobs[3]);
  assert.deepEqual(await runOrder(r, [holder, ...jobs]), ids(holder, jobs[1], jobs[3]));

  const stuck = await r.add([fail('no_sandbox')], { threadId: 'u' }, { attempts: 2, backoff: 600_000 });
  await parked(r, stuck); // its backoff, in truth
  const behind = await r.add([say('free')], { threadId: 'u' });
  await parked(r, behind);
  await stuck.remove();
  assert.equal((await r.result(behind, 8000)).stdout, 'free');
});

test('promoting a parked job does not break the order', async (t) => {
  const r = await rig(t);
  const threadId = 't';
  const holder = await r.add([wait(1000)], { threadId });
  await active(r, holder);
  const jobs = [];
  for (let i = 0; i < 4; i++) jobs.push(await r.add([say('x')], { threadId }));
  for (const job of jobs) await parked(r, job);
  await jobs[2].promote();
  await jobs[0].promote();
  await parked(r, jobs[2]);
  await Promise.all(jobs.map((job) => r.result(job)));
  assert.deepEqual(await runOrder(r, [holder, ...jobs]), ids(holder, ...jobs));
});

for (const delayed of [false, true]) {
  test(`drain(${delayed}) with parked jobs leaves no thread stuck`, async (t) => {
    const r = await rig(t);
    const threadId = 't';
    const holder = await r.add([wait(800)], { threadId });
    await active(r, holder);
    const jobs = [await r.add([say('x')], { threadId }), await r.add([say('x')], { threadId })];
    for (const job of jobs) await parked(r, job);
    await r.queue.drain(delayed);
    await r.result(holder);
    if (!delayed) await Promise.all(jobs.map((job) => r.result(job)));
    else assert.equal(await r.queue.getJobCountByTypes('delayed', 'wait'), 0);
    const later = await r.add([say('later')], { threadId });
    assert.equal((await r.result(later, 8000)).stdout, 'later');
  });
}

test('draining a woken head while the queue is paused leaves the rest able to run', async (t) => {
  const r = await rig(t);
  const threadId = 't';
  const holder = await r.add([wait(800)], { threadId });
  await active(r, holder);
  const jobs = [];
  for (let i = 0; i < 3; i++) jobs.push(await r.add([say(`${i}`)], { threadId }));
  for (const job of jobs) await parked(r, job);
  await r.queue.pause();
  await r.result(holder);
  await waitFor(async () => (await r.queue.count()) > 0, { what: 'the head woken' });
  await r.queue.drain(); // removes the woken head, keeps the parked
  await r.queue.resume();
  assert.equal((await r.result(jobs[2], 10_000)).stdout, '2');
});

test('obliterate while a thread runs: its next job still runs, and the killed run says removed', async (t) => {
  const r = await rig(t);
  const holder = await r.add([say('x'), wait(3000)], { threadId: 't' }, { jobId: 'holder' });
  await active(r, holder);
  await waitFor(async () => (await r.replyNow(holder)).some((m) => m.type === 'stdout'), { what: 'output' });
  await parked(r, await r.add([say('x')], { threadId: 't' }, { jobId: 'behind' }));
  await r.queue.obliterate({ force: true });
  const next = await r.add([say('next')], { threadId: 't' }, { jobId: 'next' });
  assert.equal((await r.result(next)).stdout, 'next');
  assert.equal((await r.gathered(holder)).done.reason, 'removed');
  assert.equal(await r.redis.exists(r.P + holder.id), 0, 'nothing brings the job back');
});

test('a v5 pause and resume with parked jobs', async (t) => {
  const r = await rig(t, { version: '5.81.5' });
  const threadId = 't';
  const holder = await r.add([wait(900)], { threadId });
  await active(r, holder);
  const jobs = [];
  for (let i = 0; i < 3; i++) jobs.push(await r.add([say('x')], { threadId }));
  for (const job of jobs) await parked(r, job);
  await r.queue.pause();
  jobs.push(await r.add([say('x')], { threadId }));
  await r.result(holder);
  await sleep(1500);
  assert.deepEqual(await runOrder(r, [holder, ...jobs]), [holder.id]);
  await r.queue.resume();
  await Promise.all(jobs.map((job) => r.result(job)));
  assert.deepEqual(await runOrder(r, [holder, ...jobs]), ids(holder, ...jobs));
});

test('a flow whose parent and children share a thread', async (t) => {
  const r = await rig(t);
  const flow = new clients['6.7.0'].FlowProducer({ connection: redis.connection });
  t.after(() => flow.close());
  const node = (text, children) => ({ name: 'execute', queueName: r.name, data: { code: script(say(text)), threadId: 't' }, children });
  const tree = await flow.add(node('parent', [node('c1'), node('c2')]));
  assert.equal((await r.result(tree.job)).stdout, 'parent');
  const children = tree.children.map((c) => c.job);
  const order = await runOrder(r, [tree.job, ...children]);
  assert.equal(order.at(-1), tree.job.id);
  assert.equal(Object.keys((await tree.job.getDependencies()).processed).length, 2);
});

test('a failed child takes its parent along, and the thread goes on', async (t) => {
  const r = await rig(t);
  const flow = new clients['6.7.0'].FlowProducer({ connection: redis.connection });
  t.after(() => flow.close());
  const data = (...steps) => ({ code: script(...steps), threadId: 't' });
  const tree = await flow.add({ name: 'execute', queueName: r.name, data: data(say('parent')), children: [
    { name: 'execute', queueName: r.name, data: data(fail('driver_error')), opts: { failParentOnFailure: true } }] });
  assert.match(await r.failure(tree.job), /child .* failed/);
  assert.equal((await r.run([say('on')], { threadId: 't' })).stdout, 'on');
});

test('release gives the next job a fresh sandbox, in its turn', async (t) => {
  const r = await rig(t);
  const data = { threadId: 't', workspaceId: 'w' };
  const before = [await r.add([counter, wait(300)], data), await r.add([counter], data)];
  const release = await r.queue.add('release', data);
  const after = await r.add([counter], data);
  const outs = await Promise.all([...before, after].map(async (job) => r.result(job)));
  assert.deepEqual(outs.map((o) => o.stdout.trim()), ['1', '2', '1']);
  assert.equal(outs[2].sandbox.reused, false);
  assert.equal(await release.getState(), 'completed');
  const reply = await r.reply(release);
  assert.equal(reply.filter((m) => m.type === 'done').length, 1);
  assert.deepEqual([reply.at(-1).state, reply.at(-1).reason], ['completed', 'ok']);
  assert.deepEqual([reply.at(-1).result.state, reply.at(-1).result.reason, reply.at(-1).result.exitCode], ['completed', 'ok', 0]);
  const idle = await r.queue.add('release', { threadId: 'never-seen' });
  assert.equal((await r.result(idle)).reason, 'ok');
  const bad = await r.queue.add('release', {});
  assert.match(await r.failure(bad), /threadId/);
});
