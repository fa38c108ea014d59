// The reply channel: every ending says `done` once, output arrives while code runs, caps and expiry hold.
import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { listen } from '../lib/reader.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const types = (messages) => messages.map((m) => m.type);
const active = (r, job) => waitFor(async () => (await r.state(job)) === 'active', { what: `${job.id} active` });

const endings = [ // [reason, steps, data, exit code, state lost afterwards]
  ['ok', [say('out')], {}, 0, null],
  ['code_error', [say('out'), raise()], {}, 1, null],
  ['code_error', [say('out'), { exit: 3 }], {}, 3, null],
  ['timeout', [say('out'), { hang: true }], { timeoutMs: 400 }, 124, null],
  ['timeout', [say('out'), { resist: true }, { hang: true }], { timeoutMs: 400 }, 124, 'killed_after_timeout'],
  ['kernel_died', [say('out'), { die: 9 }], {}, 137, 'kernel_died'],
  ['kernel_died', [say('out'), { die: 11 }], {}, 139, 'kernel_died'],
  ['sandbox_lost', [say('out'), { lost: true }], {}, null, undefined],
  ['outcome_unknown', [say('out'), { unknown: true }], {}, null, undefined],
];

for (const [reason, steps, data, exitCode, stateLost] of endings) {
  test(`ends as ${reason}: ${JSON.stringify(steps.slice(1))}`, async (t) => {
    const r = await rig(t);
    const job = await r.add([{ file: 'kept.txt', content: 'kept' }, ...steps], { threadId: 't', ...data }, { attempts: 3 });
    const result = await r.result(job);
    assert.equal(result.reason, reason);
    assert.equal(result.state, reason === 'ok' ? 'completed' : 'error');
    assert.equal(result.exitCode, exitCode);
    assert.equal(result.stdout, 'out');
    assert.equal(await r.state(job), 'completed');
    const messages = await r.reply(job);
    const done = messages.at(-1);
    assert.deepEqual([done.state, done.reason], [result.state, reason]);
    assert.deepEqual(done.result, result);
    assert.equal(done.error ?? null, result.error);
    assert.deepEqual([...new Set(types(messages))].filter((x) => x !== 'file'), ['started', 'stdout', 'done']);
    assert.equal(new Set(messages.map((m) => m.executionId)).size, 1);
    assert.equal(messages[0].executionId, result.executionId);
    if (/ok|code_error|timeout/.test(reason)) {
      assert.deepEqual(result.files.map((f) => f.filename), ['kept.txt']);
      assert.equal((await r.redis.getBuffer(result.files[0].key)).toString(), 'kept');
    }
    assert.equal((await r.hash(job)).ats, '1', 'ran once');
    const next = await r.run([say('next')], { threadId: 't' });
    if (stateLost === null) assert.deepEqual(next.sandbox, { reused: true, resumed: false, stateLost: null });
    else assert.equal(next.sandbox.reused, false);
    if (stateLost) assert.ok(next.sandbox.stateLost || result.sandbox.stateLost, 'the loss is told');
  });
}

const failures = [ // [reason, add(r), attempts made]
  ['no_sandbox', (r) => r.add([fail('no_sandbox')], {}, { attempts: 2 }), 2],
  ['no_capacity', (r) => r.add([fail('no_capacity')], {}, { attempts: 2 }), 2],
  ['driver_error', (r) => r.add([fail('driver_error')], {}, { attempts: 2 }), 2],
  ['unknown_name', (r) => r.queue.add('other', { code: '' }, { attempts: 2 }), 2],
  ['expired', (r) => r.add([say('x')], { startBy: Date.now() - 1000 }, { attempts: 2 }), 1],
  ['bad_job', (r) => r.queue.add('execute', { code: 7 }, { attempts: 2 }), 1],
];

