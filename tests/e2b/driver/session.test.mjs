// The session resolver: which sandbox a thread gets. The emulator's journal is the proof.
import assert from 'node:assert/strict';
import test from 'node:test';
import { api, deployment, e2b, makeBox, ok, ops, overlap, rig, waitFor } from './lib.mjs';

const env = { E2B_DEPLOYMENT_ID: deployment };
const fresh = { reused: false, resumed: false, stateLost: null };
const reused = { reused: true, resumed: false, stateLost: null };
/** The worker forgets which sandbox the thread has, as after a loss of Redis' data. */
const forgetRecord = (r) => r.redis.hdel(`${r.P}thread::main`, 'sandbox', 'creation', 'actor');

test('create when absent', async (t) => {
  const r = await rig(t, { env });
  const result = ok(await r.py('print("hi")\n42'));
  assert.equal(result.stdout, 'hi\n');
  assert.deepEqual(result.sandbox, fresh);
  assert.equal(result.results[0].data['text/plain'], '42');
  const journal = await e2b.journal();
  assert.deepEqual(ops(journal), ['list', 'create', 'execute', 'execute']);
  const { body } = journal[1];
  assert.equal(body.metadata.twentySessionId, ':main');
  assert.equal(body.metadata.sandpiperDeployment, deployment);
  assert.ok(body.autoPause && body.autoResume.enabled && body.secure && body.timeout >= 300);
  assert.equal(body.network.allowPublicTraffic, false);
  const record = await r.record();
  assert.equal(record.sandbox, journal[2].sandbox);
  assert.equal(record.creation, body.metadata.sandpiperCreation);
});

test('a warm run without files costs exactly one request', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await r.quiet();
  for (let i = 0; i < 3; i++) {
    await e2b.forget();
    const result = ok(await r.py('print(x)'));
    assert.equal(result.stdout, '1\n');
    assert.deepEqual(result.sandbox, reused);
    assert.deepEqual(await e2b.ops(), ['execute']);
  }
});

test('reuse and extend', async (t) => {
  const r = await rig(t, { env: { ...env, CODE_INTERPRETER_IDLE_TIMEOUT_MS: '60000', CODE_INTERPRETER_TIMEOUT_MS: '40000' } });
  ok(await r.py('x = 1'));
  const id = (await r.record()).sandbox;
  await r.quiet();
  await r.worker.done();
  r.workers.length = 0;
  await e2b.patch(id, { ttl: 20 });
  r.startWorker(); // it does not hold the handle, and connecting extends
  const result = ok(await r.py('print(x)'));
  assert.deepEqual([result.stdout, result.sandbox], ['1\n', reused]);
  assert.equal((await r.live()).length, 1);
  const connect = (await e2b.journal({ op: 'connect' }))[0];
  assert.ok(connect.body.timeout >= 70, `connect with ${connect.body.timeout}`);
});

test('a warm sandbox whose end is near is extended beside the run', async (t) => {
  const r = await rig(t, { env: { ...env, CODE_INTERPRETER_IDLE_TIMEOUT_MS: '3000', CODE_INTERPRETER_TIMEOUT_MS: '60000' } });
  ok(await r.py('x = 1'));
  await r.quiet();
  await waitFor(async () => (await e2b.journal({ op: 'timeout' })).length === 1, { what: 'the idle window begins' });
  assert.equal((await e2b.journal({ op: 'timeout' }))[0].body.timeout, 3);
  await r.quiet();
  await e2b.forget();
  const result = ok(await r.py('import time; time.sleep(4); print(x)')); // longer than what was left
  assert.equal(result.stdout, '1\n');
  const [execute, timeout] = await e2b.journal();
  assert.deepEqual(ops([execute, timeout]), ['execute', 'timeout']);
  assert.ok(timeout.body.timeout >= 60 && overlap(execute, timeout));
});

test('long runs are extended in time', async (t) => {
  const r = await rig(t, { env: { ...env, CODE_INTERPRETER_IDLE_TIMEOUT_MS: '2000', CODE_INTERPRETER_TIMEOUT_MS: '60000' } });
  const job = await r.add('import time; time.sleep(6); print("whole")', { threadId: 'main' });
  const [run] = await waitFor(async () => {
    const runs = (await e2b.journal({ op: 'execute' })).filter((e) => /whole/.test(e.code.head));
    return runs.length && runs;
  }, { what: 'the run' });
  await e2b.patch(run.sandbox, { ttl: 3 }); // the platform shortens it; only TTL calls save it
  await e2b.set({ max_ttl_s: 86400 });
  await api('POST', `/sandboxes/${run.sandbox}/timeout`, { timeout: 30 });
  assert.equal(ok(await r.result(job, 30_000)).stdout, 'whole\n');
});

