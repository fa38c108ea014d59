// Redis goes away in every way it can: the worker comes back by itself within its deadlines, and no run is lost.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startProxy, startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, script, wait } from '../lib/scripted.mjs';

const lockMs = Number(shortLocks.LOCK_DURATION_MS);
const env = { ...shortLocks, DRAIN_DELAY_MS: '1000' };
const ticks = (n, ms) => Array.from({ length: n }, (_, i) => [say(`${i} `), wait(ms)]).flat();
const ticked = (n) => Array.from({ length: n }, (_, i) => `${i} `).join('');

/** A rig on a Redis of its own: these tests break it. QueueEvents would only add noise; replies tell all. */
async function rig(t, { redis, ...options } = {}) {
  redis ??= await startRedis({ durable: true });
  return Object.assign(await makeRig(t, redis, { events: false, ...options, env: { ...env, ...options.env } }), { server: redis });
}
const begun = (r, job) => waitFor(async () => (await r.replyNow(job)).length > 0, { what: `${job.id} started` });
async function check(r, job, stdout, ms = 60_000) {
  const reply = await r.gathered(job, ms);
  assert.deepEqual([reply.done.state, reply.done.reason], ['completed', 'ok'], reply.done.error);
  assert.equal(reply.done.result.stdout, stdout);
  assert.equal(reply.stdout, stdout, 'the reply has each piece once');
  assert.equal((await r.hash(job)).ats, '1', 'it ran once');
  assert.equal((await r.hash(job)).stc ?? '0', '0', 'it never counted as stalled');
}

test('Redis killed and restarted while the worker is idle', async (t) => {
  const r = await rig(t);
  const first = await r.add([say('a')]);
  await check(r, first, 'a');
  for (const downMs of [100, 3000]) {
    await r.server.kill();
    await sleep(downMs);
    await r.server.restart();
    const job = await r.add([say('b')]);
    await check(r, job, 'b');
  }
  await waitFor(async () => (await r.queue.getWorkers()).length === 1, { what: 'one named connection' });
});

test('Redis away for longer than a lock while runs go on: none is lost', async (t) => {
  const r = await rig(t, { replicas: 2 });
  const runMs = lockMs + 4000;
  const jobs = [];
  for (let i = 0; i < 4; i++) jobs.push(await r.add(ticks(20, runMs / 20), i % 2 ? { threadId: `t${i}` } : {}));
  const behind = await r.add([say('behind')], { threadId: 't1' });
  for (const job of jobs) await begun(r, job);
  await sleep(500);
  await r.server.kill();
  await sleep(lockMs + 1500);
  await r.server.restart();
  for (const job of jobs) await check(r, job, ticked(20));
  await check(r, behind, 'behind');
});

test('Redis away when a run ends: its end is told when Redis is back', async (t) => {
  const r = await rig(t, { replicas: 2 });
  const jobs = [await r.add([say('x'), wait(1200)], { threadId: 'a' }), await r.add([say('x'), wait(1200)])];
  for (const job of jobs) await begun(r, job);
  await sleep(300);
  await r.server.kill();
  await sleep(lockMs + 1500);
  await r.server.restart();
  for (const job of jobs) await check(r, job, 'x');
});

test('Redis restarted with its data lost: nothing comes back as half a job', async (t) => {
  const server = await startRedis();
  const r = await rig(t, { redis: server });
  const job = await r.add([say('x'), wait(2500)], { threadId: 't' });
  await begun(r, job);
  await server.kill();
  await server.restart();
  await r.queue.waitUntilReady();
  await sleep(3000);
  assert.equal(await r.redis.exists(r.P + job.id), 0);
  assert.equal(await r.redis.exists(`${r.P}${job.id}:lock`), 0);
  const next = await r.queue.add('execute', { code: script(say('new')), threadId: 't' }, { jobId: 'new' });
  await check(r, next, 'new');
});

test('SCRIPT FLUSH, idle and during a run', async (t) => {
  const r = await rig(t);
  await check(r, await r.add([say('a')]), 'a');
  await r.redis.script('FLUSH');
  const job = await r.add([say('b'), wait(800), say('c')], { threadId: 't' });
  await begun(r, job);
  await r.redis.script('FLUSH');
  await check(r, job, 'bc');
  for (let i = 0; i < 20; i++) {
    const one = await r.add([say('x')], { threadId: `t${i % 2}` });
    await r.redis.script('FLUSH');
    await check(r, one, 'x');
  }
});

test('CLIENT KILL and CLIENT UNBLOCK, idle and during runs', async (t) => {
  const r = await rig(t);
  await check(r, await r.add([say('a')]), 'a');
  const jobs = [await r.add(ticks(30, 100), { threadId: 't' }), await r.add(ticks(30, 100))];
  for (const job of jobs) await begun(r, job);
  for (let i = 0; i < 4; i++) {
    await r.redis.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await sleep(500);
  }
  for (const job of jobs) await check(r, job, ticked(30));
  const blocked = (await r.redis.client('LIST')).split('\n').filter((line) => /cmd=(bzpopmin|xread)/.test(line));
  assert.ok(blocked.length >= 1, 'the worker waits on the marker');
  for (const line of blocked) await r.redis.client('UNBLOCK', /id=(\d+)/.exec(line)[1], 'ERROR').catch(() => {});
  await check(r, await r.add([say('again')]), 'again');
});

