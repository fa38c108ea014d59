// Runs the test build under valgrind through 100 jobs of every outcome, a few under DISABLED, and a drain with a run
// still going. Any invalid access, use of unset memory or memory definitely lost fails it. The last line is the
// verdict.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { once } from 'node:events';

process.env.TEST_SLOW ??= '10';
process.env.WORKER_BIN ??= 'build/test/sandpiper';
process.env.WORKER_WRAPPER ??= 'valgrind --quiet --leak-check=full --show-leak-kinds=definite '
  + '--errors-for-leak-kinds=definite --error-exitcode=99 --track-fds=no';
const { cleanUp, waitFor } = await import('./lib/process.mjs');
const { startRedis } = await import('./lib/redis.mjs');
const { makeRig } = await import('./lib/rig.mjs');
const { fail, raise, say, wait } = await import('./lib/scripted.mjs');

const slow = Number(process.env.TEST_SLOW);
const afterwards = [];
const redis = await startRedis();
const web = await startWeb();
const r = await makeRig({ after: (fn) => afterwards.push(fn) }, redis, {
  replicas: 0,
  env: {
    CODE_INTERPRETER_TYPE: '', NODE_ENV: 'test', URL_ALLOW: '127.0.0.1:*', DRAIN_TIMEOUT_MS: '500', WORKER_CONCURRENCY: '8',
    LOCK_DURATION_MS: '60000', LOCK_RENEW_MS: '2000', STALLED_INTERVAL_MS: '3000', REPLY_MAX_BYTES: '200000',
    REPLY_HEARTBEAT_MS: '1000', LOG_LEVEL: 'debug',
  },
});
const runtime = (...fields) => r.redis.hset(`${r.P}settings:runtime`, ...fields);

/** A place to fetch from and to upload to. */
async function startWeb() {
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      response.statusCode = request.url.startsWith('/refuse') ? 403 : 200;
      response.end('bytes of the web');
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}

const files = [{ file: 'a.txt', content: 'x'.repeat(5000) }, { file: 'd/b.bin', base64: Buffer.alloc(300_000, 7).toString('base64') }];
const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const deep = JSON.parse('['.repeat(150) + ']'.repeat(150));

// kind -> [steps, data, options, reason of the end]
const kinds = {
  ok: [[say('hello\n'), { stderr: 'oh\n' }, { state: 'n' }], { threadId: 't', workspaceId: 'w' }, {}, 'ok'],
  thread: [[{ state: 'n' }, wait(20), say('é😀')], { threadId: 't' }, { priority: 3 }, 'ok'],
  error: [[say('before'), raise()], { threadId: 't2', actorKey: 'a' }, {}, 'code_error'],
  exit: [[{ exit: 3 }], { env: { A: "it's" } }, { lifo: true }, 'code_error'],
  timeout: [[say('x'), { hang: true }], { timeoutMs: 100 }, {}, 'timeout'],
  resist: [[{ resist: true }, { hang: true }], { timeoutMs: 100, threadId: 't3' }, {}, 'timeout'],
  died: [[say('x'), { die: 11 }], { threadId: 't' }, {}, 'kernel_died'],
  oom: [[{ oom: true }], {}, {}, 'oom'],
  lost: [[say('x'), { lost: true }], {}, {}, 'sandbox_lost'],
  unknown: [[{ unknown: true }], {}, {}, 'outcome_unknown'],
  retried: [[fail('no_sandbox', 1), say('second')], { threadId: 't' }, { attempts: 3, backoff: 50 }, 'ok'],
  'retried at once': [[fail('driver_error', 1), say('second')], {}, { attempts: 2 }, 'ok'],
  exhausted: [[fail('no_capacity')], {}, { attempts: 2, backoff: { type: 'exponential', delay: 20, jitter: 0.5 } }, 'no_capacity'],
  flood: [[say('0123456789'.repeat(40), 2000)], {}, {}, 'ok'],
  results: [[{ result: { 'text/plain': '1', 'image/png': png, 'text/html': 'x'.repeat(200_000), 'application/json': deep }, main: true }], {}, {}, 'ok'],
  files: [files, { threadId: 't4' }, {}, 'ok'],
  inline: [files, { output: { inline: true } }, {}, 'ok'],
  upload: [files, { output: { upload: { url: `${web}/{jobId}/{filename}`, headers: { 'X-A': '1' } } } }, {}, 'ok'],
  form: [files, { output: { upload: { url: `${web}/f`, method: 'POST', fields: { k: 'v' } } } }, {}, 'ok'],
  refused: [files, { output: { upload: { url: `${web}/refuse` } } }, {}, 'ok'],
  inputs: [[say('x')], { files: [{ filename: 'i.txt', content: 'QUJD' }, { filename: 'u/w.txt', url: `${web}/w` }], secretsKey: `${r.P}secret:s` }, {}, 'ok'],
  'no input': [[say('x')], { files: [{ filename: 'i.txt', key: `${r.P}file:none` }] }, {}, null],
  silent: [[say('x'), wait(1200)], { reply: false }, { removeOnComplete: true }, 'ok'],
  heartbeat: [[wait(1200), say('x')], {}, { removeOnComplete: { count: 5 } }, 'ok'],
  expired: [[say('x')], { startBy: 1 }, { removeOnFail: { age: 100 } }, 'expired'],
  'bad job': [[say('x')], { threadId: 7 }, {}, 'bad_job'],
  'no code': [7, {}, {}, 'bad_job'],
  'bad file': [[say('x')], { files: [{ filename: '../x', content: '' }] }, {}, 'bad_job'],
};

