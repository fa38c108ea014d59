// Configuration that changes while jobs run (cases.md, case 144): the next job has the new values, a running one is unharmed.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { apiKey, otherKey } from '../../lib/e2b.mjs';
import { tempDir } from '../../lib/process.mjs';
import { deployment, e2b, makeBox, ok, ops, rig, waitFor } from './lib.mjs';

/** Code that goes on until `r.freed`, and its job once it runs. */
const going = `import os, time
print("begun", flush=True)
while not os.path.exists("/home/user/go"): time.sleep(0.05)
print("over", x)`;
async function start(r, data = {}) {
  ok(await r.py('x = 7', data));
  const job = await r.add(going, { threadId: 'main', ...data });
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { timeout: 60_000, what: 'it runs' });
  return job;
}
/** Lets it end: the file is written by another client of the sandbox. */
async function free(box) {
  const body = new FormData();
  body.append('file', new Blob(['']), '/home/user/go');
  const response = await fetch(`${e2b.sandboxUrl}/files?username=user`, {
    method: 'POST', body,
    headers: { 'X-Access-Token': box.envdAccessToken, 'E2b-Sandbox-Id': box.sandboxID, 'E2b-Sandbox-Port': '49983' },
  });
  assert.ok(response.ok, `${response.status} ${await response.text()}`);
}
/** The thread's sandbox, as its account sees it: id and tokens. */
async function boxOf(id, key = apiKey) {
  const response = await fetch(`${e2b.apiUrl}/sandboxes/${id}`, { headers: { 'X-API-KEY': key } });
  return response.json();
}
const change = (r, ...pairs) => r.redis.hset(`${r.P}settings:runtime`, ...pairs);
const ended = async (r, job, box) => {
  await free(box);
  assert.equal(ok(await r.result(job, 60_000)).stdout, 'begun\nover 7\n');
};

test('a time limit changed in mid-run is that of the next job', async (t) => {
  const r = await rig(t);
  const job = await start(r);
  const box = await boxOf((await r.record()).sandbox);
  await change(r, 'CODE_INTERPRETER_TIMEOUT_MS', '1000');
  const next = await r.py('while True: pass', { threadId: 'next' });
  assert.deepEqual([next.reason, next.exitCode], ['timeout', 124]); // more than the new limit has passed for the first job, too
  await ended(r, job, box);
});

test('a template changed in mid-run is that of the next sandbox; warm ones keep their state', async (t) => {
  const r = await rig(t, { settings: { templates: ['analysis-v2'] } });
  const job = await start(r);
  const { sandbox } = await r.record();
  const box = await boxOf(sandbox);
  await change(r, 'E2B_TEMPLATE', 'analysis-v2');
  ok(await r.py('1', { threadId: 'next' }));
  assert.deepEqual((await e2b.journal({ op: 'create' })).map((e) => e.body.templateID), ['code-interpreter-v1', 'analysis-v2']);
  await ended(r, job, box);
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  await change(r, 'E2B_TEMPLATE', 'no-such-template');
  assert.match(await r.failure(await r.add('1', { threadId: 'third' })), /template/i);
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  assert.equal((await r.record()).sandbox, sandbox);
});

test('a key rotated in mid-run is that of the next job, the run and its sandbox keep the old one', async (t) => {
  const file = join(tempDir(), 'key');
  writeFileSync(file, apiKey);
  const r = await rig(t, { env: { E2B_API_KEY: '', E2B_API_KEY_FILE: file } });
  const job = await start(r);
  const old = (await r.record()).sandbox;
  const box = await boxOf(old);
  writeFileSync(file, otherKey);
  ok(await r.py('1', { threadId: 'next' }));
  const next = (await r.record(':next')).sandbox;
  assert.equal((await boxOf(next, otherKey)).sandboxID, next, 'in the other account');
  await ended(r, job, box);
  // The new account does not know the thread's sandbox: a fresh one, and the loss is told.
  const after = ok(await r.py('print("x" in globals())'));
  assert.deepEqual([after.stdout, after.sandbox.stateLost], ['False\n', 'sandbox_gone']);
  writeFileSync(file, 'e2b_revoked');
  assert.match(await r.failure(await r.add('1', { threadId: 'third' })), /E2B_API_KEY/);
});

