// sandpiper-client against a real worker: every way to read a reply gives the same text, and every way to end an end.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createRequire } from 'node:module';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { SandpiperClient, Snapshots, threadKey } from '../../docker/client/index.mjs';
import { checkMessage } from '../lib/contract.mjs';
import { waitFor, within } from '../lib/process.mjs';
import { startProxy, startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, ...options.env } });
const LONG = 60_000;

/** A client on a queue, closed with the test. */
function clientOf(t, r, { connection, ...more } = {}) {
  const client = new SandpiperClient({ connection: connection ?? r.redis, ...more, queueName: r.name });
  t.after(() => client.close());
  return client;
}

/** All messages until the end; each is checked against the contract, and that seq has no gap and no repeat. */
async function read(client, jobId, options = {}, onMessage = () => {}) {
  const messages = [];
  let next = options.from ?? 1;
  for await (const message of client.messages(jobId, options)) {
    const { source, ...rest } = message;
    if (!source || message.result) checkMessage(rest);
    assert.equal(message.seq, next++, `seq of ${JSON.stringify(message).slice(0, 200)}`);
    messages.push(message);
    await onMessage(message);
  }
  return messages;
}
const textOf = (messages) => messages.filter((m) => m.type === 'stdout').map((m) => m.text).join('');
/** The lines of CLIENT LIST whose name begins so. */
const named = async (r, name) => (await r.redis.client('LIST')).split('\n').filter((line) => line.includes(` name=${name}`));
async function cutNamed(r, name) {
  for (const line of await named(r, name)) await r.redis.client('KILL', 'ID', /^id=(\d+)/.exec(line)[1]).catch(() => {}); // gone already
}
const types = (messages) => messages.map((m) => m.type);

test('the types are those of the schema, and the package loads from CommonJS too', async () => {
  const generate = fileURLToPath(new URL('../../docker/client/generate.mjs', import.meta.url));
  await promisify(execFile)(process.execPath, [generate, '--check']);
  const { SandpiperClient: same } = createRequire(import.meta.url)('../../docker/client/index.mjs');
  assert.equal(same, SandpiperClient);
});

test('2000 chunks: early, late, after the end, in five pieces, five reconnects: the same bytes', async (t) => {
  const r = await rig(t, { events: false, env: { REPLY_FLUSH_MS: '1', REPLY_FLUSH_BYTES: '256' } });
  const client = clientOf(t, r);
  const steps = Array.from({ length: 2000 }, (_, i) => [say(`${i} ä€😀 ${'x'.repeat(300)}\n`), ...(i % 10 ? [] : [wait(3)])]).flat();
  const text = steps.filter((s) => s.stdout).map((s) => s.stdout).join('');
  const job = await r.add(steps, { threadId: 't' });

  const early = read(client, job.id);
  // Cuts all connections of its own client five times, wherever it is then.
  const cutClient = clientOf(t, r, { connection: redis.client({ connectionName: 'cut' }) });
  let cuts = 0;
  const cut = read(cutClient, job.id, {}, async (m) => {
    if (cuts >= 5 || m.seq < 5 * (cuts + 1)) return;
    cuts++;
    await waitFor(async () => (await named(r, 'cut')).some((line) => / sub=1 /.test(line)), { timeout: LONG, what: 'the subscription' });
    await cutNamed(r, 'cut');
    if (cuts % 2) await cutNamed(r, 'bull:'); // the worker's
  });
  // Leaves five times and comes back with the next seq, with another client each time.
  const pieces = (async () => {
    const all = [];
    for (let left = 5; left >= 0; left--) {
      for await (const message of clientOf(t, r).messages(job.id, { from: all.length + 1 })) {
        all.push(message);
        if (left > 0 && message.seq >= 5 * (6 - left)) break;
      }
    }
    return all;
  })();
  const late = waitFor(async () => (await r.redis.xlen(client.replyKey(job.id))) > 20, { timeout: LONG, what: 'some of it' })
    .then(() => read(client, job.id));
  const results = await within(LONG, Promise.all([early, cut, pieces, late]), 'four readers');

  results.push(await read(client, job.id));
  const stored = await r.reply(job);

  assert.equal(cuts, 5);
  assert.ok(stored.length > 30, `${stored.length} messages`);
  for (const messages of results) {
    assert.equal(textOf(messages), text);
    assert.deepEqual(messages, stored);
  }
  assert.equal(client.subscriber.size, 0, 'nothing is listened to any more');
});