test('half-open connections: the worker notices, idle and during a run', async (t) => {
  const server = await startRedis({ durable: true });
  const proxy = await startProxy(server.port);
  const r = await rig(t, { redis: server, url: proxy.url, replicas: 1 });
  await check(r, await r.add([say('a')]), 'a');
  proxy.freeze(); // all connections now open are dead, without a word
  await check(r, await r.add([say('b')]), 'b');
  const job = await r.add(ticks(40, 200), { threadId: 't' });
  await begun(r, job);
  proxy.freeze();
  const reply = await r.gathered(job);
  // Its lock may have run out meanwhile; alone on the queue, the worker keeps the run.
  assert.equal(reply.done.result?.stdout ?? reply.done.error, ticked(40));
  await check(r, await r.add([say('c')]), 'c');
});

test('a connection that is reset or refused for a while', async (t) => {
  const server = await startRedis({ durable: true });
  const proxy = await startProxy(server.port);
  const r = await rig(t, { redis: server, url: proxy.url });
  const job = await r.add(ticks(30, 100));
  await begun(r, job);
  proxy.refuse = true;
  proxy.cut();
  await sleep(1000);
  proxy.refuse = false;
  await check(r, job, ticked(30));
  proxy.delayMs = 150;
  await check(r, await r.add(ticks(5, 50), { threadId: 't' }), ticked(5));
});

test('a worker that starts before Redis does', async (t) => {
  const server = await startRedis({ durable: true });
  await server.kill();
  const started = rig(t, { redis: server });
  await sleep(1500);
  await server.restart();
  const r = await started;
  await check(r, await r.add([say('x')]), 'x');
});

test('Redis frozen by SIGSTOP for longer than a lock', async (t) => {
  const r = await rig(t, { replicas: 2 });
  const job = await r.add(ticks(20, 300), { threadId: 't' });
  await begun(r, job);
  r.server.pause();
  await sleep(lockMs + 1000);
  r.server.resume();
  await check(r, job, ticked(20));
  await check(r, await r.add([say('x')], { threadId: 't' }), 'x');
});

test('the marker deleted while the worker waits on it', async (t) => {
  const r = await rig(t);
  await check(r, await r.add([say('a')]), 'a');
  await r.queue.pause();
  const jobs = [];
  for (let i = 0; i < 3; i++) jobs.push(await r.add([say('b')]));
  const delayed = await r.add([say('b')], {}, { delay: 300 });
  await r.redis.hdel(`${r.P}meta`, 'paused');
  await r.redis.del(`${r.P}marker`);
  for (const job of [...jobs, delayed]) await check(r, job, 'b');
});

test('a primary that becomes a replica and back (READONLY)', async (t) => {
  const r = await rig(t);
  const other = await startRedis();
  const b = other.client();
  await b.replicaof('127.0.0.1', String(r.server.port));
  await waitFor(async () => /master_link_status:up/.test(await b.info('replication')), { what: 'replica in sync' });
  const job = await r.add(ticks(30, 100));
  await begun(r, job);
  await r.redis.replicaof('127.0.0.1', String(other.port)); // a replica of its own replica: read-only
  await sleep(1500);
  await r.redis.replicaof('NO', 'ONE');
  await check(r, job, ticked(30));
  await check(r, await r.add([say('x')]), 'x');
});

test('writes refused for want of replicas (NOREPLICAS): output waits, and its run goes on', async (t) => {
  const r = await rig(t);
  const job = await r.add(ticks(30, 100), { threadId: 't' });
  await begun(r, job);
  const from = r.worker.lines.length;
  await r.redis.config('SET', 'min-replicas-to-write', '1');
  await r.worker.waitLine(/refused reply for now: .*NOREPLICAS/, { from });
  await r.redis.config('SET', 'min-replicas-to-write', '0');
  await check(r, job, ticked(30));
});

test('Redis out of memory for a while: the job ends when there is room again', async (t) => {
  const r = await rig(t);
  const job = await r.add(ticks(20, 100), { threadId: 't' });
  await begun(r, job);
  await r.redis.config('SET', 'maxmemory', '1');
  await sleep(1000);
  await r.redis.config('SET', 'maxmemory', '0');
  const reply = await r.gathered(job);
  assert.equal(reply.done.state, 'completed');
  assert.equal(reply.done.result.stdout, ticked(20), 'the result is whole');
  // If the worker looked at the memory just then, replies are short until it looks again.
  const said = (text) => r.worker.lines.filter((line) => line.includes(text)).length;
  await waitFor(() => said('over 80 percent') === said('Redis has room again'), { timeout: 60_000, what: 'room again' });
  await check(r, await r.add([say('x')], { threadId: 't' }), 'x');
});

test('Redis with a password, a user, a database and a socket', async (t) => {
  const secret = 'p@ss/wörd:1';
  const server = await startRedis({ args: ['--requirepass', secret] });
  const connection = { ...server.connection, password: secret, db: 3 };
  const admin = server.client({ password: secret });
  await admin.call('ACL', 'SETUSER', 'wörker', 'on', '>s3cr3t %', '~*', '&*', '+@all');
  const urls = [`${server.scheme}://:${encodeURIComponent(secret)}@127.0.0.1:${server.port}/3`,
    `${server.scheme}://${encodeURIComponent('wörker')}:${encodeURIComponent('s3cr3t %')}@127.0.0.1:${server.port}/3`,
    `unix://:${encodeURIComponent(secret)}@${server.socket}?db=3`.replace('unix://:', 'unix://:')];
  for (const url of urls) {
    const r = await makeRig(t, { ...server, url, connection, client: () => server.client({ password: secret, db: 3 }) },
      { env, url, events: false });
    await check(r, await r.add([say('in')]), 'in');
    const log = r.worker.lines.join('\n');
    assert.ok(!log.includes(secret) && !log.includes(encodeURIComponent(secret)) && !log.includes('s3cr3t'), 'no password in the log');
    await r.worker.done();
    r.workers.length = 0;
  }
});
