// How a worker is started, which driver it takes, and what it says when code must not run.
import assert from 'node:assert/strict';
import test from 'node:test';
import { start } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, workerBin, workerEnv } from '../lib/rig.mjs';
import { say } from '../lib/scripted.mjs';

const redis = await startRedis();
const disabled = 'Code interpreter is disabled. Set CODE_INTERPRETER_TYPE to LOCAL (development only) or E2B to enable it.';
const production = 'LOCAL code interpreter driver is not allowed in production. Use E2B driver instead by setting '
  + 'CODE_INTERPRETER_TYPE=E2B and providing E2B_API_KEY. (Why: CODE_INTERPRETER_LOCAL_ISOLATION=none is for development only.)';

for (const [what, env, reason] of [
  ['the default', { CODE_INTERPRETER_TYPE: '' }, disabled],
  ['DISABLED', { CODE_INTERPRETER_TYPE: 'DISABLED', NODE_ENV: 'development' }, disabled],
  ['LOCAL in production, not isolated', { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_ISOLATION: 'none' }, production],
  ['the same without NODE_ENV', { CODE_INTERPRETER_TYPE: 'local', CODE_INTERPRETER_LOCAL_ISOLATION: 'none' }, production],
]) {
  test(`${what} fails each job with the sentence users know`, async (t) => {
    const r = await makeRig(t, redis, { env });
    for (const data of [{}, { threadId: 't' }]) {
      const job = await r.add('print(1)', data, { attempts: 3 });
      assert.equal(await r.failure(job), reason);
      assert.equal((await r.hash(job)).atm, '1', 'not retried');
      const { done } = await r.gathered(job);
      assert.deepEqual([done.state, done.reason, done.error], ['failed', 'disabled', reason]);
    }
  });
}

for (const type of ['NONSENSE', 'E2B', 'E_2_B']) {
  test(`CODE_INTERPRETER_TYPE=${type} without a key fails jobs, not the start`, async (t) => {
    const r = await makeRig(t, redis, { env: { CODE_INTERPRETER_TYPE: type } });
    const reason = await r.failure(await r.add('print(1)'));
    assert.match(reason, type === 'NONSENSE' ? /NONSENSE/ : /E2B/);
  });
}

test('settings in Redis apply to the next job, without a restart', async (t) => {
  const r = await makeRig(t, redis, { env: { CODE_INTERPRETER_TYPE: '', CODE_INTERPRETER_LOCAL_ISOLATION: 'none' } });
  assert.equal(await r.failure(await r.add([say('x')])), disabled);
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', 'SCRIPTED');
  assert.equal((await r.run([say('on')], { threadId: 't' })).stdout, 'on');
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TIMEOUT_MS', '300');
  const result = await r.run([{ hang: true }]);
  assert.deepEqual([result.reason, result.executionTimeMs < 30_000], ['timeout', true]);
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TIMEOUT_MS', 'soon', 'NODE_ENV', 'development',
    'CODE_INTERPRETER_LOCAL_ISOLATION', 'bwrap', 'UNKNOWN', 'x');
  const bad = await r.add([say('x')], { threadId: 't' });
  await bad.waitUntilFinished(r.events, 60_000).catch(() => {});
  await r.redis.hdel(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TIMEOUT_MS');
  assert.equal((await r.run([say('fine')], { threadId: 't' })).stdout, 'fine');
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', 'LOCAL');
  assert.equal(await r.failure(await r.add([say('x')])), production, 'NODE_ENV cannot come from Redis');
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', 'DISABLED');
  assert.equal(await r.failure(await r.add([say('x')])), disabled);
  await r.redis.del(`${r.P}settings:runtime`);
});

const runOnce = async (args, env = {}) => {
  const process = start(workerBin, args, { env: workerEnv(env) });
  const exit = await process.exited;
  return { code: exit.code, out: process.lines.join('\n') };
};

test('--help, --version and --check-config', async () => {
  const help = await runOnce(['--help']);
  assert.equal(help.code, 0);
  for (const name of ['REDIS_URL', 'QUEUE_NAME', 'CODE_INTERPRETER_TYPE', 'LOCK_DURATION_MS']) assert.match(help.out, new RegExp(name));
  const version = await runOnce(['--version']);
  assert.deepEqual([version.code, /\d+\.\d+\.\d+/.test(version.out)], [0, true]);
  const canary = 'c4n4ry-p4ss';
  const config = await runOnce(['--check-config'], { REDIS_URL: `redis://u:${canary}@h:1`, E2B_API_KEY: canary, WORKER_NAME: 'shown' });
  assert.equal(config.code, 0, config.out);
  assert.match(config.out, /shown/);
  assert.ok(!config.out.includes(canary));
  const unknown = await runOnce(['--nonsense']);
  assert.notEqual(unknown.code, 0);
});

for (const [env, pattern] of [
  [{ LOCK_DURATION_MS: 'soon' }, /LOCK_DURATION_MS/],
  [{ WORKER_CONCURRENCY: '-1' }, /WORKER_CONCURRENCY/],
  [{ REDIS_URL: 'http://127.0.0.1' }, /REDIS_URL|redis/i],
  [{ REDIS_URL: 'redis://u:c4n4ry@127.0.0.1:notaport' }, /port/i],
  [{ QUEUE_NAME: 'a:b' }, /QUEUE_NAME/],
  [{ E2B_API_KEY_FILE: '/nowhere/key' }, /E2B_API_KEY_FILE/],
  [{ LOCK_DURATION_MS: '2000', LOCK_RENEW_MS: '1900' }, /LOCK_RENEW_MS/],
]) {
  test(`a bad setting ends the start with its name: ${JSON.stringify(env)}`, async () => {
    for (const args of [[], ['--check-config']]) {
      const { code, out } = await runOnce(args, { REDIS_URL: redis.url, ...env });
      assert.notEqual(code, 0);
      assert.notEqual(code, null, 'no crash');
      assert.match(out, pattern);
      assert.ok(!out.includes('c4n4ry'));
    }
  });
}