test('an early reader hears output while the code runs, and one connection serves 200 jobs', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r, { connection: redis.client({ connectionName: 'many' }) });
  const listeners = async () => (await named(r, 'many')).filter((line) => !/ sub=0 /.test(line)).length;
  const jobs = await Promise.all(Array.from({ length: 200 }, (_, i) => r.add([say(`a${i}`), wait(100), say(`b${i}`)])));
  const readers = jobs.map((job) => read(client, job.id));
  await waitFor(async () => (await listeners()) === 1, { timeout: LONG, what: 'the subscription' });
  const all = await within(LONG, Promise.all(readers), '200 readers');
  all.forEach((messages, i) => assert.equal(textOf(messages), `a${i}b${i}`));
  const live = await r.add([say('now'), { hang: true }]);
  for await (const message of client.messages(live.id)) {
    if (message.type === 'stdout') {
      assert.equal(await listeners(), 1);
      await client.cancel(live.id);
    }
    if (message.type === 'done') assert.equal(message.reason, 'cancelled');
  }
});

test('two in a row on one thread, and a job run anew by hand: no mixing', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const one = await r.add([say('one')], { threadId: 't' });
  const two = await r.add([say('two')], { threadId: 't' });
  assert.deepEqual((await Promise.all([read(client, one.id), read(client, two.id)])).map(textOf), ['one', 'two']);
  const again = await r.add([say('x'), raise()], {}, { jobId: 'again' });
  const first = await read(client, again.id);
  // A reader that has not heard of the end, and comes back when there is another life of the stream.
  await r.queue.getJob('again').then((job) => job.retry('completed'));
  await waitFor(async () => (await r.replyNow(again)).at(-1)?.type === 'done'
    && (await r.replyNow(again))[0].executionId !== first[0].executionId, { timeout: LONG, what: 'the second run' });
  const rest = [];
  for await (const m of client.messages('again', { from: 3, executionId: first[0].executionId })) rest.push(m);
  assert.deepEqual(rest, await r.reply(again));
  assert.deepEqual(await read(client, 'again', { from: 4 }), [], 'behind the end there is nothing');
});

test('attempts: a reader sees all of them, in one count', async (t) => {
  const r = await rig(t);
  const job = await r.add([fail('driver_error', 2), say('at last')], {}, { attempts: 3 });
  const messages = await read(clientOf(t, r), job.id);
  assert.deepEqual(types(messages), ['retrying', 'retrying', 'started', 'stdout', 'done']);
});

test('from a replica of Redis, which stands still for a while', async (t) => {
  const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', String(redis.port)] });
  const replicaClient = replica.client();
  await waitFor(async () => /master_link_status:up/.test(await replicaClient.info('replication')), { timeout: LONG, what: 'the link' });
  const r = await rig(t);
  const client = clientOf(t, r, { reader: replicaClient });
  const job = await r.add(Array.from({ length: 300 }, (_, i) => [say(`${i}\n`), wait(2)]).flat());
  let paused = false;
  const messages = await within(LONG, read(client, job.id, {}, async (m) => {
    if (paused || m.seq < 5) return;
    paused = true;
    replica.pause();
    setTimeout(() => replica.resume(), 500);
  }), 'the replica');
  assert.equal(textOf(messages), Array.from({ length: 300 }, (_, i) => `${i}\n`).join(''));
  assert.deepEqual(messages, await r.reply(job));
});

