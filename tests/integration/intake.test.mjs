// The stream's door under strain: what is admitted and what not, order over replicas, back-pressure, lost groups.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks } from '../lib/rig.mjs';
import { say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const patient = { timeout: 60_000 };
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const stream = (r) => `${r.P}stream:jobs`;
const code = (steps, more = {}) => JSON.stringify({ code: script(...steps), ...more });
const xadd = (r, fields) => r.redis.xadd(stream(r), '*', ...Object.entries(fields).flat());
const fieldsOf = (list) => Object.fromEntries(list.flatMap((v, i) => (i % 2 ? [] : [[v, list[i + 1]]])));
const dead = async (r) => (await r.redis.xrange(`${r.P}stream:dead`, '-', '+')).map(([, f]) => fieldsOf(f));
const ended = (r, id) => waitFor(async () => /completed|failed/.test(await r.state(id)) && r.queue.getJob(id), { what: `${id} ended`, ...patient });
const empty = (r) => waitFor(async () => (await r.redis.xlen(stream(r))) === 0, { what: 'the stream empty', ...patient });
const consumers = async (r) => (await r.redis.xinfo('CONSUMERS', stream(r), 'workers')).map(fieldsOf);
const replica = (r) => waitFor(async () => (await r.redis.zrange(`${r.P}index:replicas`, 0, -1))[0], { what: 'a replica', ...patient });
/** What replicas tell of the stream, once it is what the test waits for. */
const intakeSays = (r, pattern) => waitFor(async () => {
  const ids = await r.redis.zrange(`${r.P}index:replicas`, 0, -1);
  const texts = await Promise.all(ids.map((id) => r.redis.hget(`${r.P}replica:${id}`, 'intake')));
  return texts.length && texts.every((text) => pattern.test(text));
}, { what: `intake: ${pattern}`, ...patient });

const refused = [ // [fields, reason]
  [{ code: '1' }, /no field data/],
  ...['', '{', 'undefined', '[1,]', '{"a":NaN}', '[Infinity]', '[-Infinity]', '[0x10]', '[01]', '[1.]', '[.5]', '[+1]', '[1e]', '[-]', '[nan]',
    '"a\nb"', '"\u0001"', '"\\x"', '"\\ud800"', "{'a':1}", '[1] 2', '\v1', 'tru', '[truefalse]', '{"a" 1}',
    `${'['.repeat(2000)}${']'.repeat(2000)}`].map((data) => [{ data }, /data is not JSON/]),
  [{ data: Buffer.from([0x22, 0xff, 0x22]) }, /data is not JSON/],
  [{ data: Buffer.from([0x22, 0xed, 0xa0, 0x80, 0x22]) }, /data is not JSON/],
  [{ data: Buffer.from([0x22, 0xc2, 0x41, 0x80, 0x22]) }, /data is not JSON/],
  ...['{', '', 'NaN'].map((opts) => [{ data: '1', opts }, /opts is not JSON$/]),
  ...['[]', ' [1]', '1', '"x"', 'null', 'true'].map((opts) => [{ data: '1', opts }, /opts is not a JSON object/]),
  ...[['attempts', '"3"'], ['attempts', -1], ['attempts', 'null'], ['attempts', 1.5], ['delay', -5], ['delay', '"5"'], ['priority', 2097152],
    ['priority', 1.5], ['priority', '"1"'], ['timestamp', '"x"'], ['keepLogs', true], ['stackTraceLimit', '{}'], ['sizeLimit', '[]'], ['lifo', 1],
    ['removeOnComplete', '"yes"'], ['removeOnFail', '[1]'], ['backoff', '"exponential"'], ['backoff', '{"delay":5}'], ['backoff', '{"type":"fixed","delay":"5"}'],
    ['repeat', '{"every":1}'], ['parent', '{"id":"1","queue":"q"}'], ['deduplication', '{"id":"x"}'], ['de', '{"id":"x"}'], ['failParentOnFailure', true],
    ['jobId', 5]].map(([name, value]) => [{ data: '1', opts: `{"${name}":${value}}` }, new RegExp(`opts\\.${name} `)]),
  [{ data: '12345', opts: '{"sizeLimit":4}' }, /5 bytes, opts\.sizeLimit is 4/],
  [{ data: '1', id: 'a', opts: '{"jobId":"b"}' }, /opts\.jobId/],
  [{ data: '1', opts: `{"x":"${'y'.repeat(70_000)}"}` }, /opts has more than/],
  [{ data: JSON.stringify('x'.repeat(1 << 20)) }, /1048578 bytes, the limit is 1048576/],
  [{ data: '1', name: '' }, /name is not/],
  [{ data: '1', name: 'n'.repeat(513) }, /name is not/],
  [{ data: '1', id: 'i'.repeat(513) }, /id is not UTF-8 text of at most/],
  [{ data: '1', id: Buffer.from([0xff]) }, /id is not UTF-8/],
  [{ data: '1', id: 'a\0b' }, /id is not UTF-8/],
  ...['active', 'wait', 'waiting-children', 'paused', 'id', 'delayed', 'prioritized', 'stalled-check', 'completed', 'failed', 'stalled', 'repeat',
    'limiter', 'meta', 'events', 'pc', 'marker', 'de', 'lock', 'logs', 'dependencies', 'processed', 'unsuccessful', 'metrics', '1', '0', '42', 'a:b',
    ':', 'lease:x', 'stream:jobs'].map((id) => [{ data: '1', id }, /id is the name of a key/]),
  [{ data: '1', opts: '{"jobId":"meta"}' }, /id is the name of a key/],
];

test('every entry that cannot be a job is a dead letter with its reason and its fields', async (t) => {
  const r = await rig(t);
  const entries = [];
  for (const [fields] of refused) entries.push(await xadd(r, fields));
  const many = await r.redis.xadd(stream(r), '*', ...Array.from({ length: 9000 }, (_, i) => `f${i}`));
  const good = await xadd(r, { data: code([say('good')]) });
  assert.equal((await ended(r, `s-${good}`)).returnvalue.stdout, 'good');
  await empty(r);
  const letters = new Map((await dead(r)).map((letter) => [letter.entry, letter]));
  assert.equal(letters.size, refused.length + 1);
  refused.forEach(([fields, reason], i) => {
    const letter = letters.get(entries[i]);
    assert.match(letter?.reason ?? '(admitted)', reason, JSON.stringify(fields).slice(0, 100));
    for (const [name, value] of Object.entries(fields)) assert.equal(letter[name], String(value), `${name} is kept`);
  });
  assert.match(letters.get(many).reason, /no field data.*only its first fields/);
  assert.equal(letters.get(many).f6998, 'f6999');
  assert.deepEqual(await r.redis.keys(`${r.P}s-*`), [`${r.P}s-${good}`], 'no other job was made');
  assert.equal((await consumers(r)).reduce((n, c) => n + c.pending, 0), 0);
});

test('what is admitted is JSON for every client: mutated texts beside JSON.parse', async (t) => {
  const r = await rig(t, { replicas: 0 });
  await r.queue.pause();
  const seeds = ['{"code":"x","n":[1,-2.5e3,0.1,true,false,null],"s":"a\\"b\\\\c\\u00e9 é中😀"}', ' [ 0 , -0 , 1E+2 ] ', '"\\n\\t\\/"', '{"":{"a":[[],{}]}}'];
  const pieces = ['"', '\\', '{', '}', '[', ']', ',', ':', '0', '1', '-', '+', '.', 'e', 'E', 'x', 'N', 'NaN', 'null', 'true', '\n', '\t', ' ', '\u0000', '\u007f', 'é', 'inf', '\\u12'];
  let state = 20261130;
  const random = (n) => (state = (state * 1103515245 + 12345) % 2147483648) % n;
  const texts = [...seeds];
  while (texts.length < 600) {
    let text = seeds[random(seeds.length)];
    for (let k = random(3); k >= 0; k--) {
      const at = random(text.length);
      text = text.slice(0, at) + (random(3) ? pieces[random(pieces.length)] : '') + text.slice(at + random(3));
    }
    texts.push(text);
  }
  const pipe = r.redis.pipeline();
  for (const [i, text] of texts.entries()) pipe.xadd(stream(r), '*', 'data', text, 'id', `m${i}`);
  await pipe.exec();
  r.startWorker();
  await empty(r);
  const letters = new Set((await dead(r)).map((letter) => letter.id));
  let sound = 0;
  for (const [i, text] of texts.entries()) {
    let parses = true;
    try {
      JSON.parse(text);
    } catch {
      parses = false;
    }
    const stored = await r.redis.hget(`${r.P}m${i}`, 'data');
    assert.equal(stored === null, letters.has(`m${i}`), `job or letter: ${text}`);
    if (parses) assert.equal(stored, text.toWellFormed(), `refused: ${JSON.stringify(text)}`);
    else assert.equal(stored, null, `admitted: ${JSON.stringify(text)}`);
    sound += parses;
  }
  t.diagnostic(`${sound} of ${texts.length} were JSON`);
  assert.ok(sound > 60 && sound < 500);
});

test('options are stored as Queue.add stores them', async (t) => {
  const r = await rig(t, { replicas: 0 });
  await r.queue.pause();
  const kinds = [{}, { attempts: 3, backoff: 50 }, { attempts: 2, backoff: { type: 'exponential', delay: 10, jitter: 0.5 } }, { priority: 7 }, { delay: 60_000 },
    { lifo: true }, { removeOnComplete: true, removeOnFail: { age: 60, count: 5 } }, { removeOnComplete: 10 }, { keepLogs: 5 }, { stackTraceLimit: 3 },
    { sizeLimit: 10_000 }, { timestamp: 1_700_000_000_000 }, { group: { id: 'g' } }];
  for (const [i, opts] of kinds.entries()) {
    await r.queue.add('execute', { code: 'x' }, { ...opts, jobId: `q${i}` });
    await xadd(r, { data: '{"code":"x"}', opts: JSON.stringify(opts), id: `e${i}` });
  }
  await xadd(r, { data: '{"code":"x"}', opts: '{"jobId":"chosen"}' });
  r.startWorker();
  await empty(r);
  assert.deepEqual(await dead(r), []);
  for (const [i, opts] of kinds.entries()) {
    const [q, e] = [await r.hash(`q${i}`), await r.hash(`e${i}`)];
    for (const h of [q, e]) h.opts = { ...JSON.parse(h.opts), jobId: undefined };
    if (!opts.timestamp) q.timestamp = e.timestamp;
    assert.deepEqual(e, q, JSON.stringify(opts));
    assert.equal(await r.state(`e${i}`), await r.state(`q${i}`), JSON.stringify(opts));
  }
  assert.equal(await r.redis.exists(`${r.P}chosen`), 1);
  const line = await r.redis.lrange(`${r.P}wait`, 0, -1);
  assert.deepEqual(line.filter((id) => id[0] === 'e').map((id) => id.slice(1)), line.filter((id) => id[0] === 'q').map((id) => id.slice(1)), 'the same order');
});

test('three replicas keep the stream\'s order in each thread, and admit each entry once', async (t) => {
  const r = await rig(t, { replicas: 3, events: false });
  const threads = 6;
  const ids = [];
  for (let i = 0; i < 600; i += 20) {
    const pipe = r.redis.pipeline();
    for (let k = i; k < i + 20; k++) {
      pipe.xadd(stream(r), '*', 'data', code([say('x')], { threadId: `t${k % threads}` }), 'id', `j${k}`, 'opts', '{"removeOnComplete":true}');
      ids.push(`j${k}`);
    }
    await pipe.exec();
  }
  await empty(r);
  await waitFor(async () => (await r.eventLog()).filter((e) => e.event === 'completed').length === ids.length, { what: 'all done', ...patient });
  const log = await r.eventLog();
  assert.deepEqual(log.filter((e) => e.event === 'added').map((e) => e.jobId), ids, 'added once each, in the stream\'s order');
  const active = log.filter((e) => e.event === 'active').map((e) => Number(e.jobId.slice(1)));
  for (let thread = 0; thread < threads; thread++) {
    const mine = active.filter((n) => n % threads === thread);
    assert.deepEqual(mine.filter((n, i) => i === 0 || n !== mine[i - 1]), [...mine].sort((a, b) => a - b).filter((n, i, all) => n !== all[i - 1]), `thread ${thread}`);
  }
});

test('many entries, few calls', async (t) => {
  const r = await rig(t, { replicas: 0 });
  await r.queue.pause();
  const pipe = r.redis.pipeline();
  for (let i = 0; i < 2000; i++) pipe.xadd(stream(r), '*', 'data', '{"code":"x"}');
  await pipe.exec();
  await r.redis.config('RESETSTAT');
  r.startWorker();
  await empty(r);
  const stats = await r.redis.info('commandstats');
  const calls = Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0) + Number(/cmdstat_eval:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  t.diagnostic(`${calls} script calls`);
  assert.equal(await r.queue.getWaitingCount(), 2000);
  assert.ok(calls < 200, `${calls} script calls for 2,000 entries`);
});

test('what another left pending comes first, at once; the consumers of replicas that are gone go', async (t) => {
  const r = await rig(t, { replicas: 0 });
  await r.redis.xgroup('CREATE', stream(r), 'workers', '0', 'MKSTREAM');
  const entries = [];
  for (let i = 0; i < 6; i++) entries.push(await xadd(r, { data: code([say(`${i}`)], { threadId: 't' }) }));
  for (const name of ['hangs', 'died']) await r.redis.xreadgroup('GROUP', 'workers', name, 'COUNT', 2, 'STREAMS', stream(r), '>');
  await r.redis.xgroup('CREATECONSUMER', stream(r), 'workers', 'idle-and-gone');
  await r.redis.hset(`${r.P}replica:hangs`, 'host', 'x');
  await r.redis.expire(`${r.P}replica:hangs`, 600);
  await r.redis.xdel(stream(r), entries[1]);
  r.startWorker();
  await empty(r);
  for (const i of [0, 2, 3, 4, 5]) assert.equal((await ended(r, `s-${entries[i]}`)).returnvalue.stdout, `${i}`);
  const order = (await r.eventLog()).filter((e) => e.event === 'added').map((e) => e.jobId.slice(2));
  assert.deepEqual(order, entries.filter((_, i) => i !== 1), 'in the stream\'s order');
  const letters = await dead(r);
  assert.deepEqual(letters.map((l) => [l.entry, /deleted or trimmed/.test(l.reason)]), [[entries[1], true]], 'a withdrawn one is accounted for');
  const me = await replica(r);
  await waitFor(async () => (await consumers(r)).every((c) => [me, 'hangs'].includes(c.name)), { what: 'consumers gone', ...patient });
  assert.equal((await consumers(r)).find((c) => c.name === 'hangs')?.pending, 0, 'a replica that is there keeps its consumer');
  // Without a ring of the bell too: an entry in the hands of a replica that dies is taken by the next look.
  const last = await xadd(r, { data: code([say('last')]), id: 'last' });
  await ended(r, 'last');
  assert.ok(last);
  await r.worker?.done?.();
  for (const worker of r.workers) await worker.done();
  assert.deepEqual((await consumers(r)).filter((c) => c.name === me), [], 'a drained replica takes its consumer along');
  assert.deepEqual(await r.redis.keys(`${r.P}replica:*`), [`${r.P}replica:hangs`]);
  assert.deepEqual(await r.redis.zrange(`${r.P}index:replicas`, 0, -1), []);
});

test('replicas drain one after the other while entries pour in: none is lost, none waits', async (t) => {
  const r = await rig(t, { replicas: 1, events: false });
  // A slow machine gets many entries in, whose events are to stay: more than the client's own setting keeps.
  await waitFor(() => r.redis.hexists(`${r.P}meta`, 'opts.maxLenEvents'), { what: 'the client has said its own', ...patient });
  await r.redis.hset(`${r.P}meta`, 'opts.maxLenEvents', 200_000);
  const ids = [];
  for (let round = 0; round < 6; round++) {
    const old = r.workers.at(-1);
    await old.waitLine(/replica \S+: queue/, { timeout: 60_000 });
    r.startWorker();
    let over = false;
    const gone = old.done().finally(() => (over = true));
    do {
      ids.push(await xadd(r, { data: code([say('x')], { threadId: `t${ids.length % 5}` }) }));
    } while (!over && ids.length < 5000);
    await gone;
  }
  await empty(r);
  await waitFor(async () => (await r.queue.getJobCountByTypes('completed')) === ids.length, { what: 'all done', ...patient });
  t.diagnostic(`${ids.length} entries`);
  assert.deepEqual((await r.eventLog()).filter((e) => e.event === 'added').map((e) => e.jobId), ids.map((id) => `s-${id}`));
});

test('back-pressure: a full queue leaves entries in the stream, says so, and takes them up again', async (t) => {
  const r = await rig(t, { env: { STREAM_BACKLOG_MAX: '10', WORKER_CONCURRENCY: '1' } });
  const holder = await r.add([say('x'), { hang: true }], { threadId: 'h' });
  await waitFor(async () => (await r.replyNow(holder)).length > 1, { what: 'the holder runs', ...patient });
  const entries = [];
  for (let i = 0; i < 60; i++) entries.push(await xadd(r, { data: code([say('x')]) }));
  await intakeSays(r, /held back: 10 jobs wait in the queue, STREAM_BACKLOG_MAX is 10/);
  assert.equal(await r.queue.getWaitingCount(), 10);
  assert.equal(await r.redis.xlen(stream(r)), 50);
  await r.worker.waitLine(/entries are held back/);
  await r.redis.xgroup('DESTROY', stream(r), 'workers'); // what stays in the stream is not lost with its group
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', holder.id);
  for (const entry of entries) await ended(r, `s-${entry}`);
  await empty(r);
  await intakeSays(r, /^open$/);
  assert.equal((await r.eventLog()).filter((e) => e.event === 'added').length, 61, 'each once');
});

test('back-pressure does not starve the stream beside a producer that keeps the queue full', async (t) => {
  const r = await rig(t, { env: { STREAM_BACKLOG_MAX: '20', WORKER_CONCURRENCY: '2' } });
  let added = 0;
  const refill = async () => {
    const missing = 300 - (await r.queue.getWaitingCount()); // it never falls to 20 between two looks
    if (missing > 0) await r.queue.addBulk(Array.from({ length: missing }, () => ({ name: 'execute', data: { code: script(say('x'), wait(10)), reply: false } })));
    added += Math.max(0, missing);
  };
  await r.queue.pause();
  await refill();
  const entries = [];
  for (let i = 0; i < 10; i++) entries.push(await xadd(r, { data: code([say('x')]) }));
  await intakeSays(r, /held back/);
  assert.equal(await r.redis.xlen(stream(r)), 10, 'no job has ended: none is let in');
  await r.queue.resume();
  await waitFor(async () => {
    await refill();
    return (await Promise.all(entries.map((id) => r.state(`s-${id}`)))).every((s) => s === 'completed');
  }, { what: 'the entries done', interval: 5, ...patient });
  t.diagnostic(`${added} jobs of the other producer meanwhile`);
});

test('parked and delayed jobs hold nobody back', async (t) => {
  const r = await rig(t, { env: { STREAM_BACKLOG_MAX: '5', WORKER_CONCURRENCY: '2' } });
  const holder = await r.add([say('x'), { hang: true }], { threadId: 'h' });
  for (let i = 0; i < 30; i++) await xadd(r, { data: code([say('x')], { threadId: 'h' }) });
  for (let i = 0; i < 10; i++) await xadd(r, { data: code([say('x')]), opts: '{"delay":3600000}' });
  const other = await xadd(r, { data: code([say('other')]) });
  assert.equal((await ended(r, `s-${other}`)).returnvalue.stdout, 'other');
  await waitFor(async () => (await r.replyNow(holder)).some((m) => m.type === 'stdout'), { what: 'the holder runs', ...patient });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', holder.id);
  await waitFor(async () => (await r.queue.getCompletedCount()) === 32, { what: 'the thread done', ...patient });
});

test('keys of a wrong type: nothing is taken off the stream, and it is said', async (t) => {
  const r = await rig(t, { replicas: 0 });
  await r.redis.rpush(`${r.P}stream:dead`, 'not a stream');
  const good = await xadd(r, { data: code([say('good')]) });
  const bad = await xadd(r, { data: '{' });
  r.startWorker();
  await intakeSays(r, /stream:dead is a list in Redis, not a stream/);
  assert.equal(await r.redis.xlen(stream(r)), 2);
  await r.redis.del(`${r.P}stream:dead`);
  await ended(r, `s-${good}`);
  await empty(r);
  assert.deepEqual((await dead(r)).map((l) => l.entry), [bad]);
  await r.redis.multi().del(stream(r)).set(stream(r), 'text').exec();
  await intakeSays(r, /stream:jobs is a string in Redis, not a stream|WRONGTYPE/);
  assert.equal((await r.run([say('queue')])).stdout, 'queue', 'the other door is open');
  await r.redis.del(stream(r));
  const again = await xadd(r, { data: code([say('again')]) });
  assert.equal((await ended(r, `s-${again}`)).returnvalue.stdout, 'again');
  assert.ok(r.workers[0].lines.filter((line) => /stream:dead is a list/.test(line)).length <= 2, 'said once, not at each look');
});

test('Redis out of memory: entries stay in the stream until there is room', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { env: shortLocks, events: false });
  await replica(r);
  for (let i = 0; i < 20; i++) await xadd(r, { data: '{"code":""}', opts: '{"delay":3600000}' });
  await empty(r);
  const used = Number(/used_memory:(\d+)/.exec(await r.redis.info('memory'))[1]);
  await r.redis.multi().xadd(stream(r), '*', 'data', code([say('x')]), 'id', 'patient').config('SET', 'maxmemory', String(used >> 1)).exec();
  await waitFor(() => r.workers[0].lines.some((line) => /redis refused admit for now: OOM/.test(line)), { what: 'refused', ...patient });
  assert.equal(await r.redis.xlen(stream(r)), 1);
  assert.equal(await r.redis.exists(`${r.P}patient`), 0);
  await r.redis.config('SET', 'maxmemory', '0');
  assert.equal((await ended(r, 'patient')).returnvalue.stdout, 'x');
});

