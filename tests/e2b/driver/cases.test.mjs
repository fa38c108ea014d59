// Cases from the field that no other file here covers, by their number.
import assert from 'node:assert/strict';
import test from 'node:test';
import { e2b, makeBox, deployment, ok, rig, scriptLine, waitFor } from './lib.mjs';

const names = (result) => result.files.map((f) => f.filename).sort();
const content = (result, name) => Buffer.from(result.files.find((f) => f.filename === name).content, 'base64').toString();
const inline = { output: { inline: true } };

test('case 3: lone surrogates in output and in exception texts', async (t) => {
  const r = await rig(t);
  const result = await r.py('import sys\nsys.stdout.write("bad-\\udcff-name\\n")\nraise ValueError("\\ud800")');
  assert.deepEqual([result.state, result.reason, result.errorDetail.name], ['error', 'code_error', 'ValueError']);
  assert.match(result.stdout, /^bad-.+-name\n$/u);
  assert.equal(ok(await r.py('print("next")')).stdout, 'next\n');
});

test('case 5: NaN and infinity in tables and JSON', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py(`import pandas as pd, numpy as np
from IPython.display import JSON, display
display(pd.DataFrame({"x": [1.0, np.nan, np.inf, -np.inf, None]}))
display(JSON({"a": float("nan")}))
print("after")`));
  assert.equal(result.stdout, 'after\n');
  assert.match(result.results[0].data['text/html'], /NaN/);
  assert.ok('application/json' in result.results[1].data);
});

test('cases 13, 42 and 54: figures come as PNG, beside the user\'s own file of that name, in each run', async (t) => {
  const r = await rig(t);
  const code = `import matplotlib.pyplot as plt
open("output/chart-0.png", "wb").write(b"mine")
plt.title("売上 매출"); plt.plot([1, -1]); plt.show()
ax = plt.figure().gca(); ax.plot([1, 2, 3])
ax`;
  for (let i = 0; i < 2; i++) {
    const result = ok(await r.py(code));
    assert.equal(new Set(names(result)).size, 3);
    assert.equal(new Set(result.files.map((f) => f.fileId)).size, 3);
    assert.equal(await r.redis.get(result.files.find((f) => f.filename === 'chart-0.png').key), 'mine');
    assert.equal(result.files.filter((f) => f.mimeType === 'image/png').length, 3);
  }
});

test('case 14: a chart of many points is passed through or left out, never an error', async (t) => {
  const r = await rig(t);
  const points = Array.from({ length: 50_000 }, (_, i) => [i, i]);
  const result = ok(await r.py(scriptLine({ line: { type: 'result', png: 'iVBORw0KGgo=', chart: { type: 'line', elements: [{ points }] }, extra: {} } }, { stdout: 'after' })));
  assert.equal(result.stdout, 'after');
  assert.ok(result.files.some((f) => f.mimeType === 'image/png'));
});

test('case 17: display updates and clear_output do no harm', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py(`from IPython.display import display, clear_output
h = display("step 0", display_id=True)
for i in range(1, 4): h.update(f"step {i}")
clear_output(wait=True); display("final")`));
  assert.match(result.results.at(-1).data['text/plain'], /final/);
});

test('case 19: nobody answers a question in bash', async (t) => {
  const r = await rig(t);
  assert.equal(ok(await r.py('read x; cat; echo done', { language: 'bash' })).stdout, 'done\n');
});

test('cases 20 and 38: what ended the code is told by name, text and status', async (t) => {
  const r = await rig(t);
  for (const [code, name, value] of [
    ['{}["x"]', 'KeyError', /x/], ['assert False', 'AssertionError', /^$/], ['raise Exception', 'Exception', /^$/], ['raise KeyboardInterrupt', 'KeyboardInterrupt', /^$/],
    ['try:\n    1/0\nexcept ZeroDivisionError as b:\n    raise ValueError("a") from b', 'ValueError', /^a$/],
    ['class E(Exception):\n    def __str__(self): raise ValueError\nraise E', /^(E|ValueError)$/, /^/], ['def f(): f()\nf()', 'RecursionError', /recursion/],
    ['raise ValueError("x" * (1 << 20))', 'ValueError', /^x+/],
  ]) {
    const result = await r.py(code);
    assert.deepEqual([result.reason, result.exitCode], ['code_error', 1], code);
    assert.match(result.errorDetail.name, name instanceof RegExp ? name : new RegExp(`^${name}$`), code);
    assert.match(result.errorDetail.value, value, code);
    assert.ok(JSON.stringify(result).length < 200_000);
  }
  const shell = await r.py('exit 4', { language: 'bash' });
  assert.equal(shell.reason, 'code_error');
  assert.ok(shell.error.length > 0);
});