test('duplicates are reaped, in parallel, after the pick, never the one in use', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = "kept"'));
  await r.quiet();
  const id = (await r.record()).sandbox;
  const others = [await makeBox(), await makeBox(), await makeBox()];
  await forgetRecord(r);
  await e2b.set({ rtt_ms: 50 });
  await e2b.forget();
  ok(await r.py('1'));
  await r.quiet();
  const journal = await e2b.journal();
  const kills = journal.filter((e) => e.op === 'kill');
  const connects = journal.filter((e) => e.op === 'connect');
  assert.equal(connects.length, 1);
  assert.equal(kills.length, 3);
  assert.ok(kills.every((k) => k.t >= connects[0].t + connects[0].ms / 1000), 'after the pick');
  assert.ok(kills.every((k) => overlap(k, kills[0])), 'in parallel');
  const live = await r.live();
  assert.deepEqual(live.map((s) => s.id), [connects[0].sandbox]);
  assert.ok([id, ...others.map((o) => o.sandboxID)].includes(live[0].id));
});

test('connect failure: the next one, then a new one', async (t) => {
  const r = await rig(t, { env });
  const [a, b] = [await makeBox(), await makeBox()];
  await e2b.fault({ match: { op: 'connect' }, status: 404, body: { code: 404, message: 'gone' }, times: 1 });
  ok(await r.py('1'));
  const used = (await r.record()).sandbox;
  assert.ok([a.sandboxID, b.sandboxID].includes(used));
  assert.deepEqual(await e2b.journal({ op: 'create' }).then((e) => e.length), 2, 'only ours');
  await r.quiet();
  await forgetRecord(r);
  await e2b.fault({ match: { op: 'connect' }, status: 410, body: { code: 410, message: 'gone' }, times: 0 });
  await e2b.forget();
  ok(await r.py('2'));
  assert.equal((await e2b.journal({ op: 'create' })).length, 1);
});

test('the first connectable is kept when an earlier one is dead', async (t) => {
  const r = await rig(t, { env });
  const dead = await makeBox();
  const alive = await makeBox();
  const listed = await api('GET', '/v2/sandboxes?state=running,paused');
  await e2b.act(dead.sandboxID, 'kill');
  await e2b.fault({ match: { op: 'list' }, status: 200, body: listed, times: 0 }); // it goes on showing what is gone
  await e2b.forget();
  assert.deepEqual(ok(await r.py('1')).sandbox, reused);
  assert.equal((await r.record()).sandbox, alive.sandboxID);
  await r.quiet();
  const journal = await e2b.journal();
  assert.deepEqual(journal.filter((e) => e.op === 'connect').map((e) => [e.sandbox, e.status]), [[dead.sandboxID, 404], [alive.sandboxID, 200]]);
  assert.deepEqual(ops(journal).filter((op) => op === 'create' || op === 'kill'), []);
});

test('foreign metadata is ignored: neither connected nor killed', async (t) => {
  const r = await rig(t, { env, settings: { loose_filter: true } });
  const foreign = [
    await makeBox({ twentySessionId: ':main2' }), await makeBox({ twentySessionId: ':mai' }),
    await makeBox({ twentySessionId: ':MAIN' }), await makeBox({ sandpiperDeployment: 'other' }),
    await api('POST', '/sandboxes', { templateID: 'code-interpreter-v1', timeout: 300, secure: true, metadata: { twentySessionId: ':main' } }),
    await api('POST', '/sandboxes', { templateID: 'code-interpreter-v1', timeout: 300, secure: true }),
  ];
  await e2b.forget();
  assert.deepEqual(ok(await r.py('1')).sandbox, fresh);
  const touched = (await e2b.journal()).filter((e) => foreign.some((f) => f.sandboxID === e.sandbox));
  assert.deepEqual(ops(touched), []);
  assert.equal((await r.live()).length, 7);
});

