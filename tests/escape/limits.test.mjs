// Hostile amounts: processes, memory, files, processor time. Each is bounded with a clear reason, and another thread
// goes on as if nothing had happened.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { users, worker, world } from './world.mjs';

const redis = await startRedis();
const production = { NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_MEMORY_MB: '400', CODE_INTERPRETER_LOCAL_DISK_MB: '64',
  CODE_INTERPRETER_LOCAL_FILE_MB: '32', CODE_INTERPRETER_LOCAL_MAX_PROCESSES: '64' };

/** A rig in which `hostile(code)` runs code, then sees that a neighbour is unhurt; and the next run's stateLost. */
async function rig(t, user, env = {}) {
  const r = await worker(t, redis, user, { ...production, ...env });
  await r.py('mine = 42; open("mine.txt", "w").write("mine")', { threadId: 'neighbour' });
  r.hostile = async (code, data = {}) => {
    const result = await r.py(code, { threadId: 'hostile', ...data });
    const next = await r.py('print(mine, open("mine.txt").read())', { threadId: 'neighbour' });
    assert.deepEqual([next.stdout, next.sandbox.reused], ['42 mine\n', true], JSON.stringify(next));
    return result;
  };
  r.again = async (code = 'print("on")') => r.py(code, { threadId: 'hostile' });
  return r;
}

