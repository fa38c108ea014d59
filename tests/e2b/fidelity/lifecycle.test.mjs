// Sandboxes as the official clients see them: create, list, connect, pause, auto-resume, time, kill.
import assert from 'node:assert/strict';
import { otherKey } from '../../lib/e2b.mjs';
import { waitFor } from '../../lib/process.mjs';
import { api, both, useE2b } from './clients.mjs';

const e2b = await useE2b({ settings: { warm: 1 } });
const near = (value, wanted, within, what) => assert.ok(Math.abs(value - wanted) <= within, `${what}: ${value}, not ${wanted}`);
const left = async (sandbox) => (await e2b.sandbox(sandbox.sandboxId)).ttl;

async function all(paginator) {
  const found = [];
  while (paginator.hasNext) found.push(...await paginator.nextItems());
  return found;
}

both(e2b, 'create: every option arrives, by the path of its generation', async ({ Sandbox }, t, version) => {
  const metadata = { a: '1', 'user id': 'a/b c&d=é%' };
  const sandbox = await Sandbox.create({
    timeoutMs: 41_500, metadata, envs: { X: 'y' }, lifecycle: { onTimeout: 'pause', autoResume: true },
    network: { allowPublicTraffic: false }, allowInternetAccess: false,
  });
  assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/);
  const [create] = await e2b.journal({ op: 'create' });
  assert.equal(create.path, version === '2.51.0' ? '/v2/sandboxes' : '/sandboxes');
  assert.match(create.headers['user-agent'], new RegExp(`e2b-js-sdk/${version}`));
  assert.equal(create.headers['transfer-encoding'], 'chunked');
  assert.equal(create.body.timeout, 42, 'rounded up');
  assert.equal(create.body.autoPause, true);
  const known = await e2b.sandbox(sandbox.sandboxId);
  assert.deepEqual(known.metadata, metadata);
  assert.deepEqual(known.env, { X: 'y' });
  assert.deepEqual([known.autoPause, known.autoResume, known.internet], [true, true, false]);
  assert.match(known.envdAccessToken, /^[0-9a-f]{64}$/);
  assert.equal(sandbox.trafficAccessToken, known.trafficAccessToken);
  const info = await sandbox.getInfo();
  assert.equal(info.state, 'running');
  assert.equal(info.templateId, 'code-interpreter-v1');
  assert.deepEqual(info.metadata, metadata);
  assert.deepEqual(info.lifecycle, { onTimeout: 'pause', autoResume: true });
  near(info.endAt - info.startedAt, 42_000, 50, 'life');
  assert.equal(await sandbox.isRunning(), true);
});

both(e2b, 'list: metadata with odd characters is found exactly', async ({ Sandbox }) => {
  const odd = ['a/b c&d=é%', 'a+b', '日本 😀', '%2525', '=', '&', 'a=b&c=d', '"\'\\', 'k%3Dv', '~', ' ', ''];
  const made = await Promise.all(odd.map((value) => Sandbox.create('base', { metadata: { 'user id': value, k: 'v' } })));
  await Sandbox.create('base', { metadata: { k: 'v' } });
  for (const [i, value] of odd.entries()) {
    const found = await all(Sandbox.list({ query: { metadata: { 'user id': value } } }));
    assert.deepEqual(found.map((s) => s.sandboxId), [made[i].sandboxId], JSON.stringify(value));
    assert.equal(found[0].metadata['user id'], value);
  }
  assert.equal((await all(Sandbox.list({ query: { metadata: { k: 'v' } } }))).length, odd.length + 1);
  assert.equal((await all(Sandbox.list({ query: { metadata: { 'user id': '=', k: 'v' } } }))).length, 1, 'all pairs');
  assert.deepEqual(await all(Sandbox.list({ query: { metadata: { k: 'V' } } })), []);
  assert.deepEqual(await all(Sandbox.list({ query: { metadata: { nothing: 'v' } } })), []);
  const keys = await Sandbox.create('base', { metadata: { 'käy/ & =': 'x' } });
  const found = await all(Sandbox.list({ query: { metadata: { 'käy/ & =': 'x' } } }));
  assert.deepEqual(found.map((s) => s.sandboxId), [keys.sandboxId]);
});

