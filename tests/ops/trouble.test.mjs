// What goes wrong around a replica: each is said in one line that names the setting, and heals by itself.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { Redis } from 'ioredis';
import { startE2b } from '../lib/e2b.mjs';
import { start, waitFor } from '../lib/process.mjs';
import { redisServer, startRedis } from '../lib/redis.mjs';
import { makeRig, startWorker, workerBin, workerEnv } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';
import { get, logOf, metricsOf, patient, portOf, troubles } from './lib.mjs';

const becomes = (what, check) => waitFor(check, { timeout: patient, what });
const redis = await startRedis();

test('a wrong Redis password: one line that names the setting; with the right one jobs run', async (t) => {
  for (const name of ['REDIS_URL', 'REDIS_QUEUE_URL']) {
    const r = await makeRig(t, redis, { replicas: 0 });
    const user = `u${name.length}`;
    await r.redis.call('ACL', 'SETUSER', user, 'on', '>c4nary-right', '~*', '&*', '+@all');
    const url = `redis://${user}:c4nary-wrong@127.0.0.1:${redis.port}`;
    const worker = r.startWorker({ LOG_LEVEL: 'info', STATUS_PORT: '-1', [name]: url });
    const port = await portOf(worker);
    const job = await r.add([say('ran')]);
    await becomes('it is said', () => troubles(worker).length > 0);
    await becomes('all its connections have tried', async () =>
      Number(/acl_access_denied_auth:(\d+)|rejected_connections/.exec(await r.redis.info('stats'))?.[1] ?? 99) >= 8);
    const said = troubles(worker);
    assert.equal(said.length, 1, JSON.stringify(said));
    assert.match(said[0].msg, new RegExp(`, ${name}: the server refused the user or password \\(WRONGPASS`));
    assert.equal((await get(port, '/readyz')).status, 503);
    await r.redis.call('ACL', 'SETUSER', user, 'resetpass', '>c4nary-wrong');
    assert.equal((await r.result(job, patient)).stdout, 'ran');
    assert.equal((await get(port, '/readyz')).status, 200);
    assert.ok(!worker.lines.some((line) => /c4nary/.test(line)));
  }
});

test('a Redis user without a right: one line that names the setting; runs go on, and end when the right is there', async (t) => {
  for (const name of ['REDIS_URL', 'REDIS_QUEUE_URL']) {
    const r = await makeRig(t, redis, { replicas: 0 });
    const user = `right${name.length}`;
    const may = (...rules) => r.redis.call('ACL', 'SETUSER', user, 'on', '>c4nary', '~*', '&*', ...rules);
    await may('+@all', '-evalsha', '-eval');
    const worker = r.startWorker({ LOG_LEVEL: 'debug', [name]: `redis://${user}:c4nary@127.0.0.1:${redis.port}` });
    const waiting = await r.add([say('waited')]);
    await becomes('it is said', () => troubles(worker).length > 0);
    await may('+@all');
    assert.equal((await r.result(waiting, patient)).stdout, 'waited');
    const job = await r.add([say('before '), wait(500), say('after')]);
    await becomes('it runs', async () => (await r.replyNow(job)).some(({ type }) => type === 'stdout'));
    await may('-evalsha', '-eval');
    const refusals = () => logOf(worker).filter(({ msg }) => /^redis refused (reply|turn) for now: NOPERM/.test(msg)).length;
    await becomes('its output, or its end, was tried', () => refusals() >= 3);
    await may('+@all');
    assert.equal((await r.result(job, patient)).stdout, 'before after');
    const said = troubles(worker);
    assert.equal(said.length, 1, JSON.stringify(said));
    assert.match(said[0].msg, new RegExp(`, ${name}: its user has not all the rights that the worker needs, which README lists \\(NOPERM .*evalsha.*\\); trying again$`));
    assert.ok(!worker.lines.some((line) => /c4nary/.test(line)));
  }
});

