// The status port: health, readiness, metrics, and what a scaler reads (issue: operations).
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { waitFor, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, workerBin, workerEnv } from '../lib/rig.mjs';
import { raise, say, wait } from '../lib/scripted.mjs';
import { get, logOf, metricsOf, parseMetrics, patient, portOf, troubles } from './lib.mjs';

const redis = await startRedis();
const env = { STATUS_PORT: '-1', DRAIN_DELAY_MS: '200' };
const health = async (port) => (await get(port, '/healthz')).status;
const readiness = async (port) => {
  const page = await get(port, '/readyz');
  return [page.status, JSON.parse(page.body).why];
};
const becomes = (what, check) => waitFor(check, { timeout: patient, what });
const root = fileURLToPath(new URL('../..', import.meta.url));
const fetched = `${root}build/deps/bin/promtool`; // by .ci/deps, where the system has none
/** Runs promtool; asserts that it is content, and that it has not a word to say against its input. */
function promtool(args, input) {
  const { status, stdout, stderr, error } = spawnSync(existsSync(fetched) ? fetched : 'promtool', args, { cwd: root, input, encoding: 'utf8' });
  assert.equal(error, undefined);
  assert.equal(status, 0, stdout + stderr);
  return stdout + stderr;
}

test('/healthz turns false when the claim loop hangs, while Redis answers PING', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  await r.run([say('x')]);
  assert.equal(await health(port), 200);
  assert.deepEqual(await readiness(port), [200, undefined]);
  r.worker.kill('SIGUSR2'); // test builds: no claim is begun again
  await becomes('/healthz is 503', async () => (await health(port)) === 503);
  assert.equal(await r.redis.ping(), 'PONG');
  assert.equal(JSON.parse((await get(port, '/healthz')).body).healthy, false);
  assert.deepEqual(await readiness(port), [503, 'the claim loop hangs']);
  await becomes('it is said', () => troubles(r.worker).some(({ msg }) => /the claim loop hangs/.test(msg)));
  assert.equal(troubles(r.worker).filter(({ msg }) => /the claim loop hangs/.test(msg)).length, 1);
  assert.equal((await metricsOf(port)).value('sandpiper_ready'), 0);
});

test('a worker that is blocked gives no answer, and is well again when it goes on', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  const ask = () => {
    try {
      execFileSync(workerBin, ['--health'], { env: workerEnv({ STATUS_PORT: String(port) }), stdio: 'pipe' });
      return 0;
    } catch (error) {
      return error.status;
    }
  };
  await becomes('healthy', () => ask() === 0);
  r.worker.kill('SIGSTOP');
  assert.equal(ask(), 1);
  await assert.rejects(get(port, '/healthz', { timeout: 500 }));
  r.worker.kill('SIGCONT');
  await becomes('healthy again', () => ask() === 0);
  await r.run([say('x')]);
});

test('a busy worker, an idle one, a paused queue and one that is rate limited are healthy', async (t) => {
  const r = await makeRig(t, redis, { env: { ...env, WORKER_CONCURRENCY: '1', LIMITER_MAX: '2', LIMITER_DURATION_MS: '14000' } });
  const port = await portOf(r.worker);
  const long = await r.add([wait(12_000)]);
  await becomes('it runs', async () => (await r.state(long)) === 'active');
  const began = Date.now();
  let asked = 0;
  while (Date.now() - began < 25_000) { // longer than what counts as hung, in each state
    assert.equal(await health(port), 200, `after ${Date.now() - began} ms`);
    asked++;
    await new Promise((resolve) => setTimeout(resolve, 250));
    if (asked === 2) await Promise.all([r.add([say('a')]), r.add([say('b')])]); // one of them is over the limit
  }
  await r.queue.pause();
  assert.equal(await health(port), 200);
  assert.ok(asked > 2);
});