for (const [reason, add, attempts] of failures) {
  test(`fails as ${reason}`, async (t) => {
    const r = await rig(t);
    const job = await add(r);
    const failedReason = await r.failure(job);
    const messages = await r.reply(job);
    assert.equal(messages.filter((m) => m.type === 'done').length, 1);
    const done = messages.at(-1);
    assert.deepEqual([done.state, done.reason, done.error], ['failed', reason, failedReason]);
    assert.equal(done.result, undefined);
    assert.deepEqual(types(messages).slice(0, -1), Array(attempts - 1).fill('retrying'));
    assert.equal((await r.hash(job)).atm, String(attempts));
    assert.equal((await r.hash(job))['sp:run'], undefined, 'no mark is left');
  });
}

test('startBy is looked at when the job\'s turn comes', async (t) => {
  const r = await rig(t);
  const holder = await r.add([wait(1200)], { threadId: 't' });
  const late = await r.add([say('x')], { threadId: 't', startBy: Date.now() + 600 });
  const early = await r.add([say('in time')], { threadId: 'u', startBy: Date.now() + 60_000 });
  assert.match(await r.failure(late), /expired|startBy/i);
  assert.equal((await r.result(early)).stdout, 'in time');
  await r.result(holder);
});

test('output arrives while the code runs, in order, and the same by Pub/Sub and stream', async (t) => {
  const r = await rig(t);
  await r.run([say('warm')]);
  const jobId = 'live';
  const heard = await listen(r.redis, `${r.P}reply:${jobId}`);
  const job = await r.add([say('one\n'), wait(2000), { stderr: 'two\n' }, wait(2000),
    { result: { 'text/plain': '3', 'image/png': 'aGk=' }, main: false }, wait(2000), say('four')], {}, { jobId });
  const looks = [];
  const laterThen = {}; // what the stream had not yet when a message came
  await r.follow(job, { onMessage: (m) => looks.push(r.replyNow(job).then((reply) => {
    const had = new Set(types(reply));
    laterThen[m.type] ??= ['stderr', 'result', 'done'].filter((type) => !had.has(type));
  })) });
  await Promise.all(looks);
  assert.deepEqual([laterThen.started, laterThen.stderr, laterThen.result], [['stderr', 'result', 'done'], ['result', 'done'], ['done']]);
  const stored = await r.reply(job);
  await waitFor(() => heard.at(-1)?.message.type === 'done', { what: 'done heard' });
  heard.stop();
  assert.deepEqual(heard.map((h) => h.message), stored);
});

test('a late reader gets everything, once and in order', async (t) => {
  const r = await rig(t);
  const job = await r.add(Array.from({ length: 40 }, (_, i) => [say(`${i} `), wait(5)]).flat());
  const readers = [0, 50, 150].map((ms) => new Promise((resolve) => setTimeout(resolve, ms)).then(() => r.gathered(job)));
  const expected = Array.from({ length: 40 }, (_, i) => `${i} `).join('');
  for (const reply of await Promise.all(readers)) assert.equal(reply.stdout, expected);
  assert.equal((await r.gathered(job)).stdout, expected);
  const tail = await r.follow(job, { fromSeq: 3 });
  assert.equal(tail[0].seq, 3);
});

test('pieces are joined without loss: blank lines, partial lines, many small ones', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('a'), wait(60), say('b\n\nc\n'), wait(60), say('d'), say('é中😀\n'), say('x', 5000)]);
  const result = await r.result(job);
  assert.equal(result.stdout.slice(0, 20), `ab\n\nc\ndé中😀\n${'x'.repeat(20)}`.slice(0, 20));
  const messages = await r.reply(job);
  const text = messages.filter((m) => m.type === 'stdout').map((m) => m.text).join('');
  assert.equal(text, `ab\n\nc\ndé中😀\n${'x'.repeat(5000)}`);
  assert.ok(messages.length < 60, `coalesced: ${messages.length} messages for 5,000 writes`);
});

