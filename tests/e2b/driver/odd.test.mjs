// Answers that no E2B gives: pages of proxies, nothing at all, far too much, redirects, names that do not resolve.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import test from 'node:test';
import { e2b, ok, rig, scriptLine, waitFor } from './lib.mjs';

const reused = { reused: true, resumed: false, stateLost: null };
const env = { E2B_REQUEST_TIMEOUT_MS: '2000', E2B_STALL_TIMEOUT_MS: '5000' };
const page = '<html><body>Please log in</body></html>';
const count = async (op) => (await e2b.journal({ op })).length;
async function moveOn(r) {
  await r.quiet();
  await r.workers.shift().done();
  r.startWorker();
}

const odd = {
  'a page': { status: 200, body: page }, 'an empty body': { status: 200, body: '' }, 'no content': { status: 204, body: '' },
  'another shape': { status: 200, body: { ok: true } }, 'a name that is none': { status: 200, body: [{ sandboxID: '../x' }] },
  'more than can be': { status: 200, body: `[${'1,'.repeat(5 << 20)}1]` }, 'half an answer': { stall: 250 },
};
for (const [name, fault] of Object.entries(odd)) {
  test(`a 2xx that is no answer costs no state and makes no second sandbox: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 7'));
    await moveOn(r);
    for (const op of ['connect', 'get']) await e2b.fault({ match: { op }, times: 1, ...fault });
    const result = ok(await r.py('print(x)'));
    assert.deepEqual([result.stdout, result.sandbox], ['7\n', reused]);
    await r.redis.hdel(`${r.P}thread::main`, 'sandbox', 'creation', 'actor'); // now it has to be looked for
    await moveOn(r);
    if (name !== 'a name that is none') await e2b.fault({ match: { op: 'list' }, times: 2, ...fault }); // such entries of a list are nobody's
    const found = ok(await r.py('print(x)'));
    assert.deepEqual([found.stdout, found.sandbox], ['7\n', reused]);
    assert.deepEqual([await count('create'), await count('kill')], [1, 0]);
  });
}

for (const name of ['a page', 'an empty body', 'another shape']) {
  test(`a create that was done and answered by something else is found: ${name}`, async (t) => {
    const r = await rig(t, { env, settings: { list_lag_ms: 500 } });
    await e2b.fault({ match: { op: 'create' }, times: 1, instead: odd[name] });
    assert.equal(ok(await r.py('x = 1; print(x)')).stdout, '1\n');
    assert.equal(await count('create'), 1);
    assert.equal((await r.live()).length, 1);
  });
}

test('a 200 to a file that is none of envd\'s is no success', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('1'));
  await e2b.fault({ match: { op: 'files.write' }, times: 2, ...odd['a page'] });
  const files = [{ filename: 'in.txt', content: Buffer.from('in').toString('base64') }];
  assert.equal(ok(await r.py('print(open("in.txt").read())', { files })).stdout, 'in\n');
  assert.equal(await count('files.write'), 3);
  await e2b.fault({ match: { op: 'fs.ListDir' }, times: 1, ...odd['a page'] });
  const listed = await r.py('open("output/o", "w").write("1"); get_ipython().events.callbacks["post_run_cell"].clear()');
  assert.deepEqual(ok(listed).files.map((f) => f.filename), ['o']);
});

for (const [name, fault] of Object.entries({ 'a page': odd['a page'], nothing: odd['an empty body'], JSON: odd['another shape'] })) {
  test(`a 200 of the interpreter's port without the end line is no success: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 7'));
    await r.quiet();
    await e2b.fault({ match: { op: 'execute' }, times: 1, ...fault });
    await e2b.forget();
    const job = await r.add('x += 1', { threadId: 'main' }, { attempts: 3 });
    const result = await r.result(job);
    assert.deepEqual([result.state, result.reason, result.stdout], ['error', 'outcome_unknown', '']);
    assert.equal((await r.reply(job)).filter((m) => m.type === 'done').length, 1);
    assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  });
}

