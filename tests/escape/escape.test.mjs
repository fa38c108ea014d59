// Hostile code in a production worker, run by root and by a normal user: nothing gets out. And the same without
// isolation, where it does get out: so each attempt proves something.
import assert from 'node:assert/strict';
import test from 'node:test';
import { isAlive } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { attempts, prelude } from './attempts.mjs';
import { users, worker, world } from './world.mjs';

const redis = await startRedis();
const limits = { CODE_INTERPRETER_LOCAL_MAX_PROCESSES: '80', CODE_INTERPRETER_LOCAL_SPARE_KERNELS: '1' };

/** All attempts in one thread, while another thread has a secret and must never be hurt. */
async function tryAll(t, user, env, { bareOnly = false } = {}) {
  const what = await world(redis, user);
  // Not isolated, root's attempts are real: in mounts of its own, and only those that were chosen to do no harm.
  const before = bareOnly && user === 'root' ? 'unshare --mount --propagation private' : '';
  const r = await worker(t, redis, user, { ...limits, SOME_KEY: what.canary, E2B_API_KEY: what.canary, ...env }, { before });
  what.worker = r.worker.pid;
  const victim = async () => assert.equal((await r.py('print(mine)', { threadId: 'victim' })).stdout, 'mine 42\n');
  await r.py(`open("secret.txt", "w").write("${what.secret}"); mine = "mine 42"`, { threadId: 'victim' });
  await r.py(prelude, { threadId: 'hostile' });
  const outcome = {};
  for (const [name, , code] of attempts(what).filter(([, who]) => !bareOnly || who.includes(user))) {
    const result = await r.py(`${code}\nattempt(try_it)`, { threadId: 'hostile' });
    outcome[name] = { escaped: /^ESCAPED$/m.test(result.stdout), said: result.stdout + (result.error ?? '') };
    assert.match(result.stdout, /ESCAPED|refused/, `${name}: ${result.error} ${result.errorDetail?.traceback}`);
    await victim();
  }
  assert.ok(isAlive(what.sleeper) && isAlive(r.worker.pid));
  assert.equal(await r.redis.ping(), 'PONG');
  return outcome;
}

for (const user of users) {
  test(`isolated, the worker as ${user}: nothing gets out`, async (t) => {
    const outcome = await tryAll(t, user, { NODE_ENV: 'production' });
    for (const [name, { escaped, said }] of Object.entries(outcome)) assert.ok(!escaped, `${name}: ${said}`);
  });

  test(`not isolated, the worker as ${user}: it does get out`, async (t) => {
    const outcome = await tryAll(t, user, { NODE_ENV: 'development', CODE_INTERPRETER_LOCAL_ISOLATION: 'none' }, { bareOnly: true });
    assert.deepEqual(Object.entries(outcome).filter(([, { escaped }]) => !escaped).map(([name, { said }]) => `${name}: ${said}`), []);
    assert.ok(Object.keys(outcome).length >= 20, `${Object.keys(outcome).length} proofs`);
  });
}
