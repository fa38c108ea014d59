// Settings at run time: the hash in Redis is driven while jobs run; what only the environment may set stays as it is.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import test from 'node:test';
import { apiKey, otherKey, startE2b } from '../lib/e2b.mjs';
import { atEnd, tempDir, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, workerBin, workerEnv } from '../lib/rig.mjs';
import { say } from '../lib/scripted.mjs';

const redis = await startRedis();
const e2b = await startE2b();
const rows = spawnSync(workerBin, ['--settings-markdown'], { env: workerEnv({}) }).stdout.toString().split('\n').slice(2)
  .map((row) => row.split(' | ')).filter((cells) => cells.length > 3)
  .map((cells) => ({ name: /`(\w+)`/.exec(cells[0])[1], source: cells[3] }));

/** A server that nobody should talk to. */
async function trap() {
  const self = { heard: [] };
  const server = createServer((request, response) => {
    self.heard.push(`${request.method} ${request.url}`);
    response.writeHead(500).end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  atEnd(() => server.closeAllConnections?.() ?? server.close());
  atEnd(() => server.close());
  self.url = `http://127.0.0.1:${server.address().port}`;
  return self;
}

test('no setting of the environment can be changed by the hash, and its key goes nowhere else', async (t) => {
  const elsewhere = await trap();
  const r = await makeRig(t, redis, { env: { ...e2b.env, CODE_INTERPRETER_TYPE: 'E2B' } });
  const names = rows.filter((row) => row.source === 'environment').map((row) => row.name);
  assert.ok(names.length > 20 && names.includes('NODE_ENV') && names.includes('E2B_API_URL'), 'the table was read');
  const key = `${r.P}settings:runtime`;
  for (const name of names) {
    const value = /URL/.test(name) ? elsewhere.url : name === 'E2B_DOMAIN' ? new URL(elsewhere.url).host : 'junk';
    await r.redis.hset(key, name, value, `${name}_FILE`, '/etc/hostname');
    const result = await r.run('print(6*7)', { threadId: 'warm' });
    assert.deepEqual([result.reason, result.stdout.trim()], ['ok', '42'], `${name} of the hash has no effect`);
    await r.redis.del(key);
  }
  await r.redis.hset(key, 'E2B_API_KEY_FILE', '/etc/hostname', 'REDIS_URL_FILE', '/etc/hostname');
  assert.equal((await r.run('print(1)')).reason, 'ok', 'a file cannot be named there');
  assert.deepEqual(elsewhere.heard, [], 'nobody else was spoken to');
});

test('a secret in a file is read again for each job, and a broken value heals with the next good one', async (t) => {
  const file = join(tempDir(), 'key');
  writeFileSync(file, `${apiKey}\n`);
  const { E2B_API_KEY: _, ...rest } = e2b.env;
  const r = await makeRig(t, redis, { replicas: 2, env: { ...rest, CODE_INTERPRETER_TYPE: 'E2B', E2B_API_KEY_FILE: file } });
  const key = `${r.P}settings:runtime`;
  assert.equal((await r.run('print(1)')).reason, 'ok');
  writeFileSync(file, 'e2b_wrong');
  assert.match(await r.failure(await r.add('print(1)')), /E2B|key/i);
  writeFileSync(file, otherKey);
  assert.equal((await r.run('print(1)')).reason, 'ok', "another account's key, for the next job");
  for (const [name, bad] of [['CODE_INTERPRETER_TIMEOUT_MS', 'soon'], ['REPLY_MAX_BYTES', '-1'], ['E2B_ALLOW_INTERNET', 'true']]) {
    await r.redis.hset(key, name, bad);
    const job = await r.add('print(2)', { threadId: 'h' });
    if (name === 'E2B_ALLOW_INTERNET') assert.equal((await r.result(job)).reason, 'ok', 'not of the hash');
    else assert.match(await r.failure(job), new RegExp(`runtime settings are wrong: ${name}`));
    await r.redis.del(key);
    assert.equal((await r.run('print(3)', { threadId: 'h' })).reason, 'ok', `healed after ${name}`);
  }
});

test('a key in the place of the hash that is none fails jobs by their attempts, with the reason, and stalls none', async (t) => {
  const r = await makeRig(t, redis, { replicas: 2 });
  const key = `${r.P}settings:runtime`;
  await r.redis.set(key, 'no hash');
  for (let i = 0; i < 8; i++) {
    assert.match(await r.failure(await r.add([say('x')], { threadId: `t${i % 3}` })), /^The runtime settings are wrong: settings:runtime: WRONGTYPE/);
  }
  const waits = await r.add([say('waited')], { threadId: 't' }, { attempts: 50, backoff: { type: 'fixed', delay: 100 } });
  await waitFor(async () => Number((await r.hash(waits)).atm) >= 2, { what: 'its second attempt' });
  const told = (seen) => seen.driver === 'INVALID' && /WRONGTYPE/.test(seen.why);
  await waitFor(async () => (await Promise.all((await r.redis.keys(`${r.P}replica:*`)).map((one) => r.redis.hgetall(one)))).some(told),
    { what: 'a replica tells it' });
  await r.redis.del(key);
  assert.equal((await r.result(waits)).stdout, 'waited');
  assert.ok(!r.workers.some((worker) => worker.lines.some((line) => /stalled|claim failed/.test(line))));
});

test('SCRIPTED, E2B, DISABLED and back while jobs run: each job has the driver of its claim, none is lost', async (t) => {
  const r = await makeRig(t, redis, { replicas: 2, env: { ...e2b.env, CODE_INTERPRETER_TYPE: 'DISABLED' } });
  const key = `${r.P}settings:runtime`;
  const set = (type) => r.redis.hset(key, 'CODE_INTERPRETER_TYPE', type);
  await set('SCRIPTED');
  const going = [];
  for (let i = 0; i < 4; i++) going.push(await r.add([say('a'), { sleep: 1500 }, say('b')], i % 2 ? { threadId: `t${i}` } : {}));

  const overlapping = await r.add([say('c'), { sleep: 3000 }, say('d')]);
  await waitFor(async () => (await r.replyNow(overlapping)).length > 1, { what: 'it runs' });
  await set('E2B');
  assert.equal((await r.run('print(5)', { threadId: 'e' })).stdout.trim(), '5');
  await set('DISABLED');
  assert.match(await r.failure(await r.add('print(5)')), /Code interpreter is disabled/);
  await set('SCRIPTED');
  assert.equal((await r.run([say('again')])).stdout, 'again');
  for (const job of going) assert.equal((await r.result(job)).stdout, 'ab');
  assert.equal((await r.result(overlapping)).stdout, 'cd', 'the old driver finished its run');
});

test('a template set at run time is that of the next sandbox; a thread keeps the one it has', async (t) => {
  const r = await makeRig(t, redis, { env: { ...e2b.env, CODE_INTERPRETER_TYPE: 'E2B' } });
  const key = `${r.P}settings:runtime`;
  await e2b.set({ templates: ['analysts'] });
  const templateOf = async (thread) => (await e2b.sandbox(await r.redis.hget(`${r.P}thread::${thread}`, 'sandbox'))).template;
  assert.equal((await r.run('x = 1', { threadId: 'old' })).reason, 'ok');
  await r.redis.hset(key, 'E2B_TEMPLATE', 'analysts');
  assert.equal((await r.run('print(2)', { threadId: 'new' })).stdout.trim(), '2');
  assert.equal((await r.run('print(x)', { threadId: 'old' })).stdout.trim(), '1', 'its state is there');
  assert.deepEqual([await templateOf('old'), await templateOf('new')], ['code-interpreter-v1', 'analysts']);
  await r.redis.hset(key, 'E2B_TEMPLATE', 'no-such-template');
  assert.match(await r.failure(await r.add('print(3)', { threadId: 'third' })), /template/);
  await r.redis.del(key);
  assert.equal((await r.run('print(4)', { threadId: 'third' })).stdout.trim(), '4');
  assert.equal(await templateOf('third'), 'code-interpreter-v1');
});

test('LOCAL, E2B, DISABLED and LOCAL again with real kernels: a run that is going ends in its own', async (t) => {
  const r = await makeRig(t, redis, { env: { ...e2b.env, CODE_INTERPRETER_TYPE: 'DISABLED', NODE_ENV: 'development', WORKER_CONCURRENCY: '4' } });
  const set = (type) => r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', type);
  const whose = 'import os; print("E2B" if os.environ.get("E2B_SANDBOX") else "LOCAL")';
  const held = [];
  const gate = createServer((_, response) => held.push(response)).listen(0, '127.0.0.1');
  t.after(() => {
    gate.closeAllConnections();
    gate.close();
  });
  await once(gate, 'listening');
  await set('LOCAL');
  assert.equal((await r.run('x = 1', { threadId: 'l' })).reason, 'ok');
  const going = await r.add(`print("a")\nimport urllib.request\nurllib.request.urlopen("http://127.0.0.1:${gate.address().port}").read()\nprint("b")`, { threadId: 'going' });
  await waitFor(() => held.length > 0, { what: 'it runs' });
  await set('E2B');
  assert.equal((await r.run(whose, { threadId: 'l' })).stdout.trim(), 'E2B');
  await set('DISABLED');
  assert.match(await r.failure(await r.add('print(5)')), /Code interpreter is disabled/);
  await set('LOCAL');
  assert.equal((await r.run(whose, { threadId: 'l' })).stdout.trim(), 'LOCAL');
  held[0].end();
  const { reason, stdout } = await r.result(going);
  assert.deepEqual([reason, stdout], ['ok', 'a\nb\n']);
});