both(e2b, 'list: pages, order, states, one account', async ({ Sandbox }) => {
  const ids = [];
  for (let i = 0; i < 7; i++) ids.push((await Sandbox.create('base', { metadata: { i: String(i) } })).sandboxId);
  await Sandbox.create('base', { apiKey: otherKey });
  await Sandbox.pause(ids[2]);
  await Sandbox.pause(ids[5]);
  const down = (await all(Sandbox.list({ limit: 2 }))).map((s) => s.sandboxId);
  assert.deepEqual(down, [...ids].reverse());
  const listed = await e2b.journal({ op: 'list' });
  assert.equal(listed.length, 4, 'pages of two');
  const paused = await all(Sandbox.list({ limit: 1, query: { state: ['paused'] } }));
  assert.deepEqual(paused.map((s) => [s.sandboxId, s.state]), [[ids[5], 'paused'], [ids[2], 'paused']]);
  assert.equal((await all(Sandbox.list({ query: { state: ['running', 'paused'] } }))).length, 7);
  assert.equal((await all(Sandbox.list({ query: { state: ['running'] } }))).length, 5);
  const up = await api(e2b, 'GET', '/v2/sandboxes?order=asc&limit=3');
  assert.deepEqual(up.body.map((s) => s.sandboxID), ids.slice(0, 3));
  assert.equal(up.headers.get('x-total-running'), '5');
  const token = up.headers.get('x-next-token');
  const next = await api(e2b, 'GET', `/v2/sandboxes?order=asc&limit=9&nextToken=${token}`);
  assert.deepEqual(next.body.map((s) => s.sandboxID), ids.slice(3));
  assert.equal(next.headers.get('x-next-token'), null);
  const wrong = await api(e2b, 'GET', `/v2/sandboxes?nextToken=${token}`);
  assert.deepEqual([wrong.status, wrong.body.message], [400, 'Invalid next token']);
});

both(e2b, 'connect: extends and never shortens, resumes with the given time', async ({ Sandbox }, t, version) => {
  const sandbox = await Sandbox.create({ timeoutMs: 100_000 });
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 20_000 });
  near(await left(sandbox), 100, 30, 'not shortened');
  await again.connect({ timeoutMs: 300_000 });
  near(await left(sandbox), 300, 30, 'extended');
  assert.equal((await e2b.sandbox(sandbox.sandboxId)).envdAccessToken, await tokenOf(again));
  await sandbox.runCode('x = 6 * 7');
  assert.equal(await sandbox.pause(), true);
  assert.equal(await sandbox.pause(), false, 'already paused');
  assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused');
  assert.equal(await sandbox.isRunning(), false);
  const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 50_000 });
  assert.equal(resumed.sandboxId, sandbox.sandboxId);
  near(await left(sandbox), 50, 30, 'anew');
  assert.equal((await resumed.runCode('x')).text, '42');
  const statuses = (await e2b.journal({ op: 'connect' })).map((entry) => entry.status);
  assert.deepEqual(statuses, [200, 200, 201]);
  const [connect] = await e2b.journal({ op: 'connect' });
  assert.equal(connect.path, `${version === '2.51.0' ? '/v2' : ''}/sandboxes/${sandbox.sandboxId}/connect`);
});

async function tokenOf(sandbox) {
  await sandbox.files.exists('/home/user');
  return (await e2b.journal({ op: 'fs.Stat' })).at(-1).headers['x-access-token'];
}

both(e2b, 'auto-resume: the first request wakes it, a variable and a running process are there', async ({ Sandbox }) => {
  const sandbox = await Sandbox.create({
    timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true }, network: { allowPublicTraffic: false },
  });
  await sandbox.runCode('import subprocess\nx = [1, 2]\nbeside = subprocess.Popen(["sleep", "1000"])');
  await sandbox.pause();
  await e2b.forget();
  assert.equal((await sandbox.runCode('print(x, beside.poll())')).logs.stdout.join(''), '[1, 2] None\n');
  assert.deepEqual(await e2b.ops(), ['execute'], 'no other call');
  near(await left(sandbox), 300, 30, 'at least five minutes');
  await sandbox.pause();
  assert.equal(await sandbox.files.exists('/home/user'), true, 'envd wakes it too');
});

both(e2b, 'without auto-resume a paused sandbox is not found by the data plane', async ({ Sandbox, TimeoutError }) => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 });
  await sandbox.pause();
  await assert.rejects(sandbox.runCode('1'), (error) => error instanceof TimeoutError && /not found/.test(error.message));
  await assert.rejects(sandbox.files.read('a'), TimeoutError);
  assert.equal(await sandbox.isRunning(), false);
});

