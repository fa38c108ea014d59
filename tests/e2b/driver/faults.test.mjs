// Timeouts, cancels, stalls, losses, garbage: each ends in exactly one honest result (cases.md, kinds A and C).
import assert from 'node:assert/strict';
import test from 'node:test';
import { e2b, ok, rig as plainRig, scriptLine, waitFor } from './lib.mjs';

const env = { E2B_STALL_TIMEOUT_MS: '1500' };
const rig = (t, options) => plainRig(t, { ...options, settings: { keepalive_s: 0.5, ...options.settings } });
/** The run whose code holds `mark` has begun in the sandbox. */
const begun = (mark) => waitFor(async () => (await e2b.journal({ op: 'execute' })).find((e) => e.code?.head.includes(mark) && e.begun),
  { what: `${mark} runs` });
const deliveries = async (mark) => (await e2b.journal({ op: 'execute' })).filter((e) => e.code?.head.includes(mark)).length;
async function oneDone(r, job) {
  const reply = await r.reply(job);
  assert.equal(reply.filter((m) => m.type === 'done').length, 1);
}

test('a timeout frees the session: output and files are kept, state survives', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 3'));
  const job = await r.add('import os, time\nopen("/home/user/output/part.csv", "w").write("1,2\\n")\nprint("tick", flush=True)\nwhile True: time.sleep(0.05)',
    { threadId: 'main', timeoutMs: 2000, output: { inline: true } });
  const began = Date.now();
  const result = await r.result(job);
  assert.deepEqual([result.state, result.reason, result.exitCode, result.stdout], ['error', 'timeout', 124, 'tick\n']);
  assert.ok(Date.now() - began < 20_000);
  assert.deepEqual(result.files.map((f) => [f.filename, Buffer.from(f.content, 'base64').toString()]), [['part.csv', '1,2\n']]);
  assert.equal(result.sandbox.stateLost, null);
  assert.equal(ok(await r.py('print("alive", x)')).stdout, 'alive 3\n');
  await oneDone(r, job);
});

for (const mode of ['works', 'aborted', 'hangs']) {
  test(`after an interrupt the next run runs, where the server ${mode}`, async (t) => {
    const r = await rig(t, { env, settings: { after_interrupt: mode } });
    ok(await r.py('x = 3'));
    const result = await r.py('import time\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(0.7)', { timeoutMs: 500 });
    assert.equal(result.reason, 'timeout');
    const next = ok(await r.py('print("alive", globals().get("x"))'));
    assert.deepEqual([result.sandbox.stateLost, next.stdout], [null, 'alive 3\n']);
    assert.equal((await e2b.journal({ op: 'contexts.restart' })).length, 0);
  });
}

test('an interrupt that is lost, as one that comes before the cell has begun, is sent again: no state is lost for it', async (t) => {
  const r = await rig(t, { env, settings: { lose_interrupts: 2 } });
  ok(await r.py('x = 3'));
  const result = await r.py('import time; time.sleep(300)', { timeoutMs: 500 });
  assert.deepEqual([result.reason, result.sandbox.stateLost], ['timeout', null]);
  assert.equal(ok(await r.py('print("alive", x)')).stdout, 'alive 3\n');
  assert.equal((await e2b.settings()).lose_interrupts, 0);
  assert.equal((await e2b.journal({ op: 'contexts.restart' })).length, 0);
});

test('a kernel that swallows the interrupt is restarted, and the loss is told', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 3'));
  const result = await r.py('import time\nwhile True:\n    try:\n        time.sleep(60)\n    except KeyboardInterrupt:\n        pass', { timeoutMs: 700 });
  assert.deepEqual([result.reason, result.sandbox.stateLost], ['timeout', 'killed_after_timeout']);
  const next = ok(await r.py('import os; print(globals().get("x"), os.getcwd())'));
  assert.equal(next.stdout, 'None /home/user\n');
  assert.equal((await e2b.journal({ op: 'contexts.restart' })).length, 1);
});

test('the time limit is the wall clock, whatever the stream says', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('1'));
  for (const code of [scriptLine({ keepalives: 1000, every: 100 }), scriptLine({ repeat: 1000, steps: [{ stdout: 'x' }, { sleep: 50 }] }), 'import time; time.sleep(30)']) {
    const began = Date.now();
    const result = await r.py(code, { timeoutMs: 1200 });
    assert.equal(result.reason, 'timeout');
    const took = Date.now() - began;
    assert.ok(took > 1100 && took < 20_000, `${took} ms`);
  }
});

