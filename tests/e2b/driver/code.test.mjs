// What code prints, shows and raises (cases.md, kind A), and what its env leaves behind (kind F).
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { e2b, ok, rig, scriptLine } from './lib.mjs';

const strip = (text) => (text ?? '').replace(/\x1b\[[0-9;]*m/g, '');
const normal = (text) => strip(text).replace(/In ?\[\d+\]/g, 'In[N]').replace(/0x[0-9a-f]+/g, '0x').replace(/\d{6,}\.py/g, 'N.py');

/** Output and results in the order in which they came, however it was cut. */
const order = (items) => {
  const merged = [];
  for (const [type, text] of items) {
    if (type === 'stdout' && merged.at(-1)?.[0] === type) merged.at(-1)[1] += text;
    else if (type === 'stdout' || type === 'result') merged.push([type, text]);
  }
  return merged;
};

/** The cell sent alone to a sandbox of its own, as the official client would. */
async function plain(box, code) {
  const response = await fetch(`${e2b.sandboxUrl}/execute`, {
    method: 'POST', body: JSON.stringify({ code }),
    headers: {
      'Content-Type': 'application/json', 'X-Access-Token': box.envdAccessToken ?? '',
      'E2b-Sandbox-Id': box.sandboxID, 'E2b-Sandbox-Port': '49999',
    },
  });
  const lines = (await response.text()).split('\n').filter(Boolean).map((line) => JSON.parse(line));
  const text = (type) => lines.filter((l) => l.type === type).map((l) => l.text).join('');
  const error = lines.find((l) => l.type === 'error');
  return {
    stdout: text('stdout'), stderr: text('stderr'),
    order: order(lines.map((l) => [l.type, l.type === 'result' ? l.text ?? l.html : l.text])),
    results: lines.filter((l) => l.type === 'result').map((l) => [l.text ?? null, l.html ?? null, l.is_main_result]),
    error: error && [error.name, normal(error.value), normal(error.traceback)],
  };
}

const cells = {
  'future import': 'from __future__ import annotations\ndef f(x: Nope): return 1\nprint(f(2))',
  '%%bash': '%%bash\necho hi; echo err >&2',
  '%%time of nothing': '%%capture out\nprint("hidden")',
  'top-level await': 'import asyncio\nasync def m():\n    await asyncio.sleep(0)\n    return 5\nprint(await m())',
  'exception with its line': 'a = 1\n\n\nraise ValueError(a)',
  'docstring first': '"""doc"""\n1/0',
  'nested exception': 'def f():\n    return {}["x"]\ntry:\n    f()\nexcept KeyError as e:\n    raise RuntimeError("outer") from e',
  'syntax error': 'x = (1,\nprint("never"',
  'indentation error': 'if True:\nprint(1)',
  'display order': 'from IPython.display import display, HTML\ndisplay("a")\nprint("b")\ndisplay(HTML("<b>c</b>"))\n"main"',
  'shell line': '!echo from-shell\n!exit 0',
  'indented first line': '    x = 3\n    print(x)',
  'empty': '',
  'only a comment': '# nothing',
  'trailing semicolon': '1 + 1;',
  'str and tuple': '("a", "b")',
  'assert': 'assert False, "no"',
  'two figures of text': 'print("a", end="")\nprint("b")\n7',
  'magic line': '%precision 3\n3.14159',
  'question mark': 'x = 5\nx',
  'crlf': 'print(1)\r\nprint(2)',
  'form feed and tabs': 'if 1:\n\tprint("tab")\n',
  'no newline at end, unicode': 'print("naïve → 東京 😀")',
  'sys.exit': 'import sys\nprint("before")\nsys.exit(3)',
  'sys.exit with a text': 'import sys\nsys.exit("bad input")',
  'sys.exit of nothing': 'import sys\nsys.exit()',
  '%%time': '%%time\nsum(range(10))',
  'a name that begins as a keyword': 'await_me = 1\n\n\nraise ValueError(1)',
  'results between lines': 'from IPython.display import display\nfor i in range(3):\n    print("n", i)\n    display(i)\nprint("end")\n"main"',
  'a warning': 'import warnings\nwarnings.warn("careful")',
  'a chain of causes': 'try:\n    try: {}["x"]\n    except KeyError as e: raise ValueError("v") from e\nexcept ValueError:\n    1/0',
  'no such magic': '%no_such_magic',
  'no such cell magic': '%%no_such_magic\nx',
  'raise KeyboardInterrupt': 'raise KeyboardInterrupt',
  'help': 'len?',
  'a cell within': 'get_ipython().run_cell("1/0");',
  'builtins shadowed': 'open = print = str = None\n',
  'and given back': 'del open, print, str\nprint(open.__name__)',
};

const exits = { 'sys.exit': 3, 'sys.exit with a text': 1, 'sys.exit of nothing': 0 };
test('a prepared kernel gives what the plain cell gives', async (t) => {
  const r = await rig(t);
  const box = await (await fetch(`${e2b.apiUrl}/sandboxes`, {
    method: 'POST', headers: { 'X-API-KEY': e2b.env.E2B_API_KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify({ templateID: 'code-interpreter-v1', timeout: 600, secure: true }),
  })).json();
  for (const [name, code] of Object.entries(cells)) {
    await t.test(name, async () => {
      const want = await plain(box, code);
      const job = await r.add(code, { threadId: 'main', env: { V: 'v' } }); // case 36
      const result = await r.result(job);
      const got = {
        stdout: result.stdout, stderr: result.stderr,
        order: order((await r.reply(job)).map((m) => [m.type, m.type === 'result' ? m.data['text/plain'] ?? m.data['text/html'] : m.text])),
        results: result.results.map((x) => [x.data['text/plain'] ?? null, x.data['text/html'] ?? null, x.main]),
        error: result.errorDetail ? [result.errorDetail.name, normal(result.errorDetail.value), normal(result.errorDetail.traceback)] : undefined,
      };
      if (exits[name] !== undefined) { // the plain cell adds a warning that misleads: there is nothing to exit
        assert.match(want.stderr, /^$|UserWarning: To exit: use/);
        assert.equal(result.exitCode, exits[name]);
        want.stderr = '';
        if (result.exitCode === 0) { // leaving is no failure
          assert.equal(want.error[0], 'SystemExit');
          want.error = undefined;
        }
      }
      if (name.startsWith('no such')) { // the plain cell says it on stderr only
        assert.deepEqual([want.error, got.error?.[0], result.exitCode], [undefined, 'UsageError', 1]);
        got.error = undefined;
      }
      for (const side of [want, got]) {
        side.stderr = normal(side.stderr);
        if (name !== '%%time') continue;
        assert.match(side.stdout, /^CPU times: .*\nWall time: .*\n$/s);
        side.order[0][1] = side.stdout = 'times';
      }
      assert.deepEqual(got, want);
    });
  }
});

test('env: any byte is safe, in no source, no history, and gone after the run', async (t) => {
  const r = await rig(t);
  const canary = 'c4n4ry-v4lu3';
  const env = {
    A: "it's", B: 'a"b', C: 'x\\ny', D: `line1\nimport os; os.system("touch /tmp/pwned")`, E: "'; import os; x='",
    F: '$(id) `id`', G: '日本😀', H: '', I: 'x'.repeat(100_000), K: '"""', L: 'trailing\\', TOKEN: canary,
  };
  const names = Object.keys(env);
  const job = await r.add(`import os, json; print(json.dumps({k: os.environ.get(k) for k in ${JSON.stringify(names)}}))`,
    { threadId: 'main', env });
  const { stdout } = ok(await r.result(job));
  const whole = (await r.gathered(job)).stdout ?? stdout;
  const back = JSON.parse(whole);
  for (const name of names) assert.equal(back[name], env[name], name);
  const traces = ok(await r.py(`
import os, json, glob, sqlite3
get_ipython().run_line_magic("history", "-g")
h = get_ipython().history_manager
h.writeout_cache()
rows = sqlite3.connect(h.hist_file).execute("select source, source_raw from history").fetchall()
print(repr(rows)); print(In); print(_i1, _i, _ii); print(repr(h.input_hist_raw)); print(dict(os.environ))
print(repr(vars(get_ipython().kernel))[:100000])`));
  const said = traces.stdout + traces.stderr + JSON.stringify(traces);
  assert.ok(!said.includes(canary), 'the value is found');
  assert.doesNotMatch(said, /#sandpiper:[0-9a-f]{8}-/, 'a settings line is found');
  for (const entry of await e2b.journal({ op: 'execute' })) assert.ok(!entry.envVars, 'env_vars is not used');
  const failing = await r.py('1/0', { env: { TOKEN: canary } });
  assert.ok(!JSON.stringify(failing).includes(canary));
  assert.equal(failing.errorDetail.name, 'ZeroDivisionError');
  for (const worker of r.workers) assert.ok(!worker.lines.some((line) => line.includes(canary)), 'the log holds the value');
});

const others = { bash: ['printf "%s|%s" "$MY_VAR" "$state"', 'state=kept', 'printf "%s|%s" "${MY_VAR-gone}" "$state"'] };
if (existsSync('/usr/bin/node')) {
  for (const language of ['javascript', 'typescript', 'js', 'ts']) {
    others[language] = ['process.stdout.write(process.env.MY_VAR + "|" + globalThis.state)', 'globalThis.state = "kept"',
      'process.stdout.write(("MY_VAR" in process.env ? process.env.MY_VAR : "gone") + "|" + globalThis.state)'];
  }
}
for (const [language, [show, keep, after]] of Object.entries(others)) {
  test(`cases 133 and 135: env in ${language}: any byte is safe, it is there for one run, state stays`, async (t) => {
    const r = await rig(t);
    const run = async (code, data) => ok(await r.py(code, { language, ...data })).stdout;
    await run(keep);
    for (const value of ["it's", 'a"b', 'x\\ny', 'line1\nimport os; touch /tmp/pwned', "'; import os; x='", '$(id) `id` ${HOME} !!', '日本😀', '', '"""',
      'trailing\\', '\t\r\x01\x7f', '</script>\u2028', 'x'.repeat(100_000)]) {
      const result = await r.py(show, { language, env: { MY_VAR: value } });
      assert.equal(ok(result).stdout.length > 0 && result.truncated.stdout === 0 ? result.stdout : `${value}|kept`, `${value}|kept`);
    }
    assert.equal(await run(after), 'gone|kept');
    const failed = await r.py(`${show}; throw_it_away_`, { language, env: { MY_VAR: 'v' } });
    assert.equal(failed.reason, 'code_error');
    assert.equal(await run(after), 'gone|kept');
  });
}

test('a language that nobody knows fails the job and says so', async (t) => {
  const r = await rig(t);
  assert.match(await r.failure(await r.add('1', { threadId: 'main', language: 'klingon' })), /language/);
});

const lines = (...steps) => scriptLine(...steps);

test('odd streams are read byte for byte', async (t) => {
  const r = await rig(t);
  const split = await r.py(lines({ split: 1 }, { raw: '{"type":"stdout","text":"é中😀\\n"}\n' }, { raw: '{"type":"stdout","text":"\\u00e9\\u4e2d\\ud83d\\ude00\\n"}\n' }));
  assert.equal(ok(split).stdout, 'é中😀\né中😀\n');
  const chunks = await r.py(lines({ stdout: 'a' }, { stdout: 'b\n\nc\n' }, { stdout: 'd' }));
  assert.equal(ok(chunks).stdout, 'ab\n\nc\nd');
  const lone = ok(await r.py(lines({ raw: '{"type":"stdout","text":"\\ud83d"}\n{"type":"stdout","text":"\\ud83d\\ude00"}\n' })));
  assert.equal(lone.stdout, '\ufffd😀');
  const kinds = ok(await r.py(lines(
    { raw: '{"type":"keepalive"}\r\n\n{"type":"number_of_executions","execution_count":5}\n{"type":"new_thing","x":1}\n' },
    { stdout: 'ok' }, { raw: '{"type":"end_of_execution"}' }, { eof: true })));
  assert.equal(kinds.stdout, 'ok');
  const nan = ok(await r.py(lines({ raw: '{"type":"result","is_main_result":false,"text":"x","json":{"a":NaN,"b":-Infinity},"data":{"x":[NaN,1]},"extra":{}}\n' }, { raw: 'no json at all\n' }, { stdout: 'after' })));
  assert.equal(nan.stdout, 'after');
  assert.equal(nan.results[0].data['text/plain'], 'x');
  assert.ok(nan.warnings.some((w) => /could not be read/.test(w)));
  const odd = ok(await r.py(lines(
    { line: { type: 'result', json: [1, 2], text: null, extra: { 'application/vnd.plotly.v1+json': { data: [] }, 'application/geo+json': 'x' }, is_main_result: false } },
    { line: { type: 'result', json: 's', data: { 1: [null] }, chart: {}, extra: {} } },
    { line: { type: 'result', png: 'iVBORw0KGgo=', chart: { type: 'bar', elements: null } } })));
  assert.deepEqual(odd.results[0].data['application/json'], [1, 2]);
  assert.deepEqual(odd.results[0].data['application/vnd.plotly.v1+json'], { data: [] });
  assert.equal(odd.results[0].data['application/geo+json'], 'x');
  assert.equal(odd.results[1].data['application/json'], 's');
  assert.ok(odd.results[2].data['image/png']);
});

test('every format keeps its MIME type', async (t) => {
  const r = await rig(t);
  const all = { text: 't', html: '<b>', markdown: '*m*', svg: '<svg/>', png: 'iVBORw0KGgo=', jpeg: '/9j/', pdf: 'JVBERi0=', latex: '$x$', json: { a: 1 }, javascript: '1', data: { c: [1] }, chart: { type: 'line' } };
  const steps = Object.entries(all).map(([name, value]) => ({ line: { type: 'result', [name]: value, extra: {}, is_main_result: false } }));
  const result = ok(await r.py(lines(...steps, { line: { type: 'result', ...all, extra: {}, is_main_result: true } })));
  const mimes = ['text/plain', 'text/html', 'text/markdown', 'image/svg+xml', 'image/png', 'image/jpeg', 'application/pdf', 'text/latex', 'application/json', 'application/javascript', 'e2b/data', 'e2b/chart'];
  assert.deepEqual(result.results.slice(0, 12).map((x) => Object.keys(x.data)[0]), mimes);
  assert.deepEqual(Object.keys(result.results[12].data).sort(), [...mimes].sort());
  assert.ok(result.results[12].main && !result.results[0].main);
});

test('errors: the first is told once, output after it is kept, escapes are gone', async (t) => {
  const r = await rig(t);
  const error = { type: 'error', name: 'ZeroDivisionError', value: 'division by zero', traceback: '\u001b[0;31mZeroDivisionError\u001b[0m: no' };
  const result = await r.py(lines({ line: error }, { line: error }, { stdout: 'after\n' }));
  assert.deepEqual([result.state, result.reason, result.exitCode, result.stdout], ['error', 'code_error', 1, 'after\n']);
  assert.deepEqual(result.errorDetail, { name: 'ZeroDivisionError', value: 'division by zero', traceback: 'ZeroDivisionError: no' });
  for (const [code, exit, state] of [['import sys; sys.exit(0)', 0, 'completed'], ['raise SystemExit(3)', 3, 'error'], ['import sys; sys.exit("bad input")', 1, 'error'], ['exit()', 0, 'completed']]) {
    const run = await r.py(code);
    assert.deepEqual([run.exitCode, run.state], [exit, state], code);
  }
  assert.match(JSON.stringify((await r.py('import sys; sys.exit("bad input")')).errorDetail), /bad input/);
});

test('input() fails fast', async (t) => {
  const r = await rig(t);
  const begun = Date.now();
  const result = await r.py('name = input("Your name? ")');
  assert.equal(result.state, 'error');
  assert.ok(Date.now() - begun < 30_000);
});

test('a line beyond the limit is left out, and reading goes on behind it', async (t) => {
  const r = await rig(t, { env: { E2B_LINE_MAX_BYTES: String(4 << 20), RESULT_MAX_BYTES: '65536' } });
  const big = (n) => [{ raw: '{"type":"result","is_main_result":false,"extra":{},"html":"' }, { split: 16384 }, { fill: n }, { split: 0 }, { raw: '"}\n' }];
  const result = ok(await r.py(lines(...big(1 << 20), ...big(8 << 20), { stdout: 'behind\n' }), {}, 60_000));
  assert.equal(result.stdout, 'behind\n');
  assert.equal(result.results.length, 1);
  assert.ok(result.warnings.some((w) => /8388\d+ bytes was left out/.test(w)), JSON.stringify(result.warnings));
});

test('case 9: lines of 1, 8 and 64 MB in small pieces: the first two whole, the last left out and told, in linear time and bounded memory', async (t) => {
  const r = await rig(t); // E2B_LINE_MAX_BYTES as it is: 32 MiB
  const lineOf = (key, n) => [{ raw: `{"type":"result","is_main_result":false,"extra":{},"${key}":"` }, { split: 16384 }, { fill: n, with: 'A' }, { split: 0 }, { raw: '"}\n' }];
  const usage = () => {
    const of = (file) => readFileSync(`/proc/${r.worker.pid}/${file}`, 'utf8');
    const ticks = of('stat').replace(/^.*\) /, '').split(' ');
    return { peak: Number(/VmHWM:\s+(\d+)/.exec(of('status'))[1]) / 1024, cpu: (Number(ticks[11]) + Number(ticks[12])) / 100 };
  };
  ok(await r.py('1'));
  const before = usage();
  const code = lines(...lineOf('html', 1 << 20), ...lineOf('png', 8 << 20), ...lineOf('png', 64 << 20), ...lineOf('html', 64 << 20), { stdout: 'behind\n' });
  const job = await r.add(code, { threadId: 'main' });
  const result = ok(await r.result(job, 120_000));
  const after = usage();
  assert.deepEqual([result.stdout, result.exitCode, result.results.length], ['behind\n', 0, 2]);
  assert.equal(result.warnings.filter((w) => /671089\d\d bytes was left out/.test(w)).length, 2, JSON.stringify(result.warnings));
  assert.equal(ok(await r.py('print(2)')).stdout, '2\n');
  const shown = (await r.reply(job)).filter((m) => m.type === 'result').map((m) => Object.entries(m.refs).map(([type, value]) => [type, value.size]));
  assert.deepEqual(shown, [[['text/html', 1 << 20]], [['image/png', 6 << 20]]], 'whole'); // bytes, not base64
  if (process.env.WORKER_WRAPPER || /san/.test(process.env.WORKER_BIN ?? '')) return;
  assert.ok(after.peak - before.peak < 160, `grew by ${after.peak - before.peak} MiB`);
  assert.ok(after.cpu - before.cpu < 4, `${after.cpu - before.cpu} s of CPU`);
});

test('hundreds of MB of output cost no memory', async (t) => {
  const r = await rig(t);
  const { readFileSync } = await import('node:fs');
  const rss = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${r.worker.pid}/status`, 'utf8'))[1]) / 1024;
  ok(await r.py('1'));
  const before = rss();
  const line = { repeat: 3000, steps: [{ raw: '{"type":"stdout","text":"' }, { fill: 65536 }, { raw: '"}\n' }] };
  const result = ok(await r.py(lines(line), {}, 90_000));
  assert.ok(result.truncated.stdout > 190e6);
  if (!process.env.WORKER_WRAPPER && !/san/.test(process.env.WORKER_BIN ?? '')) assert.ok(rss() - before < 64, `grew by ${rss() - before} MiB`);
});

test('nothing secret is in logs, replies, hashes or error texts', async (t) => {
  const r = await rig(t, { env: { E2B_REQUEST_TIMEOUT_MS: '2000' } });
  ok(await r.py('x = 1', { env: { PLANTED: 'pl4nt3d-v4lu3' } }));
  await e2b.fault({ match: { plane: 'control' }, status: 401, body: { code: 401, message: `Invalid API key ${e2b.env.E2B_API_KEY}` }, times: 0 });
  const reason = await r.failure(await r.add('1', { threadId: 'second', env: { PLANTED: 'pl4nt3d-v4lu3' } }));
  assert.match(reason, /E2B_API_KEY/);
  await e2b.clearFaults();
  const boxes = await e2b.sandboxes();
  const secrets = [e2b.env.E2B_API_KEY, 'pl4nt3d-v4lu3'];
  for (const box of boxes) for (const value of Object.values(await e2b.sandbox(box.id)))
    if (typeof value === 'string' && /^[0-9a-f]{64}$/.test(value)) secrets.push(value);
  assert.equal(secrets.length, 2 + 2 * boxes.length, 'both tokens of each are known');
  const tokens = secrets.filter((s) => !/pl4nt3d/.test(s)).join(' ');
  await e2b.fault({ match: { op: 'execute' }, status: 500, body: `no: ${tokens}`, times: 1 });
  const echoed = await r.py('1');
  assert.match(echoed.error, /\*\*\*/);
  await e2b.fault({ match: { op: 'files.write' }, status: 400, body: { code: 400, message: `no: ${tokens}` }, times: 1 });
  assert.match(await r.failure(await r.add('1', { threadId: 'main', files: [{ filename: 'x', content: 'eA==' }] })), /\*\*\*/);
  const dump = [];
  for (const key of await r.redis.keys(`${r.P}*`)) {
    const type = await r.redis.type(key);
    if (type === 'hash') dump.push(JSON.stringify(await r.redis.hgetall(key)).replaceAll('"PLANTED\\\\":\\\\"pl4nt3d-v4lu3', ''));
    if (type === 'stream') dump.push(JSON.stringify(await r.redis.xrange(key, '-', '+')));
    if (type === 'string') dump.push(await r.redis.get(key));
  }
  const jobData = /\{[^{}]*\\"env\\":\{[^{}]*\}[^{}]*\}/g; // what the client itself put into the job
  const all = r.workers.flatMap((w) => w.lines).join('\n') + dump.join('\n').replace(jobData, '');
  for (const secret of secrets) assert.ok(!all.includes(secret), `found ${secret.slice(0, 6)}... in ${all.slice(Math.max(0, all.indexOf(secret) - 200), all.indexOf(secret) + 20)}`);
});
