// The images, run as an engine would: their own root, user and entry point; a real Redis and the stock client outside.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Queue, QueueEvents } from 'bullmq';
import { atEnd, start, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';

const stages = fileURLToPath(new URL('stages.py', import.meta.url));
const redis = await startRedis();

function image(stage, env) {
  const child = start('/usr/bin/python3', [stages, 'image', stage, ...Object.entries(env).map(([k, v]) => `${k}=${v}`)]);
  return child;
}

async function queue() {
  const name = `q-${randomUUID()}`;
  const one = new Queue(name, { connection: redis.connection });
  const events = new QueueEvents(name, { connection: redis.connection });
  await events.waitUntilReady();
  atEnd(async () => {
    await events.close();
    await one.close();
  });
  return { name, queue: one, run: async (data) => (await one.add('execute', { v: 1, ...data })).waitUntilFinished(events, 120_000) };
}

async function worker(stage, env) {
  const q = await queue();
  const child = image(stage, { REDIS_URL: redis.url, QUEUE_NAME: q.name, STATUS_PORT: '-1', STATUS_HOST: '127.0.0.1', ...env });
  const line = await child.waitLine(/status port: listening/, { timeout: 60_000 });
  const port = /port (\d+)/.exec(line)?.[1];
  assert.ok(port, line);
  return { ...q, child, port };
}

test('worker: not root, healthy, DISABLED until it is told a driver, drains on its stop signal', async () => {
  const w = await worker('worker', {});
  await assert.rejects(w.run({ code: 'print(1)' }), /disabled/i);
  await waitFor(async () => (await fetch(`http://127.0.0.1:${w.port}/healthz`)).ok, { timeout: 30_000, what: 'healthy' });
  const health = spawnSync('/usr/bin/python3', [stages, 'health', 'worker', `STATUS_PORT=${w.port}`], { encoding: 'utf8' });
  assert.equal(health.status, 0, health.stdout + health.stderr);
  const dead = spawnSync('/usr/bin/python3', [stages, 'health', 'worker', 'STATUS_PORT=1'], { encoding: 'utf8' });
  assert.equal(dead.status, 1, dead.stdout + dead.stderr);
  w.child.kill('SIGTERM');
  const end = await w.child.exited;
  assert.equal(end.code, 0, JSON.stringify(end));
});

test('worker-local: real kernels in bubblewrap, as user 10001, in production', async () => {
  const w = await worker('worker-local', { NODE_ENV: 'production', CODE_INTERPRETER_TYPE: 'LOCAL' });
  const result = await w.run({ threadId: 't', code: 'import os, pandas\nx = 6 * 7\nprint(x, os.getcwd())' });
  assert.deepEqual([result.reason, result.stdout], ['ok', '42 /home/user\n'], JSON.stringify(result));
  const chart = await w.run({ threadId: 't', code: 'import matplotlib.pyplot as plt\nplt.plot([1, x])\nplt.show()' });
  assert.deepEqual([chart.reason, chart.files.map((f) => f.mimeType)], ['ok', ['image/png']], JSON.stringify(chart));
  w.child.kill('SIGTERM');
  assert.equal((await w.child.exited).code, 0);
});

test('board: the dashboard is served', async () => {
  const q = await queue();
  const child = image('board', { REDIS_URL: redis.url, QUEUE_NAME: q.name, PORT: '0', HOST: '127.0.0.1' });
  const line = await child.waitLine(/http:\/\/127\.0\.0\.1:\d+/, { timeout: 60_000 });
  const answer = await fetch(/http:\/\/127\.0\.0\.1:\d+/.exec(line)[0] + '/api/queues');
  assert.deepEqual((await answer.json()).queues.map((one) => one.name), [q.name]);
});

test('server: its page and its health, as user 10001', async () => {
  const q = await queue();
  const child = image('server', { REDIS_URL: redis.url, QUEUE_NAME: q.name, PORT: '0', HOST: '127.0.0.1', SERVER_TOKENS: 'token-0123456789abcdef=w' });
  const base = (await child.waitLine(/^listening on /, { timeout: 120_000 })).split(' ').at(-1);
  assert.equal((await fetch(`${base}/health`)).status, 200);
  assert.match(await (await fetch(base)).text(), /<title>Sandpiper/);
  assert.equal((await fetch(`${base}/vendor/ansi_up.js`)).status, 200);
  assert.equal((await fetch(`${base}/threads`)).status, 401);
});
