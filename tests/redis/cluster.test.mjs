// A Redis Cluster: the worker goes to the node that has the queue's slot, waits while the slot moves, follows it, and
// runs nothing twice.
import assert from 'node:assert/strict';
import test from 'node:test';
import { FlowProducer } from 'bullmq';
import { waitFor, within } from '../lib/process.mjs';
import { makeRig, shortLocks, slow, startWorker } from '../lib/rig.mjs';
import { fail, say, wait } from '../lib/scripted.mjs';
import { startCluster } from '../lib/topology.mjs';

const minute = 60_000 * slow;
const rigOn = (t, site, options = {}) => makeRig(t, site, {
  prefix: site.prefix, checks: false, ...options, env: { ...shortLocks, DRAIN_DELAY_MS: '1000', ...options.env },
});
async function fine(r, job, stdout) {
  const reply = await r.gathered(job, 60_000);
  assert.deepEqual([reply.done.reason, reply.stdout], ['ok', stdout], reply.done.error);
  assert.equal((await r.hash(job)).ats, '1', `${job.id} ran once`);
}
const begun = (r, job) => waitFor(async () => (await r.replyNow(job)).length > 1, { timeout: minute, what: `${job.id} runs` });

const site = await startCluster();

test('the whole life of jobs on a cluster, from the stock client for it', async (t) => {
  const r = await rigOn(t, site, { replicas: 2 });
  assert.equal((await r.run([say('plain')])).stdout, 'plain');
  const chain = [];
  for (let i = 0; i < 4; i++) chain.push(await r.add([say(`${i}`), wait(20)], { threadId: 't' }));
  for (const [i, job] of chain.entries()) assert.equal((await r.result(job, 60_000)).stdout, `${i}`);
  const retried = await r.add([fail('driver_error', 1), say('second')], {}, { attempts: 3, backoff: 50 });
  assert.match((await r.result(retried, 60_000)).stdout, /second/);
  assert.equal((await r.run([say('later')], {}, { delay: 300 })).stdout, 'later');
  assert.equal((await r.run([say('first')], {}, { priority: 5 })).stdout, 'first');
  const flows = new FlowProducer({ connection: site.connection, prefix: site.prefix });
  const tree = await flows.add({
    name: 'execute', queueName: r.name, data: { code: JSON.stringify(say('parent')) },
    children: [{ name: 'execute', queueName: r.name, data: { code: JSON.stringify(say('child')) } }],
  });
  assert.equal((await r.result(tree.job, 60_000)).stdout, 'parent');
  await flows.close();
  await r.queue.upsertJobScheduler('every', { every: 200, limit: 2 }, { name: 'execute', data: { code: JSON.stringify(say('tick')) } });
  await waitFor(async () => (await r.queue.getCompleted()).filter((job) => job.repeatJobKey).length === 2, { timeout: minute, what: 'two ticks' });
  await r.redis.xadd(`${r.P}stream:jobs`, '*', 'data', JSON.stringify({ code: JSON.stringify(say('door two')) }), 'id', 'by-stream');
  await fine(r, { id: 'by-stream' }, 'door two');
  const hung = await r.add([say('h'), { hang: true }], { threadId: 'h' });
  await begun(r, hung);
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', hung.id);
  assert.equal((await r.gathered(hung, 60_000)).done.reason, 'cancelled');
  const withFile = await r.run([{ file: 'out.txt', content: 'bytes' }]);
  assert.equal(await r.redis.get(withFile.files[0].key), 'bytes');
  await r.redis.hset(`${r.P}secret:s`, 'K', 'v');
  await r.redis.set(`${r.P}file:in`, 'input');
  assert.equal((await r.run([say('with inputs')], {
    secretsKey: `${r.P}secret:s`, files: [{ filename: 'a.txt', key: `${r.P}file:in` }],
  })).stdout, 'with inputs');
  const slots = new Set(await Promise.all((await r.redis.keys('*')).map((key) => site.admin[0].call('CLUSTER', 'KEYSLOT', key))));
  assert.deepEqual([...slots], [site.slot], 'all keys are on one slot');
});

