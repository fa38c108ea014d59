// Whatever is in a job's hash: one clear failure, no retry, and the next job runs at once.
import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, script } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const code = script(say('x'));
const nested = (n, open = '[', close = ']') => open.repeat(n) + close.repeat(n);
const object = (extra) => JSON.stringify({ code, ...extra });

/** Adds a job whose data is these raw bytes, without a worker seeing anything else of it. */
async function addRaw(r, raw, { change } = {}) {
  await r.queue.pause();
  const job = await r.add('', {}, { attempts: 5, backoff: 10 });
  if (raw !== undefined) await r.redis.hset(r.P + job.id, 'data', raw);
  await change?.(r.P + job.id, job);
  const next = await r.add([say('next')]);
  await r.queue.resume();
  return { job, next };
}

const raw = [ // [what, data, what failedReason must name]
  ['undefined', 'undefined', /JSON/i],
  ['nothing', '', /JSON|data/i],
  ['an open brace', '{', /JSON/i],
  ['an array', '[]', /object/i],
  ['a string', '"str"', /object/i],
  ['null', 'null', /object/i],
  ['a number', '17', /object/i],
  ['trailing bytes', `${object()}x`, /JSON/i],
  ['a lone surrogate in code', '{"code":"print(\'\\ud800\')"}', /code|JSON|surrogate|unicode/i],
  ['a lone low surrogate in threadId', '{"code":"x","threadId":"\\udc00"}', /JSON|surrogate|unicode|threadId/i],
  ['invalid UTF-8', Buffer.from('{"code":"\xff\xfe"}', 'latin1'), /JSON|UTF-8/i],
  ['1,000 levels', object().replace(/}$/, `,"x":${nested(1000)}}`), /deep|nest|depth|JSON/i],
  ['100,000 levels', object().replace(/}$/, `,"x":${nested(100_000)}}`), /deep|nest|depth|JSON/i],
  ['100,000 objects', nested(100_000, '{"a":', '}'), /deep|nest|depth|JSON/i],
  ['1e400', `{"code":"x","timeoutMs":1e400}`, /timeoutMs|JSON|number/i],
  ['NaN', `{"code":"x","timeoutMs":NaN}`, /timeoutMs|JSON/i],
  ['code absent', '{}', /code/],
  ['code null', '{"code":null}', /code/],
  ['code a number', '{"code":5}', /code/],
  ['code an array', '{"code":["x"]}', /code/],
  ['v 2', object({ v: 2 }), /\bv\b|version/],
  ['v "1"', object({ v: '1' }), /\bv\b|version/],
  ['language a number', object({ language: 5 }), /language/],
  ['threadId a number', object({ threadId: 5 }), /threadId/],
  ['threadId an object', object({ threadId: {} }), /threadId/],
  ['threadId a boolean', object({ threadId: true }), /threadId/],
  ['workspaceId a number', object({ threadId: 't', workspaceId: 5 }), /workspaceId/],
  ['actorKey an array', object({ threadId: 't', actorKey: [] }), /actorKey/],
  ['files an object', object({ files: {} }), /files/],
  ['files of strings', object({ files: ['a'] }), /files/],
  ['a file without name', object({ files: [{ content: '' }] }), /files|filename/],
  ['a file without source', object({ files: [{ filename: 'a' }] }), /files|url|content|key/],
  ['a file with two sources', object({ files: [{ filename: 'a', content: '', key: 'k' }] }), /files|url|content|key/],
  ['a file with bad base64', object({ files: [{ filename: 'a', content: '!!!' }] }), /base64/],
  ['a file name with NUL', object({ files: [{ filename: 'a\0b', content: '' }] }), /filename|file name|NUL/i],
  ['an empty file name', object({ files: [{ filename: '', content: '' }] }), /filename|file name|empty/i],
  ['env an array', object({ env: ['A=1'] }), /env/],
  ['env with a number', object({ env: { A: 1 } }), /env/],
  ['env value with NUL', object({ env: { A: 'x\0y' } }), /env/],
  ['env name with =', object({ env: { 'A=B': 'x' } }), /env/],
  ['env name empty', object({ env: { '': 'x' } }), /env/],
  ['a key of something else', object({ files: [{ filename: 'a', key: 'bull:other:1' }] }), /key/],
  ['secretsKey of something else', object({ secretsKey: 'bull:other:1' }), /secretsKey/],
  ['secretsKey a number', object({ secretsKey: 1 }), /secretsKey/],
  ['timeoutMs 0', object({ timeoutMs: 0 }), /timeoutMs/],
  ['timeoutMs -1', object({ timeoutMs: -1 }), /timeoutMs/],
  ['timeoutMs 1.5', object({ timeoutMs: 1.5 }), /timeoutMs/],
  ['timeoutMs "3000"', object({ timeoutMs: '3000' }), /timeoutMs/],
  ['startBy a string', object({ startBy: 'noon' }), /startBy/],
  ['idempotent a string', object({ idempotent: 'yes' }), /idempotent/],
  ['reply a number', object({ reply: 1 }), /reply/],
  ['output a string', object({ output: 'x' }), /output/],
  ['upload without url', object({ output: { upload: {} } }), /output|upload|url/],
  ['upload to ftp', object({ output: { upload: { url: 'ftp://x.test/a' } } }), /output|upload|url|http/],
  ['upload by DELETE', object({ output: { upload: { url: 'http://x.test/a', method: 'DELETE' } } }), /output|upload|method/],
  ['inline a string', object({ output: { inline: 'x' } }), /output|inline/],
];

