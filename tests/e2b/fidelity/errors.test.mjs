// What the official clients make of refusals: 401, 404, 409, 429, the 502s, resets, and injected faults.
import assert from 'node:assert/strict';
import { otherKey, scriptLine } from '../../lib/e2b.mjs';
import { sleep, waitFor } from '../../lib/process.mjs';
import { api, both, raw, useE2b } from './clients.mjs';

const e2b = await useE2b();

both(e2b, '401: bad keys, missing and wrong tokens', async ({ Sandbox, AuthenticationError }) => {
  const bad = { apiKey: `e2b_${'x'.repeat(40)}`, validateApiKey: false };
  const offset = { apiKey: 'nothing' };
  for (const opts of [bad, offset]) await assert.rejects(Sandbox.create('base', opts), AuthenticationError);
  const none = await fetch(`${e2b.url}/v2/sandboxes`);
  assert.deepEqual([none.status, (await none.json()).message], [401, 'authorization header is missing']);
  const sandbox = await Sandbox.create('base');
  const made = { sandboxId: sandbox.sandboxId };
  const list = { method: 'POST', body: '{"path":"/"}', headers: { 'Content-Type': 'application/json' } };
  for (const token of [{}, { 'X-Access-Token': 'wrong' }]) {
    const refused = await raw(e2b, made, 49983, '/filesystem.Filesystem/ListDir', { ...list, headers: { ...list.headers, ...token } });
    assert.equal(refused.status, 401);
    const file = await raw(e2b, made, 49983, '/files?path=a', { headers: token });
    assert.deepEqual([file.status, (await file.json()).code], [401, 401]);
  }
  assert.equal((await raw(e2b, made, 49983, '/health')).status, 204, 'health is open');
});

both(e2b, '404: unknown, another account\'s, an odd id, an unknown template', async ({ Sandbox, NotFoundError, SandboxNotFoundError, SandboxError }) => {
  const Absent = SandboxNotFoundError ?? NotFoundError;
  const unknown = 'i0123456789abcdefghij';
  await assert.rejects(Sandbox.connect(unknown), Absent);
  await assert.rejects(Sandbox.getInfo(unknown), Absent);
  assert.equal(await Sandbox.kill(unknown), false);
  const foreign = await Sandbox.create('base', { apiKey: otherKey });
  await assert.rejects(Sandbox.connect(foreign.sandboxId), Absent);
  assert.equal(await Sandbox.kill(foreign.sandboxId), false);
  assert.equal((await e2b.sandbox(foreign.sandboxId)).state, 'running');
  await assert.rejects(Sandbox.getInfo('Odd_Id'), /Invalid sandbox ID/);
  await assert.rejects(Sandbox.create('no-such-template'), (error) => error instanceof SandboxError && /404/.test(error.message));
  const mine = await Sandbox.create('base');
  assert.equal((await Sandbox.getInfo(`${mine.sandboxId}-6532622b`)).sandboxId, mine.sandboxId, 'with the client id');
});

both(e2b, '409 and 400: states and values', async ({ Sandbox }) => {
  const sandbox = await Sandbox.create('base');
  const path = `/sandboxes/${sandbox.sandboxId}`;
  assert.equal((await api(e2b, 'POST', `${path}/resume`, { timeout: 10 })).status, 409);
  assert.equal((await api(e2b, 'POST', `${path}/pause`)).status, 204, 'without a body');
  assert.equal((await api(e2b, 'POST', `${path}/pause`, {})).status, 409);
  assert.equal((await api(e2b, 'POST', `${path}/timeout`, { timeout: 10 })).status, 404, 'paused');
  assert.equal((await api(e2b, 'POST', `${path}/connect`)).status, 400, 'v1 wants a timeout');
  assert.equal((await api(e2b, 'POST', `/v2${path}/connect`)).status, 201, 'v2 does not');
  assert.equal((await api(e2b, 'POST', `/v2${path}/connect`, { timeout: 0 })).status, 200, 'just the tokens');
  for (const body of [{}, { templateID: 'base', timeout: 0 }, { templateID: 'base', timeout: 'x' }, { templateID: 'base', metadata: { a: 1 } },
    { templateID: 'base', timeout: 86_401 }, { templateID: 'base', autoPauseMemory: false }]) {
    const refused = await api(e2b, 'POST', '/v2/sandboxes', body);
    assert.deepEqual([refused.status, refused.body.code], [400, 400], JSON.stringify(body));
  }
  const open = await api(e2b, 'POST', '/sandboxes', { templateID: 'base' });
  assert.equal(open.body.envdAccessToken, undefined, 'v1 without secure has no token');
  const ttl = (await e2b.sandbox(open.body.sandboxID)).ttl;
  assert.ok(ttl <= 15 && ttl > 12, 'and 15 s');
  assert.equal((await api(e2b, 'POST', `/sandboxes/${open.body.sandboxID}/refreshes`, { duration: 60 })).status, 204);
  assert.ok((await e2b.sandbox(open.body.sandboxID)).ttl > 55);
});