test('every key of ours expires; files go when the reply goes', async (t) => {
  const r = await rig(t, { env: { REPLY_TTL_MS: '60000' } });
  const jobs = [
    await r.add([{ file: 'a.txt', content: 'x' }, say('x')], { threadId: 't' }),
    await r.add([fail('no_sandbox')], { threadId: 't' }),
    await r.queue.add('execute', { code: 5 }),
    await r.add([say('x'), wait(600)]),
  ];
  await active(r, jobs[3]);
  await waitFor(async () => (await r.redis.exists(`${r.P}reply:${jobs[3].id}`)) === 1, { what: 'its reply' });
  assert.ok((await r.redis.pttl(`${r.P}reply:${jobs[3].id}`)) > 0, 'from the first write on');
  for (const job of jobs) await r.reply(job);
  let seen = 0;
  for (const key of await r.redis.keys(`${r.P}*`)) {
    const suffix = key.slice(r.P.length);
    const ttl = await r.redis.pttl(key);
    if (/^(reply|file):/.test(suffix)) {
      seen++;
      assert.ok(ttl > 50_000 && ttl <= 60_000, `${key}: ${ttl} ms`);
    } else if (/^(lease|parked|thread|replica|turn):/.test(suffix)) {
      assert.ok(ttl > 0 && ttl <= 7 * 86_400_000, `${key}: ${ttl} ms`);
    } else if (!/^\d+$/.test(suffix)) {
      assert.match(suffix, /^(id|meta|events|completed|failed|marker|stalled|stalled-check|wait|active|delayed|pc|index:(parked|replicas)|stream:(jobs|dead|control)|stats:queue|settings:runtime)$/,
        `no other keys: ${suffix}`);
    }
  }
  assert.equal(seen, 5);
});

test('the reply is capped: said once, done still comes, the result stays small', async (t) => {
  const r = await rig(t, { env: { REPLY_MAX_BYTES: '65536' } });
  const line = `${'y'.repeat(99)}\n`;
  const job = await r.add([say('head\n'), say(line, 20_000), { stderr: 'late\n' }, { result: { 'text/plain': 'r' } }, say('tail\n')]);
  const result = await r.result(job, 60_000);
  assert.equal(result.state, 'completed');
  const messages = await r.reply(job);
  assert.equal(messages.filter((m) => m.type === 'truncated').length, 1);
  assert.deepEqual(messages.find((m) => m.type === 'truncated').limit, 65536);
  const stored = messages.filter((m) => m.type === 'stdout').reduce((n, m) => n + m.text.length, 0);
  assert.ok(stored > 20_000 && stored <= 65_536, `${stored} bytes stored`);
  assert.equal(messages.at(-1).type, 'done');
  const size = Buffer.byteLength(JSON.stringify(result));
  assert.ok(size <= 65_536, `result of ${size} bytes`);
  assert.ok(result.stdout.startsWith('head\n') && result.stdout.endsWith('tail\n'), 'head and tail are kept');
  const total = 5 + 100 * 20_000 + 5;
  const kept = result.stdout.length;
  assert.ok(result.truncated.stdout > 0 && Math.abs(total - result.truncated.stdout - kept) < 200,
    `${result.truncated.stdout} of ${total} dropped, ${kept} kept`);
  assert.equal(result.truncated.stderr, 0);
});

test('a large result never exceeds its limit, whatever fills it', async (t) => {
  const r = await rig(t);
  const cases = [
    [say('"\\\n\t'.repeat(1000), 60)],
    [say('😀'.repeat(500), 60), { stderr: 'é'.repeat(50_000) }],
    [{ result: { 'text/plain': 'small', 'text/html': '<p>'.repeat(40_000) }, main: true }],
    Array.from({ length: 500 }, (_, i) => ({ result: { 'text/plain': `result ${i} ${'z'.repeat(300)}` } })),
    [raise('ValueError', 'v'.repeat(300_000), 't'.repeat(300_000))],
    Array.from({ length: 90 }, (_, i) => ({ file: `${'d'.repeat(200)}/${'f'.repeat(200)}${i}.txt`, content: 'x' })),
    [say('\u0001\u0002'.repeat(500), 60)],
  ];
  for (const steps of cases) {
    const job = await r.add(steps);
    const result = await r.result(job, 40_000);
    const size = Buffer.byteLength((await r.hash(job)).returnvalue);
    assert.ok(size <= 65_536, `${size} bytes for ${JSON.stringify(steps[0]).slice(0, 60)}`);
    assert.ok(!JSON.stringify(result).includes('\ufffd'), 'cut between characters');
    await r.reply(job);
  }
});