test('/readyz follows Redis and draining', async (t) => {
  const own = await startRedis();
  const r = await makeRig(t, own, { env: { ...env, DRAIN_TIMEOUT_MS: '60000' } });
  const port = await portOf(r.worker);
  await becomes('ready', async () => (await readiness(port))[0] === 200);
  await own.kill();
  await becomes('not ready', async () => (await readiness(port))[0] === 503);
  assert.deepEqual(await readiness(port), [503, 'Redis is not connected']);
  assert.equal(await health(port), 200); // a restart would not bring Redis back
  assert.equal((await metricsOf(port)).value('sandpiper_redis_connected'), 0);
  await own.restart();
  await becomes('ready again', async () => (await readiness(port))[0] === 200);
  assert.ok((await metricsOf(port)).value('sandpiper_redis_reconnects_total') >= 1);
  const job = await r.add([wait(3000), say('done')]);
  await becomes('it runs', async () => (await r.state(job)) === 'active');
  r.worker.ending = true;
  r.worker.kill('SIGTERM');
  await becomes('it drains', async () => (await readiness(port))[0] === 503);
  assert.deepEqual(await readiness(port), [503, 'the worker drains']);
  assert.equal(await health(port), 200);
  assert.equal((await metricsOf(port)).value('sandpiper_draining'), 1);
  assert.equal((await within(patient, r.worker.exited, 'drained')).code, 0);
  assert.equal(await r.state(job), 'completed');
  r.workers.length = 0;
});

test('metrics: Prometheus format, and they count what happened', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  await r.run([say('hello '), wait(30), say('world')]);
  for (let i = 0; i < 3; i++) await r.run([say('x')], { threadId: 'one' });
  await r.run([raise()]);
  assert.match(await r.failure(await r.add([{ fail: 'no_sandbox' }])), /./);
  await r.redis.xadd(`${r.P}stream:jobs`, '*', 'data', JSON.stringify({ code: JSON.stringify(say('s')) }), 'id', 'from-stream');
  await becomes('the entry ran', async () => (await r.state('from-stream')) === 'completed');
  // A client hears of the end of a job at the same time as the worker does.
  await becomes('the ends are counted', async () => (await metricsOf(port)).value('sandpiper_finish_duration_seconds_count') === 7);
  const m = await metricsOf(port);
  const is = (name, labels, expected) => assert.equal(m.value(name, labels), expected, `${name} ${JSON.stringify(labels)}\n${m.text}`);
  is('sandpiper_jobs_claimed_total', {}, 7);
  is('sandpiper_jobs_ended_total', { end: 'completed', reason: 'ok' }, 5);
  is('sandpiper_jobs_ended_total', { end: 'completed', reason: 'code_error' }, 1);
  is('sandpiper_jobs_ended_total', { end: 'failed', reason: 'no_sandbox' }, 1);
  is('sandpiper_stream_entries_total', { result: 'admitted' }, 1);
  is('sandpiper_sandboxes_acquired_total', { driver: 'SCRIPTED', how: 'fresh' }, 1);
  is('sandpiper_sandboxes_acquired_total', { driver: 'SCRIPTED', how: 'warm' }, 2);
  is('sandpiper_job_wait_seconds_count', {}, 7);
  is('sandpiper_finish_duration_seconds_count', {}, 7);
  is('sandpiper_run_duration_seconds_count', {}, 6);
  is('sandpiper_first_output_seconds_count', {}, 5);
  is('sandpiper_jobs_running', {}, 0);
  is('sandpiper_slots', {}, 32);
  is('sandpiper_ready', {}, 1);
  is('sandpiper_locks_lost_total', {}, 0);
  assert.ok(m.value('sandpiper_run_duration_seconds_sum') >= 0.03);
  assert.ok(m.value('sandpiper_reply_messages_total') >= 14);
  assert.ok(m.value('sandpiper_reply_bytes_total') > 500);
  assert.ok(m.value('process_resident_memory_bytes') > 1e6);
  assert.ok(Math.abs(m.value('process_start_time_seconds') - Date.now() / 1000) < 600);
  assert.equal(m.families.sandpiper_build_info.samples[0].labels.bullmq, '6.7.0');
});

test('promtool finds no fault with /metrics, the configuration and the rules in docker/', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  await r.run([say('x')], { threadId: 'one' });
  await r.run([raise()]);
  assert.match(await r.failure(await r.add([{ fail: 'no_sandbox' }])), /./);
  await becomes('the ends are counted', async () => (await metricsOf(port)).value('sandpiper_finish_duration_seconds_count') === 3);
  const { text, families } = await metricsOf(port);
  assert.equal(promtool(['check', 'metrics'], text), '');
  assert.notEqual(spawnSync(existsSync(fetched) ? fetched : 'promtool', ['check', 'metrics'], { input: `${text}bad_total{ 1\n` }).status, 0);
  assert.match(promtool(['check', 'config', 'docker/prometheus/prometheus.yml']), /SUCCESS: 1 rule files found[^]*SUCCESS: 6 rules found/);
  const rules = readFileSync(`${root}docker/prometheus/rules.yml`, 'utf8');
  for (const [name] of rules.matchAll(/\bsandpiper_[a-z0-9_]+/g)) assert.ok(families[name], name);
  for (const [, reasons] of rules.matchAll(/reason=~"([^"]+)"/g)) {
    for (const reason of reasons.split('|')) assert.match(readFileSync(`${root}README.md`, 'utf8'), new RegExp(`^\\|.*\`${reason}\``, 'm'));
  }
});

