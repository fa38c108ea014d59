// The second door: XADD to the intake stream becomes a job, once; what cannot be admitted is kept with a reason.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const data = (steps, more = {}) => JSON.stringify({ code: script(...steps), ...more });
const xadd = (r, fields) => r.redis.xadd(`${r.P}stream:jobs`, '*', ...Object.entries(fields).flat());
const pending = async (r) => (await r.redis.xpending(`${r.P}stream:jobs`, 'workers'))[0];
const empty = (r) => waitFor(async () => (await r.redis.xlen(`${r.P}stream:jobs`)) === 0 && (await pending(r)) === 0,
  { what: 'the stream empty, nothing pending', timeout: 60_000 * slow });
const dead = async (r) => (await r.redis.xrange(`${r.P}stream:dead`, '-', '+'))
  .map(([, f]) => Object.fromEntries(f.flatMap((v, i) => (i % 2 ? [] : [[v, f[i + 1]]]))));
const ended = (r, id, ms = 60_000) => waitFor(async () => /completed|failed/.test(await r.state(id)) && r.queue.getJob(id),
  { what: `${id} ended`, timeout: ms * slow });

test('an entry becomes a job of the same kind as Queue.add makes', async (t) => {
  const r = await rig(t);
  const entry = await xadd(r, { data: data([say('hi')]) });
  const job = await ended(r, `s-${entry}`);
  assert.equal(job.returnvalue.stdout, 'hi');
  assert.equal(job.name, 'execute');
  const twin = await r.add([say('hi')]);
  await r.result(twin);
  const [a, b] = [await r.hash(job), await r.hash(twin)];
  assert.deepEqual(Object.keys(a).sort(), Object.keys(b).sort(), 'the same hash fields');
  const events = async (id) => (await r.eventLog(id)).map((e) => e.event);
  assert.deepEqual(await events(job.id), await events(twin.id));
  assert.equal((await r.gathered(job)).stdout, 'hi');
  await empty(r);
  assert.deepEqual(await dead(r), []);
});

test('id, name and options are taken', async (t) => {
  const r = await rig(t);
  const later = Date.now();
  await xadd(r, { data: data([fail('no_sandbox', 1), say('second')]), id: 'mine', opts: '{"attempts":2,"backoff":{"type":"fixed","delay":50}}' });
  await xadd(r, { data: data([say('late')]), id: 'late', opts: '{"delay":800}' });
  await xadd(r, { data: data([say('p')]), id: 'prio', opts: '{"priority":3,"removeOnComplete":true}' });
  await xadd(r, { data: data([say('x')]), id: 'wrongname', name: 'other' });
  await xadd(r, { data: data([say('x')], { threadId: 'st' }), id: 'release', name: 'release' });
  assert.equal((await ended(r, 'mine')).returnvalue.stdout, 'second');
  assert.equal((await r.queue.getJob('mine')).attemptsMade, 2);
  const late = await ended(r, 'late');
  assert.ok(late.processedOn - later >= 790);
  assert.equal((await r.gathered('prio')).done.result.stdout, 'p');
  await waitFor(async () => (await r.redis.exists(`${r.P}prio`)) === 0, { what: 'prio removed' });
  assert.match((await ended(r, 'wrongname')).failedReason, /other/);
  assert.equal(await (await ended(r, 'release')).getState(), 'completed');
});

test('dead letters: kept with a reason, and the door stays open', async (t) => {
  const r = await rig(t);
  const bad = {
    'no data': { nothing: 'x' },
    'opts no JSON': { data: data([say('x')]), opts: '{' },
    'opts an array': { data: data([say('x')]), opts: '[]' },
    'attempts a word': { data: data([say('x')]), opts: '{"attempts":"many"}' },
    'priority too high': { data: data([say('x')]), opts: '{"priority":99999999}' },
    'too large': { data: data([say('x')], { pad: 'x'.repeat(2 << 20) }) },
  };
  for (const id of ['marker', 'wait', 'active', 'meta', 'events', 'id', 'completed', 'failed', 'delayed', 'stalled', 'lock',
    'logs', 'limiter', 'pc', 'prioritized', 'paused', 'repeat', '12', 'a:b', 'stream:jobs', 'x'.repeat(5000)]) {
    bad[`id ${id.slice(0, 20)}`] = { data: data([say('x')]), id };
  }
  for (const fields of Object.values(bad)) await xadd(r, fields);
  const good = await xadd(r, { data: data([say('good')]) });
  assert.equal((await ended(r, `s-${good}`)).returnvalue.stdout, 'good');
  await empty(r);
  const letters = await dead(r);
  assert.equal(letters.length, Object.keys(bad).length);
  for (const letter of letters) assert.match(letter.reason, /\S{2,} \S{2,}/, 'a sentence');
  assert.ok(letters.some((l) => l.id === 'marker' && l.data), 'the entry\'s fields are kept');
  assert.equal(await r.redis.type(`${r.P}marker`).then((x) => /zset|none/.test(x)), true);
  assert.equal((await r.run([say('queue ok')])).stdout, 'queue ok');
});