both(e2b, 'pause by the disk only: files stay, memory does not', async ({ Sandbox }) => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 });
  await sandbox.runCode('x = 1; open("kept.txt", "w").write("kept")');
  const before = await sandbox.createCodeContext();
  await sandbox.pause({ keepMemory: false });
  await sandbox.connect();
  assert.equal((await sandbox.listCodeContexts()).some(({ id }) => id === before.id), false, 'contexts are memory');
  assert.equal((await sandbox.runCode('x')).error.name, 'NameError');
  assert.equal((await sandbox.runCode('open("kept.txt").read()')).text, 'kept');
});

both(e2b, 'setTimeout: from now, may shorten; the end comes in mid-run', async ({ Sandbox, TimeoutError }) => {
  const sandbox = await Sandbox.create({ timeoutMs: 300_000 });
  await sandbox.setTimeout(100_000);
  near(await left(sandbox), 100, 30, 'shortened');
  await sandbox.runCode('1');
  const seen = [];
  await assert.rejects(sandbox.runCode('import time\nwhile True:\n  print("tick", flush=True); time.sleep(.1)', {
    onStdout: ({ line }) => {
      if (seen.push(line) === 4) sandbox.setTimeout(1000);
    },
  }), TimeoutError);
  assert.ok(seen.length > 3, 'what came before is there');
  assert.equal(await sandbox.isRunning(), false);
  await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
});

both(e2b, 'the end of the time: kill, or pause where it is asked for', async ({ Sandbox }) => {
  const killed = await Sandbox.create('base', { timeoutMs: 300_000 });
  const paused = await Sandbox.create('base', { timeoutMs: 1000, lifecycle: { onTimeout: 'pause' } });
  const { endAt } = await e2b.sandbox(killed.sandboxId);
  for (let i = 0; i < 5; i++) await killed.files.exists('/home/user');
  assert.equal((await e2b.sandbox(killed.sandboxId)).endAt, endAt, 'traffic extends nothing');
  await killed.setTimeout(1000);
  await waitFor(async () => !(await killed.isRunning()), { timeout: 60_000, what: 'its end' });
  await e2b.waitState(paused.sandboxId, 'paused');
  assert.equal(await killed.kill(), false);
  assert.equal(await paused.kill(), true, 'a paused one can be killed');
});

both(e2b, 'kill: once; then it is gone everywhere', async ({ Sandbox, NotFoundError, SandboxNotFoundError }) => {
  const sandbox = await Sandbox.create('base');
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
  for (const call of [
    () => Sandbox.connect(sandbox.sandboxId), () => Sandbox.getInfo(sandbox.sandboxId),
    () => Sandbox.setTimeout(sandbox.sandboxId, 1000), () => Sandbox.pause(sandbox.sandboxId),
  ]) await assert.rejects(call(), SandboxNotFoundError ?? NotFoundError);
  assert.deepEqual(await all(Sandbox.list()), []);
});

both(e2b, 'concurrent calls: pauses are one pause, connects one resume, calls in between wait', async ({ Sandbox }, t) => {
  await e2b.set({ pause_ms: 1500, resume_ms: 300 });
  t.after(() => e2b.set({ pause_ms: 0, resume_ms: 0 }));
  const sandbox = await Sandbox.create('base', { timeoutMs: 60_000 });
  const pauses = await Promise.all([sandbox.pause(), sandbox.pause()]);
  assert.deepEqual(pauses, [true, true], 'the second waited for the first');
  await Promise.all([Sandbox.connect(sandbox.sandboxId), Sandbox.connect(sandbox.sandboxId), sandbox.connect()]);
  assert.equal((await e2b.stats()).places[process.env.E2B_API_KEY], 1, 'one resume');
  assert.deepEqual((await e2b.journal({ op: 'connect' })).map((entry) => entry.status).sort(), [200, 200, 201]);
  await e2b.set({ pause_ms: 5000 });
  const pausing = sandbox.pause();
  await e2b.waitState(sandbox.sandboxId, 'pausing');
  const before = await api(e2b, 'POST', `/sandboxes/${sandbox.sandboxId}/timeout`, { timeout: 9 });
  assert.equal(before.status, 409, 'in transition');
  assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused', 'pausing is shown as paused');
  await Sandbox.connect(sandbox.sandboxId);
  await pausing;
  assert.equal((await e2b.sandbox(sandbox.sandboxId)).state, 'running');
});