test('cancel closes the connection and gives what there is', async (t) => {
  const r = await rig(t, { env });
  const job = await r.add('print("begun", flush=True)\nimport time; time.sleep(60) # mark-cancel', { threadId: 'main' });
  await begun('mark-cancel');
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'output' });
  const at = Date.now();
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', job.id);
  const result = await r.result(job);
  assert.deepEqual([result.reason, result.exitCode, result.stdout], ['cancelled', 130, 'begun\n']);
  assert.ok(Date.now() - at < 20_000);
  assert.equal(ok(await r.py('print("next")')).stdout, 'next\n');
});

for (const [name, steps] of Object.entries({
  'clean end after two lines': [{ stdout: 'a' }, { stdout: 'b' }, { eof: true }],
  'reset': [{ stdout: 'a' }, { stdout: 'b' }, { sleep: 50 }, { reset: true }],
  'cut inside a line': [{ stdout: 'a' }, { stdout: 'b' }, { raw: '{"type":"stdo' }, { close: true }],
  'no line at all': [{ eof: true }],
})) {
  test(`a stream without its end line is never a success: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 1'));
    const job = await r.add(`# mark-cut\n${scriptLine(...steps)}`, { threadId: 'main' }, { attempts: 3 });
    const result = await r.result(job);
    assert.deepEqual([result.state, result.reason], ['error', 'outcome_unknown']);
    assert.equal(result.stdout, name === 'no line at all' ? '' : 'ab');
    assert.equal(await deliveries('mark-cut'), 1);
    assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
    await oneDone(r, job);
  });
}

test('junk behind the end line is nobody\'s', async (t) => {
  const r = await rig(t, { env });
  const result = ok(await r.py(scriptLine({ stdout: 'a' }, { raw: '{"type":"end_of_execution"}\n{"type":"stdout","text":"junk"}\ngarbage\n' }, { eof: true })));
  assert.equal(result.stdout, 'a');
});

test('synthetic errors of the server: the kernel died, or nobody knows', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  const error = (name) => scriptLine({ stdout: 'a' }, { line: { type: 'error', name, value: 'said', traceback: '' } }, { listing: null });
  const died = await r.py(error('ContextRestarting'));
  assert.deepEqual([died.reason, died.sandbox.stateLost, died.stdout], ['kernel_died', 'kernel_died', 'a']);
  ok(await r.py('1'));
  for (const name of ['WebSocketError', 'UnexpectedEndOfExecution']) {
    assert.equal((await r.py(error(name))).reason, 'outcome_unknown');
    ok(await r.py('1'));
  }
});

test('the interpreter dies: told promptly, and the next run works on a new one', async (t) => {
  const r = await rig(t, { env, settings: { hang_after_death: true } });
  for (const code of ['import os; os._exit(7)', 'import os; os.kill(os.getpid(), 9)']) {
    ok(await r.py('x = 1'));
    const result = await r.py(code);
    assert.deepEqual([result.state, result.reason, result.sandbox.stateLost], ['error', 'kernel_died', 'kernel_died']);
    const next = ok(await r.py('import os; print(globals().get("x"), os.getcwd(), os.environ.get("V"))', { env: { V: 'v' } }));
    assert.equal(next.stdout, 'None /home/user v\n');
  }
});

test('an interpreter that died between two runs: the next run lacks nothing, and is told of the state', async (t) => {
  const r = await rig(t, { env, settings: { death_ms: 50 } });
  ok(await r.py('x = 1'));
  ok(await r.py('x = 2'));
  await r.quiet();
  await e2b.act((await r.record()).sandbox, 'kill-kernel');
  const code = 'import os; print(globals().get("x"), os.environ.get("V"), os.getcwd()) # mark-anew';
  const job = await r.add(code, { threadId: 'main', env: { V: 'v' } });
  const result = ok(await r.result(job));
  assert.deepEqual([result.stdout, result.stderr, result.sandbox.stateLost], ['None v /home/user\n', '', 'kernel_died']);
  await oneDone(r, job);
  await r.quiet();
  await e2b.forget();
  assert.equal(ok(await r.py(code, { env: { V: 'v' } })).stdout, 'None v /home/user\n');
  assert.deepEqual(await e2b.ops(), ['execute']);
});