test('the dashboard asks only for metrics that there are', async (t) => {
  const r = await makeRig(t, redis, { env });
  const { families } = await metricsOf(await portOf(r.worker));
  const dashboard = JSON.parse(readFileSync(new URL('../../docker/grafana/sandpiper.json', import.meta.url)));
  const asked = new Set();
  for (const { expr } of dashboard.panels.flatMap((panel) => panel.targets ?? [])) {
    const names = expr.match(/\b(sandpiper|process)_[a-z0-9_]+/g);
    assert.ok(names, expr);
    for (const name of names) {
      const base = name.replace(/_(bucket|sum|count)$/, '');
      const family = families[name] ?? families[base];
      assert.ok(family, `${name} in: ${expr}`);
      assert.equal(name !== base && !families[name], family.type === 'histogram', expr);
      if (family.type === 'counter') assert.match(expr, new RegExp(`rate\\(${name}`), expr);
      asked.add(families[name] ? name : base);
    }
  }
  const unasked = Object.keys(families).filter((name) => !asked.has(name));
  assert.deepEqual(unasked, ['sandpiper_build_info', 'sandpiper_driver_info', 'sandpiper_jobs_claimed_total',
    'sandpiper_reply_messages_total', 'sandpiper_queue_stats_age_seconds', 'process_start_time_seconds']);
});

test('stats:queue: parked jobs are no work for another replica, runnable ones are', async (t) => {
  const r = await makeRig(t, redis, { env: { ...env, WORKER_CONCURRENCY: '1', STALLED_INTERVAL_MS: '1000' }, replicas: 2 });
  const ports = await Promise.all(r.workers.map(portOf));
  const key = `${r.P}stats:queue`;
  const stats = async () => Object.fromEntries(Object.entries(await r.redis.hgetall(key)).map(([k, v]) => [k, Number(v)]));
  const hold = () => r.add([{ hang: true }], { threadId: 'busy' });
  const held = await hold();
  const other = await r.add([{ hang: true }]);
  await becomes('both slots are taken', async () => (await r.queue.getActiveCount()) === 2);
  for (let i = 0; i < 3; i++) await r.add([say('w')], { threadId: `t${i}` });
  await r.add([say('p')], {}, { priority: 5 });
  await r.add([say('d')], {}, { delay: 3_600_000 });
  await becomes('counted', async () => {
    const s = await stats();
    return s.running === 2 && s.waiting === 3 && s.prioritized === 1 && s.delayed === 1 && s.runnable === 4;
  });
  const life = await r.redis.pttl(key);
  assert.ok(life > 0 && life <= 60_000, String(life));
  await becomes('the oldest gets older', async () => (await stats()).oldestRunnableMs > 2000);
  for (const port of ports) await becomes('in the metrics of each replica', async () => {
    const m = await metricsOf(port);
    return m.value('sandpiper_queue_runnable_jobs') === 4 && m.value('sandpiper_queue_jobs', { state: 'waiting' }) === 3
      && m.value('sandpiper_queue_oldest_runnable_seconds') > 2;
  });
  await r.queue.pause();
  await becomes('a paused queue has no work', async () => {
    const s = await stats();
    return s.paused === 1 && s.runnable === 0 && s.oldestRunnableMs === 0;
  });
  await r.queue.resume();
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', other.id); // its slot goes through the rest
  await becomes('the rest ran', async () => (await r.queue.getActiveCount()) === 1 && (await r.queue.getWaitingCount()) === 0);
  for (let i = 0; i < 2; i++) await r.add([say('parked')], { threadId: 'busy' });
  await becomes('parked', async () => {
    const s = await stats();
    return s.parked === 2 && s.parkedThreads === 1 && s.runnable === 0 && s.delayed === 1;
  });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', held.id);
  await becomes('empty', async () => {
    const s = await stats();
    return s.parked === 0 && s.running === 0 && s.runnable === 0;
  });
});

