// runCode of the official clients: streams, result kinds, errors, timeouts, contexts, environment.
import assert from 'node:assert/strict';
import { scriptLine } from '../../lib/e2b.mjs';
import { sleep, waitFor } from '../../lib/process.mjs';
import { both, execute, lines, raw, useE2b } from './clients.mjs';

const e2b = await useE2b({ settings: { warm: 2 } });
const create = (Sandbox, more = {}) => Sandbox.create({ timeoutMs: 120_000, ...more });

both(e2b, 'output arrives while the code runs, in order, by stream', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  await sandbox.runCode('1');
  const seen = [];
  const at = (kind) => ({ line }) => { // the code goes on when what it said has come
    seen.push([kind, line]);
    if (/^(a|é😀\n)$/.test(line)) sandbox.files.write(kind, '');
  };
  const wait = (name) => `while not os.path.exists("${name}"): time.sleep(.02)`;
  const run = await sandbox.runCode([
    'import os, sys, time', 'print("a", end=""); sys.stdout.flush()', wait('out'), 'print("é😀", file=sys.stderr)',
    wait('err'), 'print("b\\n\\nc")'].join('\n'), { onStdout: at('out'), onStderr: at('err') });
  assert.equal(seen.filter(([kind]) => kind === 'out').map(([, text]) => text).join(''), 'ab\n\nc\n');
  assert.deepEqual(run.logs.stderr, ['é😀\n']);
  assert.equal(run.logs.stdout.join(''), 'ab\n\nc\n');
  assert.equal(run.error, undefined);
  assert.equal(run.executionCount, 2);
  assert.deepEqual(run.results, []);
});

both(e2b, 'all result kinds', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const run = await sandbox.runCode([
    'from IPython.display import *',
    'display(HTML("<b>é</b>")); display(Markdown("# m")); display(SVG("<svg xmlns=\'http://www.w3.org/2000/svg\'/>"))',
    'display(Latex("$x$")); display(JSON({"a": [1, None]})); display(Javascript("1"))',
    'display({"application/pdf": "JVBERg==", "text/plain": "pdf"}, raw=True)',
    'display({"image/jpeg": "/9j/", "application/vnd.odd": {"k": 1}}, raw=True)',
    'import base64; display(Image(data=base64.b64decode("iVBORw0KGgo="), format="png"))', '"main"'].join('\n'));
  assert.equal(run.error, undefined);
  const kinds = run.results.map((result) => Object.keys(result.raw).filter((key) => key !== 'extra').sort().join());
  assert.deepEqual(kinds, ['html,text', 'markdown,text', 'svg,text', 'latex,text', 'json,text', 'javascript,text',
    'pdf,text', 'jpeg', 'png,text', 'text']);
  assert.equal(run.results[0].html, '<b>é</b>');
  assert.deepEqual(run.results[4].json, { a: [1, null] });
  assert.equal(run.results[6].pdf, 'JVBERg==');
  assert.deepEqual(run.results[7].raw.extra, { 'application/vnd.odd': { k: 1 } });
  assert.equal(run.results[8].png.trim(), 'iVBORw0KGgo=');
  assert.deepEqual(run.results.map((result) => result.isMainResult), [...Array(9).fill(false), true]);
  assert.equal(run.text, 'main', 'without its quotes');
});

both(e2b, 'a figure is a png with its chart, a table is html with its data', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const figure = await sandbox.runCode([
    'import matplotlib.pyplot as plt', 'plt.plot([1, 2], [3, 4], label="l"); plt.title("T"); plt.show()'].join('\n'),
  { timeoutMs: 50_000 });
  const [result] = figure.results;
  assert.deepEqual([figure.results.length, result.isMainResult], [1, false]);
  assert.equal(Buffer.from(result.png, 'base64').subarray(1, 4).toString(), 'PNG');
  assert.equal(result.chart.type, 'line');
  assert.equal(result.chart.title, 'T');
  assert.deepEqual(result.chart.elements, [{ label: 'l', points: [[1, 3], [2, 4]] }]);
  const table = await sandbox.runCode('import pandas as pd\npd.DataFrame({"a": [1, 2], "b": ["x", "y"]})');
  assert.deepEqual(table.results[0].data, { a: [1, 2], b: ['x', 'y'] });
  assert.match(table.results[0].html, /<table/);
  assert.equal(table.results[0].isMainResult, true);
});