test('all pages of the list are looked at', async (t) => {
  const r = await rig(t, { env, settings: { scripted: true, loose_filter: true } });
  const ours = await makeBox(); // the oldest, so on the last page
  for (let i = 0; i < 120; i++) await makeBox({ twentySessionId: `:other${i}` });
  ok(await r.py('1'));
  assert.equal((await r.record()).sandbox, ours.sandboxID);
  assert.equal((await e2b.journal({ op: 'list' })).length, 2);
});

test('the incumbent\'s sandboxes are adopted where the setting says so', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_ADOPT_FOREIGN: 'true' } });
  const theirs = await api('POST', '/sandboxes', {
    templateID: 'code-interpreter-v1', timeout: 300, secure: true, autoPause: true, metadata: { twentySessionId: ':main' },
  });
  assert.deepEqual(ok(await r.py('1')).sandbox, reused);
  assert.equal((await r.record()).sandbox, theirs.sandboxID);
});

test('a sandbox that refuses its TTL is killed and replaced', async (t) => {
  const r = await rig(t, { env });
  const box = await makeBox();
  await e2b.fault({ match: { op: 'connect', sandbox: box.sandboxID }, status: 400, body: { code: 400, message: 'Timeout cannot be greater' }, times: 0 });
  await e2b.forget();
  ok(await r.py('1'));
  await r.quiet();
  const journal = await e2b.journal();
  assert.deepEqual(journal.filter((e) => e.op === 'kill').map((e) => e.sandbox), [box.sandboxID]);
  assert.equal((await r.live()).length, 1);
  assert.notEqual((await r.record()).sandbox, box.sandboxID);
});

for (const [name, refusal] of Object.entries({
  'E2B names the limit': 'Timeout cannot be greater than 1 hours', 'E2B names none': 'validation error: timeout is too large',
})) {
  test(`an idle window above the plan's limit costs no sandbox and no state: ${name}`, async (t) => {
    const r = await rig(t, { env: { ...env, CODE_INTERPRETER_IDLE_TIMEOUT_MS: '7200000' } });
    ok(await r.py('x = 1'));
    await moveOn(r);
    await e2b.set({ max_ttl_s: 3600 });
    await e2b.fault({ match: { op: ['connect', 'create'] }, status: 400, body: { code: 400, message: refusal }, times: 1 });
    await e2b.forget();
    const result = ok(await r.py('print(x)'));
    assert.deepEqual([result.stdout, result.sandbox], ['1\n', reused]);
    assert.deepEqual((await e2b.journal({ op: 'connect' })).map((e) => [e.status, e.body?.timeout]), [[400, undefined], [200, 3600]]);
    assert.equal((await e2b.journal({ op: 'kill' })).length, 0);
    ok(await r.py('1', { threadId: 'new' })); // known by now
    const created = await e2b.journal({ op: 'create' });
    assert.deepEqual(created.map((e) => [e.status, e.body.timeout]), [[201, 3600]]);
    await r.quiet();
    assert.deepEqual((await e2b.journal({ op: 'timeout' })).filter((e) => e.status !== 204 || e.body.timeout > 3600), []);
  });
}

for (const [name, faults] of Object.entries({
  '503 once': [{ match: { op: 'connect' }, status: 503, times: 1 }],
  '429 with Retry-After': [{ match: { op: 'connect' }, status: 429, headers: { 'Retry-After': '1' }, body: { code: 429, message: 'Rate limit exceeded' }, times: 2 }],
  'text 504': [{ match: { op: 'connect' }, status: 504, body: 'upstream request timeout', times: 1 }],
  'no answer once': [{ match: { op: 'connect' }, hang: true, times: 1 }],
  'reset once': [{ match: { op: ['connect', 'get'] }, reset: true, times: 2 }],
  'HTML 502 of the tag check': [{ match: { op: 'get' }, status: 502, body: '<html>bad gateway</html>', times: 2 }],
})) {
  test(`transient errors are retried and never cost state: ${name}`, async (t) => {
    const r = await rig(t, { env: { ...env, E2B_REQUEST_TIMEOUT_MS: '1500' } });
    ok(await r.py('x = 7'));
    await r.quiet();
    await r.worker.done();
    r.workers.length = 0;
    r.startWorker();
    await e2b.fault(faults);
    const result = ok(await r.py('print(x)'));
    assert.deepEqual([result.stdout, result.sandbox], ['7\n', reused]);
    assert.equal((await e2b.journal({ op: 'create' })).length, 1);
    assert.equal((await e2b.journal({ op: 'kill' })).length, 0);
  });
}

