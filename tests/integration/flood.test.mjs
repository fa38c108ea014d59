// Much output, many messages, readers that come and go, Redis away for a minute: replies under strain.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const patient = { timeout: 60_000 };
const info = async (r, section, field) => Number(new RegExp(`${field}[:=](\\d+)`).exec(await r.redis.info(section))?.[1] ?? 0);
const rssMiB = (pid) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
const scriptCalls = async (r) => (await info(r, 'commandstats', 'cmdstat_evalsha:calls')) + (await info(r, 'commandstats', 'cmdstat_eval:calls'));

test('a job that prints 690 MB to a reader that does not read: its reply is capped, the worker stays small, others do not notice', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { env: { ...shortLocks, LOG_LEVEL: 'info' } });
  await r.run([say('warm')]);
  const [memory, rss] = [await info(r, 'memory', 'used_memory'), rssMiB(r.worker.pid)];
  const line = `${'y'.repeat(1021)}é\n`; // 1,024 bytes
  const steps = Array.from({ length: 200 }, () => [say(line, 3380), wait(2)]).flat();
  const deaf = connect(own.port, '127.0.0.1').on('error', () => {}).pause();
  t.after(() => deaf.destroy());
  deaf.write(`SUBSCRIBE ${r.P}reply:flood\r\n`);
  await waitFor(async () => (await r.redis.pubsub('NUMSUB', `${r.P}reply:flood`))[1] === 1, { what: 'a subscriber', ...patient });
  const flood = await r.add([say('head\n'), ...steps, say('tail\n')], { threadId: 'flood' }, { jobId: 'flood' });
  await waitFor(async () => (await r.replyNow(flood)).length > 1, { what: 'it prints', ...patient });
  for (let i = 0; i < 10; i++) {
    const begun = Date.now();
    assert.equal((await r.run([say('other'), wait(5)], { threadId: `o${i}` })).stdout, 'other');
    assert.ok(Date.now() - begun < 10_000 * slow, `another job took ${Date.now() - begun} ms`);
  }
  const result = await r.result(flood, 60_000);
  assert.equal(result.reason, 'ok');
  assert.ok(result.stdout.startsWith('head\n') && result.stdout.endsWith('tail\n'));
  const total = 10 + 1024 * 3380 * 200;
  assert.ok(total > 676e6);
  const messages = await r.reply(flood);
  assert.equal(messages.filter((m) => m.type === 'truncated').length, 1);
  const stored = messages.reduce((n, m) => n + Buffer.byteLength(m.text ?? ''), 0);
  assert.ok(stored > 3.5 * 2 ** 20 && stored <= 4 * 2 ** 20, `${stored} bytes stored`);
  assert.ok(result.truncated.stdout > total - 70_000 && result.truncated.stdout < total, `${result.truncated.stdout} of ${total} left out`);
  assert.equal((await r.hash(flood)).stc ?? '0', '0', 'never stalled: its lock was renewed');
  assert.ok(!r.worker.lines.some((text) => /lock .*lost|stalled/.test(text)));
  const grown = ((await info(r, 'memory', 'used_memory')) - memory) / 2 ** 20;
  t.diagnostic(`Redis grew by ${grown.toFixed(1)} MiB, the worker from ${rss.toFixed(1)} to ${rssMiB(r.worker.pid).toFixed(1)} MiB at most`);
  assert.ok(grown < 24, `Redis grew by ${grown} MiB`);
  if (slow === 1) assert.ok(rssMiB(r.worker.pid) < rss + 24, `the worker took ${rssMiB(r.worker.pid)} MiB`);
});

test('100,000 small prints: linear bytes, one script call a flush', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { replicas: 0, events: false, env: { LOG_LEVEL: 'info', STREAM_INTAKE: 'false' } });
  const printed = 'tick tock\n'.length * 100_000;
  const job = await r.add(Array.from({ length: 500 }, () => [say('tick tock\n', 200), wait(2)]).flat(), { reply: true });
  r.startWorker();
  await waitFor(async () => (await r.replyNow(job)).length > 0, { what: 'it runs', ...patient });
  const [calls, bytes, begun] = [await scriptCalls(r), await info(r, 'stats', 'total_net_input_bytes'), Date.now()];
  const messages = await r.reply(job, 60_000);
  const ran = Date.now() - begun;
  const [made, sent] = [(await scriptCalls(r)) - calls, (await info(r, 'stats', 'total_net_input_bytes')) - bytes];
  const reading = 200 * (ran / 200 + messages.length); // what this test's own reads send, at most
  t.diagnostic(`${messages.length} messages, ${made} script calls, ${sent} bytes for ${printed} printed`);
  assert.equal(messages.map((m) => m.text ?? '').join(''), 'tick tock\n'.repeat(100_000));
  assert.ok(messages.length <= 100 + (ran + 2000) / 30 + (printed * 1.2) / 16384, `${messages.length} messages in ${ran} ms`);
  const beside = 20 + (ran / 1000) * 6; // claim, end, renewals, stalled passes
  assert.ok(made <= messages.length + beside, `${made} calls for ${messages.length} messages`);
  assert.ok(sent < printed * 1.5 + messages.length * 600 + 100_000 + reading, `${sent} bytes sent for ${printed}`);
});