test('malformed data of every kind', async (t) => {
  const r = await rig(t);
  for (const [what, data, pattern] of raw) {
    await t.test(what, async () => {
      const { job, next } = await addRaw(r, data);
      const reason = await r.failure(job, 5000);
      assert.match(reason, pattern);
      assert.ok(reason.length < 500, 'one sentence');
      assert.ok(!/\n/.test(reason), 'one line');
      assert.equal((await r.result(next, 2000)).stdout, 'next');
      const hash = await r.hash(job);
      assert.equal(hash.atm, '1', 'no second attempt');
      assert.equal(await r.state(job), 'failed');
      const { done } = await r.gathered(job);
      assert.deepEqual([done.state, done.reason, done.error], ['failed', 'bad_job', reason]);
    });
  }
});

test('fields that are missing from the hash', async (t) => {
  const r = await rig(t);
  const cases = {
    data: /data|JSON/i, name: /name/i,
    opts: null, timestamp: null, priority: null, delay: null, // fine without
  };
  for (const [field, pattern] of Object.entries(cases)) {
    const { job, next } = await addRaw(r, object(), { change: (key) => r.redis.hdel(key, field) });
    if (pattern) assert.match(await r.failure(job, 5000), pattern, field);
    else assert.match(await r.state((await settled(r, job))), /completed|failed/, field);
    assert.equal((await r.result(next, 3000)).stdout, 'next', field);
  }
  for (const opts of ['', '{', '[]', 'null', '"x"', '{"attempts":"many"}', '{"attempts":-1}', '{"attempts":1e99}', '{"backoff":[]}',
    '{"backoff":{"type":5}}', '{"backoff":{"type":"fixed","delay":"soon"}}',
    '{"removeOnComplete":{"count":"x"}}', '{"group":5}', '{"group":{"id":{}}}', nested(5000)]) {
    const { job, next } = await addRaw(r, object(), { change: (key) => r.redis.hset(key, 'opts', opts) });
    await settled(r, job, opts);
    assert.equal((await r.result(next, 3000)).stdout, 'next', opts);
  }
  // Any text is true for a stock Worker: removed at once.
  const { job, next } = await addRaw(r, object(), { change: (key) => r.redis.hset(key, 'opts', '{"removeOnComplete":"yes"}') });
  assert.equal((await r.result(next, 5000)).stdout, 'next');
  await waitFor(async () => (await r.state(job)) === 'unknown', { what: 'the job is gone' });
  assert.equal(await r.redis.llen(`${r.P}active`), 0);
});

test('an id in wait without a job, and one of the wrong type', async (t) => {
  const r = await rig(t);
  await r.queue.pause();
  await r.redis.lpush(`${r.P}wait`, 'ghost', 'ghost2');
  await r.redis.set(`${r.P}odd`, 'a string');
  await r.redis.lpush(`${r.P}wait`, 'odd');
  const next = await r.add([say('next')]);
  await r.queue.resume();
  assert.equal((await r.result(next, 5000)).stdout, 'next');
  await r.redis.del(`${r.P}odd`);
  assert.equal((await r.run([say('again')])).stdout, 'again');
});

test('large data: 20 MB is refused at once, just below the limit works', async (t) => {
  const r = await rig(t);
  const big = await r.add('x'.repeat(20 << 20), { threadId: 't' });
  const next = await r.add([say('next')], { threadId: 't2' });
  assert.match(await r.failure(big, 5000), /large|limit|bytes|big/i);
  assert.equal((await r.result(next, 3000)).stdout, 'next');
  assert.equal((await r.gathered(big)).done.reason, 'bad_job');
  await big.remove();
  const fits = await r.run([say('fits')], { padding: 'x'.repeat(1_000_000) });
  assert.equal(fits.stdout, 'fits');
  assert.ok(fits.warnings.some((w) => /padding/.test(w)), 'unknown fields are named in the warnings');
  const many = await r.add([say('x')], { threadId: 't', files: Array.from({ length: 100_000 }, (_, i) => ({ filename: `f${i}`, content: '' })) });
  assert.match(await r.failure(many, 5000), /large|limit|bytes|files/i);
  assert.equal((await r.run([say('alive')], { threadId: 't' })).stdout, 'alive');
});