test('a trouble that stays fails the job by its attempts and costs no state', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_REQUEST_TIMEOUT_MS: '300' } });
  ok(await r.py('x = 7'));
  await r.quiet();
  await r.worker.done();
  r.workers.length = 0;
  r.startWorker();
  await e2b.fault({ match: { op: 'connect' }, status: 500, times: 0 });
  const reason = await r.failure(await r.add('print(x)', { threadId: 'main' }), 40_000);
  assert.match(reason, /could not be reached/);
  await e2b.clearFaults();
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  assert.equal((await e2b.journal({ op: 'create' })).length, 1);
});

for (const [name, fault] of Object.entries({
  'the connection is reset': { lose: true },
  'no answer comes': { lose: 'hang' },
})) {
  test(`a lost create answer is found by its creation key, not created twice: ${name}`, async (t) => {
    const r = await rig(t, { env: { ...env, E2B_REQUEST_TIMEOUT_MS: '1500' }, settings: { list_lag_ms: 2000 } });
    await e2b.fault({ match: { op: 'create' }, times: 1, ...fault });
    const job = await r.add('print("once")', { threadId: 'main' });
    assert.equal(ok(await r.result(job, 40_000)).stdout, 'once\n');
    await r.quiet();
    assert.equal((await e2b.journal({ op: 'create' })).length, 1);
    assert.equal((await r.live()).length, 1);
  });
}

test('who comes after a worker that died in its create finds the sandbox', async (t) => {
  const locks = { LOCK_DURATION_MS: '2000', LOCK_RENEW_MS: '600', STALLED_INTERVAL_MS: '800' };
  const r = await rig(t, { env: { ...env, ...locks }, settings: { list_lag_ms: 1500 } });
  await e2b.fault({ match: { op: 'create' }, times: 1, after_delay_ms: 3000 });
  const job = await r.add('print("late")', { threadId: 'main' }, { attempts: 3 });
  await waitFor(async () => (await r.live()).length === 1, { what: 'the sandbox is made' });
  await r.worker.kill9();
  r.workers.length = 0;
  r.startWorker();
  assert.equal(ok(await r.result(job, 60_000)).stdout, 'late\n');
  assert.equal((await r.live()).length, 1);
});

test('the actor\'s change discards', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1', { actorKey: 'a' }));
  const before = (await r.record()).sandbox;
  await r.quiet();
  const result = ok(await r.py('print(globals().get("x"))', { actorKey: 'b' }));
  assert.deepEqual([result.stdout, result.sandbox.stateLost, result.sandbox.reused], ['None\n', 'actor_changed', false]);
  await r.quiet();
  assert.ok(!(await r.live()).some((s) => s.id === before));
  const again = ok(await r.py('1', { actorKey: 'b' }));
  assert.deepEqual(again.sandbox, reused);
  const none = ok(await r.py('1'));
  assert.equal(none.sandbox.stateLost, 'actor_changed');
});

/** Another replica takes over: it holds no handle. */
async function moveOn(r) {
  await r.quiet();
  await r.workers[0].done();
  r.workers.length = 0;
  r.startWorker();
}

test('a replica that lacks the handle: connect and tag check side by side, then prepare and run side by side', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await moveOn(r);
  await e2b.set({ rtt_ms: 400 });
  await e2b.forget();
  const result = ok(await r.py('print(x)'));
  assert.deepEqual([result.stdout, result.sandbox], ['1\n', reused]);
  const journal = await e2b.journal();
  assert.deepEqual(ops(journal).sort(), ['connect', 'execute', 'execute', 'get']);
  const of = (op) => journal.filter((e) => e.op === op);
  const end = (e) => e.t + e.ms / 1000;
  assert.ok(overlap(of('connect')[0], of('get')[0]));
  const [prepare, run] = of('execute');
  assert.ok(overlap(prepare, run) && run.t < end(prepare), 'side by side');
  assert.ok(Math.min(prepare.t, run.t) > Math.max(end(of('connect')[0]), end(of('get')[0])) - 0.05, 'after the first wave');
});

