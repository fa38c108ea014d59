// Hostile amounts: processes, memory, processor time. Each is bounded with a clear reason, and another thread goes on as
// if nothing had happened.
import assert from 'node:assert/strict';
import test from 'node:test';
import { startRedis } from '../lib/redis.mjs';
import { neighbours } from './neighbours.mjs';
import { isolated, users } from './world.mjs';

const redis = await startRedis();

for (const user of users) {
  test(`${user}: a fork bomb, and one that defends itself`, isolated(redis, user, async (t) => {
    const r = await neighbours(t, redis, user);
    const bomb = await r.hostile('import os, signal\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass', { timeoutMs: 1500 });
    assert.equal(bomb.reason, 'timeout');
    assert.equal((await r.again()).stdout, 'on\n');
    const left = await r.hostile(`
import os, signal
for _ in range(3):
    if os.fork() == 0:
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
        os.setsid()
        while True:
            try:
                if os.fork() == 0: os.setsid()
            except OSError: pass
print("left")`);
    assert.ok(left.stdout === 'left\n' && ['ok', 'kernel_died'].includes(left.reason), JSON.stringify(left));
    assert.equal((await r.again()).stdout, 'on\n');
  }));

  test(`${user}: memory that runs out ends the run with reason oom, exit code 137 (case 21)`, isolated(redis, user, async (t) => {
    const r = await neighbours(t, redis, user);
    const one = await r.hostile('x = bytearray(1)\nwhile True: x += bytearray(64 << 20)');
    assert.deepEqual([one.reason, one.errorDetail.name], ['code_error', 'MemoryError'], 'one process is told, and lives');
    const many = await r.hostile(`
import os, time
x = None
for _ in range(4):
    if os.fork() == 0:
        try:
            x = bytearray(os.urandom(1 << 20)) * 120
            time.sleep(600)
        finally:
            os._exit(1)
print("forked", flush=True)
time.sleep(600)`);
    assert.deepEqual([many.reason, many.exitCode, many.state, many.stdout], ['oom', 137, 'error', 'forked\n'], many.error);
    assert.match(many.error, /[Mm]emory.*CODE_INTERPRETER_LOCAL_MEMORY_MB/);
    const after = await r.again();
    assert.deepEqual([after.stdout, after.sandbox.stateLost], ['on\n', 'kernel_died']);
    const shared = await r.hostile('import mmap, time\nm = mmap.mmap(-1, 600 << 20)\n'
      + 'for i in range(0, 600 << 20, 4096): m[i] = 1\ntime.sleep(600)');
    assert.deepEqual([shared.reason, shared.exitCode], ['oom', 137], 'also memory that no rlimit counts');
    assert.equal((await r.again()).stdout, 'on\n');
  }));

  if (user !== users[0]) continue;

  test(`${user}: processor time has an end`, isolated(redis, user, async (t) => {
    const r = await neighbours(t, redis, user, { CODE_INTERPRETER_LOCAL_CPU_S: '4' });
    const spun = await r.hostile('while True: pass');
    assert.deepEqual([spun.reason, spun.exitCode], ['kernel_died', 152], spun.error);
    assert.equal((await r.again()).stdout, 'on\n');
  }));
}