both(e2b, 'errors: of the code, of its syntax, exit, input, death of the kernel', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const errors = [];
  const zero = await sandbox.runCode('print("before")\n1/0', { onError: (error) => errors.push(error.name) });
  assert.deepEqual(errors, ['ZeroDivisionError']);
  assert.equal(zero.error.value, 'division by zero');
  assert.match(zero.error.traceback, /line 2/);
  assert.deepEqual(zero.logs.stdout, ['before\n']);
  assert.equal((await sandbox.runCode('a b')).error.name, 'SyntaxError');
  const exit = (await sandbox.runCode('import sys; sys.exit(3)')).error;
  assert.deepEqual([exit.name, exit.value], ['SystemExit', '3']);
  assert.equal((await sandbox.runCode('input()')).error.name, 'StdinNotImplementedError');
  assert.equal((await sandbox.runCode('x = 5\nx')).text, '5', 'the kernel is still there');
  const death = await sandbox.runCode('print("last", flush=True)\nimport os, time\ntime.sleep(.3)\nos._exit(7)');
  assert.equal(death.error.name, 'ContextRestarting');
  assert.deepEqual(death.logs.stdout, ['last\n']);
  assert.equal((await sandbox.runCode('x')).error.name, 'NameError', 'all state is lost');
});

both(e2b, 'a timeout closes the connection: the kernel is interrupted and keeps its state', async ({ Sandbox, TimeoutError }) => {
  const sandbox = await create(Sandbox);
  await sandbox.runCode('x = "kept"');
  await assert.rejects(sandbox.runCode('import time\nwhile True: time.sleep(.01)', { timeoutMs: 2000 }), TimeoutError);
  assert.equal((await sandbox.runCode('x', { timeoutMs: 60_000 })).text, 'kept', 'it does not wait for the loop, which has no end');
  assert.equal((await sandbox.runCode('x')).text, 'kept');
});

both(e2b, 'code that swallows the interrupt keeps the next run waiting until the context is restarted', async ({ Sandbox, TimeoutError }) => {
  const sandbox = await create(Sandbox);
  await sandbox.runCode('import time');
  const stubborn = 'import time\nend = time.time() + 30\nwhile time.time() < end:\n  try: time.sleep(1)\n  except KeyboardInterrupt: pass';
  await assert.rejects(sandbox.runCode(stubborn, { timeoutMs: 1000 }), TimeoutError);
  await assert.rejects(sandbox.runCode('1', { timeoutMs: 1000 }), TimeoutError);
  const [python] = (await sandbox.listCodeContexts()).filter((context) => context.language === 'python');
  await sandbox.restartCodeContext(python.id);
  assert.equal((await sandbox.runCode('1')).text, '1');
});

both(e2b, 'contexts: their own state and folder; restart, remove', async ({ Sandbox, NotFoundError, InvalidArgumentError }) => {
  const sandbox = await create(Sandbox);
  await sandbox.runCode('import os\nos.makedirs("w")\nx = 1');
  const context = await sandbox.createCodeContext({ cwd: '/home/user/w' });
  assert.deepEqual([context.language, context.cwd], ['python', '/home/user/w']);
  const ids = (await sandbox.listCodeContexts()).map(({ id, language }) => [id, language]);
  assert.equal(ids.length, 3, 'and the two that are always there');
  const run = (code) => sandbox.runCode(code, { context });
  assert.equal((await run('import os\nos.getcwd()')).text, '/home/user/w');
  assert.equal((await run('x')).error.name, 'NameError');
  assert.equal((await sandbox.runCode('x')).text, '1');
  await sandbox.restartCodeContext(context);
  const after = await run('import os\nos.getcwd()');
  assert.deepEqual([after.text, after.executionCount], ['/', 1], 'the folder after a restart is another');
  await sandbox.removeCodeContext(context);
  await assert.rejects(run('1'), NotFoundError);
  await assert.rejects(sandbox.removeCodeContext(context.id), NotFoundError);
  await assert.rejects(sandbox.runCode('1', { context, language: 'python' }), InvalidArgumentError);
  await assert.rejects(sandbox.runCode('1', { language: 'no-such' }), /500/);
});