test('the sandbox is lost in mid-run: not a timeout, not run again, and replaced', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  const job = await r.add('print("one", flush=True)\nimport time; time.sleep(60) # mark-lost', { threadId: 'main' }, { attempts: 3 });
  const run = await begun('mark-lost');
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'output' });
  await e2b.act(run.sandbox, 'kill');
  const result = await r.result(job);
  assert.deepEqual([result.reason, result.stdout, result.sandbox.stateLost], ['sandbox_lost', 'one\n', 'sandbox_gone']);
  assert.equal(await deliveries('mark-lost'), 1);
  const next = ok(await r.py('print(globals().get("x"))'));
  assert.deepEqual([next.stdout, next.sandbox.stateLost], ['None\n', 'sandbox_gone']);
});

test('paused in mid-run: the outcome is unknown, the next run finds its state', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  const job = await r.add('import time; time.sleep(60) # mark-paused', { threadId: 'main' });
  const run = await begun('mark-paused');
  await e2b.act(run.sandbox, 'pause');
  assert.equal((await r.result(job)).reason, 'outcome_unknown');
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
});

test('the sandbox reaches the plan\'s time limit in mid-run: the outcome is unknown, its state is kept', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  const job = await r.add('print("begun", flush=True)\nimport time; time.sleep(300) # mark-limit', { threadId: 'main' }, { attempts: 3 });
  const run = await begun('mark-limit');
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'output' });
  await e2b.act(run.sandbox, 'expire');
  const result = await r.result(job);
  assert.deepEqual([result.state, result.reason, result.stdout], ['error', 'outcome_unknown', 'begun\n']);
  assert.equal(await deliveries('mark-limit'), 1);
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  assert.equal((await e2b.journal({ op: 'create' })).length, 1);
  await oneDone(r, job);
});

test('the interpreter dies while it is asked whether it is free: the loss is told, the next run has all', async (t) => {
  const r = await rig(t, { settings: { lose_interrupts: 9, death_ms: 50 } });
  ok(await r.py('x = 1'));
  const job = await r.add('import time; time.sleep(300) # mark-probe', { threadId: 'main', timeoutMs: 800 });
  const run = await begun('mark-probe');
  await waitFor(async () => (await e2b.journal({ op: 'execute' })).some((e) => e.code?.size === 0 && e.begun), { what: 'the probe' });
  await e2b.act(run.sandbox, 'kill-kernel');
  const result = await r.result(job);
  assert.deepEqual([result.reason, result.sandbox.stateLost], ['timeout', 'killed_after_timeout']);
  await e2b.set({ lose_interrupts: 0 });
  const next = ok(await r.py('import os; print(globals().get("x"), os.getcwd(), os.environ.get("V"))', { env: { V: 'v' } }));
  assert.equal(next.stdout, 'None /home/user v\n');
});

test('memory runs out (case 21): the stream is cut and the sandbox answers nothing for a while; told at once, replaced or reached later', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await r.quiet();
  await e2b.fault({ match: { op: 'execute' }, times: 1, cut: 250, cut_by: 'close' },
    { match: { plane: ['interpreter', 'envd'] }, status: 502, body: { sandboxId: 'x', message: 'The sandbox is running but port is not open', port: 49999, code: 502 }, times: 4 });
  const began = Date.now();
  const job = await r.add('x = bytearray(1) # mark-oom', { threadId: 'main' }, { attempts: 3 });
  const result = await r.result(job);
  assert.deepEqual([result.state, result.reason], ['error', 'outcome_unknown']);
  assert.match(result.error, /memory/);
  assert.ok(Date.now() - began < 20_000);
  assert.equal(await deliveries('mark-oom'), 1);
  await oneDone(r, job);
  ok(await r.py('print("goes on")'));
});