/** One of each kind until there are `count`; waits for all ends and checks their reasons. */
async function runKinds(count) {
  const names = Object.keys(kinds);
  const jobs = [];
  for (let i = 0; i < count; i++) {
    const kind = names[i % names.length];
    const [steps, given, opts] = kinds[kind];
    const data = given.secretsKey ? { ...given, secretsKey: given.secretsKey + i } : given; // it goes with its job
    if (data.secretsKey) await r.redis.hset(data.secretsKey, 'TOKEN', 's3cret');
    jobs.push([kind, await r.add(steps, data, opts)]);
  }
  for (const [kind, job] of jobs) await checkEnd(kind, job, kinds[kind]);
}

async function checkEnd(kind, job, [, data, , reason]) {
  try {
    const result = await job.waitUntilFinished(r.events, 30_000 * slow);
    assert.equal(result.reason, reason ?? result.reason, kind);
  } catch (error) {
    assert.doesNotMatch(error.message, /timed out before finishing/, `a job "${kind}" did not end`);
    if (error.code === 'ERR_ASSERTION') throw error;
  }
  if (data.reply === false) return;
  const done = (await r.reply(job)).at(-1);
  assert.equal(done.reason, reason ?? done.reason, `${kind}: ${JSON.stringify(done).slice(0, 300)}`);
}

/** Jobs that are none, stream entries, releases, names that nobody knows. */
async function runOdd() {
  const odd = [
    await r.queue.add('release', { threadId: 't' }), await r.queue.add('release', { threadId: 'nobody', force: true }),
    await r.queue.add('nonsense', { code: '' }), await r.queue.add('execute', { code: 'x' }, { jobId: 'logs' }),
    await r.queue.add('execute', 'text'), await r.queue.add('execute', { code: '', pad: 'x'.repeat(1_100_000) }),
  ];
  await r.redis.xadd(`${r.P}stream:jobs`, '*', 'data', '{"code":"{\\"stdout\\":\\"x\\"}"}', 'id', 'from-stream');
  for (const bad of [['data', '{'], ['id', 'wait', 'data', '1'], ['nothing', '']]) {
    await r.redis.xadd(`${r.P}stream:jobs`, '*', ...bad);
  }
  for (const job of odd) await job.waitUntilFinished(r.events, 30_000 * slow).catch(() => {});
  for (const job of odd) assert.match(await r.state(job), /completed|failed/, job.name);
  await waitFor(async () => (await r.redis.xlen(`${r.P}stream:dead`)) === 3, { what: 'dead letters', timeout: 5000 * slow });
  await waitFor(async () => (await r.queue.getJobState('from-stream')) === 'completed', { what: 'the entry ran', timeout: 5000 * slow });
  return odd.length + 1;
}

async function runDisabled() {
  await runtime('CODE_INTERPRETER_TYPE', 'DISABLED');
  for (let i = 0; i < 3; i++) await r.failure(await r.add([say('x')]), 20_000);
  await runtime('CODE_INTERPRETER_TYPE', 'SCRIPTED');
}

const fatal = (error) => {
  if (afterwards.length) report(error);
};
function report(error) {
  console.log(error.stack);
  for (const w of r.workers) console.log(w.lines.filter((line) => /^==\d+==|"level":"(warn|error)"/.test(line)).slice(-200).join('\n'));
  console.log('valgrind: FAILED');
  process.exit(1);
}

try {
  const begun = Date.now();
  await runtime('CODE_INTERPRETER_TYPE', 'SCRIPTED', 'CODE_INTERPRETER_TIMEOUT_MS', '60000');
  const worker = r.startWorker();
  worker.exited.then(() => fatal(new Error('the worker ended')));
  const odd = await runOdd();
  await runDisabled();
  await runKinds(100 - odd - 3 - 1);
  const job = await r.add([say('last'), { hang: true }], { threadId: 't' });
  await waitFor(async () => (await r.replyNow(job)).some((m) => m.type === 'stdout'), { what: 'the last run goes', timeout: 5000 * slow });
  for (const fn of afterwards.splice(0)) await fn(); // SIGTERM; the exit code tells of errors
  assert.equal(worker.exit.code, 0);
  assert.ok(!worker.lines.some((line) => /^==\d+==/.test(line)), worker.lines.filter((line) => /^==/.test(line)).join('\n'));
  console.log(`valgrind: ok (100 jobs) in ${((Date.now() - begun) / 1000).toFixed(1)} s`);
} catch (error) {
  report(error);
} finally {
  await cleanUp();
  process.exit();
}