test('the slot is moved while jobs run: scripts wait, the queue goes on, nothing runs twice', async (t) => {
  const r = await rigOn(t, site, { replicas: 2, env: { WORKER_CONCURRENCY: '8' } });
  const home = await site.ownerIndex();
  const secret = await r.add([say('s')], { secretsKey: `${r.P}secret:x`, files: [{ filename: 'f', key: `${r.P}file:x` }] }, { delay: 1500 });
  await r.redis.hset(`${r.P}secret:x`, 'K', 'v');
  await r.redis.set(`${r.P}file:x`, 'x'.repeat(600_000));
  for (const to of [(home + 1) % 3, (home + 2) % 3]) {
    const running = [];
    for (let i = 0; i < 4; i++) running.push(await r.add([say('a'), wait(2500), say('b'), wait(2500), say('c')], i % 2 ? { threadId: `t${i}` } : {}));
    for (const job of running) await begun(r, job);
    const behind = [];
    for (let i = 0; i < 20; i++) behind.push(await r.add([say(`${i}`)], i % 2 ? { threadId: `t${i % 8}` } : {}));
    const [from, line] = [r.worker.lines.length, { timeout: minute }];
    await site.move(to, /:(lease|parked|thread):/, async () => {
      // Scripts that would find the keys they name, and miss others in mid-work, are refused at their door.
      for (const what of [/slot is being moved/, /refused wake for now: (TRYAGAIN|ASK)/]) {
        await r.worker.waitLine(what, { ...line, from });
      }
    });
    assert.equal(await site.ownerIndex(), to);
    for (const job of running) await fine(r, job, 'abc');
    for (const [i, job] of behind.entries()) await fine(r, job, `${i}`);
  }
  await fine(r, secret, 's');
  const log = r.workers.flatMap((worker) => worker.lines).join('\n');
  assert.doesNotMatch(log, /non local key|CROSSSLOT|script \w+ failed/, 'no script was cut in half');
  assert.doesNotMatch(log, /stream:jobs: (ASK|TRYAGAIN|MOVED|CLUSTERDOWN)/, 'a slot that moves is no state of the stream');
});

test('a prefix without a hash tag ends the start with the name of the setting', async () => {
  const worker = startWorker({ REDIS_URL: site.url, QUEUE_PREFIX: 'bull', QUEUE_NAME: 'q' });
  await worker.waitLine(/Redis Cluster.*QUEUE_PREFIX/, { timeout: minute });
  assert.deepEqual(await within(minute, worker.exited, 'the worker ends'), { code: 3, signal: null });
});

test('a cluster with a password: the worker, the stock client, and docker/client on a connection of its own', async (t) => {
  const own = await startCluster({ password: 'c4n4ry' });
  const r = await rigOn(t, own);
  const job = await r.add([say('in')], { threadId: 't' });
  assert.equal((await r.result(job, 60_000)).stdout, 'in');
  await fine(r, job, 'in');
  assert.ok(!r.worker.lines.join('\n').includes('c4n4ry'), 'no password in the log');
});

test('the node with the slot dies: its replica takes over, runs go on', async (t) => {
  const own = await startCluster({ replicas: 1 });
  const r = await rigOn(t, own, { events: false });
  const job = await r.add([say('a'), wait(8000), say('b')], { threadId: 't' });
  await begun(r, job);
  const next = await r.add([say('next')], { threadId: 't' });
  await waitFor(() => own.nodes[own.home].client().wait(1, 1000), { timeout: minute, what: 'the replica has all' });
  await own.nodes[own.home].kill();
  await waitFor(async () => (await own.ownerIndex((own.home + 1) % 3)) === 3, { timeout: minute, what: 'the replica owns the slot' });
  await fine(r, job, 'ab');
  await fine(r, next, 'next');
});