test('a reader that comes late, reconnects five times and reads from a replica of Redis gets the text byte for byte', async (t) => {
  const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', String(redis.port)] });
  const r = await makeRig(t, redis, { env: shortLocks });
  const pieces = Array.from({ length: 60 }, (_, i) => `${i}: é中😀 "q" \\ \t\u0001\u007f\r\n${'\n'.repeat(i % 4)}${'z'.repeat(i * 13)}`);
  const job = await r.add(pieces.map((text, i) => [i % 3 === 2 ? { stderr: text } : say(text), wait(40)]).flat(), {}, { jobId: 'far' });
  const key = `${r.P}reply:far`;
  await waitFor(async () => (await r.redis.xlen(key)) > 8, { what: 'it has printed a while', ...patient });
  const messages = [];
  let connections = 0;
  while (messages.at(-1)?.type !== 'done') {
    const reader = replica.client();
    const enough = connections++ < 5 ? messages.length + 7 : Infinity; // then it is cut off
    while (messages.length < enough && messages.at(-1)?.type !== 'done') {
      const found = await reader.xread('COUNT', 3, 'BLOCK', 1000, 'STREAMS', key, `${messages.at(-1)?.seq ?? 0}-0`);
      for (const [, [, text]] of found?.[0][1] ?? []) messages.push(JSON.parse(text));
    }
    reader.disconnect();
  }
  assert.ok(connections >= 6, `${connections} connections`);
  messages.forEach((m, i) => assert.equal(m.seq, i + 1, 'neither gap nor duplicate'));
  const text = (type) => messages.filter((m) => m.type === type).map((m) => m.text).join('');
  assert.ok(Buffer.from(text('stdout')).equals(Buffer.from(pieces.filter((_, i) => i % 3 !== 2).join(''))));
  assert.ok(Buffer.from(text('stderr')).equals(Buffer.from(pieces.filter((_, i) => i % 3 === 2).join(''))));
  assert.deepEqual(messages, await r.reply(job));
});

test('resumed from any seq: what follows, all of it, once', async (t) => {
  const r = await makeRig(t, redis, { env: shortLocks });
  const job = await r.add(Array.from({ length: 12 }, (_, i) => [say(`${i}`), wait(45)]).flat());
  const all = await r.reply(job);
  assert.ok(all.length > 6);
  for (let seq = 1; seq <= all.length; seq++) assert.deepEqual(await r.follow(job, { fromSeq: seq }), all.slice(seq - 1));
});

test('a drain that cuts a run says done once, and keeps what was printed', async (t) => {
  const r = await makeRig(t, redis, { env: { ...shortLocks, DRAIN_TIMEOUT_MS: '300' } });
  const job = await r.add([say('so far'), { file: 'a.txt', content: 'x' }, { hang: true }], { threadId: 't' });
  const waiting = await r.add([say('later')], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(job)).length > 1, { what: 'it prints', ...patient });
  await r.worker.done();
  const result = await r.result(job);
  assert.deepEqual([result.reason, result.exitCode, result.stdout, result.files.length], ['drained', 143, 'so far', 1]);
  assert.equal((await r.reply(job)).at(-1).reason, 'drained');
  r.startWorker();
  assert.equal((await r.result(waiting)).stdout, 'later');
});

test('Redis away for 60 s with 100 runs going: each ends with its own result', async (t) => {
  const own = await startRedis({ durable: true });
  const r = await makeRig(t, own, { replicas: 2, events: false, env: { WORKER_CONCURRENCY: '60', LOG_LEVEL: 'info', DRAIN_TIMEOUT_MS: '20000' } });
  const jobs = [];
  for (let i = 0; i < 100; i++) {
    // Some end while Redis is away, some when it is back.
    const job = await r.add([say(`begin ${i}\n`), wait(8000 + i * 600), say(`end ${i}\n`)], { threadId: `t${i}` });
    jobs.push(job);
  }
  await waitFor(async () => (await Promise.all(jobs.map((job) => r.redis.exists(`${r.P}reply:${job.id}`)))).every(Boolean), { what: 'all run', ...patient });
  await own.kill();
  await sleep(60_000);
  await own.restart();
  await waitFor(async () => (await r.queue.getJobCountByTypes('completed', 'failed')) === 100, { what: 'all ended', timeout: 180_000, interval: 200 });
  for (const [i, job] of jobs.entries()) {
    const hash = await r.hash(job);
    assert.equal(hash.failedReason, undefined, `job ${job.id}: ${hash.failedReason}`);
    assert.equal(JSON.parse(hash.returnvalue).stdout, `begin ${i}\nend ${i}\n`);
    const reply = await r.reply(job);
    assert.equal(reply.filter((m) => m.type === 'started').length, 1);
    assert.equal(reply.map((m) => m.text ?? '').join(''), `begin ${i}\nend ${i}\n`);
  }
});