test('a stream that goes on after its end line holds nothing up and adds nothing', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 7'));
  const code = scriptLine({ stdout: 'a' }, { raw: '{"type":"end_of_execution"}\n' }, { repeat: 100_000, steps: [{ stdout: 'junk' }, { sleep: 20 }] });
  const job = await r.add(code, { threadId: 'main' });
  const result = ok(await r.result(job));
  assert.deepEqual([result.stdout, result.exitCode], ['a', 0]);
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n'); // its connection is closed before long
  const runs = await e2b.journal((e) => e.op === 'execute' && e.code?.head.includes('#e2b-script:'));
  assert.deepEqual(runs.map((e) => e.dropped), [true], 'by the worker');
  assert.equal((await r.reply(job)).filter((m) => m.type === 'done').length, 1);
  assert.ok(!JSON.stringify(await r.reply(job)).includes('junk'));
});

test('keys follow no redirect', async (t) => {
  const heard = [];
  const other = createServer((request, response) => {
    heard.push(request.url);
    response.end('{}');
  }).listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.after(() => other.close());
  const r = await rig(t, { env });
  ok(await r.py('x = 7'));
  await moveOn(r);
  const there = { status: 307, headers: { Location: `http://127.0.0.1:${other.address().port}/` }, body: '' };
  await e2b.fault({ match: { op: ['connect', 'get'] }, times: 2, ...there });
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  await e2b.fault({ match: { op: 'execute' }, times: 1, ...there });
  const result = await r.py('x += 1');
  assert.equal(result.state, 'error');
  assert.match(result.error, /307/);
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  assert.deepEqual(heard, []);
});

for (const [name, status, body] of [['revoked', 401, { code: 401, message: 'Invalid API key' }], ['banned', 403, { code: 403, message: 'Team is banned' }],
  ['unpaid', 402, { code: 402, message: 'Payment required' }]]) {
  test(`a key that is ${name} in mid-life: warm threads go on, others are told, and all heals`, async (t) => {
    const r = await rig(t, { env: { ...env, CODE_INTERPRETER_IDLE_TIMEOUT_MS: '120000', CODE_INTERPRETER_TIMEOUT_MS: '60000' } });
    ok(await r.py('x = 7'));
    await r.quiet();
    const denied = await e2b.fault({ match: { plane: 'control' }, times: 0, status, body });
    assert.equal(ok(await r.py('x += 1; print(x)', { timeoutMs: 600_000 })).stdout, '8\n'); // its life cannot be prolonged meanwhile
    assert.match(await r.failure(await r.add('1', { threadId: 'other' }, { attempts: 1 })), /^E2B did not accept the API key \(check E2B_API_KEY\)/);
    assert.equal(await count('list'), 2, 'a definitive answer is not asked for again');
    await denied();
    assert.equal(ok(await r.py('1', { threadId: 'other' })).stdout, '');
    await moveOn(r);
    const result = ok(await r.py('print(x)'));
    assert.deepEqual([result.stdout, result.sandbox], ['8\n', reused]);
    assert.equal(await count('create'), 2);
  });
}

const nowhere = `${'n'.repeat(64)}.test`; // no name of DNS can be so: it fails here, whatever the network is
test('names that do not resolve: the job says so, loses no sandbox and no lock, and other work goes on', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_API_URL: '', E2B_SANDBOX_URL: '', E2B_DOMAIN: nowhere } });
  assert.match(await r.failure(await r.add('1', { threadId: 'main' }), 120_000), /resolve host/i);
  assert.deepEqual(await e2b.ops(), []);
});

test('a sandbox whose name does not resolve: said, killed where it is nobody\'s, kept where it is a thread\'s', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_SANDBOX_URL: '', E2B_DOMAIN: nowhere } });
  const [once_, session] = [await r.add('1', {}), await r.add('1', { threadId: 'main' })];
  assert.match(await r.failure(once_, 120_000), /resolve host/i);
  assert.match(await r.failure(session, 120_000), /resolve host/i);
  await waitFor(async () => (await r.live()).length === 1, { what: 'only the thread\'s is left' });
  assert.equal((await r.live())[0].id, (await r.record()).sandbox);
});

test('far too large answers cost no memory', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 7'));
  const peak = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${r.workers[0].pid}/status`, 'utf8'))[1]) / 1024;
  await moveOn(r);
  ok(await r.py('1', { threadId: 'other' }));
  const before = peak();
  await e2b.fault({ match: { op: ['connect', 'get'] }, times: 4, status: 200, body: 'x'.repeat(24 << 20) });
  assert.equal(ok(await r.py('print(x)')).stdout, '7\n');
  if (!process.env.WORKER_WRAPPER && !/san/.test(process.env.WORKER_BIN ?? '')) assert.ok(peak() - before < 40, `grew by ${peak() - before} MiB`);
});