both(e2b, 'restart while code runs ends its stream with two errors', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const context = await sandbox.createCodeContext();
  const errors = [];
  let printed = false;
  const running = sandbox.runCode('import time\nprint("on", flush=True)\ntime.sleep(60)',
    { context, onError: (error) => errors.push(error.name), onStdout: () => { printed = true; } });
  await waitFor(() => printed);
  await sandbox.restartCodeContext(context);
  const run = await running;
  assert.deepEqual(errors, ['WebSocketError', 'UnexpectedEndOfExecution']);
  assert.deepEqual(run.logs.stdout, ['on\n']);
});

both(e2b, 'one run at a time in a context, others side by side', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const context = await sandbox.createCodeContext();
  const code = 'import time\na = time.time(); time.sleep(2); print(a, time.time())';
  const runs = await Promise.all([sandbox.runCode(code), sandbox.runCode(code), sandbox.runCode(code, { context })]);
  const times = runs.map((run) => run.logs.stdout.join('').split(' ').map(Number));
  const overlap = ([a, b], [c, d]) => Math.min(b, d) - Math.max(a, c) > 0;
  assert.equal(overlap(times[0], times[1]), false);
  assert.equal(overlap(times[0], times[2]) || overlap(times[1], times[2]), true);
});

both(e2b, 'environment: of the sandbox and of a run, written into the code without escaping', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox, { envs: { S: 'sandbox' } });
  const show = 'import os\nprint(os.environ.get("S"), os.environ.get("R"))';
  const out = async (opts) => (await sandbox.runCode(show, opts)).logs.stdout.join('');
  assert.equal(await out(), 'sandbox None\n');
  assert.equal(await out({ envs: { R: 'run' } }), 'sandbox run\n');
  assert.equal(await out({ envs: { S: 'other' } }), 'other None\n');
  assert.equal(await out(), 'sandbox None\n', 'gone after the run');
  assert.equal((await sandbox.runCode('1', { envs: { R: "it's" } })).error.name, 'SyntaxError');
});

both(e2b, 'bash, and a language of the sandbox', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  await sandbox.runCode('open("f.txt", "w").write("x")');
  const run = await sandbox.runCode('ls; echo $V; echo e >&2', { language: 'bash', envs: { V: "it's" } });
  assert.equal(run.logs.stdout.join(''), "f.txt\nit's\n");
  assert.deepEqual(run.logs.stderr, ['e\n']);
  assert.equal((await sandbox.runCode('exit 4', { language: 'bash' })).error.value, 'exit status 4');
});

both(e2b, 'the folder: /home/user is the sandbox\'s own', async ({ Sandbox }) => {
  const [one, two] = await Promise.all([create(Sandbox), create(Sandbox)]);
  await one.runCode('open("/home/user/mine.txt", "w").write("1"); open("/tmp/t", "w").write("1")');
  assert.equal((await one.runCode('import os\nos.getcwd()')).text, '/home/user');
  assert.equal((await two.runCode('import os\nos.path.exists("/home/user/mine.txt") or os.path.exists("/tmp/t")')).text, 'False');
  assert.deepEqual((await two.files.list('/home/user')).length, 0);
  assert.equal(await one.files.read('/tmp/t'), '1');
  assert.equal((await one.commands.run('cat mine.txt')).stdout, '1');
});