both(e2b, '429: too many at once, with places freed by kill and pause', async ({ Sandbox, RateLimitError }, t) => {
  await e2b.set({ max_concurrent: 2 });
  t.after(() => e2b.set({ max_concurrent: 1000 }));
  const resumable = { lifecycle: { onTimeout: 'pause', autoResume: true }, timeoutMs: 60_000 };
  const one = await Sandbox.create('base', resumable);
  await Sandbox.create('base');
  await assert.rejects(Sandbox.create('base'), (error) => error instanceof RateLimitError && /maximum number of concurrent/.test(error.message));
  const creates = await e2b.journal({ op: 'create' });
  assert.deepEqual(creates.map((entry) => entry.status), [201, 201, 429], 'without Retry-After nothing is tried again');
  await one.pause();
  const three = await Sandbox.create('base');
  await assert.rejects(one.connect(), RateLimitError);
  await assert.rejects(one.files.read('a'), RateLimitError, 'also by auto-resume');
  await three.kill();
  assert.equal(await one.files.exists('/home/user'), true);
});

both(e2b, '429 of the rate limiter is tried again after Retry-After', async ({ Sandbox, RateLimitError }, t, version) => {
  await e2b.set({ create_rate: 1 });
  t.after(() => e2b.set({ create_rate: 0 }));
  await sleep(1000);
  const ends = await Promise.allSettled([Sandbox.create('base'), Sandbox.create('base')]);
  const statuses = (await e2b.journal({ op: 'create' })).map((entry) => entry.status).sort();
  if (version === '2.45.0') { // that one did not try again
    assert.deepEqual(statuses, [201, 429]);
    assert.ok(ends.find((end) => end.status === 'rejected').reason instanceof RateLimitError);
    return;
  }
  assert.ok(ends.every((end) => end.status === 'fulfilled'));
  assert.deepEqual(statuses, [201, 201, 429]);
  const [refused, again] = (await e2b.journal({ op: 'create' })).slice(-2);
  assert.ok(again.t - refused.t > 0.9);
});

both(e2b, 'the two 502s, the traffic token, the ways to address', async ({ Sandbox, TimeoutError }) => {
  const gone = { sandboxId: 'i0123456789abcdefghij' };
  const missing = await raw(e2b, gone, 49999, '/execute', { method: 'POST', body: '{}' });
  assert.deepEqual([missing.status, await missing.json()],
    [502, { sandboxId: gone.sandboxId, message: 'The sandbox was not found', code: 502 }]);
  const base = await Sandbox.create('base');
  const made = { sandboxId: base.sandboxId };
  const closed = await raw(e2b, made, 49999, '/health');
  assert.deepEqual([closed.status, await closed.json()],
    [502, { sandboxId: base.sandboxId, message: 'The sandbox is running but port is not open', port: 49999, code: 502 }]);
  await assert.rejects(base.runCode('1'), (error) => error instanceof TimeoutError && /port/.test(error.message));
  const half = await fetch(`${e2b.url}/health`, { headers: { 'E2b-Sandbox-Id': base.sandboxId } });
  assert.deepEqual([half.status, await half.text()], [400, 'missing header']);
  const odd = await raw(e2b, { sandboxId: '../x' }, 49983, '/health');
  assert.equal(odd.status, 400);

  const closedOff = await Sandbox.create('scripted', { network: { allowPublicTraffic: false } });
  const refused = await raw(e2b, { sandboxId: closedOff.sandboxId }, 49999, '/health');
  assert.equal(refused.status, 403);
  assert.equal((await closedOff.runCode('1')).error, undefined, 'the client has the token');
  assert.equal(await closedOff.files.exists('/home/user'), true, 'envd does not need it');
});