test('a worker that is killed: what was said, then WorkerLost', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const job = await r.add([say('before'), { hang: true }], { threadId: 't' });
  const messages = await within(LONG, read(client, job.id, {}, async (m) => {
    if (m.type !== 'stdout') return;
    await r.workers.shift().kill9();
    r.startWorker();
  }), 'WorkerLost');
  assert.deepEqual([textOf(messages), messages.at(-1).state, messages.at(-1).reason], ['before', 'failed', 'worker_lost']);
});

test('Redis is killed and comes back in mid-run', async (t) => {
  const durable = await startRedis({ durable: true });
  const r = await makeRig(t, durable, { events: false, checks: false });
  const client = clientOf(t, r, { connection: durable.client() });
  const job = await r.add(Array.from({ length: 60 }, (_, i) => [say(`${i}\n`), wait(50)]).flat());
  let killed = false;
  const messages = await within(LONG, read(client, job.id, {}, async (m) => {
    if (killed || m.seq < 5) return;
    killed = true;
    await durable.kill();
    await durable.restart();
  }), 'the reply');
  assert.equal(textOf(messages), Array.from({ length: 60 }, (_, i) => `${i}\n`).join(''));
});

test('half-open connections are replaced', async (t) => {
  const r = await rig(t);
  const proxy = await startProxy(redis.port);
  const connection = redis.client({ port: proxy.port });
  const client = clientOf(t, r, { connection: r.redis, reader: connection, timeoutMs: 500 });
  const job = await r.add([say('a'), { hang: true }]);
  const options = { silenceMs: 300, pollMs: 300 };
  await within(LONG, read(client, job.id, options, async (m) => {
    if (m.type === 'stdout' && m.text === 'a') {
      proxy.freeze();
      await client.cancel(job.id);
    }
  }), 'the end');
});

const ends = [ // [what, how, options of the rig, the end]
  ['reply: false', (r) => r.add([say('out'), wait(100)], { reply: false }), {}, ['completed', 'ok']],
  ['reply: false, code that raises', (r) => r.add([raise()], { reply: false }), {}, ['error', 'code_error']],
  ['reply: false, cancelled', async (r) => {
    const job = await r.add([{ hang: true }], { reply: false });
    // The mark in Redis comes before the code is delivered: a cancel between the two still is one before the start.
    await r.worker.waitLine(new RegExp(`-> running.*"job":"${job.id}"|"job":"${job.id}".*-> running`), { timeout: LONG });
    await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', job.id);
    return job;
  }, {}, ['error', 'cancelled']],
  ['bad data', (r) => r.queue.add('execute', { code: 5 }), {}, ['failed', 'bad_job']],
  ['removed while it waits', async (r) => {
    const job = await r.add([say('x')], {}, { delay: 600_000 });
    setTimeout(() => job.remove(), 300);
    return job;
  }, {}, ['failed', 'removed']],
  ['failed by hand, no worker there', async (r) => {
    const job = await r.add([say('x')], {}, { delay: 600_000 });
    // What a stock Worker leaves when it fails a job.
    await r.redis.hset(`${r.P}${job.id}`, 'finishedOn', Date.now(), 'failedReason', 'nobody had it');
    return job;
  }, { replicas: 0 }, ['failed', 'unknown']],
  ['never there', async () => ({ id: 'nobody' }), {}, ['failed', 'removed']],
  ['its reply has expired', async (r) => {
    const job = await r.add([say('x')]);
    await r.result(job);
    await r.redis.del(`${r.P}reply:${job.id}`);
    return job;
  }, {}, ['completed', 'ok']],
  ['obliterated while it ran', async (r) => {
    const job = await r.add([say('x'), { hang: true }]);
    await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { timeout: LONG, what: 'output' });
    await r.queue.obliterate({ force: true });
    return job;
  }, {}, ['failed', 'removed']],
];
for (const [what, how, options, [state, reason]] of ends) {
  test(`an end, though there is no reply to tell: ${what}`, async (t) => {
    const r = await rig(t, options);
    const client = clientOf(t, r);
    const job = await how(r);
    const messages = await within(LONG, read(client, job.id, { missingMs: 500 }), 'the end');
    assert.deepEqual([messages.at(-1).type, messages.at(-1).state, messages.at(-1).reason], ['done', state, reason]);
    assert.equal(types(messages).filter((type) => type === 'done').length, 1);
  });
}