test('every MIME type the kernel gives is passed on; big values are told, not lost silently', async (t) => {
  const r = await rig(t);
  const bundle = { 'text/plain': 't', 'text/html': '<b>', 'text/latex': '$x$', 'text/markdown': '*m*', 'image/svg+xml': '<svg/>',
    'image/jpeg': '/9j/4A==', 'application/pdf': 'JVBERi0=', 'application/json': { a: [1, null, { b: 'ü' }] }, 'application/javascript': 'x()',
    'application/vnd.plotly.v1+json': { data: [] }, 'application/x.unknown': 'u' };
  const job = await r.add([{ result: bundle, main: true }, { result: { 'text/plain': 'second' }, main: false }]);
  const result = await r.result(job);
  assert.deepEqual(result.results, [{ data: bundle, main: true }, { data: { 'text/plain': 'second' }, main: false }]);
  assert.deepEqual((await r.gathered(job)).results.map(({ data, main }) => ({ data, main })), result.results);
  const html = 'h'.repeat(300_000);
  const big = await r.add([{ result: { 'text/plain': 'small', 'text/html': html }, main: true }]);
  const value = await r.result(big);
  assert.equal(value.results[0].data['text/plain'], 'small');
  assert.equal(value.results[0].data['text/html'], undefined);
  const { key, size } = value.results[0].refs['text/html'];
  assert.deepEqual([size, await r.redis.get(key)], [html.length, html]);
  const middle = await r.add([{ result: { 'text/plain': 'small', 'text/html': 'm'.repeat(6000) } }]);
  assert.ok((await r.result(middle)).results[0].omitted['text/html'] >= 6000);
  assert.equal((await r.gathered(middle)).results[0].data['text/html'].length, 6000, 'the reply has it');
});

test('PNG results are files too, and never collide with the user\'s names', async (t) => {
  const r = await rig(t);
  const png = Buffer.from('89504e470d0a1a0a', 'hex').toString('base64');
  for (let round = 0; round < 2; round++) {
    const job = await r.add([{ result: { 'image/png': png, 'text/plain': '<Figure>' } }, { result: { 'image/png': png } },
      { file: 'chart-0.png', content: 'mine' }, { file: 'chart-1.png', content: 'mine too' }], { threadId: 't' });
    const { files } = await r.result(job);
    assert.equal(files.length, 4);
    assert.equal(new Set(files.map((f) => f.filename)).size, 4);
    assert.equal(new Set(files.map((f) => f.fileId)).size, 4);
    assert.equal(new Set(files.map((f) => f.key)).size, 4);
    for (const f of files) {
      assert.equal(f.mimeType, 'image/png');
      const bytes = await r.redis.getBuffer(f.key);
      assert.equal(bytes.length, f.size);
      if (/^mine/.test(bytes)) assert.match(f.filename, /^chart-[01]\.png$/);
      else assert.equal(bytes.toString('base64'), png);
    }
  }
});