for (const user of users) {
  test(`${user}: a fork bomb, and one that defends itself`, async (t) => {
    const r = await rig(t, user);
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
  });

  test(`${user}: memory that runs out ends the run with reason oom, exit code 137 (case 21)`, async (t) => {
    const r = await rig(t, user);
    const one = await r.hostile('x = bytearray(1)\nwhile True: x += bytearray(64 << 20)');
    assert.deepEqual([one.reason, one.errorDetail.name], ['code_error', 'MemoryError'], 'one process is told, and lives');
    const many = await r.hostile(`
import os, time
x = None
for _ in range(4):
    if os.fork() == 0:
        try:
            x = bytearray(os.urandom(1 << 20)) * 200
            time.sleep(600)
        finally:
            os._exit(1)
print("forked", flush=True)
time.sleep(600)`);
    assert.deepEqual([many.reason, many.exitCode, many.state, many.stdout], ['oom', 137, 'error', 'forked\n'], many.error);
    assert.match(many.error, /[Mm]emory.*CODE_INTERPRETER_LOCAL_MEMORY_MB/);
    const after = await r.again();
    assert.deepEqual([after.stdout, after.sandbox.stateLost], ['on\n', 'kernel_died']);
    const shared = await r.hostile('import mmap, time\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, 3 << 30, 4096): m[i] = 1');
    assert.deepEqual([shared.reason, shared.exitCode], ['oom', 137], 'also memory that no rlimit counts');
    assert.equal((await r.again()).stdout, 'on\n');
  });

  test(`${user}: files that fill the disk`, async (t) => {
    const r = await rig(t, user);
    const large = await r.hostile('open("large", "wb").write(bytes(40 << 20))');
    assert.match(large.error, /File too large/);
    await r.again('import os; os.unlink("large")');
    for (const [what, where] of [['many', '"f%d" % i'], ['in shared memory', '"/dev/shm/f%d" % i']]) {
      const full = await r.hostile(`
print("begun", flush=True)
os.makedirs("output", exist_ok=True); open("output/kept.txt", "w").write("kept")
import time
for i in range(10):
    open(${where}, "wb").write(bytes(10 << 20))
time.sleep(600)`);
      assert.deepEqual([full.reason, full.exitCode, full.state, full.stdout], ['kernel_died', 137, 'error', 'begun\n'], `${what}: ${full.error}`);
      assert.match(full.error, /CODE_INTERPRETER_LOCAL_DISK_MB/);
      assert.deepEqual(full.files.map((f) => f.filename), ['kept.txt'], 'what was finished is delivered');
      const after = await r.again('import glob, os; print(glob.glob("*") + glob.glob("/tmp/*"))');
      assert.deepEqual([after.stdout, after.sandbox.stateLost], ["['output']\n", 'disk_full'], what);
    }
    const unlinked = await r.hostile(`
import os, time
held = []
for i in range(10):
    held.append(open("gone", "wb")); held[-1].write(bytes(10 << 20)); held[-1].flush(); os.unlink("gone")
time.sleep(600)`);
    assert.match(unlinked.error, /CODE_INTERPRETER_LOCAL_DISK_MB/);
    const countless = await r.hostile('import os, time\nfor i in range(20000): os.close(os.open(f"n{i}", os.O_CREAT))\ntime.sleep(600)');
    assert.match(countless.error, /more than 8192 files/);
    const closed = await r.hostile('import os, time\nos.mkdir("hidden"); os.chmod("hidden", 0)\ntime.sleep(600)', { timeoutMs: 4000 });
    assert.match(`${closed.reason} ${closed.error}`, user === 'root' ? /timeout/ : /cannot be read/);
  });

  test(`${user}: links, pipes and swaps in the output folder (case 48)`, async (t) => {
    const what = await world(redis, user);
    const r = await rig(t, user);
    const linked = await r.hostile(`
import os, socket
os.makedirs("output/real/deep", exist_ok=True); os.chdir("output")
open("good.txt", "w").write("good"); open("real/deep/also.txt", "w").write("also")
for name, target in {"p": "/etc/passwd", "e": "/proc/self/environ", "m": "${what.outside}/marker", "up": "..", "none": "nowhere", "root": "/"}.items():
    os.symlink(target, name)
os.link("good.txt", "twice"); os.mkfifo("pipe"); socket.socket(socket.AF_UNIX).bind("sock")
os.symlink("real", "folder")
for source in ("/etc/passwd", "${what.outside}/marker", "/usr/bin/env"):
    try: os.link(source, "hard"); print("linked", source)
    except OSError: pass
os.chdir("..")`);
    assert.equal(linked.reason, 'ok', linked.error);
    assert.equal(linked.stdout, '');
    assert.deepEqual(linked.files.map((f) => f.filename), ['real/deep/also.txt']);
    for (const name of ['p', 'e', 'm', 'up', 'none', 'root', 'twice', 'pipe', 'sock', 'folder']) {
      assert.ok(linked.warnings.some((w) => w.includes(`output/${name}:`)), `${name}: ${linked.warnings}`);
    }
    const replaced = await r.hostile('import shutil, os\nshutil.rmtree("output"); os.symlink("/etc", "output")');
    assert.deepEqual(replaced.files, []);
    const swapped = await r.hostile(`
import os, threading
def swap():
    while True:
        try:
            os.symlink("${what.outside}/marker", "output/a.tmp"); os.rename("output/a.tmp", "output/a")
            open("output/a.tmp", "w").write("mine"); os.rename("output/a.tmp", "output/a")
            os.rename("output/d", "d2"); os.symlink("${what.outside}", "output/d"); os.unlink("output/d"); os.rename("d2", "output/d")
        except OSError: pass
os.makedirs("output/d", exist_ok=True); open("output/d/marker", "w").write("mine")
threading.Thread(target=swap, daemon=True).start()`);
    for (let i = 0; i < 20; i++) {
      const result = i ? await r.hostile('1') : swapped;
      for (const file of result.files.filter((f) => f.key)) {
        assert.notEqual(await r.redis.get(file.key), 'm4rk3r-0uts1d3', file.filename);
      }
    }
    assert.equal(readFileSync(`${what.outside}/marker`, 'utf8'), 'm4rk3r-0uts1d3');
  });

  if (user !== users[0]) continue;

  test(`${user}: a session that goes on filling the disk after its run`, async (t) => {
    const r = await rig(t, user);
    const quiet = await r.hostile(`
import threading, time
def fill():
    time.sleep(1)
    for i in range(12):
        open(f"later{i}", "wb").write(bytes(10 << 20))
    while True: sum(range(100000))
threading.Thread(target=fill, daemon=True).start()`);
    assert.equal(quiet.reason, 'ok');
    await r.worker.waitLine(/has died.*CODE_INTERPRETER_LOCAL_DISK_MB/, { timeout: 60_000 });
    const after = await r.again('import glob; print(glob.glob("later*"))');
    assert.deepEqual([after.stdout, after.sandbox.stateLost], ['[]\n', 'disk_full']);
  });

  test(`${user}: processor time has an end`, async (t) => {
    const r = await rig(t, user, { CODE_INTERPRETER_LOCAL_CPU_S: '4' });
    const spun = await r.hostile('while True: pass');
    assert.deepEqual([spun.reason, spun.exitCode], ['kernel_died', 152], spun.error);
    assert.equal((await r.again()).stdout, 'on\n');
  });
}

test('input files belong to the session, whoever runs the worker', async (t) => {
  const r = await rig(t, users[0]);
  const files = [{ filename: 'in/data.txt', content: Buffer.from('one').toString('base64') }];
  const result = await r.py('open("in/data.txt", "a").write(" two"); open("in/new", "w"); print(open("in/data.txt").read())', { threadId: 'x', files });
  assert.equal(result.stdout, 'one two\n', result.error);
});

test('nothing of sessions is left when a worker has ended', async (t) => {
  const r = await rig(t, users.at(-1));
  await r.hostile('open("/tmp/x", "w").write("x"); open("/dev/shm/y", "w").write("y")');
  const mine = () => readdirSync('/tmp').filter((name) => /^sandpiper-\d+$/.test(name))
    .flatMap((name) => readdirSync(`/tmp/${name}`)).filter((name) => name.includes(`-${r.worker.pid}-`));
  assert.equal(mine().length, 1);
  await r.workers.shift().done();
  await waitFor(() => mine().length === 0, { what: 'the folder gone', timeout: 60_000 });
  assert.ok(!existsSync(`/proc/${r.worker.pid}`));
});