test('obliterated, and its worker dead too: the reader ends by itself', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const job = await r.add([say('x'), { hang: true }]);
  const messages = await within(LONG, read(client, job.id, { silenceMs: 500 }, async (m) => {
    if (m.type !== 'stdout') return;
    await r.workers.shift().kill9();
    await r.queue.obliterate({ force: true });
  }), 'the end');
  assert.deepEqual([messages.at(-1).reason, messages.at(-1).source], ['removed', 'job']);
});

test('1000 jobs of a millisecond, removed on completion: 1000 results', async (t) => {
  const r = await rig(t, { maxEvents: 100_000 });
  const client = clientOf(t, r);
  const results = [];
  for (let round = 0; round < 4; round++) {
    const jobs = await r.queue.addBulk(Array.from({ length: 250 }, (_, i) => ({
      name: 'execute', data: { code: script(say(`${round}-${i}`), wait(1)) }, opts: { removeOnComplete: true },
    })));
    results.push(...await within(LONG, Promise.all(jobs.map((job) => client.done(job.id))), 'a round'));
  }
  results.forEach((done, i) => {
    assert.equal(done.source, undefined, 'from the reply');
    assert.equal(done.result.stdout, `${Math.floor(i / 250)}-${i % 250}`);
  });
  const completed = (await r.eventLog()).filter((e) => e.event === 'completed' && e.returnvalue);
  assert.equal(completed.length, 1000);
});

test('an abandoned reader leaves nothing; a signal and a close end it', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const job = await r.add([say('x'), { hang: true }]);
  for await (const message of client.messages(job.id)) if (message.type === 'stdout') break;
  assert.equal(client.subscriber.size, 0);
  const control = new AbortController();
  const reader = read(client, job.id, { signal: control.signal }, (m) => m.type === 'stdout' && setTimeout(() => control.abort(), 20));
  await assert.rejects(within(LONG, reader, 'the abort'), { name: 'AbortError' });
  const snapshots = client.snapshots(job.id);
  await snapshots.next();
  await snapshots.return();
  const closed = read(client, job.id, {}, (m) => m.type === 'stdout' && setTimeout(() => client.close(), 20));
  await assert.rejects(within(LONG, closed, 'the close'), /closed/);
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', job.id);
  await r.result(job);
});

test('a slow consumer keeps little in memory and misses nothing', async (t) => {
  const r = await rig(t, { env: { REPLY_FLUSH_BYTES: '1024' } });
  const client = clientOf(t, r);
  const job = await r.add(Array.from({ length: 500 }, (_, i) => [say(`${i} ${'y'.repeat(900)}\n`), wait(1)]).flat());
  const messages = await within(LONG, read(client, job.id, { buffer: 5, page: 7 },
    (m) => (m.seq % 20 ? undefined : new Promise((resolve) => setTimeout(resolve, 5)))), 'the reader');
  assert.deepEqual(messages, await r.reply(job));
});