test('case 27: a body shorter than it promised is no success', async (t) => {
  const r = await rig(t);
  const http = Buffer.from('HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{"type":"stdout","text":"a"}\n').toString('base64');
  const result = await r.py(scriptLine({ http }));
  assert.deepEqual([result.reason, result.stdout], ['outcome_unknown', 'a']);
});

test('case 33: much on both streams', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py('import sys\nfor i in range(5000): sys.stderr.write("e"*100+"\\n")\nprint("o"*200000)\nfor i in range(5000): sys.stderr.write("e"*100+"\\n")'));
  assert.equal(result.stdout.length + result.truncated.stdout >= 200_001, true);
  assert.equal(result.stderr.length + result.truncated.stderr >= 1_010_000, true);
});

test('cases 40 and 43: success without output, and texts as the server gives them', async (t) => {
  const r = await rig(t);
  for (const [code, main] of [['x = 1', undefined], ['1+1', '2'], ['None', undefined], ['print("")', undefined], ["'abc'", 'abc'], ["('a','b')", "('a', 'b')"]]) {
    const result = ok(await r.py(code));
    assert.equal(result.results.find((x) => x.main)?.data['text/plain'], main, code);
    assert.equal(result.exitCode, 0);
  }
});

test('case 31: a process left in the background holds nothing up', async (t) => {
  const r = await rig(t);
  assert.equal(ok(await r.py('import subprocess\np = subprocess.Popen(["sleep", "600"]); print("parent done")')).stdout, 'parent done\n');
  const result = await r.py('subprocess.run("sleep 600 & sleep 500", shell=True)', { timeoutMs: 1000 });
  assert.equal(result.reason, 'timeout');
  assert.equal(ok(await r.py('p.kill(); print(p.wait() < 0)')).stdout, 'True\n');
});

test('case 37: top-level await works, asyncio.run says what is wrong', async (t) => {
  const r = await rig(t);
  const m = 'import asyncio\nasync def m(): return 5\n';
  assert.equal(ok(await r.py(`${m}print(await m())`)).stdout, '5\n');
  const nested = await r.py(`${m}print(asyncio.run(m()))`);
  assert.match(nested.errorDetail.value, /event loop/);
});

test('case 52: a file rewritten in place is a new file of its run', async (t) => {
  const r = await rig(t);
  const write = (text) => r.py(`open("output/r.txt", "w").write("${text}")\nimport os; os.utime("output/r.txt", (0, 0))`, inline);
  for (const text of ['AAAA', 'BBBB', 'BBBB']) assert.equal(content(ok(await write(text)), 'r.txt'), text);
  assert.deepEqual(names(ok(await r.py('1'))), []);
});

test('case 55: all inputs stay for later runs, and come again into a new sandbox', async (t) => {
  const r = await rig(t);
  const files = [1, 2, 3].map((n) => ({ filename: `${n}.csv`, content: Buffer.from(`${n}`).toString('base64') }));
  const list = 'import glob; print(sorted(glob.glob("*.csv")))';
  const all = "['1.csv', '2.csv', '3.csv']\n";
  assert.equal(ok(await r.py(list, { files })).stdout, all);
  assert.equal(ok(await r.py(list)).stdout, all);
  await r.quiet();
  await e2b.act((await r.record()).sandbox, 'kill');
  const again = ok(await r.py(list, { files }));
  assert.deepEqual([again.stdout, again.sandbox.stateLost], [all, 'sandbox_gone']);
});

test('case 59: MIME types go by the name, in any case of letters, with a safe one for the rest', async (t) => {
  const r = await rig(t);
  const wanted = { '.hidden': 'application/octet-stream', 'A.PNG': 'image/png', data: 'application/octet-stream', 'logo.svg': 'image/svg+xml', 'page.html': 'text/html', 'png-inside.html': 'text/html', 'x.tar.gz': 'application/gzip' };
  const result = ok(await r.py(`for name in ${JSON.stringify(Object.keys(wanted))}: open("output/" + name, "wb").write(b"\\x89PNG\\r\\n\\x1a\\n<script>1</script>")`));
  assert.deepEqual(Object.fromEntries(result.files.map((f) => [f.filename, f.mimeType])), wanted);
});

test('case 63: a connect refused for its body, and a sandbox that is gone when the code comes', async (t) => {
  const r = await rig(t);
  ok(await r.py('x = 1'));
  await r.quiet();
  assert.ok((await e2b.journal({ op: 'connect' })).every((e) => e.body.timeout > 0));
  await e2b.fault({ match: { op: 'execute' }, status: 502, body: { sandboxId: 'x', message: 'The sandbox was not found', code: 502 }, times: 1 });
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n'); // connecting says that it lives
});