test('files: bytes, types, nested names, limits', async (t) => {
  const r = await rig(t, { env: { FILE_MAX_BYTES: '220000', FILES_MAX_BYTES: '450000', FILES_MAX_COUNT: '8' } });
  const all = Buffer.from(Array.from({ length: 256 * 800 }, (_, i) => i % 256));
  const named = { 'all.bin': all, 'empty.txt': Buffer.alloc(0), 'a/b/c/deep.csv': Buffer.from('x'), 'a/r.csv': Buffer.from('1'),
    'r.csv': Buffer.from('2'), 'A.PNG': Buffer.from('p'), 'é 日本.txt': Buffer.from('u') };
  const job = await r.add(Object.entries(named).map(([file, bytes]) => ({ file, base64: bytes.toString('base64') })));
  const result = await r.result(job);
  assert.deepEqual(result.files.map((f) => f.filename).sort(), Object.keys(named).sort());
  for (const f of result.files) {
    assert.equal(f.size, named[f.filename].length);
    const stored = (await r.redis.getBuffer(f.key)) ?? Buffer.alloc(0);
    assert.ok(stored.equals(named[f.filename]), f.filename);
  }
  assert.equal(result.files.find((f) => f.filename === 'A.PNG').mimeType, 'image/png');
  assert.equal(result.files.find((f) => f.filename === 'r.csv').mimeType, 'text/csv');
  const reply = await r.reply(job);
  assert.deepEqual(types(reply).filter((x) => x === 'file').length, 7);
  assert.ok(types(reply).lastIndexOf('file') < types(reply).indexOf('done'));

  const tooBig = await r.run([{ file: 'big.bin', base64: Buffer.alloc(220_001).toString('base64') }, { file: 'ok.txt', content: 'ok' }]);
  assert.deepEqual(tooBig.files.map((f) => f.filename), ['ok.txt']);
  assert.ok(tooBig.warnings.some((w) => /big\.bin/.test(w)), 'and the result says so');
  const together = await r.run(['a', 'b', 'c'].map((file) => ({ file, base64: Buffer.alloc(200_000).toString('base64') })));
  assert.equal(together.files.length, 2);
  assert.ok(together.warnings.length > 0);
  const many = await r.run(Array.from({ length: 12 }, (_, i) => ({ file: `f${i}`, content: 'x' })));
  assert.equal(many.files.length, 8);
  assert.ok(many.warnings.length > 0);
});

test('output.inline puts small files into the result', async (t) => {
  const r = await rig(t);
  const result = await r.run([{ file: 'small.txt', content: 'small' }, { file: 'large.bin', base64: Buffer.alloc(40_000, 7).toString('base64') }],
    { output: { inline: true } });
  const [large, small] = ['large.bin', 'small.txt'].map((name) => result.files.find((f) => f.filename === name));
  assert.deepEqual([Buffer.from(small.content, 'base64').toString(), small.key], ['small', undefined]);
  assert.equal(large.content, undefined);
  assert.equal((await r.redis.getBuffer(large.key)).length, 40_000);
});

test('heartbeats in silence: published, not stored, with the last seq', async (t) => {
  const r = await rig(t, { env: { REPLY_HEARTBEAT_MS: '1000' } });
  const heard = await listen(r.redis, `${r.P}reply:beat`);
  const job = await r.add([say('x'), wait(3600), say('y')], {}, { jobId: 'beat' });
  await r.result(job);
  await waitFor(() => heard.at(-1)?.message.type === 'done', { what: 'done heard' });
  heard.stop();
  const beats = heard.filter((h) => h.message.type === 'heartbeat');
  assert.ok(beats.length >= 2 && beats.length <= 4, `${beats.length} heartbeats`);
  for (const beat of beats) assert.equal(beat.message.seq, 2);
  assert.deepEqual(types(await r.reply(job)), ['started', 'stdout', 'stdout', 'done']);
});

test('seq goes on through retries; a reader drops what came before `started`', async (t) => {
  const r = await rig(t);
  const job = await r.add([fail('no_sandbox', 2), say('good')], {}, { attempts: 3, backoff: 50 });
  await r.result(job);
  const messages = await r.reply(job);
  assert.deepEqual(types(messages), ['retrying', 'retrying', 'started', 'stdout', 'done']);
  assert.deepEqual(messages.map((m) => m.seq), [1, 2, 3, 4, 5]);
  assert.equal(new Set(messages.map((m) => m.executionId)).size, 3, 'each attempt is an execution');
  assert.deepEqual([messages[0].error.length > 5, messages[0].reason], [true, 'no_sandbox']);
});

