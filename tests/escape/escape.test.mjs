// Hostile code in a production worker, run by root and by a normal user: nothing gets out. And the same without
// isolation, where it does get out: so each attempt proves something. What a machine lets nobody do (a container of its
// own, say) is found out by trying it there without a worker.
import assert from 'node:assert/strict';
import { chmodSync, chownSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { isAlive, start, tempDir, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { attempts, prelude } from './attempts.mjs';
import { as, NOBODY, isolated, users, worker, works, world } from './world.mjs';

const redis = await startRedis();
const limits = { CODE_INTERPRETER_LOCAL_MAX_PROCESSES: '80', CODE_INTERPRETER_LOCAL_SPARE_KERNELS: '1' };

// Not isolated, root's attempts are real: in mounts of its own, and only those that were chosen to do no harm. (Where
// there can be no such mounts, root cannot change the machine's either.)
const unshare = ['unshare', '--mount', '--propagation', 'private'];
const ownMounts = works(...unshare, 'true') ? unshare : [];
const before = (user, bareOnly) => (bareOnly && user === 'root' ? ownMounts : []);
/** What is in reach of everybody's code on every machine. */
const certain = ['the files of another session', 'another session\'s interpreter', 'Redis by its port', 'Redis by its socket',
  'an abstract socket of the machine', 'a server on another address of the machine', 'killing a foreign process', 'a folder outside'];

const saidOf = (name) => `escaped: ${name}`;
/** Names of the attempts that get out in a plain Python of that user. */
async function possible(list, user) {
  const dir = tempDir('sandpiper-plain-');
  const own = user === 'nobody' ? NOBODY : process.getuid();
  // Each in a process of its own; all that they leave goes with the group.
  const tries = list.map(([name, , code]) => `
import os
pid = os.fork()
if pid == 0:
${code.replace(/^/gm, '    ')}
    try:
        escaped = try_it()
    except BaseException:
        escaped = False
    print(${JSON.stringify(saidOf(name))} if escaped else "", flush=True)
    os._exit(0)
os.waitpid(pid, 0)`);
  writeFileSync(join(dir, 'try.py'), `import os\nos.setsid()\n${prelude}${tries.join('')}\nprint("over", flush=True)\nos.killpg(0, 9)\n`);
  chmodSync(dir, 0o755);
  chownSync(dir, own, own);
  const [program, ...args] = [...before(user, true), ...as(user), '/usr/bin/python3', join(dir, 'try.py')];
  const plain = start(program, args, { cwd: dir, env: { PATH: process.env.PATH, HOME: dir } });
  await plain.waitLine(/^over$/, { timeout: 120_000 });
  await within(60_000, plain.exited, 'the plain Python has ended');
  return list.map(([name]) => name).filter((name) => plain.lines.includes(saidOf(name)));
}

/** All attempts in one thread, while another thread has a secret and must never be hurt. */
async function tryAll(t, user, env, { bareOnly = false } = {}) {
  const what = await world(redis, user);
  const r = await worker(t, redis, user, { ...limits, SOME_KEY: what.canary, E2B_API_KEY: what.canary, ...env },
    { before: before(user, bareOnly).join(' ') });
  what.worker = r.worker.pid;
  what.sessions = `/tmp/sandpiper-*/*-${r.worker.pid}-*/*`; // of this worker and no other
  const victim = async () => assert.equal((await r.py('print(mine)', { threadId: 'victim' })).stdout, 'mine 42\n');
  await r.py(`open("secret.txt", "w").write("${what.secret}"); mine = "mine 42"`, { threadId: 'victim' });
  await r.py(prelude, { threadId: 'hostile' });
  const outcome = {};
  const list = attempts(what).filter(([, who]) => !bareOnly || who.includes(user));
  for (const [name, , code] of list) {
    const result = await r.py(`${code}\nattempt(try_it)`, { threadId: 'hostile' });
    outcome[name] = { escaped: /^ESCAPED$/m.test(result.stdout), said: result.stdout + (result.error ?? '') };
    assert.match(result.stdout, /ESCAPED|refused/, `${name}: ${result.error} ${result.errorDetail?.traceback}`);
    await victim();
  }
  assert.ok(isAlive(what.sleeper) && isAlive(r.worker.pid));
  assert.equal(await r.redis.ping(), 'PONG');
  return { outcome, possible: bareOnly ? await possible(list, user) : [] };
}

for (const user of users) {
  test(`isolated, the worker as ${user}: nothing gets out`, isolated(redis, user, async (t) => {
    const { outcome } = await tryAll(t, user, { NODE_ENV: 'production' });
    for (const [name, { escaped, said }] of Object.entries(outcome)) assert.ok(!escaped, `${name}: ${said}`);
  }));

  test(`not isolated, the worker as ${user}: it does get out`, async (t) => {
    const { outcome, possible: able } = await tryAll(t, user, { NODE_ENV: 'development', CODE_INTERPRETER_LOCAL_ISOLATION: 'none' },
      { bareOnly: true });
    const impossible = Object.keys(outcome).filter((name) => !able.includes(name));
    if (impossible.length) t.diagnostic(`not possible on this machine, so that nothing is proven by it: ${impossible.join(', ')}`);
    assert.deepEqual(certain.filter((name) => impossible.includes(name)), []);
    for (const name of able) assert.ok(outcome[name].escaped, `${name}: ${outcome[name].said}`);
  });
}