both(e2b, 'faults: status, lost answers, cuts, resets, garbage, delays, death in mid-run', async ({ Sandbox, SandboxError, TimeoutError }) => {
  await e2b.fault({ match: { op: 'create' }, status: 500 });
  await assert.rejects(Sandbox.create('base'), SandboxError);
  await e2b.fault({ match: { op: 'create' }, lose: true });
  await assert.rejects(Sandbox.create('base', { metadata: { lost: 'yes' } }));
  assert.equal((await e2b.sandboxes()).filter((sandbox) => sandbox.metadata.lost).length, 1, 'it was made');
  const sandbox = await Sandbox.create('scripted');
  for (const [rule, pattern] of [
    [{ match: { op: 'execute' }, reset: true }, /fetch failed/], [{ match: { op: 'execute' }, garbage: 'eHh4eA==' }, /fetch failed/],
    [{ match: { op: 'execute' }, cut: 150 }, /terminated/], [{ match: { op: 'execute' }, status: 502, body: '<html>nginx</html>' }, /nginx/],
  ]) {
    const remove = await e2b.fault(rule);
    await assert.rejects(sandbox.runCode(scriptLine({ stdout: 'x'.repeat(500) })), pattern, JSON.stringify(rule));
    assert.equal(await remove.hits(), 1);
    await remove();
  }
  assert.equal((await sandbox.runCode('1')).error, undefined, 'rules have an end');
  await e2b.fault({ match: { plane: 'interpreter' }, delay_ms: 400 }, { match: { op: 'get' }, times: 2, skip: 1, status: 503 });
  const begun = Date.now();
  await sandbox.runCode('1');
  assert.ok(Date.now() - begun >= 390);
  await sandbox.getInfo();
  await assert.rejects(sandbox.getInfo());
  await assert.rejects(sandbox.getInfo());
  await sandbox.getInfo();
  await e2b.fault({ match: { op: 'execute' }, kill_after: 200 });
  await assert.rejects(sandbox.runCode(scriptLine({ stdout: 'x'.repeat(500) }, { hang: true })),
    (error) => error instanceof TimeoutError && /killed/.test(error.message));
  assert.equal(await sandbox.isRunning(), false);
});

both(e2b, 'settings: lagging list, loose filter, refused time, failing pause, round trip', async ({ Sandbox }, t, version) => {
  const names = ['list_lag_ms', 'loose_filter', 'refuse_ttl', 'pause_failure', 'rtt_ms', 'rotate_tokens'];
  const first = Object.fromEntries(Object.entries(await e2b.settings()).filter(([name]) => names.includes(name)));
  t.after(() => e2b.set(first));
  const ids = async (metadata) => (await Sandbox.list({ query: { metadata } }).nextItems()).map((s) => s.sandboxId);
  await e2b.set({ list_lag_ms: 2500 });
  const sandbox = await Sandbox.create('base', { metadata: { tag: `thread-${version}` } });
  assert.deepEqual(await ids({ tag: `thread-${version}` }), []);
  await waitFor(async () => (await ids({ tag: `thread-${version}` })).includes(sandbox.sandboxId), { what: 'the list shows it' });
  const other = await Sandbox.create('base', { metadata: {} });
  await e2b.set({ loose_filter: true });
  await waitFor(async () => (await ids({ tag: 'x' })).includes(other.sandboxId), { what: 'the list shows the other' });
  await other.kill();
  assert.deepEqual((await ids({ tag: 'x' })).slice(0, 2), [other.sandboxId, sandbox.sandboxId], 'the killed one is still seen');
  await e2b.set({ list_lag_ms: 0, loose_filter: 'prefix' });
  assert.deepEqual(await ids({ tag: 'thread-' }), [sandbox.sandboxId]);
  await e2b.set({ loose_filter: false, refuse_ttl: true });
  await assert.rejects(sandbox.setTimeout(1000), /400/);
  await e2b.set({ refuse_ttl: false, pause_failure: 'refuse' });
  await assert.rejects(sandbox.pause());
  assert.equal((await e2b.sandbox(sandbox.sandboxId)).state, 'running');
  await e2b.set({ pause_failure: 'lose' });
  await assert.rejects(sandbox.pause());
  await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
  await e2b.set({ pause_failure: null, rtt_ms: 150 });
  const begun = Date.now();
  const last = await Sandbox.create('base');
  assert.ok(Date.now() - begun >= 145);
  await e2b.set({ rotate_tokens: true, rtt_ms: 0 });
  const again = await Sandbox.connect(last.sandboxId);
  await assert.rejects(last.files.list('/'), /401|unauthorized/i);
  assert.ok((await again.files.list('/')).length > 3);
});