test('an id used again starts a fresh stream', async (t) => {
  const r = await rig(t);
  const add = (text) => r.add([say(text, 3), wait(100), say(text)], {}, { jobId: 'again', removeOnComplete: true });
  const first = await r.gathered(await add('a'));
  assert.equal(first.stdout, 'aaaa');
  const second = await add('b');
  await waitFor(async () => (await r.replyNow(second)).at(-1)?.result?.stdout === 'bbbb', { what: 'the second run' });
  const reply = await r.gathered(second);
  assert.equal(reply.stdout, 'bbbb');
  assert.notEqual(reply.done.executionId, first.done.executionId);
});

test('reply: false leaves no reply, and the result all the same', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('quiet'), { file: 'a.txt', content: 'x' }], { reply: false });
  assert.equal((await r.result(job)).stdout, 'quiet');
  assert.equal(await r.redis.exists(`${r.P}reply:${job.id}`), 0);
  const bad = await r.add([fail('driver_error')], { reply: false });
  await r.failure(bad);
  assert.equal(await r.redis.exists(`${r.P}reply:${bad.id}`), 0);
});

test('a timeout above the setting is clamped with a warning, and is real', async (t) => {
  const r = await rig(t, { env: { CODE_INTERPRETER_TIMEOUT_MS: '700' } });
  for (const steps of [[{ hang: true }], Array.from({ length: 100 }, () => [say('tick '), wait(50)]).flat()]) {
    const result = await r.run(steps, { timeoutMs: 1e12 });
    assert.equal(result.reason, 'timeout');
    assert.ok(result.executionTimeMs >= 690 && result.executionTimeMs < 700 + 500 * slow, `${result.executionTimeMs} ms`);
    assert.ok(result.warnings.some((w) => /timeoutMs/.test(w)));
  }
});

test('the mark and the messages of a run, as redis-cli shows them', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('x'), wait(800)], { threadId: 't', workspaceId: 'w' });
  await active(r, job);
  await waitFor(async () => (await r.hash(job))['sp:run'], { what: 'the mark' });
  const hash = await r.hash(job);
  const [, token] = [null, await r.redis.get(`${r.P}${job.id}:lock`)];
  assert.ok(hash['sp:run'].includes(token), 'the mark names the lock\'s token');
  assert.ok(await r.redis.exists(`${r.P}lease:w:t`), 'the lease is named by the thread');
  assert.equal(await r.redis.get(`${r.P}lease:w:t`), job.id);
  await r.result(job);
  assert.equal((await r.hash(job))['sp:run'], undefined);
  assert.equal(await r.redis.exists(`${r.P}lease:w:t`), 0);
});

test('secrets of a job reach neither its hash, its reply nor the log', async (t) => {
  const r = await rig(t);
  const canary = 'c4n4ry-53cr3t';
  await r.redis.hset(`${r.P}secret:k1`, 'API_TOKEN', canary);
  const job = await r.add([say('x')], { secretsKey: `${r.P}secret:k1`, env: { PLAIN: `${canary}-plain` } });
  await r.result(job);
  await waitFor(async () => (await r.redis.exists(`${r.P}secret:k1`)) === 0, { what: 'the secrets deleted', timeout: 2000 });
  const { data, ...hash } = await r.hash(job);
  assert.ok(!JSON.stringify(hash).includes(canary));
  assert.ok(!JSON.stringify(await r.reply(job)).includes(canary));
  assert.ok(!r.worker.lines.join('\n').includes(canary));
  const missing = await r.add([say('x')], { secretsKey: `${r.P}secret:nothing-there` });
  await Promise.race([r.result(missing), r.failure(missing)]).catch(() => {});
});

test('the code is checked once: no text of it comes back by itself', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('x')]);
  assert.equal((await r.result(job)).code, undefined);
  assert.ok(!JSON.stringify(await r.reply(job)).includes(script(say('x'))));
});