test('the README\'s ways into the stream: redis-cli, ioredis, node-redis', async (t) => {
  const r = await makeRig(t, redis, { name: 'code-interpreter', env: shortLocks });
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
  const section = /## Stream intake\n([\s\S]*?)\n## /.exec(readme)[1];
  const [[, shell], ...scripts] = [...section.matchAll(/```(?:sh|js)\n([\s\S]*?)```/g)];
  assert.equal(scripts.length, 2);
  const dir = fileURLToPath(new URL(`../node_modules/.readme-${process.pid}/`, import.meta.url)); // where imports are found
  mkdirSync(dir);
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const env = { ...process.env, REDIS_URL: redis.url };
  const entries = [];
  const exec = promisify(execFile);
  entries.push((await exec('sh', ['-c', shell.replace('redis-cli', `redis-cli -p ${redis.port}`)])).stdout.trim());
  for (const [i, [, text]] of scripts.entries()) {
    writeFileSync(`${dir}${i}.mjs`, `${text}\nconsole.log(entry);\n`);
    entries.push((await exec(process.execPath, [`${dir}${i}.mjs`], { env })).stdout.trim());
  }
  const ids = [`s-${entries[0]}`, 'my-job', `s-${entries[2]}`];
  const jobs = [];
  for (const id of ids) jobs.push(await ended(r, id));
  for (const job of jobs) assert.deepEqual([job.data.code, job.data.threadId], ['print(6*7)', 't1']);
  assert.equal(jobs[0].opts.attempts, 3);
  assert.equal(jobs[2].opts.priority, 1);
  for (const job of jobs) await r.reply(job);
  await empty(r);
});