test('case 69: many first jobs of a thread on two replicas, a slow create and a lagging list: one sandbox', async (t) => {
  const r = await rig(t, { replicas: 2, settings: { create_ms: 2000, list_lag_ms: 3000 } });
  const jobs = [];
  for (let i = 0; i < 20; i++) jobs.push(await r.add('n = globals().get("n", 0) + 1; print(n)', { threadId: 'main' }));
  for (const [i, job] of jobs.entries()) assert.equal(ok(await r.result(job)).stdout, `${i + 1}\n`);
  assert.equal((await e2b.journal({ op: 'create' })).length, 1);
});

test('case 72: a life that cannot be set once costs nothing', async (t) => {
  const r = await rig(t, { env: { CODE_INTERPRETER_IDLE_TIMEOUT_MS: '3000' } });
  ok(await r.py('x = 1'));
  await waitFor(async () => (await e2b.journal({ op: 'timeout' })).some((e) => e.status === 204), { what: 'the idle window' });
  await e2b.fault({ match: { op: 'timeout' }, status: 500, times: 2 });
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  await r.quiet();
  assert.equal((await e2b.journal({ op: 'kill' })).length, 0);
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
});

test('case 77: an old sandbox in use is not swept', async (t) => {
  const r = await rig(t, { env: { E2B_DEPLOYMENT_ID: deployment, E2B_SWEEP_INTERVAL_MS: '500', CODE_INTERPRETER_SESSION_MAX_AGE_MS: '3600000' } });
  ok(await r.py('x = 1'));
  await r.quiet();
  const { sandbox } = await r.record();
  await e2b.patch(sandbox, { startedAt: Date.now() / 1000 - 8 * 86400 });
  const strange = await makeBox({ twentySessionId: ':strange' });
  await r.redis.hset(`${r.P}thread::strange`, 'claim', String(Date.now() - 2 * 3600_000)); // its last use
  for (const id of [sandbox, strange.sandboxID]) await e2b.act(id, 'pause');
  await waitFor(async () => !(await e2b.sandboxes()).some((s) => s.id === strange.sandboxID), { timeout: 60_000, what: 'a sweep' });
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
});

test('case 85: a server started by an earlier run holds its port across a pause, and the worker is unharmed', async (t) => {
  const r = await rig(t);
  const serve = `import subprocess, sys, socket, time
server = subprocess.Popen([sys.executable, "-m", "http.server", "3000", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for _ in range(600):
    try: socket.create_connection(("127.0.0.1", 3000)).close(); break
    except OSError: time.sleep(0.1)
print(server.poll())`;
  assert.equal(ok(await r.py(serve)).stdout, 'None\n');
  await r.quiet();
  const { sandbox } = await r.record();
  await e2b.act(sandbox, 'pause');
  const bind = 'import socket\ns = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\ns.bind(("127.0.0.1", 3000))';
  const taken = await r.py(bind);
  assert.deepEqual([taken.reason, taken.exitCode, taken.errorDetail.name], ['code_error', 1, 'OSError']);
  assert.match(taken.errorDetail.value, /Address already in use/);
  assert.equal((await e2b.sandbox(sandbox)).state, 'running', 'its traffic has resumed it');
  assert.equal(ok(await r.py('print(server.poll())')).stdout, 'None\n', 'the same process');
  ok(await r.py('s.close(); server.kill(); server.wait()')); // what the thread has to do about it
  ok(await r.py(bind));
  assert.equal((await r.record()).sandbox, sandbox);
});

test('case 133: a NUL in a value is refused by name', async (t) => {
  const r = await rig(t);
  assert.match(await r.failure(await r.add('1', { threadId: 'main', env: { J: 'a\0b' } })), /env/);
  assert.deepEqual(await e2b.ops(), []);
});

test('case 142: the same thread id in two workspaces, and no thread id, share nothing', async (t) => {
  const r = await rig(t);
  const look = 'import os; print(globals().get("canary"), os.path.exists("canary"))';
  ok(await r.py('canary = 1; open("canary", "w").write("1")', { workspaceId: 'a' }));
  for (const data of [{ workspaceId: 'b' }, { threadId: undefined, workspaceId: 'a' }, {}]) assert.equal(ok(await r.py(look, data)).stdout, 'None False\n');
  assert.equal(ok(await r.py(look, { workspaceId: 'a' })).stdout, '1 True\n');
});