test('position: the holder, the parked before it, those that no worker has seen', async (t) => {
  const r = await rig(t, { replicas: 0 });
  const client = clientOf(t, r);
  const thread = { workspaceId: 'w:1', threadId: 'a%b' };
  const jobs = [await r.add([{ hang: true }], thread)];
  for (let i = 0; i < 3; i++) {
    jobs.push(await r.add([say('x')], thread));
    await r.add([say('other')], { threadId: 'other' }, i ? {} : { priority: 3 });
  }
  const urgent = await r.add([say('x')], thread, { priority: 1 });
  const ahead = async () => Promise.all(jobs.map(async (job) => (await client.position(job.id)).ahead));
  assert.deepEqual(await ahead(), [0, 1, 2, 3]);
  assert.deepEqual(await client.position(urgent.id), { state: 'waiting', ahead: 4, exact: true, thread: threadKey(thread) });
  r.startWorker();
  await waitFor(async () => (await client.position(urgent.id)).state === 'parked', { timeout: LONG, what: 'parked' });
  assert.equal((await client.position(jobs[0].id)).state, 'first');
  assert.deepEqual(await ahead(), [0, 1, 2, 3]);
  assert.equal((await client.position(urgent.id)).ahead, 4);
  await r.queue.pause();
  const unseen = await r.add([say('x')], thread);
  assert.deepEqual(await client.position(unseen.id), { state: 'waiting', ahead: 5, exact: true, thread: threadKey(thread) });
  await r.queue.resume();
  assert.equal((await client.position('nobody')).state, 'unknown');
  const alone = await r.add([say('x')]);
  await r.result(alone);
  assert.deepEqual(await client.position(alone.id), { state: 'ended', ahead: 0, exact: true, thread: null });
  await client.cancel(jobs[0].id);
  for (const job of [...jobs, urgent, unseen]) await r.result(job);
  await client.cancelThread(thread);
});

test('files: by their entry, by their key, from content, and never another key', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const bytes = Buffer.from([0, 255, 128, 10]);
  const { result } = await client.done((await r.add([{ file: 'a.bin', base64: bytes.toString('base64') }])).id);
  assert.deepEqual(await client.file(result.files[0]), bytes);
  assert.deepEqual(await client.file(result.files[0].key), bytes);
  await r.redis.del(result.files[0].key);
  assert.equal(await client.file(result.files[0]), null);
  const inline = await client.done((await r.add([{ file: 'a.bin', base64: bytes.toString('base64') }], { output: { inline: true } })).id);
  assert.deepEqual(await client.file(inline.result.files[0]), bytes);
  await assert.rejects(() => client.file(`${r.P}meta`), TypeError);
});

test('snapshots: pending, running, growing text, files, the end; a retry starts afresh', async (t) => {
  const r = await rig(t);
  const client = clientOf(t, r);
  const png = 'iVBORw0KGgo=';
  const job = await r.add([say('a\n'), wait(200), { stderr: 'e' }, say('b\n'), { result: { 'image/png': png } }, { file: 'f.csv', content: '1' }, raise()]);
  const seen = [];
  const options = { everyMs: 0, code: 'the code', executionId: 'mine', fileUrl: (file, id) => `/${id}/${file.filename}` };
  for await (const snapshot of client.snapshots(job.id, options)) seen.push(snapshot);
  const result = await r.result(job);
  assert.deepEqual(seen[0], { executionId: 'mine', state: 'pending', code: 'the code', language: 'python', stdout: '', stderr: '', files: [] });
  assert.ok(seen.some((s) => s.state === 'running' && s.stdout === 'a\n' && s.files.length === 0), 'text while it runs');
  const last = seen.at(-1);
  assert.deepEqual(last, {
    executionId: 'mine', state: 'error', code: 'the code', language: 'python', stdout: 'a\nb\n', stderr: 'e', exitCode: 1,
    executionTimeMs: result.executionTimeMs, error: result.error,
    files: result.files.map((f) => ({ fileId: f.fileId, filename: f.filename, url: `/${job.id}/${f.filename}`, mimeType: f.mimeType })),
  });
  assert.deepEqual(last.files.map((f) => f.filename).sort(), ['chart-0.png', 'f.csv']);

  const one = new Snapshots({ code: 'c' });
  const m = (seq, type, more) => ({ v: 1, jobId: 'j', executionId: `e${seq > 2 ? 2 : 1}`, seq, type, ...more });
  one.push(m(1, 'started'));
  one.push(m(2, 'stdout', { text: 'lost' }));
  one.push(m(3, 'started'));
  assert.deepEqual([one.current.stdout, one.current.executionId, one.current.state], ['', 'e2', 'running']);
  const before = one.current;
  assert.equal(one.push(m(3, 'heartbeat')), before);
});
