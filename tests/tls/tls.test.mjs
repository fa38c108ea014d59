// The worker beside a Redis that speaks nothing but TLS and asks for a client certificate, with jobs of stock clients by TLS.
import assert from 'node:assert/strict';
import { copyFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { tempDir, waitFor } from '../lib/process.mjs';
import { startProxy, startRedis } from '../lib/redis.mjs';
import { clients, makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';
import { makeCertificates } from '../lib/tls.mjs';

const minute = 60_000 * slow;
const tls = makeCertificates();
const other = makeCertificates();
const redis = await startRedis({ tls });
const rig = (t, { env, ...options } = {}) => makeRig(t, redis, { ...options, env: { ...tls.env, ...shortLocks, LOG_LEVEL: 'info', ...env } });
const troubles = (worker) => worker.lines.filter((line) => /"level":"(warn|error)"/.test(line));

/** Copies of the three files a worker is given, which put() replaces in one step, as a tool that renews them does. */
function ownFiles() {
  const dir = tempDir();
  const env = {};
  const put = (from) => {
    for (const [name, file] of Object.entries(from.env)) {
      env[name] = join(dir, name);
      copyFileSync(file, `${env[name]}.new`);
      renameSync(`${env[name]}.new`, env[name]);
    }
  };
  return { env, put };
}

for (const version of Object.keys(clients)) {
  test(`${version}: jobs by TLS, and their threads, files, cancels and long replies`, async (t) => {
    const r = await rig(t, { version, replicas: 2 });
    const chain = [];
    for (let i = 0; i < 6; i++) chain.push(await r.add([say(`${i}`), wait(20)], { threadId: 't' }));
    for (const [i, job] of chain.entries()) assert.equal((await r.result(job, minute)).stdout, `${i}`);
    // More than a record of TLS, in both directions: a job of 700 kB that prints 2 MB and leaves a file.
    const content = 'x'.repeat(700_000);
    const job = await r.add([say(`${'0123456789abcde'.repeat(64)}\n`, 2000), { file: 'big.txt', content }]);
    const [result, reply] = [await r.result(job, minute), await r.gathered(job, minute)];
    assert.equal(reply.stdout.length, 2000 * 961);
    assert.equal(await r.redis.get(result.files[0].key), content);
    const hung = await r.add([say('h'), { hang: true }], { threadId: 'h' });
    await waitFor(async () => (await r.replyNow(hung)).length > 1, { timeout: minute, what: 'it runs' });
    await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', hung.id);
    assert.equal((await r.gathered(hung, minute)).done.reason, 'cancelled');
    await r.redis.xadd(`${r.P}stream:jobs`, '*', 'data', JSON.stringify({ code: JSON.stringify(say('door two')) }), 'id', 'by-stream');
    assert.equal((await r.gathered('by-stream', minute)).stdout, 'door two');
    for (const worker of r.workers) assert.deepEqual(troubles(worker), []);
  });
}

test('by name and by address; a certificate for another name is refused', async (t) => {
  for (const host of ['localhost', '127.0.0.1']) {
    const r = await rig(t, { url: `rediss://${host}:${redis.port}` });
    assert.equal((await r.run([say(host)])).stdout, host);
  }
  const named = makeCertificates({ names: 'DNS:redis.example' });
  const elsewhere = await startRedis({ tls: named });
  // The test's own clients would refuse it as well: they do not look at the name.
  elsewhere.connection.tls = { ...named.options, checkServerIdentity: () => undefined };
  const quiet = { ...elsewhere, client: () => elsewhere.client({ tls: elsewhere.connection.tls }) };
  const r = await makeRig(t, quiet, { env: { ...named.env, ...shortLocks, LOG_LEVEL: 'info' }, events: false });
  const job = await r.add([say('never')]);
  await r.worker.waitLine(/REDIS_URL.*certificate verify failed/, { timeout: minute });
  assert.equal(await r.state(job), 'waiting');
  await r.queue.remove(job.id);
});

test('an authority that is not ours, a client that is not theirs, none at all: said, and healed by files that are renewed', async (t) => {
  const none = { REDIS_TLS_CERT_FILE: '', REDIS_TLS_KEY_FILE: '' };
  const cases = [
    { env: { REDIS_TLS_CA_FILE: other.files.ca }, said: /certificate verify failed/ },
    { env: { REDIS_TLS_CERT_FILE: other.files.clientCert, REDIS_TLS_KEY_FILE: other.files.clientKey }, said: /alert|client certificate/ },
    { env: none, said: /alert|client certificate/ },
  ];
  for (const { env, said } of cases) {
    const r = await rig(t, { env, events: false });
    assert.match(await r.worker.waitLine(/REDIS_URL/, { timeout: minute }), said);
  }
  const files = ownFiles();
  files.put(other);
  const r = await rig(t, { env: files.env });
  const job = await r.add([say('healed')]);
  await r.worker.waitLine(/certificate verify failed/, { timeout: minute });
  files.put(tls);
  assert.equal((await r.result(job, minute)).stdout, 'healed');
});

test('the server gets certificates of another authority while a run goes on: the run ends, once', async (t) => {
  const own = await startRedis({ tls });
  const files = ownFiles();
  files.put(tls);
  const r = await makeRig(t, own, { env: { ...files.env, ...shortLocks, LOG_LEVEL: 'info' }, events: false });
  const job = await r.add([say('a'), { sleep: 6000 * slow }, say('b')], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(job)).length > 1, { timeout: minute, what: 'it runs' });
  const admin = own.client(); // connected before: what is open stays open
  await admin.ping();
  await admin.config('SET', 'tls-cert-file', other.files.cert, 'tls-key-file', other.files.key, 'tls-ca-cert-file', other.files.ca);
  const ids = (await admin.client('LIST')).split('\n').filter((line) => /name=sandpiper|cmd=bzpopmin/.test(line)).map((line) => /^id=(\d+)/.exec(line)[1]);
  assert.ok(ids.length > 0, 'the worker is connected');
  for (const id of ids) await admin.client('KILL', 'ID', id);
  await r.worker.waitLine(/certificate verify failed/, { timeout: minute });
  files.put(other);
  const late = own.client({ tls: other.options });
  await waitFor(async () => (await late.hget(r.P + job.id, 'finishedOn')) !== null, { timeout: minute, what: 'the run ended' });
  assert.equal(JSON.parse(await late.hget(r.P + job.id, 'returnvalue')).stdout, 'ab');
  assert.equal(await late.hget(r.P + job.id, 'ats'), '1');
});

test('a Redis without TLS, and a URL without TLS for one that has it: each is said, with the setting', async (t) => {
  const plain = await startRedis({ tls: null });
  const wrong = await makeRig(t, plain, { url: `rediss://127.0.0.1:${plain.port}`, env: { ...tls.env, LOG_LEVEL: 'info' }, events: false });
  await wrong.worker.waitLine(/REDIS_URL.*does the server speak TLS/, { timeout: minute });
  const bare = await rig(t, { url: `redis://127.0.0.1:${redis.port}`, events: false });
  await bare.worker.waitLine(/REDIS_URL/, { timeout: minute });
});

test('connections that are cut or go silent in mid-run come back, and the run ends once', async (t) => {
  const proxy = await startProxy(redis.port);
  const r = await rig(t, { url: proxy.url.replace('redis:', 'rediss:'), env: { REDIS_COMMAND_TIMEOUT_MS: '1000' } });
  for (const harm of [proxy.cut, proxy.freeze]) {
    const job = await r.add([say('a'), { sleep: 3000 * slow }, say('b')], { threadId: 't' });
    await waitFor(async () => (await r.replyNow(job)).length > 1, { timeout: minute, what: 'it runs' });
    harm();
    assert.equal((await r.result(job, minute)).stdout, 'ab');
    assert.equal((await r.hash(job)).ats, '1');
  }
});