test('malformed data is accounted for exactly once', async (t) => {
  const r = await rig(t);
  const kinds = ['{', '', '[]', 'null', '{"code":5}', '{"code":"\\ud800"}', '\xff', `{"code":"x","y":${'['.repeat(5000)}${']'.repeat(5000)}}`];
  const entries = [];
  for (const text of kinds) entries.push(await xadd(r, { data: text }));
  await empty(r);
  const letters = (await dead(r)).length;
  let failed = 0;
  for (const entry of entries) {
    if ((await r.redis.exists(`${r.P}s-${entry}`)) === 0) continue;
    assert.ok((await ended(r, `s-${entry}`)).failedReason);
    failed++;
  }
  assert.equal(letters + failed, kinds.length);
});

test('an id that exists already does not run twice', async (t) => {
  const r = await rig(t);
  await xadd(r, { data: data([say('one')]), id: 'same' });
  await ended(r, 'same');
  await xadd(r, { data: data([say('two')]), id: 'same' });
  await empty(r);
  await sleep(300);
  assert.equal((await r.queue.getJob('same')).returnvalue.stdout, 'one');
  assert.equal((await r.hash('same')).ats, '1');
  assert.ok((await r.eventLog('same')).some((e) => e.event === 'duplicated'));
});

test('entries of a dead replica come back', async (t) => {
  const r = await rig(t, { replicas: 0 });
  const stream = `${r.P}stream:jobs`;
  await r.redis.xgroup('CREATE', stream, 'workers', '0', 'MKSTREAM');
  const entries = [];
  for (let i = 0; i < 5; i++) entries.push(await xadd(r, { data: data([say(`${i}`)]) }));
  await r.redis.xreadgroup('GROUP', 'workers', 'dead-replica', 'COUNT', 3, 'STREAMS', stream, '>');
  r.startWorker();
  const outs = await Promise.all(entries.map(async (e) => (await ended(r, `s-${e}`)).returnvalue.stdout));
  assert.deepEqual(outs, ['0', '1', '2', '3', '4']);
  await empty(r);
});

test('an entry acknowledged by another is not admitted again', async (t) => {
  const r = await rig(t, { replicas: 0 });
  const stream = `${r.P}stream:jobs`;
  await r.redis.xgroup('CREATE', stream, 'workers', '0', 'MKSTREAM');
  const entry = await xadd(r, { data: data([say('x')], {}), opts: '{"removeOnComplete":true}' });
  await r.redis.xreadgroup('GROUP', 'workers', 'late-replica', 'COUNT', 1, 'STREAMS', stream, '>');
  await r.redis.xack(stream, 'workers', entry); // admitted, run and removed elsewhere; not yet deleted
  r.startWorker();
  const next = await xadd(r, { data: data([say('next')]) });
  await ended(r, `s-${next}`);
  await sleep(Number(shortLocks.LOCK_DURATION_MS) + 1000);
  assert.equal(await r.redis.exists(`${r.P}reply:s-${entry}`), 0);
  assert.deepEqual((await r.eventLog(`s-${entry}`)), []);
});

test('300 entries on 3 replicas, one of them killed: each is run or accounted for, none twice', async (t) => {
  const r = await rig(t, { replicas: 3 });
  const entries = [];
  const killed = r.workers.pop();
  for (let i = 0; i < 300; i++) {
    entries.push(await xadd(r, { data: data([say(`run ${i};`), wait(3)], { idempotent: false, threadId: `t${i % 20}` }) }));
    if (i === 150) await killed.kill9();
  }
  for (const entry of entries) await ended(r, `s-${entry}`);
  await empty(r);
  assert.deepEqual(await dead(r), []);
  let lost = 0;
  for (const entry of entries) {
    const job = await r.queue.getJob(`s-${entry}`);
    const starts = (await r.reply(job)).filter((m) => m.type === 'started').length;
    if (job.failedReason) {
      assert.match(job.failedReason, /^WorkerLost/);
      lost++;
    } else {
      assert.equal(starts, 1);
    }
  }
  assert.ok(lost <= 32, `${lost} lost with the killed worker`);
});

test('the door opens again when the stream or the group is deleted, or is of the wrong type', async (t) => {
  const r = await rig(t);
  await ended(r, `s-${await xadd(r, { data: data([say('x')]) })}`);
  await r.redis.del(`${r.P}stream:jobs`);
  await ended(r, `s-${await xadd(r, { data: data([say('x')]) })}`);
  await r.redis.xgroup('DESTROY', `${r.P}stream:jobs`, 'workers');
  await ended(r, `s-${await xadd(r, { data: data([say('x')]) })}`);
});

test('STREAM_INTAKE=false leaves the stream alone', async (t) => {
  const r = await rig(t, { env: { STREAM_INTAKE: 'false' } });
  await xadd(r, { data: data([say('x')]) });
  assert.equal((await r.run([say('queue')])).stdout, 'queue');
  await sleep(300);
  assert.equal(await r.redis.xlen(`${r.P}stream:jobs`), 1);
});
