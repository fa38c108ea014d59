// What an operator should know of the Redis server is said: its age, its eviction policy, its memory, stock Workers.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import test from 'node:test';
import { Worker } from 'bullmq';
import { atEnd, waitFor, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, slow, startWorker } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';

const minute = 60_000 * slow;

/** Greets like a Redis of that version, and answers OK to the rest. */
async function fakeRedis(version, mode = 'redis_mode:standalone') {
  const info = `# Server\r\nredis_version:${version}\r\n${mode}\r\n`;
  const sockets = new Set();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.on('data', (bytes) => {
      for (const [, name] of bytes.toString().matchAll(/\*\d+\r\n\$\d+\r\n(\w+)/g)) {
        socket.write(name === 'INFO' ? `$${info.length}\r\n${info}\r\n` : name === 'PING' ? '+PONG\r\n' : '+OK\r\n');
      }
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  atEnd(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `redis://127.0.0.1:${server.address().port}`;
}

test('a Redis that is too old ends the start with a line that says so', async () => {
  const worker = startWorker({ REDIS_URL: await fakeRedis('6.0.16'), QUEUE_NAME: 'q' });
  assert.deepEqual(await within(minute, worker.exited, 'the worker ends'), { code: 3, signal: null });
  assert.match(worker.lines.join('\n'), /Redis 6\.0\.16; 6\.2 or later is needed/);
});

test('a cluster is known for one also where it is told as Valkey does', async () => {
  for (const mode of ['redis_mode:cluster', 'server_name:valkey\r\nserver_mode:cluster']) {
    const worker = startWorker({ REDIS_URL: await fakeRedis('7.2.4', mode), QUEUE_NAME: 'q' });
    assert.deepEqual(await within(minute, worker.exited, 'the worker ends'), { code: 3, signal: null });
    assert.match(worker.lines.join('\n'), /Redis Cluster.*QUEUE_PREFIX/);
  }
});

test('an eviction policy that drops jobs is warned about, once', async (t) => {
  const redis = await startRedis();
  const admin = redis.client();
  await admin.config('SET', 'maxmemory-policy', 'allkeys-lru');
  const r = await makeRig(t, redis);
  await r.worker.waitLine(/maxmemory-policy allkeys-lru/, { timeout: minute });
  await admin.config('SET', 'maxmemory-policy', 'volatile-lru');
  await r.worker.waitLine(/maxmemory-policy volatile-lru/, { timeout: minute });
  assert.equal(r.worker.lines.filter((line) => /maxmemory-policy allkeys-lru/.test(line)).length, 1);
});

test('above the watermark files are refused and replies are short; below it all is as before', async (t) => {
  const redis = await startRedis();
  const admin = redis.client();
  const r = await makeRig(t, redis);
  const used = async () => Number(/used_memory:(\d+)/.exec(await admin.info('memory'))[1]);
  const steps = [say('out'), { file: 'a.txt', content: 'bytes' }, wait(10), say(' put')];
  assert.equal((await r.run(steps)).files.length, 1);
  await admin.setrange('ballast', 64 << 20, 'x'); // a tenth of it is more than buffers of connections take for a moment
  await admin.config('SET', 'maxmemory', Math.floor(await used() / 0.9));
  await r.worker.waitLine(/REDIS_MEMORY_WATERMARK_PERCENT/, { timeout: minute });
  const job = await r.add(steps);
  const result = await r.result(job);
  assert.deepEqual([result.stdout, result.files], ['out put', []], 'the result still has what was printed');
  assert.match(result.warnings.join('\n'), /a\.txt.*short of memory[^]*reply has no output/);
  assert.deepEqual((await r.reply(job)).map((message) => message.type), ['started', 'done']);
  await admin.config('SET', 'maxmemory', 0);
  await r.worker.waitLine(/Redis has room again/, { timeout: minute });
  const after = await r.add(steps);
  assert.equal((await r.result(after)).files.length, 1);
  assert.equal((await r.gathered(after)).stdout, 'out put');
});

test('maxmemory reached: jobs wait and go on when there is room, none is lost', async (t) => {
  const redis = await startRedis();
  const admin = redis.client();
  const r = await makeRig(t, redis, { replicas: 2 });
  const jobs = [];
  for (let i = 0; i < 6; i++) jobs.push(await r.add([say('a'), wait(700), say('b')], i % 2 ? { threadId: 't' } : {}));
  await waitFor(async () => (await r.replyNow(jobs[0])).length > 0, { timeout: minute, what: 'the first one runs' });
  await admin.config('SET', 'maxmemory', 1);
  await waitFor(() => r.workers.some((worker) => worker.lines.some((line) => /refused .* for now.*OOM/.test(line))), { timeout: minute, what: 'a refusal' });
  await admin.config('SET', 'maxmemory', 0);
  for (const job of jobs) {
    assert.equal((await r.result(job, 60_000)).stdout, 'ab');
    assert.equal((await r.hash(job)).ats, '1', 'it ran once');
  }
});

test('a stock Worker on the queue is told from replicas and warned about', async (t) => {
  const redis = await startRedis();
  const r = await makeRig(t, redis, { replicas: 2, env: { WORKER_NAME: 'ours' } });
  const stock = new Worker(r.name, async () => {}, { connection: redis.connection });
  t.after(() => stock.close());
  stock.on('error', () => {});
  const id = await waitFor(async () => {
    const list = await redis.client().client('LIST');
    const line = list.split('\n').find((one) => one.includes(`name=bull:${Buffer.from(r.name).toString('base64')} `));
    return line && /^id=(\d+)/.exec(line)[1];
  }, { timeout: minute, what: "the Worker's connection" });
  for (const worker of r.workers) {
    const said = await worker.waitLine(/another Worker takes jobs/, { timeout: minute });
    assert.match(said, new RegExp(`Redis client ${id}\\b`), 'it is the stock one');
  }
});
