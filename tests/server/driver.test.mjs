// The provider of docker/server beside Twenty's driver (incumbent.mjs) on the same E2B: same callbacks, same final
// object, same snapshots, but for the differences that docker/server/README.md lists.
import assert from 'node:assert/strict';
import test from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { Queue } from 'bullmq';
import { SandpiperClient } from '../../docker/client/index.mjs';
import { RunError, SandpiperDriver, parseSession } from '../../docker/server/dist/driver.js';
import { RunQueue } from '../../docker/server/dist/queue.js';
import { startE2b } from '../lib/e2b.mjs';
import { waitFor, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';
import { IncumbentDriver, runTool } from './incumbent.mjs';
import { LONG } from './lib.mjs';

const redis = await startRedis();

/** The provider on rig `r`. */
function provider(t, r) {
  const client = new SandpiperClient({ connection: r.redis, queueName: r.name });
  t.after(() => client.close());
  const queue = new Queue(r.name, { connection: redis.connection });
  t.after(() => queue.close());
  return { client, driver: new SandpiperDriver(new RunQueue(queue, r.redis, client, 60_000), client) };
}

const chart = `import base64
from IPython.display import display
png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
display({'image/png': base64.b64encode(png).decode()}, raw=True)
`;
const session = 'acme:t1';
const runs = [ // [what, code, files, context, what differs]
  ['one line', 'print("a")'],
  ['nothing printed', 'x = 1'],
  ['stderr beside stdout', 'import sys, time; print("o", flush=True); time.sleep(0.3); sys.stderr.write("e\\n")'],
  ['a text without an end of line', 'print("a", end="")'],
  ['inputs, environment, an output file', 'import os; open("/home/user/output/o.csv","w").write(open("/home/user/i.txt").read() + os.environ["K"])',
    [{ filename: 'i.txt', content: Buffer.from('in '), mimeType: 'text/plain' }], { env: { K: "q'\\\n" } }],
  ['a chart and a file', `${chart}open("/home/user/output/b.bin", "wb").write(bytes(range(256)))`],
  ['two charts', chart + chart],
  ['state of the session', 'print(x)'],
  ['an exception after output', 'print("before"); 1/0'],
  ['an exception with a file', 'open("/home/user/output/kept.txt","w").write("k"); raise ValueError("no good")'],
];

test('beside the incumbent on one E2B: callbacks, final objects, snapshots', async (t) => {
  const e2b = await startE2b({ settings: { warm: 1 } });
  const r = await makeRig(t, redis, { events: false, env: { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env } });
  const { client, driver } = provider(t, r);
  const incumbent = new IncumbentDriver(e2b.env);
  t.after(() => incumbent.close());

  const observe = async (one, code, files, context) => {
    const calls = { stdout: [], stderr: [], files: [] };
    const result = await within(LONG, one.execute(code, files, { sessionId: session, actorKey: 'u:none', ...context }, {
      onStdout: (line) => calls.stdout.push(line), onStderr: (line) => calls.stderr.push(line), onResult: async (file) => calls.files.push(file),
    }), 'a run');
    return { calls, result };
  };
  // Difference 1: a callback's line has no end of line, where the incumbent hands on the chunk with it; its text is joined with "\n" once more.
  const plain = (lines) => lines.join('').replace(/\n$/, '');
  for (const [what, code, files = [], context = {}] of runs) {
    const theirs = await observe(incumbent, code, files, context);
    const ours = await observe(driver, code, files, context);
    for (const stream of ['stdout', 'stderr']) {
      assert.equal(ours.calls[stream].join('\n'), plain(theirs.calls[stream]), `${what}: ${stream} callbacks`);
    }
    assert.deepEqual(ours.calls.files, theirs.calls.files, `${what}: onResult`);
    for (const stream of ['stdout', 'stderr']) {
      assert.equal(theirs.result[stream], theirs.calls[stream].join('\n'));
      theirs.result[stream] = theirs.calls[stream].join('');
    }
    assert.deepEqual(ours.result, theirs.result, `${what}: the final object`);
  }
  // Many chunks: theirs has more ends of line (difference 1), ours what was printed.
  const many = 'import time, sys\nfor i in range(3):\n    print(i); sys.stdout.flush(); time.sleep(0.2)';
  const [theirs, ours] = [await observe(incumbent, many), await observe(driver, many)];
  assert.equal(ours.result.stdout, '0\n1\n2\n');
  assert.deepEqual(ours.calls.stdout, ['0', '1', '2']);
  assert.equal(theirs.calls.stdout.join(''), ours.result.stdout);
  assert.equal(theirs.result.stdout, theirs.calls.stdout.join('\n'));

  // The tool on both drivers, and the client's own reduction of the same reply.
  const strip = ({ executionTimeMs, executionId, ...rest }) => ({
    ...rest, files: rest.files.map(({ filename, mimeType }) => ({ filename, mimeType })), timed: executionTimeMs === undefined || executionTimeMs >= 0,
  });
  const oneEnd = (text) => text.replace(/\n+$/, '\n');
  // A chunk that is only the end of a line (print writes it apart) makes a snapshot of its own, with one end more.
  const settled = (snapshots) => snapshots.map(strip).map((one) => ({ ...one, stdout: oneEnd(one.stdout), stderr: oneEnd(one.stderr) }))
    .filter((one, i, all) => i === 0 || !isDeepStrictEqual(one, all[i - 1]));
  for (const [what, code, files = [], context = {}] of runs) {
    const full = { sessionId: session, actorKey: 'u:none', ...context };
    const [theirs, ours] = [await runTool(incumbent, code, files, full), await runTool(driver, code, files, full)];
    assert.deepEqual(settled(ours), settled(theirs), `${what}: the tool's snapshots`);
    const id = (await r.queue.getJobs(['completed'], 0, 0))[0].id;
    const reduced = [];
    for await (const snapshot of client.snapshots(id, { code, executionId: 'id', everyMs: 0 })) reduced.push(snapshot);
    // Difference 2: `error` is the whole sentence, with the exception's name. Difference 3: charts are behind the other files.
    const final = strip(reduced.at(-1));
    const byName = (snapshot) => ({ ...snapshot, files: [...snapshot.files].sort((a, b) => (a.filename < b.filename ? -1 : 1)) });
    if (final.error !== undefined) assert.ok(final.error.endsWith(theirs.at(-1).error), final.error);
    assert.deepEqual({ ...settled([byName(reduced.at(-1))])[0], error: undefined }, { ...settled([byName(theirs.at(-1))])[0], error: undefined }, `${what}: reduced from the reply`);
    assert.deepEqual([reduced[0].state, reduced[0].stdout], ['pending', '']);
  }
});

test('onResult is awaited, in order, and one that fails hides no other file', async (t) => {
  const r = await makeRig(t, redis, { events: false });
  const { driver } = provider(t, r);
  const log = [];
  const code = script({ file: 'a.txt', content: '1' }, { file: 'b.txt', content: '2' }, { file: 'c.txt', content: '3' }, say('x'));
  const result = await driver.execute(code, [], {}, {
    onResult: async (file) => {
      log.push(`> ${file.filename}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
      log.push(`< ${file.filename}`);
      if (file.filename === 'b.txt') throw new Error('upload failed');
    },
  });
  assert.deepEqual(log, ['a', 'b', 'c'].flatMap((n) => [`> ${n}.txt`, `< ${n}.txt`]));
  assert.deepEqual(result.files.map((f) => f.content.toString()), ['1', '2', '3']);
  assert.deepEqual({ ...result, files: 0 }, { stdout: 'x', stderr: '', exitCode: 0, files: 0 });
});

test('a chart is given when it is shown; a file of the same name loses nothing', async (t) => {
  const r = await makeRig(t, redis, { events: false });
  const { driver } = provider(t, r);
  const png = (n) => Buffer.alloc(n, 7).toString('base64');
  const code = script({ result: { 'image/png': png(30) } }, say('then\n'), { result: { 'image/png': png(100_000) } }, { file: 'chart-0.png', content: 'mine' });
  const log = [];
  const result = await driver.execute(code, [], {}, {
    onStdout: (line) => log.push(line), onResult: (file) => void log.push(`${file.filename} ${file.content.length}`),
  });
  assert.deepEqual(log, ['chart-0.png 30', 'then', 'chart-1.png 100000', 'chart-0-1.png 4']);
  assert.deepEqual(result.files.map((file) => file.filename), ['chart-0.png', 'chart-1.png', 'chart-0-1.png']);
});

test('lines come whole and while the code runs', async (t) => {
  const r = await makeRig(t, redis, { events: false });
  const { driver } = provider(t, r);
  const gate = [];
  const lines = [];
  let release;
  const seen = new Promise((resolve) => { release = resolve; });
  const control = new AbortController();
  const run = driver.execute(script(say('a\nhalf '), wait(100), say('a line\n\n'), say('rest'), { hang: true }), [], { signal: control.signal }, {
    onStdout: (line) => {
      lines.push(line);
      if (lines.length === 3) release();
    },
    onStderr: (line) => gate.push(line),
  });
  await within(LONG, seen, 'three lines while it hangs');
  assert.deepEqual(lines, ['a', 'half a line', '']);
  control.abort();
  const result = await run;
  assert.deepEqual([result.exitCode, lines.at(-1), result.stdout], [130, 'rest', 'a\nhalf a line\n\nrest']);
});

test('how a run that ends badly surfaces', async (t) => {
  const r = await makeRig(t, redis, { events: false });
  const { driver } = provider(t, r);
  const timeout = await driver.execute(script(say('partial'), { file: 'f', content: 'x' }, { hang: true }), [], { timeoutMs: 300 });
  assert.deepEqual([timeout.exitCode, timeout.stdout, timeout.files.length, /time/i.test(timeout.error)], [124, 'partial', 1, true], timeout.error);
  const raised = await driver.execute(script(raise('ValueError', 'bad')));
  assert.deepEqual([raised.exitCode, raised.error], [1, 'bad']);
  const killed = await driver.execute(script(say('x'), { die: 9 }));
  assert.deepEqual([killed.exitCode, killed.stdout], [137, 'x']);
  assert.ok(killed.error);
  await assert.rejects(driver.execute(script(fail('no_sandbox', 9))), (error) => error instanceof RunError && error.reason === 'no_sandbox');
  const aborted = new AbortController();
  aborted.abort();
  await assert.rejects(driver.execute('x', [], { signal: aborted.signal }), { name: 'AbortError' });
  const thrown = driver.execute(script(say('x\n'), { hang: true }), [], { sessionId: 'w:t' }, { onStdout: () => { throw new Error('mine'); } });
  await assert.rejects(thrown, /mine/);
  await waitFor(async () => (await r.queue.getActiveCount()) === 0, { timeout: LONG, what: 'the run nobody waits for is cancelled' });
  assert.equal((await driver.execute(script(say('next')), [], { sessionId: 'w:t' })).stdout, 'next');
});

test('switched off: the incumbent\'s words, thrown', async (t) => {
  const r = await makeRig(t, redis, { events: false, env: { CODE_INTERPRETER_TYPE: 'DISABLED' } });
  const { driver } = provider(t, r);
  await assert.rejects(driver.execute('1'),
    { message: 'Code interpreter is disabled. Set CODE_INTERPRETER_TYPE to LOCAL (development only) or E2B to enable it.' });
});

test('sessions: order, actor, release; tokens are in no job', async (t) => {
  const r = await makeRig(t, redis, { events: false });
  const { driver } = provider(t, r);
  const state = script({ state: 'n' });
  const run = (more = {}) => driver.execute(state, [], { sessionId: 'w:t', actorKey: 'a:none', ...more }).then((x) => x.stdout.trim());
  assert.deepEqual(await Promise.all([run(), run(), run()]), ['1', '2', '3']);
  const job = (await r.queue.getJobs(['completed']))[0];
  assert.deepEqual([job.data.workspaceId, job.data.threadId, job.data.actorKey], ['w', 't', 'a:none']);
  await driver.releaseSession('w:t');
  assert.equal(await run(), '1', 'a fresh sandbox');
  assert.equal(await driver.sweepExpiredSessions(1), 0);
  const canary = 't0k3n-of-a-user';
  await driver.execute(script(say('x')), [], { env: { TWENTY_API_TOKEN: canary } });
  for (const key of await r.redis.keys('*')) {
    if ((await r.redis.type(key)) === 'hash') assert.doesNotMatch(JSON.stringify(await r.redis.hgetall(key)), new RegExp(canary), key);
    if ((await r.redis.type(key)) === 'stream') assert.doesNotMatch(JSON.stringify(await r.redis.xrange(key, '-', '+')), new RegExp(canary), key);
  }
  assert.deepEqual(parseSession('w:t:u'), { workspaceId: 'w', threadId: 't:u' });
  assert.deepEqual(parseSession('t'), { workspaceId: '', threadId: 't' });
});