test('duplicate keys, odd numbers and huge unknown fields do no harm', async (t) => {
  const r = await rig(t);
  for (const data of [`{"code":"","code":${JSON.stringify(code)}}`, object({ x: 1e300, y: -0, z: 12345678901234567890 }),
    object({ ['k'.repeat(10_000)]: 1 }), object({ 'a\nb': 1, '\u0000': 2 }), object({ __proto__x: {}, constructor: 1 })]) {
    const { job, next } = await addRaw(r, data);
    await settled(r, job, data.slice(0, 60));
    assert.equal((await r.result(next, 3000)).stdout, 'next');
  }
});

test('job ids that are words of the queue', async (t) => {
  const r = await rig(t);
  for (const jobId of ['jobs', 'reply', 'release', 'lease', 'file', 'stream', 'settings', 'replicas']) {
    assert.equal((await r.run([say(jobId)], {}, { jobId })).stdout, jobId);
    assert.equal((await r.gathered(jobId)).stdout, jobId);
  }
  for (const jobId of ['lock', 'logs', 'dependencies', 'processed', 'unsuccessful']) {
    const job = await r.add([say('x')], { threadId: jobId }, { jobId });
    assert.match(await r.failure(job), new RegExp(jobId));
    assert.equal(await r.redis.exists(`${r.P}reply:${jobId}`), 0, 'no reply: its key would be BullMQ\'s');
    assert.equal((await r.run([say('next')], { threadId: jobId })).stdout, 'next');
  }
  await r.queue.removeOrphanedJobs?.();
  assert.equal((await r.gathered('jobs')).stdout, 'jobs', 'our keys survive removeOrphanedJobs');
});

test('a refused secretsKey touches no other key', async (t) => {
  const r = await rig(t);
  const kept = `${r.P}secret:kept`;
  await r.redis.hset(kept, 'A', '1');
  await r.redis.pexpire(kept, 600_000);
  const before = await r.redis.hgetall(`${r.P}meta`);
  for (const data of [{ secretsKey: `${'x'.repeat(r.P.length)}meta` }, { secretsKey: `${'x'.repeat(r.P.length)}secret:kept` },
    { secretsKey: 'x' }, { secretsKey: kept, files: 5 }, { secretsKey: `${r.P}meta`, timeoutMs: 0 }]) {
    await r.failure(await r.add([say('x')], data));
  }
  assert.equal((await r.run([say('next')])).stdout, 'next');
  assert.deepEqual(await r.redis.hgetall(`${r.P}meta`), before);
});

test('a job with a key of a wrong type holds up no other job', async (t) => {
  for (const WORKER_CONCURRENCY of ['1', '8']) {
    const r = await rig(t, { env: { WORKER_CONCURRENCY } });
    await r.queue.pause();
    const good = [];
    for (let i = 0; i < 3; i++) good.push(await r.add([say('x')], { threadId: `t${i}` }));
    const noHash = await r.add([say('x')], { threadId: 'bad' });
    await r.redis.set(r.P + noHash.id, 'no hash');
    for (let i = 0; i < 3; i++) good.push(await r.add([say('x')], { threadId: `t${i}` }));
    const noRecord = await r.add([say('x')], { threadId: 'record' });
    await r.redis.set(`${r.P}thread::record`, 'no hash');
    for (let i = 0; i < 3; i++) good.push(await r.add([say('x')]));
    await r.queue.resume();
    await waitFor(async () => (await Promise.all(good.map((job) => r.state(job)))).every((state) => state === 'completed'),
      { timeout: 20_000 * slow, what: 'the jobs beside them completed' });
    for (const job of good) assert.equal(await r.redis.hget(r.P + job.id, 'ats'), '1', `${job.id} was claimed once`);
    assert.equal(await r.redis.get(r.P + noHash.id), 'no hash');
    assert.ok(!r.worker.lines.some((line) => /could not be/.test(line)), 'an end that came with it is not lost');
    await waitFor(() => r.worker.lines.some((line) => /WRONGTYPE/.test(line)), { timeout: 5000 * slow, what: 'the worker says why' });
    await r.redis.del(`${r.P}thread::record`, r.P + noHash.id);
    await r.redis.lrem(`${r.P}active`, 0, noHash.id);
    assert.equal((await r.run([say('next')])).stdout, 'next');
    await settled(r, noRecord);
  }
});

test('data just below every limit keeps the worker small', async (t) => {
  const r = await rig(t, { events: true });
  const jobs = await Promise.all(Array.from({ length: 20 }, (_, i) =>
    r.add([say('x')], { threadId: `t${i}`, pad: 'y'.repeat(900_000) }, { removeOnComplete: true })));
  await waitFor(async () => (await r.queue.getJobCountByTypes('wait', 'active', 'delayed')) === 0, { timeout: 20_000 * slow, what: 'all done' });
  for (const job of jobs) assert.equal((await r.gathered(job)).done.state, 'completed');
});

/** Waits until a job has ended, well or badly. */
async function settled(r, job, what = job.id) {
  await waitFor(async () => /completed|failed/.test(await r.state(job)), { timeout: 5000 * slow, what: `${what} ended` });
  return job;
}