test('a Redis that is loading: one line that names the setting, then jobs run', async (t) => {
  const own = await startRedis({ args: ['--loading-process-events-interval-bytes', '1024'] });
  const r = await makeRig(t, own, { replicas: 0, events: false });
  await r.redis.eval("for n = 1, 1500 do redis.call('SET', 'k' .. n, string.rep('x', 200)) end", 0);
  const job = await r.add([say('ran')]);
  await r.redis.save();
  own.process.kill('SIGKILL');
  await own.process.exited;
  const server = start(redisServer, ['--port', String(own.port), '--bind', '127.0.0.1', '--dir', own.dir, '--save', '',
    '--key-load-delay', '20000', '--loading-process-events-interval-bytes', '1024']);
  t.after(() => server.stop(1000));
  const probe = new Redis({ port: own.port, host: '127.0.0.1', enableReadyCheck: false, retryStrategy: () => 20 });
  probe.on('error', () => {});
  t.after(() => probe.disconnect());
  await becomes('it loads', async () => {
    try {
      await probe.ping();
      return false;
    } catch (error) {
      return /^LOADING/.test(error.message);
    }
  });
  const worker = r.startWorker({ LOG_LEVEL: 'info' });
  await becomes('it is said', () => troubles(worker).length > 0);
  await probe.config('SET', 'key-load-delay', '0');
  await becomes('the job ran', async () => (await r.state(job)) === 'completed');
  const said = troubles(worker);
  assert.equal(said.length, 1, JSON.stringify(said));
  assert.match(said[0].msg, /, REDIS_URL: the server is still loading its data \(LOADING/);
});

test('a Redis that cannot save to its disk: one line that names the setting, then jobs run', async (t) => {
  const own = await startRedis({ args: ['--save', '3600 1'] });
  const r = await makeRig(t, own, { replicas: 0, events: false });
  const job = await r.add([say('ran')]);
  rmSync(own.dir, { recursive: true }); // as good as full
  await r.redis.bgsave().catch(() => {});
  await becomes('it takes no writes', () => r.redis.set('x', 'y').then(() => false, (error) => /^MISCONF/.test(error.message)));
  const worker = r.startWorker({ LOG_LEVEL: 'info' });
  await becomes('it is said', () => troubles(worker).length > 0);
  await r.redis.config('SET', 'stop-writes-on-bgsave-error', 'no');
  await becomes('the job ran', async () => (await r.state(job)) === 'completed');
  const said = troubles(worker);
  assert.equal(said.length, 1, JSON.stringify(said));
  assert.match(said[0].msg, /, REDIS_URL: the server cannot save to its disk and takes no writes \(MISCONF [^.]*\); trying again$/);
});

test('an E2B key that is refused: the job and the log name E2B_API_KEY; the next good key is used', async (t) => {
  const e2b = await startE2b();
  const r = await makeRig(t, redis, {
    env: { ...e2b.env, CODE_INTERPRETER_TYPE: 'E2B', E2B_API_KEY: 'e2b_of-nobody-00000000', STATUS_PORT: '-1', LOG_LEVEL: 'info' },
  });
  const port = await portOf(r.worker);
  assert.match(await r.failure(await r.add('print(1)', { threadId: 'one' }), patient), /E2B_API_KEY/);
  const lines = troubles(r.worker).filter(({ msg }) => /E2B_API_KEY/.test(msg));
  assert.ok(lines.length >= 1, r.worker.tail());
  assert.ok(lines.every(({ msg }) => !/of-nobody/.test(msg)));
  await r.redis.hset(`${r.P}settings:runtime`, 'E2B_API_KEY', e2b.env.E2B_API_KEY);
  assert.equal((await r.result(await r.add('print(1)', { threadId: 'one' }), patient)).stdout, '1\n');
  await r.result(await r.add('print(2)', { threadId: 'one' }), patient);
  const m = await metricsOf(port);
  assert.ok(m.value('sandpiper_e2b_requests_total', { status: '401' }) >= 1, m.text);
  assert.equal(m.value('sandpiper_e2b_requests_total', { kind: 'create', status: '201' }), 1, m.text);
  assert.ok(m.value('sandpiper_e2b_requests_total', { kind: 'execute', status: '200' }) >= 2, m.text);
  assert.equal(m.value('sandpiper_sandboxes_created_total', { driver: 'E2B' }), 1, m.text);
  assert.equal(m.value('sandpiper_sandboxes_acquired_total', { driver: 'E2B', how: 'warm' }), 1, m.text);
});

test('settings by which no job can run are warned about at the start, by name', async (t) => {
  const missing = join(tmpdir(), `sandpiper-missing-${process.pid}`);
  for (const [env, name] of [
    [{ CODE_INTERPRETER_TYPE: 'LOKAL' }, /CODE_INTERPRETER_TYPE/],
    [{ CODE_INTERPRETER_TYPE: 'E2B' }, /E2B_API_KEY/],
    [{ CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_DIR: missing }, /isolated.* CODE_INTERPRETER_LOCAL_DIR: .*No such file/],
    [{ CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', CODE_INTERPRETER_LOCAL_DIR: missing }, /LOCAL cannot be made: CODE_INTERPRETER_LOCAL_DIR: .*No such file/],
  ]) {
    const r = await makeRig(t, redis, { env: { LOG_LEVEL: 'info', ...env } });
    const [setting] = /[A-Z0-9_]{8,}/.exec(name.source);
    await becomes('it is said', () => troubles(r.worker).some(({ msg }) => name.test(msg)));
    for (const { msg } of troubles(r.worker)) assert.ok(msg.includes(setting), msg);
    assert.ok(!r.worker.lines.some((line) => /Traceback/.test(line)), 'lines of the log, nothing else');
    const failed = await r.failure(await r.add('print(1)', { threadId: 'one' }), patient);
    assert.ok(failed.includes(setting) || failed.includes('(LOKAL)'), failed); // the latter in the incumbent's words
  }
});

test('a full disk: the job and the log name the folder\'s setting, and the next job runs when there is room', async (t) => {
  const r = await makeRig(t, redis, { replicas: 0 });
  const dir = mkdtempSync(join(tmpdir(), 'sandpiper-full-'));
  const [disk, flag] = [join(dir, 'disk'), join(dir, 'free')];
  mkdirSync(disk);
  // A file system of its own, filled to the last byte until the flag is there; the shell becomes the worker.
  const script = `mount -t tmpfs -o size=4m none ${disk} && { head -c 8m /dev/zero >${disk}/filler 2>/dev/null
    (while [ ! -e ${flag} ]; do sleep 0.1; done; rm ${disk}/filler) & exec ${workerBin}; }`;
  // As root without a user namespace: a machine may forbid those.
  const worker = start('unshare', [process.getuid() === 0 ? '-m' : '-Urm', 'sh', '-c', script], {
    env: workerEnv({
      REDIS_URL: redis.url, QUEUE_NAME: r.name, NODE_ENV: 'development', CODE_INTERPRETER_TYPE: 'LOCAL', LOG_LEVEL: 'info',
      CODE_INTERPRETER_LOCAL_ISOLATION: 'none', CODE_INTERPRETER_LOCAL_DIR: disk, CODE_INTERPRETER_LOCAL_SPARE_KERNELS: '0',
    }),
  });
  t.after(async () => {
    writeFileSync(flag, '');
    await worker.stop();
    rmSync(dir, { recursive: true, force: true });
  });
  assert.match(await r.failure(await r.add('print(1)', { threadId: 'one' }), patient),
    /CODE_INTERPRETER_LOCAL_DIR: .*No space left on device/);
  const said = troubles(worker).filter(({ msg }) => /No space left/.test(msg));
  assert.equal(said.length, 1, JSON.stringify(said));
  assert.match(said[0].msg, /CODE_INTERPRETER_LOCAL_DIR/);
  writeFileSync(flag, '');
  await becomes('a job runs', async () => {
    const job = await r.add('print(1)', { threadId: 'one' });
    try {
      return (await r.result(job, patient)).stdout === '1\n';
    } catch (error) {
      assert.match(error.message, /No space left/);
      return false;
    }
  });
  assert.equal((await worker.stop()).code, 0);
});

test('a fault that lasts does not fill the log', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { env: { LOG_LEVEL: 'info', STATUS_PORT: '-1', DRAIN_DELAY_MS: '200' } });
  const port = await portOf(r.worker);
  const jobs = [];
  for (let i = 0; i < 20; i++) jobs.push(await r.add([wait(5000), say('x')]));
  await becomes('they run', async () => (await r.queue.getActiveCount()) === 20);
  await r.redis.config('SET', 'maxmemory', '1');
  await becomes('it is said', () => troubles(r.worker).some(({ msg }) => /maxmemory/.test(msg)));
  await new Promise((resolve) => setTimeout(resolve, 4000)); // some hundred tries
  assert.ok(troubles(r.worker).length < 25, troubles(r.worker).map(({ msg }) => msg).join('\n'));
  assert.equal((await get(port, '/healthz')).status, 200);
  await r.redis.config('SET', 'maxmemory', '0');
  for (const job of jobs) assert.equal((await r.result(job, patient)).stdout, 'x');
});

test('each line of a job names job and thread, and the producer\'s trace, which `done` has too', async (t) => {
  const r = await makeRig(t, redis, { env: { LOG_LEVEL: 'debug' } });
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  const metadata = JSON.stringify({ traceparent, tracestate: 'vendor=1' });
  const job = await r.add([say('x')], { workspaceId: 'w', threadId: 't' }, { jobId: 'traced-job', telemetry: { metadata } });
  await r.result(job);
  assert.deepEqual((await r.reply(job)).at(-1).trace, { traceparent, tracestate: 'vendor=1' });
  const lines = logOf(r.worker).filter((line) => line.job === 'traced-job');
  assert.ok(lines.some(({ msg }) => /^job completed: ok/.test(msg)));
  for (const line of lines) {
    assert.deepEqual([line.thread, line.trace_id, line.span_id], ['w:t', traceparent.slice(3, 35), traceparent.slice(36, 52)],
      JSON.stringify(line));
  }
  assert.ok(!logOf(r.worker).some((line) => line.job === undefined && /traced-job/.test(line.msg)));
  const failed = await r.add([{ fail: 'no_sandbox' }], {}, { jobId: 'failed-job', telemetry: { metadata } });
  await r.failure(failed);
  assert.deepEqual((await r.reply(failed)).at(-1).trace, { traceparent, tracestate: 'vendor=1' });
  const plain = await r.add([say('x')], {}, { telemetry: { metadata, omitContext: true } });
  await r.result(plain);
  assert.equal((await r.reply(plain)).at(-1).trace, undefined);
});

/** The service manager's end of NOTIFY_SOCKET: `words` are the datagrams so far. */
async function startManager() {
  const dir = mkdtempSync(join(tmpdir(), 'sandpiper-notify-'));
  const path = join(dir, 'notify');
  const child = start('/usr/bin/python3', ['-u', '-c', `
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print("bound")
while True:
    print("word " + repr(s.recv(4096).decode()))`, path]);
  await child.waitLine(/^bound$/, { timeout: patient });
  return {
    path,
    words: () => child.lines.filter((line) => line.startsWith('word ')).map((line) => line.slice(6, -1)),
    stop: async () => {
      await child.stop(1000);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

test('systemd is told: up, what it does, stopping; the watchdog only while the claim loop turns', async (t) => {
  const manager = await startManager();
  t.after(manager.stop);
  const r = await makeRig(t, redis, { env: { NOTIFY_SOCKET: manager.path, WATCHDOG_USEC: '400000', DRAIN_DELAY_MS: '200', LOG_LEVEL: 'info' } });
  const has = (what, test_) => becomes(what, () => manager.words().some((word) => test_(word)));
  const pings = () => manager.words().filter((word) => word === 'WATCHDOG=1').length;
  await has('READY', (word) => word === 'READY=1');
  await has('STATUS', (word) => /^STATUS=Redis connected, 0 of 32 slots taken$/.test(word));
  await becomes('pings', () => pings() >= 3);
  assert.equal(manager.words()[0], 'READY=1');
  r.worker.kill('SIGUSR2');
  await becomes('it hangs', () => troubles(r.worker).some(({ msg }) => /the claim loop hangs/.test(msg)));
  await new Promise((resolve) => setTimeout(resolve, 1000)); // what was on its way
  const before = pings();
  await new Promise((resolve) => setTimeout(resolve, 1500)); // seven pings' time
  assert.equal(pings(), before);
  await r.worker.done();
  r.workers.length = 0;
  await has('STOPPING', (word) => /^STOPPING=1\\nSTATUS=draining, /.test(word));
});

test('SIGTERM: exit code 0 also when Redis is away; a second one at once', async () => {
  const own = await startRedis();
  const worker = startWorker({ REDIS_URL: own.url, LOG_LEVEL: 'info', DRAIN_TIMEOUT_MS: '1000' });
  await worker.waitLine(/redis \(commands\).*connected/, { timeout: patient });
  await own.kill();
  await worker.done({ graceMs: patient });
  const never = startWorker({ REDIS_URL: own.url, LOG_LEVEL: 'info', DRAIN_TIMEOUT_MS: '600000' });
  await never.waitLine(/REDIS_URL: connect: Connection refused/, { timeout: patient });
  never.kill('SIGTERM');
  await never.done({ graceMs: patient });
});
