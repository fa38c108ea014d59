// Files without end, files that are none, and what is left of them: bounded with a clear reason, never followed, all gone
// with the worker.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { neighbours } from './neighbours.mjs';
import { NOBODY, isolated, rootMay, users, world } from './world.mjs';

const redis = await startRedis();

for (const user of users) {
  test(`${user}: files that fill the disk`, isolated(redis, user, async (t) => {
    const r = await neighbours(t, redis, user);
    const large = await r.hostile('open("large", "wb").write(bytes(20 << 20))');
    assert.match(large.error, /File too large/);
    await r.again('import os; os.unlink("large")');
    for (const [what, where] of [['many', '"f%d" % i'], ['in shared memory', '"/dev/shm/f%d" % i']]) {
      const full = await r.hostile(`
print("begun", flush=True)
os.makedirs("output", exist_ok=True); open("output/kept.txt", "w").write("kept")
import time
for i in range(10):
    open(${where}, "wb").write(bytes(5 << 20))
time.sleep(600)`);
      assert.deepEqual([full.reason, full.exitCode, full.state, full.stdout], ['kernel_died', 137, 'error', 'begun\n'], `${what}: ${full.error}`);
      assert.match(full.error, /CODE_INTERPRETER_LOCAL_DISK_MB/);
      assert.deepEqual(full.files.map((f) => f.filename), ['kept.txt'], 'what was finished is delivered');
      const after = await r.again('import glob, os; print(glob.glob("*") + glob.glob("/tmp/*"))');
      assert.deepEqual([after.stdout, after.sandbox.stateLost], ["['output']\n", 'disk_full'], what);
    }
    const blind = user === 'root' && !rootMay.ptrace;
    const unlinked = await r.hostile(`
import os, time
held = []
for i in range(10):
    held.append(open("gone", "wb")); held[-1].write(bytes(5 << 20)); held[-1].flush(); os.unlink("gone")
time.sleep(600)`, { timeoutMs: blind ? 2000 : 60_000 });
    // README: root without CAP_SYS_PTRACE does not see them; then the run's own end is what ends them.
    assert.match(`${unlinked.reason} ${unlinked.error}`, blind ? /timeout/ : /CODE_INTERPRETER_LOCAL_DISK_MB/);
    const countless = await r.hostile('import os, time\nfor i in range(6000): os.close(os.open(f"n{i}", os.O_CREAT))\ntime.sleep(600)');
    assert.match(countless.error, /more than 4096 files/);
    const closed = await r.hostile('import os, time\nos.mkdir("hidden"); os.chmod("hidden", 0)\ntime.sleep(600)',
      { timeoutMs: user === 'root' ? 2000 : 60_000 }); // root counts them all the same
    assert.match(`${closed.reason} ${closed.error}`, user === 'root' ? /timeout/ : /cannot be read/);
  }));

  test(`${user}: links, pipes and swaps in the output folder (case 48)`, isolated(redis, user, async (t) => {
    const what = await world(redis, user);
    const r = await neighbours(t, redis, user);
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
  }));
}

test('a session that goes on filling the disk after its run', isolated(redis, users[0], async (t) => {
  const r = await neighbours(t, redis, users[0]);
  const quiet = await r.hostile(`
import threading, time
def fill():
    time.sleep(1)
    for i in range(12):
        open(f"later{i}", "wb").write(bytes(5 << 20))
    while True: sum(range(100000))
threading.Thread(target=fill, daemon=True).start()`);
  assert.equal(quiet.reason, 'ok');
  await r.worker.waitLine(/has died.*CODE_INTERPRETER_LOCAL_DISK_MB/, { timeout: 60_000 });
  const after = await r.again('import glob; print(glob.glob("later*"))');
  assert.deepEqual([after.stdout, after.sandbox.stateLost], ['[]\n', 'disk_full']);
}));

test('input files belong to the session, whoever runs the worker', isolated(redis, users[0], async (t) => {
  const r = await neighbours(t, redis, users[0]);
  const files = [{ filename: 'in/data.txt', content: Buffer.from('one').toString('base64') }];
  const result = await r.py('open("in/data.txt", "a").write(" two"); open("in/new", "w"); print(open("in/data.txt").read())', { threadId: 'x', files });
  assert.equal(result.stdout, 'one two\n', result.error);
}));

test('nothing of sessions is left when a worker has ended', isolated(redis, users.at(-1), async (t) => {
  const r = await neighbours(t, redis, users.at(-1));
  await r.hostile('open("/tmp/x", "w").write("x"); open("/dev/shm/y", "w").write("y")');
  const folder = `/tmp/sandpiper-${users.at(-1) === 'nobody' ? NOBODY : process.getuid()}`;
  const mine = () => readdirSync(folder).filter((name) => name.includes(`-${r.worker.pid}-`));
  assert.equal(mine().length, 1);
  await r.workers.shift().done();
  await waitFor(() => mine().length === 0, { what: 'the folder gone', timeout: 60_000 });
  assert.ok(!existsSync(`/proc/${r.worker.pid}`));
}));