for (const [name, code] of Object.entries({
  'never a word': scriptLine({ hang: true }),
  'silence after three lines': scriptLine({ stdout: 'a' }, { stdout: 'b' }, { stdout: 'c' }, { hang: true }),
})) {
  test(`a stalled stream is noticed well before the job's limit: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 1'));
    const began = Date.now();
    const result = await r.py(code);
    assert.equal(result.reason, 'outcome_unknown');
    assert.ok(Date.now() - began < 60_000);
    assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  });
}

test('a quiet run with keepalives lives', async (t) => {
  const r = await rig(t, { env, settings: { keepalive_s: 0.5 } });
  assert.equal(ok(await r.py('import time; time.sleep(5); print("ok")')).stdout, 'ok\n');
});

for (const [name, fault] of Object.entries({
  '502 port not open': { status: 502, body: { sandboxId: 'x', message: 'The sandbox is running but port is not open', port: 49999, code: 502 }, times: 2 },
  '502 text': { status: 502, body: 'Failed to route request to sandbox', times: 2 },
  '409 transitioning': { status: 409, body: { message: 'still transitioning' }, times: 1 },
  '429 rate': { status: 429, headers: { 'Retry-After': '1' }, body: { message: 'Rate limit exceeded' }, times: 1 },
  '503': { status: 503, times: 1 },
  '401 once': { status: 401, body: { code: 401, message: 'unauthorized' }, times: 1 },
})) {
  test(`refused before it ran, the code is sent again: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 1'));
    await r.quiet();
    await e2b.fault({ match: { op: 'execute' }, ...fault });
    const job = await r.add('x += 1; print(x) # mark-again', { threadId: 'main' });
    assert.equal(ok(await r.result(job)).stdout, '2\n');
    const ran = (await e2b.journal({ op: 'execute' })).filter((e) => e.code?.head.includes('mark-again') && e.ran);
    assert.equal(ran.length, 1);
    await oneDone(r, job);
  });
}

for (const [name, fault] of Object.entries({
  'reset before the answer': { reset: true }, 'closed before the answer': { close: true },
  'run, the answer lost': { cut: 0, cut_by: 'reset' }, 'run, the answer cut': { cut: 250, cut_by: 'close' }, garbage: { garbage: Buffer.from('\0\0nonsense').toString('base64') },
})) {
  test(`whatever the connection does, the code is never sent twice: ${name}`, async (t) => {
    const r = await rig(t, { env });
    ok(await r.py('x = 1'));
    await r.quiet();
    await e2b.fault({ match: { op: 'execute' }, times: 1, ...fault });
    await e2b.forget();
    const job = await r.add('x += 1 # mark-once', { threadId: 'main' }, { attempts: 3 });
    const result = await r.result(job);
    const sent = (await e2b.journal({ op: 'execute' })).filter((e) => e.bytesIn > 0);
    assert.ok(sent.length <= 1, 'its bytes left once');
    // Where not a byte of it had left when the connection died, another one is used.
    assert.match(result.reason, /^(outcome_unknown|ok)$/);
    const x = Number(ok(await r.py('print(x)')).stdout);
    if (result.reason === 'ok') assert.equal(x, 2);
    assert.equal(x, 1 + sent.filter((e) => e.ran).length);
  });
}

test('code that resists, last seen by a worker that is gone: the next run is not held up by it', async (t) => {
  const r = await rig(t, { env });
  ok(await r.py('x = 1'));
  await r.quiet();
  // Resists the interrupt that the loss of its connection is.
  await e2b.fault({ match: { op: 'execute' }, cut: 600, cut_by: 'reset', times: 1 });
  const lost = await r.py('import time\nprint("y" * 2000, flush=True)\nwhile True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass');
  assert.equal(lost.reason, 'outcome_unknown');
  const { sandbox, unsettled } = await r.record();
  assert.equal(unsettled, sandbox);
  await r.workers.shift().done();
  r.startWorker();
  const next = await r.py('print("free")', { timeoutMs: 300_000 });
  assert.deepEqual([ok(next).stdout, next.sandbox.stateLost], ['free\n', 'killed_after_timeout']);
  assert.equal((await r.record()).unsettled, undefined);
  assert.equal(ok(await r.py('print("again")')).stdout, 'again\n');
});

test('a lost worker: before its thread goes on, its run is over', async (t) => {
  const locks = { LOCK_DURATION_MS: '2000', LOCK_RENEW_MS: '600', STALLED_INTERVAL_MS: '800' };
  const r = await rig(t, { env: { ...env, ...locks } });
  ok(await r.py('x = 1'));
  const job = await r.add('import time\nwhile True:\n    try: time.sleep(60) # mark-dead\n    except KeyboardInterrupt: pass', { threadId: 'main' });
  await begun('mark-dead');
  const next = await r.add('print("free")', { threadId: 'main' });
  await r.worker.kill9();
  r.workers.length = 0;
  r.startWorker();
  assert.match(await r.failure(job, 40_000), /^WorkerLost/);
  assert.equal(ok(await r.result(next, 40_000)).stdout, 'free\n');
});
