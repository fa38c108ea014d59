// Cases from the field that no other file here covers, by their number.
import assert from 'node:assert/strict';
import test from 'node:test';
import { api, e2b, makeBox, deployment, ok, ops, redis, rig, scriptLine, waitFor } from './lib.mjs';

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

test('case 4: no locale of the worker changes a character, in output or in names of files', async (t) => {
  const r = await rig(t, { env: { LANG: 'C', LC_ALL: 'POSIX', PYTHONCOERCECLOCALE: '0', PYTHONUTF8: '0' } });
  const text = 'naïve → 東京';
  const files = [{ filename: 'ï/東.txt', content: Buffer.from(text).toString('base64') }];
  const result = ok(await r.py(`print("${text}"); open("output/é.txt", "w").write(open("ï/東.txt").read() + "é")`, { files, ...inline }));
  assert.deepEqual([result.stdout, names(result), content(result, 'é.txt')], [`${text}\n`, ['é.txt'], `${text}é`]);
  const shell = ok(await r.py(`echo "${text}"; echo é > output/ü.txt; ls output`, { language: 'bash', ...inline }));
  assert.deepEqual([shell.stdout, names(shell), content(shell, 'ü.txt')], [`${text}\nü.txt\n`, ['ü.txt'], 'é\n']);
  const script = `console.log("${text}"); require("fs").writeFileSync("output/ö.txt", "é"); console.log(require("fs").readdirSync("output").join())`;
  const js = ok(await r.py(script, { language: 'javascript', ...inline }));
  assert.deepEqual([js.stdout, names(js), content(js, 'ö.txt')], [`${text}\nö.txt\n`, ['ö.txt'], 'é']);
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

test('case 18: an image printed as text is cut in the result, and streamed in small messages', async (t) => {
  const r = await rig(t, { env: { REPLY_MAX_BYTES: '102400' } });
  const printed = `data:image/png;base64,${'iVBOR'.repeat(40_000)}\n`;
  const job = await r.add('print("data:image/png;base64," + "iVBOR"*40000)', { threadId: 'main' });
  const result = ok(await r.result(job));
  assert.ok(JSON.stringify(result).length <= 65_536, 'the result');
  assert.ok(printed.startsWith(result.stdout.slice(0, 1000)) && printed.endsWith(result.stdout.slice(-1000)));
  const messages = (await r.reply(job)).filter((m) => m.type === 'stdout');
  assert.ok(messages.every((m) => m.text.length <= 65_536), 'each message');
  const streamed = messages.map((m) => m.text).join('');
  assert.ok(streamed.length > 16_384 && streamed.length <= 102_400 && printed.startsWith(streamed), 'up to the cap');
  assert.ok(result.truncated.stdout > 100_000, JSON.stringify(result.truncated));
  assert.deepEqual([result.results, result.files], [[], []]);
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

test('case 34: output comes while the code runs, unflushed as it is, and a time limit loses none of it', async (t) => {
  const r = await rig(t);
  ok(await r.py('open("ticks", "w").write("0")'));
  const live = await r.add('import time\nprint("tick", 0)\nwhile True: time.sleep(0.05)', { threadId: 'main' });
  await waitFor(async () => (await r.replyNow(live)).some((m) => m.type === 'stdout'), { what: 'the first tick' });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', live.id); // it would go on for ever
  const cancelled = await r.result(live);
  assert.deepEqual([cancelled.reason, cancelled.stdout], ['cancelled', 'tick 0\n']);
  const code = 'import time\nfor i in range(1000):\n    print("tick", i)\n    open("ticks", "w").write(str(i))\n    time.sleep(1)';
  const job = await r.add(code, { threadId: 'main', timeoutMs: 3500 });
  const result = await r.result(job);
  assert.deepEqual([result.reason, result.exitCode, result.stderr], ['timeout', 124, '']);
  const count = result.stdout.split('\n').length - 1;
  assert.equal(result.stdout, Array.from({ length: count }, (_, i) => `tick ${i}\n`).join(''));
  const last = Number(ok(await r.py('print(open("ticks").read())')).stdout); // as the code itself counted; the last one may have been too late
  assert.ok(count >= last, `${count} ticks came, ${last + 1} were printed`);
});

test('case 37: JavaScript takes top-level await and imports', async (t) => {
  const r = await rig(t);
  const run = async (code) => ok(await r.py(code, { language: 'javascript', env: { V: 'v' } })).stdout;
  assert.equal(await run('const r = await Promise.resolve(3); console.log(r)'), '3\n');
  assert.equal(await run('console.log(r + 1, process.env.V)'), '4 v\n');
  assert.equal(await run('import fs from "node:fs"; console.log(typeof fs)'), 'object\n');
  assert.equal(await run('import { readFileSync as read } from "node:fs"\nimport * as os from "node:os"\nconsole.log(typeof read, typeof os.cpus)'), 'function function\n');
  const failed = await r.py('await Promise.reject(new Error("no"))', { language: 'javascript' });
  assert.deepEqual([failed.reason, failed.exitCode], ['code_error', 1]);
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

test('case 62: paths of the sandbox in the code are data like any other', async (t) => {
  const r = await rig(t);
  const code = `print("https://x.test/home/user/profile"); open("/home/user/output/a.txt","w").write("see /home/user/readme"); print(len("/home/user"))
def f(): return 1/0
f()`;
  const result = await r.py(code, inline);
  assert.equal(result.stdout, 'https://x.test/home/user/profile\n10\n');
  assert.equal(content(result, 'a.txt'), 'see /home/user/readme');
  assert.match(result.errorDetail.traceback, /line 2.*1\/0/s);
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

/** Another replica takes over: it holds no handle. */
async function moveOn(r) {
  await r.quiet();
  await r.workers.shift().done();
  r.startWorker();
}

test('case 83: each connect names the time to live; at its end the sandbox pauses, and a kill instead is told', async (t) => {
  const r = await rig(t, { env: { CODE_INTERPRETER_IDLE_TIMEOUT_MS: '60000', CODE_INTERPRETER_TIMEOUT_MS: '40000' } });
  ok(await r.py('x = 1'));
  const id = (await r.record()).sandbox;
  await moveOn(r);
  await e2b.patch(id, { ttl: 20 });
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  await r.quiet();
  /** The idle window after each run is set beside it: only then time is ours. */
  const idle = (n) => waitFor(async () => (await e2b.journal({ op: 'timeout' })).filter((e) => e.status === 204).length >= n, { what: 'the idle window' });
  await idle(2);
  const sent = (...op) => e2b.journal((e) => op.includes(e.op)).then((all) => all.map((e) => [e.op, e.body.timeout]));
  assert.deepEqual(await sent('create', 'connect'), [['create', 70], ['connect', 70]]); // the time limit and what comes after it
  const box = await e2b.sandbox(id);
  assert.deepEqual([box.autoPause, box.autoResume], [true, true], 'as it was made');
  assert.ok((await sent('timeout')).every(([, s]) => s === 60 || s === 70), 'the idle window, or a run');
  await e2b.act(id, 'expire');
  await e2b.waitState(id, 'paused');
  await e2b.patch(id, { autoResume: false }); // so that it has to be connected
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  await idle(3);
  assert.deepEqual((await sent('connect')).at(-1), ['connect', 70]);
  const { ttl } = await e2b.sandbox(id);
  assert.ok(ttl > 0 && ttl <= 70, `${ttl} s`);
  await e2b.patch(id, { autoPause: false });
  await e2b.act(id, 'expire');
  await waitFor(async () => !(await e2b.sandboxes()).some((s) => s.id === id), { what: 'it is killed' });
  const result = ok(await r.py('print(globals().get("x"))'));
  assert.deepEqual([result.stdout, result.sandbox.reused, result.sandbox.stateLost], ['None\n', false, 'sandbox_gone']);
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

/** All tokens that a sandbox has now. */
const tokensOf = async (id) => {
  const { envdAccessToken, trafficAccessToken } = await e2b.sandbox(id);
  assert.match(`${envdAccessToken}${trafficAccessToken}`, /^[0-9a-f]{128}$/);
  return [envdAccessToken, trafficAccessToken];
};
const dataPlane = (entry) => entry.plane === 'interpreter' || entry.plane === 'envd';

test('case 86: tokens that a resume has changed go to the interpreter and to envd, and into no log', async (t) => {
  const r = await rig(t, { settings: { rotate_tokens: true } });
  ok(await r.py('x = 5'));
  await r.quiet();
  const { sandbox } = await r.record();
  const old = await tokensOf(sandbox);
  await api('POST', `/sandboxes/${sandbox}/connect`, { timeout: 300 });
  await e2b.forget();
  const files = [{ filename: 'in.txt', content: 'aW4=' }];
  const result = ok(await r.py('print(x, open("in.txt").read()); open("output/o", "w").write("o")', { files, ...inline }));
  assert.deepEqual([result.stdout, content(result, 'o'), result.sandbox.stateLost], ['5 in\n', 'o', null]);
  assert.equal(ok(await r.py('echo hi > output/h; echo $V', { language: 'bash', env: { V: 'v' } })).stdout, 'v\n');
  const now = await tokensOf(sandbox);
  const journal = await e2b.journal();
  assert.equal(ops(journal).filter((op) => op === 'connect').length, 1);
  const told = journal.filter((e) => dataPlane(e) && e.status < 400);
  assert.deepEqual(new Set(told.map((e) => e.plane)), new Set(['interpreter', 'envd']));
  for (const { op, plane, headers } of told) { // envd's port is not closed by the traffic's token
    assert.equal(headers['x-access-token'], now[0], op);
    if (plane === 'interpreter') assert.equal(headers['e2b-traffic-access-token'], now[1], op);
  }
  for (const worker of r.workers) for (const token of [...old, ...now]) assert.ok(!worker.lines.some((line) => line.includes(token)), 'in the log');
});

test('case 86: a connect without tokens is mended by another one', async (t) => {
  const r = await rig(t);
  ok(await r.py('x = 5'));
  await moveOn(r);
  const { sandbox } = await r.record();
  await e2b.fault({ match: { op: 'connect' }, status: 200, body: { sandboxID: sandbox, templateID: 't', clientID: 'c', envdVersion: '1' } });
  assert.equal(ok(await r.py('print(x)')).stdout, '5\n');
  assert.equal((await e2b.journal({ op: 'connect' })).length, 2);
});

for (const [name, op, data] of [['the interpreter', 'execute', {}], ['envd', 'files.write', { files: [{ filename: 'in.txt', content: 'aW4=' }] }],
  ['its contexts', 'contexts.list', { language: 'bash' }], ['envd for another language', 'fs.Remove', { language: 'bash' }]]) {
  test(`case 86: refused by ${name} with the newest tokens: one reconnect, then an error that says so`, async (t) => {
    const r = await rig(t);
    ok(await r.py('x = 5'));
    await r.quiet();
    const { sandbox } = await r.record();
    await e2b.fault({ match: { op }, status: 401, body: { code: 401, message: `unauthorized: ${(await tokensOf(sandbox)).join()}` }, times: 0 });
    await e2b.forget();
    const job = await r.add('1', { threadId: 'main', ...data });
    const reply = await r.reply(job);
    const { error } = reply.at(-1);
    assert.match(typeof error === 'string' ? error : JSON.stringify(error), /refuses the access token/);
    assert.equal(reply.filter((m) => m.type === 'done').length, 1);
    await r.quiet();
    const journal = await e2b.journal();
    assert.equal(journal.filter((e) => e.op === 'connect').length, 1);
    assert.equal(journal.filter((e) => e.op === 'kill' || e.op === 'create').length, 0);
    assert.equal(journal.filter((e) => e.op === op).length, 2);
    await e2b.clearFaults();
    assert.equal(ok(await r.py('print(x)')).stdout, '5\n');
    const all = r.workers.flatMap((w) => w.lines).join('\n') + JSON.stringify([reply, await r.hash(job)]);
    for (const token of await tokensOf(sandbox)) assert.ok(!all.includes(token), 'told');
  });
}

test('case 138: nothing of the worker\'s environment gets into a sandbox, and its key only to the control plane', async (t) => {
  const planted = { AWS_SECRET_ACCESS_KEY: 'pl4nt3d-aws', PGPASSWORD: 'pl4nt3d-pg', SOME_TOKEN: 'pl4nt3d-token' };
  const r = await rig(t, { env: planted });
  const look = `import os, glob
print(dict(os.environ))
for name in ["/proc/self/environ", f"/proc/{os.getppid()}/environ"]:
    try: print(open(name, errors="replace").read())
    except OSError as e: print(e)
print([os.readlink(fd) for fd in glob.glob("/proc/self/fd/*") if os.path.lexists(fd)])
open("output/env", "w").write(repr(dict(os.environ)))`;
  for (const data of [{ threadId: 'main' }, {}]) {
    const result = ok(await r.result(await r.add(look, { ...data, ...inline })));
    const seen = result.stdout + content(result, 'env');
    for (const secret of [...Object.values(planted), ...Object.keys(planted), e2b.env.E2B_API_KEY, redis.url, 'REDIS_URL', 'E2B_API_KEY', 'CODE_INTERPRETER'])
      assert.ok(!seen.includes(secret), `${secret} is seen`);
  }
  ok(await r.py('env', { language: 'bash' }));
  await r.quiet();
  for (const entry of await e2b.journal()) {
    assert.equal('x-api-key' in entry.headers, entry.plane === 'control', entry.op);
    assert.ok(!JSON.stringify(entry).includes('pl4nt3d'), entry.op);
  }
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