test('prepare and run side by side: with inputs one wave more, with outputs another', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await moveOn(r);
  await e2b.set({ rtt_ms: 400 });
  await e2b.forget();
  const files = [{ filename: 'a', content: 'eA==' }, { filename: 'b', content: 'eA==' }];
  ok(await r.py('open("output/c", "w").write(open("a").read()); open("output/d", "w").write("1")', { files }));
  const journal = await e2b.journal();
  assert.deepEqual(ops(journal).sort(), ['connect', 'execute', 'execute', 'files.read', 'files.read', 'files.write', 'files.write', 'get']);
  // Waves: what begins before the first of the last wave has ended.
  let waves = 0;
  for (let rest = journal; rest.length; waves++) {
    const first = Math.min(...rest.map((e) => e.t + e.ms / 1000));
    rest = rest.filter((e) => e.t >= first);
  }
  assert.ok(waves <= 4, `${waves} waves`);
});

test('the code that comes before the hooks is refused whole, and goes out again behind them', async (t) => {
  const r = await rig(t, { env });
  const values = { CANARY: 'c4n4ry-v4lu3' };
  const traces = `import os, sqlite3
h = get_ipython().history_manager
h.writeout_cache()
get_ipython().run_line_magic("history", "-g")
print(sqlite3.connect(h.hist_file).execute("select source, source_raw from history").fetchall(), In, repr(h.input_hist_raw))`;
  const codes = {
    plain: ['x += 1\nprint(x, os.environ["CANARY"] == "c4n4" + "ry-v4lu3")', '2 True\n'],
    'future import': ['from __future__ import annotations\nx += 1\nprint(x, os.environ["CANARY"][:2])', '2 c4\n'],
    'a magic': ['%%capture out\nx += 1', ''],
    'shell magic': ['%%bash\necho "once${CANARY:0:2}"', 'oncec4\n'],
    'await': ['import asyncio\nx += 1\nawait asyncio.sleep(0)\nprint(x)', '2\n'],
  };
  for (const [thread, [code, stdout]] of Object.entries(codes)) {
    ok(await r.py('import os; x = 1', { threadId: thread }));
    await moveOn(r);
    await e2b.fault({ match: { op: 'execute' }, delay_ms: 600, times: 1 }); // the hooks leave first
    await e2b.forget();
    const result = ok(await r.py(code, { threadId: thread, env: values }));
    assert.deepEqual([result.stdout, result.stderr, result.sandbox], [stdout, '', reused], thread);
    assert.equal((await e2b.journal({ op: 'execute' })).length, 3, thread);
    const { stdout: said } = ok(await r.py(traces, { threadId: thread }));
    assert.ok(!said.includes('c4n4ry-v4lu3') && !said.includes(Buffer.from('c4n4ry-v4lu3').toString('base64').slice(0, 12)), thread);
  }
  const syntax = ['x = (1,\nprint("never"', '"""open\n1/0'];
  for (const code of syntax) { // whatever the code is, it is refused as a whole
    await moveOn(r);
    await e2b.fault({ match: { op: 'execute' }, delay_ms: 600, times: 1 });
    const result = await r.py(code, { threadId: 'plain' });
    assert.deepEqual([result.reason, result.stderr], ['code_error', '']);
    assert.match(result.errorDetail.name, /^(SyntaxError|_IncompleteInputError)$/); // the second, a kind of the first, from Python 3.13 on
  }
});

for (const [name, fault] of Object.entries({
  'an error': { status: 503 }, 'a reset': { reset: true }, 'no answer': { hang: true }, 'a cut answer': { cut: 200, cut_by: 'reset' },
})) {
  test(`hooks beside the code that meet ${name}: the code runs once, prepared`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 1'));
    await moveOn(r);
    await e2b.fault({ match: { op: 'execute' }, times: 1, ...fault });
    const job = await r.add('import os\nx += 1\nprint(x, os.environ.get("V"))', { threadId: 'main', env: { V: 'v' } });
    assert.equal(ok(await r.result(job)).stdout, '2 v\n');
    assert.equal((await r.reply(job)).filter((m) => m.type === 'done').length, 1);
    await r.quiet();
    await e2b.forget();
    assert.equal(ok(await r.py('print(x)')).stdout, '2\n');
    assert.deepEqual(await e2b.ops(), ['execute']);
  });
}

test('hooks that the code took away are brought back before anything is run without them', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  for (const code of ['get_ipython().input_transformers_cleanup.clear()', 'get_ipython().events.callbacks["pre_run_cell"].clear()']) {
    ok(await r.py(code));
    await r.quiet();
    const result = ok(await r.py('import os; print(x, os.environ.get("V"))', { env: { V: 'v' } }));
    assert.deepEqual([result.stdout, result.sandbox], ['1 v\n', reused]);
  }
});