test('one replica counts, all know', async (t) => {
  const r = await makeRig(t, redis, { env: { ...env, STALLED_INTERVAL_MS: '1000' }, replicas: 3 });
  const ports = await Promise.all(r.workers.map(portOf));
  for (const port of ports) await becomes('figures', async () => (await get(port, '/stats')).status === 200);
  const counted = new Set();
  const began = Date.now();
  await becomes('several counts', async () => {
    for (const port of ports) counted.add(JSON.parse((await get(port, '/stats')).body).countedAt);
    return counted.size >= 4;
  });
  // Three replicas that all counted would be three counts a second; one makes at most one each 0.8 s.
  assert.ok(counted.size <= (Date.now() - began) / 800 + 3, `${counted.size} counts in ${Date.now() - began} ms`);
});

test('a page that is not there, methods, rubbish, silence, many connections', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  assert.equal((await get(port, '/')).status, 404);
  assert.equal((await get(port, '/metrics/../../etc/passwd')).status, 404);
  assert.equal((await get(port, '/healthz', { method: 'POST' })).status, 405);
  assert.equal((await get(port, '/healthz', { method: 'DELETE' })).status, 405);
  const head = await get(port, '/metrics', { method: 'HEAD' });
  assert.deepEqual([head.status, head.body], [200, '']);
  assert.match(head.headers['content-type'], /^text\/plain; version=0\.0\.4/);
  assert.equal((await get(port, `/healthz?${'x'.repeat(100_000)}`).catch(() => ({ status: 414 }))).status, 414);
  const sockets = [];
  t.after(() => sockets.forEach((socket) => socket.destroy()));
  for (const text of ['\0\x01\x02\r\n\r\n', 'GET / HTTP/9.9\r\n\r\n', 'GET /healthz HTTP/1.1\r\nContent-Length: -5\r\n\r\n', 'GET /metr']) {
    const socket = connect(port, '127.0.0.1', () => socket.write(text)).on('error', () => {});
    sockets.push(socket);
  }
  for (let i = 0; i < 100; i++) sockets.push(connect(port, '127.0.0.1').on('error', () => {})); // they say nothing
  const result = await r.run([say('jobs go on')]);
  assert.equal(result.stdout, 'jobs go on');
  await becomes('the silent ones are closed and there is an answer', async () => {
    try {
      return (await get(port, '/healthz', { timeout: 1000 })).status === 200;
    } catch {
      return false;
    }
  });
  parseMetrics((await get(port, '/metrics')).body);
});

test('a port in use: one line that names STATUS_PORT, jobs run, and the port is taken when it is free', async (t) => {
  const r = await makeRig(t, redis, { env });
  const port = await portOf(r.worker);
  const second = r.startWorker({ STATUS_PORT: String(port) });
  const line = JSON.parse(await second.waitLine(/STATUS_PORT/, { timeout: patient }));
  assert.match(line.msg, /^STATUS_PORT: cannot listen on 127\.0\.0\.1, port \d+: Address already in use; trying again/);
  const first = r.workers.shift();
  await first.done();
  assert.equal((await r.run([say('x')])).stdout, 'x');
  await becomes('it listens', async () => {
    try {
      return (await health(port)) === 200;
    } catch {
      return false;
    }
  });
  assert.equal(troubles(second).filter(({ msg }) => /STATUS_PORT/.test(msg)).length, 1);
  assert.ok(logOf(second).some(({ msg }) => /status port: listening/.test(msg)));
});

test('no port with STATUS_PORT=0; loopback only unless STATUS_HOST says otherwise; no address: exit 3', async (t) => {
  const r = await makeRig(t, redis, { env: { STATUS_PORT: '0' } });
  await r.run([say('x')]);
  assert.ok(!logOf(r.worker).some(({ msg }) => /status port/.test(msg)));
  const every = r.startWorker({ STATUS_PORT: '-1', STATUS_HOST: '0.0.0.0' });
  assert.equal((await get(await portOf(every), '/healthz', { host: '127.0.0.2' })).status, 200);
  const local = r.startWorker({ STATUS_PORT: '-1' });
  const port = await portOf(local);
  await assert.rejects(get(port, '/healthz', { host: '127.0.0.2' }), /ECONNREFUSED/);
  for (const [name, value] of [['STATUS_HOST', 'example.org'], ['STATUS_PORT', '70000'], ['STATUS_PORT', 'http']]) {
    assert.throws(() => execFileSync(workerBin, [], { env: workerEnv({ [name]: value }), stdio: 'pipe' }),
      (error) => error.status === 3 && error.stderr.toString().includes(name));
  }
});