both(e2b, 'the stream on the wire', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox, { envs: { S: 's' } });
  const made = { sandboxId: sandbox.sandboxId, envdAccessToken: (await e2b.sandbox(sandbox.sandboxId)).envdAccessToken };
  const first = await execute(e2b, made, 'print("é")\n1');
  assert.equal(first.headers.get('content-type'), null);
  assert.equal(first.headers.get('transfer-encoding'), 'chunked');
  const text = await first.text();
  assert.match(text, /^[\x20-\x7e\n]*$/, 'ASCII only');
  const types = text.trim().split('\n').map((line) => JSON.parse(line).type);
  assert.deepEqual(types, ['number_of_executions', 'stdout', 'result', 'end_of_execution']);
  const stdout = JSON.parse(text.split('\n')[1]);
  assert.match(stdout.timestamp, /^\d{4}-\d\d-\d\dT[\d:.]+\+00:00$/);
  assert.deepEqual(Object.keys(JSON.parse(text.split('\n')[2])).sort(), ['extra', 'is_main_result', 'text', 'type']);

  // A queued run: headers at once, then silence; leaving the queue harms no one.
  const running = execute(e2b, made, 'import os, time\nwhile not os.path.exists("/home/user/go"): time.sleep(.05)\n"ran"');
  await waitFor(async () => (await e2b.journal({ op: 'execute' })).length === 2);
  const abort = new AbortController();
  const queued = await execute(e2b, made, 'open("never", "w")', { signal: abort.signal }); // headers before its turn
  await sleep(300);
  abort.abort();
  await raw(e2b, made, 49983, '/files?path=/home/user/go&username=user',
    { method: 'POST', body: '', headers: { 'Content-Type': 'application/octet-stream' } });
  assert.equal((await lines(await running)).at(-2).text, 'ran');
  assert.equal(await e2b.file(made.sandboxId, '/home/user/never'), null);
  assert.equal(queued.status, 200);
  const entry = (await e2b.journal({ op: 'execute' }))[2];
  assert.deepEqual([entry.ran, entry.dropped], [undefined, true]);

  const answers = [];
  for (const body of [{ code: 1 }, {}, { code: '1', context_id: 'x' }, { code: '1', context_id: 'x', language: 'python' }]) {
    const response = await raw(e2b, made, 49999, '/execute',
      { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
    answers.push([response.status, (response.headers.get('content-type') ?? '').split(';')[0]]);
    await response.text();
  }
  assert.deepEqual(answers, [[422, 'application/json'], [422, 'application/json'], [404, 'text/plain'], [400, 'text/plain']]);
  const health = await raw(e2b, made, 49999, '/health');
  assert.equal(await health.text(), '"OK"');
});

both(e2b, 'a first run without the access token never gets the sandbox\'s variables', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox, { envs: { S: 's' } });
  const code = 'import os\nprint(os.environ.get("S"), os.environ.get("code"), os.environ.get("message"))';
  const open = await execute(e2b, { sandboxId: sandbox.sandboxId }, code);
  assert.match((await lines(open))[1].text, /^None 401 unauthorized/);
  assert.match((await sandbox.runCode(code)).logs.stdout.join(''), /^None 401/, 'and it stays so');
});

both(e2b, 'keepalives each interval, and scripted streams', async ({ Sandbox }, t) => {
  await e2b.set({ keepalive_s: 0.3 });
  t.after(() => e2b.set({ keepalive_s: 5 }));
  const sandbox = await create(Sandbox);
  const made = { sandboxId: sandbox.sandboxId, envdAccessToken: (await e2b.sandbox(sandbox.sandboxId)).envdAccessToken };
  await sandbox.runCode('import time');
  const types = (await lines(await execute(e2b, made, 'time.sleep(1)'))).map((line) => line.type);
  assert.ok(types.filter((type) => type === 'keepalive').length >= 2, String(types));
  const odd = await sandbox.runCode(scriptLine({ split: 1 }, { stdout: 'é中😀\n' }, { split: 0 },
    { line: { type: 'new_thing' } }, { raw: '{"type":"stdout","text":"last"}\n' }));
  assert.deepEqual(odd.logs.stdout, ['é中😀\n', 'last']);
  await assert.rejects(sandbox.runCode(scriptLine({ stdout: 'a' }, { close: true })), /terminated/);
  await assert.rejects(sandbox.runCode(scriptLine({ stdout: 'a' }, { reset: true })), /terminated/);
  await assert.rejects(sandbox.runCode(scriptLine({ status: 500, body: 'no' })), /500/);
  const noEnd = await execute(e2b, made, scriptLine({ stdout: 'a' }, { eof: true }));
  assert.deepEqual((await lines(noEnd)).map((line) => line.type), ['stdout']);
  const listed = await execute(e2b, made, `#sandpiper:n1:e30=\n${scriptLine({ file: '/home/user/output/a.txt', text: 'hi' })}`);
  assert.deepEqual((await lines(listed))[0].extra['application/vnd.sandpiper.files+json'].files, [{ path: 'a.txt', size: 2 }]);
  assert.equal(await sandbox.files.read('output/a.txt'), 'hi');
});