test('a record that names another thread\'s sandbox is not believed', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('secret = 1', { threadId: 'other' }));
  const theirs = (await r.record(':other')).sandbox;
  await r.redis.hset(`${r.P}thread::main`, 'sandbox', theirs);
  assert.equal(ok(await r.py('print(globals().get("secret"))')).stdout, 'None\n');
  assert.equal(ok(await r.py('print(secret)', { threadId: 'other' })).stdout, '1\n');
});

test('a lagging list never makes a second sandbox', async (t) => {
  const r = await rig(t, { env, settings: { list_lag_ms: 30_000 }, replicas: 2 });
  for (let i = 0; i < 6; i++) ok(await r.py(`n = globals().get("n", 0) + 1`));
  assert.equal(ok(await r.py('print(n)')).stdout, '6\n');
  assert.equal((await e2b.journal({ op: 'create' })).length, 1);
});

test('paused and gone sandboxes: resumed with state, or replaced once and told', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 5'));
  await r.quiet();
  const id = (await r.record()).sandbox;
  await e2b.act(id, 'pause'); // behind our back: the run wakes it by itself
  await e2b.forget();
  assert.equal(ok(await r.py('print(x)')).stdout, '5\n');
  assert.deepEqual(await e2b.ops().then((o) => o.filter((op) => op === 'execute')), ['execute']);
  await e2b.patch(id, { autoResume: false });
  await e2b.act(id, 'pause'); // now it has to be connected
  assert.equal(ok(await r.py('print(x)')).stdout, '5\n');
  await r.quiet();
  await e2b.act(id, 'kill');
  const result = ok(await r.py('print(globals().get("x"))'));
  assert.deepEqual([result.stdout, result.sandbox.stateLost], ['None\n', 'sandbox_gone']);
  assert.equal((await r.live()).length, 1);
});

test('tokens that change on resume are taken over', async (t) => {
  const r = await rig(t, { env, settings: { rotate_tokens: true } });
  ok(await r.py('x = 5'));
  await r.quiet();
  await api('POST', `/sandboxes/${(await r.record()).sandbox}/connect`, { timeout: 300 });
  assert.equal(ok(await r.py('print(x)')).stdout, '5\n');
  assert.equal((await r.live()).length, 1);
});

test('release kills the thread\'s sandboxes and forgets them', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await makeBox();
  const other = await makeBox({ twentySessionId: ':else' });
  const job = await r.queue.add('release', { v: 1, threadId: 'main' });
  await job.waitUntilFinished(r.events, 20_000);
  assert.deepEqual((await r.live()).map((s) => s.id), [other.sandboxID]);
  assert.equal((await r.record()).sandbox, undefined);
  assert.deepEqual(ok(await r.py('1')).sandbox, fresh);
});

test('without a thread: a fresh sandbox each, killed on every path', async (t) => {
  const r = await rig(t, { env });
  await Promise.all(['x = 1', '1/0', 'while True: pass', 'import os; os._exit(3)'].map((code) =>
    r.once(code, { timeoutMs: 1500 })));
  await r.quiet();
  assert.deepEqual(await r.live(), []);
  const creates = await e2b.journal({ op: 'create' });
  assert.equal(creates.length, 4);
  assert.ok(creates.every((c) => !c.body.autoPause && !c.body.metadata.twentySessionId));
  // Cancelled while it is made, drained, and cut off before the code.
  await e2b.set({ create_ms: 800 });
  const cancelled = await r.add('1', {});
  await waitFor(async () => (await e2b.journal({ op: 'create' })).length === 5, { what: 'create' });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', cancelled.id);
  await r.failure(cancelled);
  await waitFor(async () => (await e2b.journal({ op: 'kill' })).length === 5, { what: 'it is killed' });
  await e2b.set({ create_ms: 0 });
  const running = await r.add('import time; time.sleep(60)', {});
  await waitFor(async () => (await e2b.journal({ op: 'execute' })).some((e) => /sleep/.test(e.code.head) && e.begun), { what: 'it runs' });
  await r.worker.done();
  r.workers.length = 0;
  assert.equal((await r.result(running)).reason, 'drained');
  assert.deepEqual(await r.live(), []);
});