test('E2B, DISABLED and E2B again in mid-run: one sandbox, its state kept', async (t) => {
  const r = await rig(t);
  const job = await start(r);
  const { sandbox } = await r.record();
  const box = await boxOf(sandbox);
  await change(r, 'CODE_INTERPRETER_TYPE', 'DISABLED');
  assert.match(await r.failure(await r.add('1', { threadId: 'next' })), /Code interpreter is disabled/);
  await change(r, 'CODE_INTERPRETER_TYPE', 'E2B');
  ok(await r.py('1', { threadId: 'next' }));
  await ended(r, job, box);
  const after = ok(await r.py('print(x)'));
  assert.deepEqual([after.stdout, after.sandbox.reused, after.sandbox.stateLost], ['7\n', true, null]);
  assert.equal((await r.record()).sandbox, sandbox);
  assert.equal((await e2b.journal({ op: 'create' })).length, 2);
  assert.equal((await e2b.journal({ op: 'kill' })).length, 0);
});

test('a malformed change in mid-run fails the next jobs by its name until it is mended, and harms nothing else', async (t) => {
  const r = await rig(t);
  const job = await start(r);
  const box = await boxOf((await r.record()).sandbox);
  ok(await r.py('y = 1', { threadId: 'next' }));
  const others = () => e2b.journal((e) => e.sandbox !== box.sandboxID); // than what the running job asks for
  for (const [name, value, reason] of [
    ['CODE_INTERPRETER_TYPE', 'E3B', 'Invalid code interpreter driver type (E3B), check your .env file'],
    ['CODE_INTERPRETER_TIMEOUT_MS', 'soon', 'The runtime settings are wrong: CODE_INTERPRETER_TIMEOUT_MS: "soon" is not an integer'],
    ['E2B_STALL_TIMEOUT_MS', '-1', 'The runtime settings are wrong: E2B_STALL_TIMEOUT_MS: -1 is not within 200 to 3600000'],
    ['E2B_API_KEY', 'a key', 'E2B_API_KEY has white space in it'],
  ]) {
    await waitFor(async () => (await others()).every((e) => e.ms !== null), { what: 'requests have ended' });
    await e2b.forget();
    await change(r, name, value);
    const job = await r.add('1', { threadId: 'next' }, { attempts: 1 });
    assert.equal(await r.failure(job), reason);
    assert.equal((await r.reply(job)).at(-1).reason, 'driver_error'); // once, and with its `done`
    assert.deepEqual(ops(await others()), [], 'nothing was asked of E2B with it');
    assert.equal(await r.redis.hget(`${r.P}settings:runtime`, name), value, 'what was written is not touched');
    await r.redis.hdel(`${r.P}settings:runtime`, name);
    assert.equal(ok(await r.py('print(y)', { threadId: 'next' })).stdout, '1\n');
    assert.deepEqual(ops(await others()), ['execute'], 'as warm as before');
  }
  await change(r, 'NO_SUCH_SETTING', '1'); // of a newer replica, perhaps
  assert.equal(ok(await r.py('print(y)', { threadId: 'next' })).stdout, '1\n');
  await ended(r, job, box);
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
});

test('sandboxes that the key may not list or kill do not stop the sweeper for ever', async (t) => {
  const r = await rig(t, { env: { E2B_DEPLOYMENT_ID: deployment, E2B_SWEEP_INTERVAL_MS: '500', CODE_INTERPRETER_SESSION_MAX_AGE_MS: '3600000' } });
  const denied = { status: 401, body: { code: 401, message: 'Invalid API key' }, times: 0 };
  const boxes = [];
  for (const thread of ['one', 'two']) {
    const box = await makeBox({ twentySessionId: `:${thread}` });
    await r.redis.hset(`${r.P}thread::${thread}`, 'claim', String(Date.now() - 2 * 3600_000));
    boxes.push(box.sandboxID);
  }
  await r.redis.expire(`${r.P}thread::one`, 600);
  await r.redis.expire(`${r.P}thread::two`, 600);
  const lists = await e2b.fault({ match: { op: 'list' }, ...denied });
  const kills = await e2b.fault({ match: { op: 'kill', sandbox: boxes[0] }, ...denied });
  for (const id of boxes) await e2b.act(id, 'pause');
  await waitFor(async () => await lists.hits() >= 3, { timeout: 60_000, what: 'it asks again although it was refused' });
  assert.equal((await e2b.sandboxes()).length, 2);
  await lists();
  await waitFor(async () => (await e2b.sandboxes()).length === 1, { timeout: 60_000, what: 'the one that may be killed goes' });
  await waitFor(async () => await kills.hits() >= 2, { timeout: 60_000, what: 'the other one is tried again' });
  assert.deepEqual((await e2b.sandboxes()).map((s) => s.id), [boxes[0]]);
  assert.equal(ok(await r.py('print(1)')).stdout, '1\n');
  await kills();
  await waitFor(async () => !(await e2b.sandboxes()).some((s) => boxes.includes(s.id)), { timeout: 60_000, what: 'it goes too' });
});
