// Redis behind sentinels: the worker finds the master, follows a failover in mid-run, and loses nothing.
import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';
import { startSentinels } from '../lib/topology.mjs';

const minute = 60_000 * slow;
const rigOn = (t, site, options = {}) => makeRig(t, site, {
  events: false, checks: false, ...options, env: { ...shortLocks, DRAIN_DELAY_MS: '1000', ...site.env, ...options.env },
});
async function fine(r, job, stdout) {
  const reply = await r.gathered(job, 60_000);
  assert.deepEqual([reply.done.reason, reply.stdout], ['ok', stdout], reply.done.error);
  assert.equal((await r.hash(job)).ats, '1', 'it ran once');
}
const begun = (r, job) => waitFor(async () => (await r.replyNow(job)).length > 1, { timeout: minute, what: `${job.id} runs` });

test('failover in mid-run: the run goes on and ends on the new master; waiting jobs follow', async (t) => {
  const site = await startSentinels();
  const [old, next] = site.servers;
  const r = await rigOn(t, site, { env: { WORKER_CONCURRENCY: '2' } });
  const running = [
    await r.add([say('a'), wait(8000), say('b')], { threadId: 't' }),
    await r.add([say('c'), wait(8000), say('d')]),
  ];
  for (const job of running) await begun(r, job);
  const waiting = [];
  for (let i = 0; i < 5; i++) waiting.push(await r.add([say(`${i}`)], i % 2 ? { threadId: 't' } : {}));
  // Replication is asynchronous: what the old master has not passed on would be lost with it, by no fault of ours.
  await waitFor(() => old.client().wait(1, 1000), { timeout: minute, what: 'the replica has all' });
  await old.kill();
  await waitFor(async () => (await site.master()) === next.port, { timeout: minute, what: 'the sentinels named the new master' });
  await fine(r, running[0], 'ab');
  await fine(r, running[1], 'cd');
  for (const [i, job] of waiting.entries()) await fine(r, job, `${i}`);

  // The old master comes back and is made a replica; a second failover leads back to it.
  await old.restart();
  await waitFor(async () => /role:slave/.test(await old.client().info('replication')) && /master_link_status:up/.test(await old.client().info('replication')),
    { timeout: minute, what: 'the old master follows' });
  const again = await r.add([say('x'), { hang: true }], { threadId: 't' });
  await begun(r, again);
  await waitFor(() => next.client().wait(1, 1000), { timeout: minute, what: 'the replica has all' });
  await waitFor(() => site.asked[0].call('SENTINEL', 'FAILOVER', 'mymaster'), { timeout: minute, what: 'a failover by hand' });
  await waitFor(async () => (await site.master()) === old.port, { timeout: minute, what: 'the sentinels named the first master' });
  // The worker goes at once; the old master serves others for some seconds more, and what they write there is lost.
  await r.worker.waitLine(/another master/, { timeout: minute });
  await waitFor(async () => /role:slave/.test(await next.client().info('replication')), { timeout: minute, what: 'the demotion' });
  await waitFor(async () => (await r.redis.role())[0] === 'master', { timeout: minute, what: "the test's client is at the master" });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', again.id);
  const { stdout, done } = await r.gathered(again, 60_000);
  assert.deepEqual([stdout, done.reason], ['x', 'cancelled']);
  await r.queue.waitUntilReady();
  await fine(r, await r.add([say('end')], { threadId: 't' }), 'end');
});

test('sentinels with a password, one of them gone and one that knows nothing', async (t) => {
  const site = await startSentinels({ name: 'queue', auth: 'c4n4ry-sentinel' });
  site.sentinels[0].process.kill('SIGKILL');
  await site.sentinels[0].process.exited;
  await site.asked[1].call('SENTINEL', 'REMOVE', 'queue');
  site.connection.sentinels = site.connection.sentinels.slice(2);
  const r = await rigOn(t, site, { env: { REDIS_URL: `${site.scheme}://ignored:1` } });
  await fine(r, await r.add([say('here')]), 'here');
  assert.ok(!r.worker.lines.join('\n').includes('c4n4ry'), 'no password in the log');
  for (const [password, told] of [['', /wants a password, and REDIS_SENTINEL_PASSWORD is not set/], ['wr0ng', /refused REDIS_SENTINEL_USER and REDIS_SENTINEL_PASSWORD/]]) {
    const other = await rigOn(t, site, { env: { REDIS_URL: `${site.scheme}://ignored:1`, REDIS_SENTINEL_PASSWORD: password } });
    await other.worker.waitLine(told, { timeout: minute });
    assert.ok(!other.worker.lines.join('\n').includes('wr0ng'), 'no password in the log');
  }
});

test('sentinels that name no master, or a replica, are told apart and waited for', async (t) => {
  const site = await startSentinels();
  const none = await rigOn(t, site, { env: { REDIS_SENTINEL_MASTER: 'other' } });
  await none.worker.waitLine(/REDIS_SENTINEL_MASTER/, { timeout: minute });
  // A sentinel that is behind the times: it still names what is a replica by now.
  for (const one of site.asked.slice(0, 2)) await one.call('SENTINEL', 'REMOVE', 'mymaster');
  await site.asked[2].call('SENTINEL', 'REMOVE', 'mymaster');
  await site.asked[0].call('SENTINEL', 'MONITOR', 'mymaster', '127.0.0.1', site.servers[1].port, 2);
  const lagging = await rigOn(t, site);
  await lagging.worker.waitLine(/not the master/, { timeout: minute });
  await site.asked[0].call('SENTINEL', 'REMOVE', 'mymaster');
  await site.asked[0].call('SENTINEL', 'MONITOR', 'mymaster', '127.0.0.1', site.servers[0].port, 2);
  await lagging.worker.waitLine(/redis \(commands\).*connected/, { timeout: minute });
});
