// Inside the machine that tests/cgroup2/run starts: systemd, unified hierarchy. The installed unit with its drop-in for
// LOCAL, a worker of root, and workers to whom nothing is delegated.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';

const patient = 300_000; // an emulated processor
const becomes = (what, check) => waitFor(check, { what, timeout: patient, interval: 200 });
const slice = '/sys/fs/cgroup/system.slice';
const redis = await startRedis();
const settings = { NODE_ENV: 'production', CODE_INTERPRETER_TYPE: 'LOCAL', CODE_INTERPRETER_LOCAL_MEMORY_MB: '300',
  CODE_INTERPRETER_LOCAL_MAX_PROCESSES: '40', CODE_INTERPRETER_LOCAL_SPARE_KERNELS: '0', WORKER_CONCURRENCY: '4', LOG_FORMAT: 'json' };
const limits = { 'memory.max': `${300 << 20}`, 'memory.oom.group': '1', 'pids.max': '48', 'cpu.weight': '50' };
const systemctl = (...args) => execFileSync('systemctl', args, { encoding: 'utf8' });
const read = (...path) => readFileSync(join(...path), 'utf8').trim();
const folders = (path) => readdirSync(path, { withFileTypes: true }).filter((one) => one.isDirectory()).map((one) => join(path, one.name));

/** A queue, with verbs to run code in it. */
async function rig(t) {
  const r = await makeRig(t, redis, { replicas: 0, checks: false });
  // On a busy host an emulated kernel may take longer to start than a job waits for it.
  const opts = { attempts: 10, backoff: { type: 'fixed', delay: 1000 } };
  r.begin = (code, threadId, data = {}) => r.add(code, { threadId, ...data }, opts);
  r.py = async (code, threadId, data) => r.result(await r.begin(code, threadId, data), patient);
  r.env = { ...settings, REDIS_URL: redis.url, QUEUE_NAME: r.name };
  return r;
}

/** Starts a unit of systemd; undefined text: the installed one. It is stopped, and must have ended well, with the test. */
async function startUnit(t, name, env, text) {
  const lines = Object.entries(env).map(([key, value]) => `${key}=${value}`);
  if (text) {
    const all = [`[Service]`, 'Type=notify', 'ExecStart=/usr/bin/sandpiper', 'KillMode=mixed', ...lines.map((one) => `Environment=${one}`), ...text];
    writeFileSync(`/etc/systemd/system/${name}.service`, `${all.join('\n')}\n`);
    systemctl('daemon-reload');
  } else {
    writeFileSync('/etc/sandpiper/sandpiper.env', `${lines.join('\n')}\n`, { mode: 0o600 });
  }
  systemctl('start', name);
  const self = { folder: join(slice, `${name}.service`),
    log: () => execFileSync('journalctl', ['-u', name, '-o', 'cat', '--no-pager'], { encoding: 'utf8' }).split('\n') };
  self.sessions = () => folders(self.folder).filter((path) => /\/sandpiper-/.test(path) && !path.endsWith('-worker')).flatMap(folders);
  /** What the worker says of its limits: once. */
  self.said = async (pattern) => {
    await becomes('it says what limits there are', () => self.log().some((line) => /LOCAL: sessions have/.test(line)));
    const said = self.log().filter((line) => /cgroup/.test(line));
    assert.equal(said.length, 1, said.join('\n'));
    assert.match(said[0], pattern);
  };
  t.after(() => {
    systemctl('stop', name);
    const end = systemctl('show', name, '-p', 'Result', '-p', 'ExecMainStatus');
    assert.match(end, /Result=success/, self.log().slice(-20).join('\n'));
    assert.match(end, /ExecMainStatus=0/);
    assert.ok(!existsSync(self.folder), 'its group is gone with it');
  });
  return self;
}

/** A program of root's in a session's group: nothing bounds it but the group. Its status, signal and output. */
const inGroup = (folder, code) => spawnSync('/usr/bin/python3', ['-c', `open("${folder}/cgroup.procs", "w").write("0")\n${code}`],
  { encoding: 'utf8', timeout: patient });

function checkLimits(folder) {
  for (const [file, value] of Object.entries(limits)) assert.equal(read(folder, file), value, file);
}

const hog = `
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(os.urandom(1 << 20)) * 120
        time.sleep(600)
time.sleep(600)`;

test('the unit with its drop-in: each session has its group, with the limits of the settings, which bound it', async (t) => {
  const r = await rig(t);
  const unit = await startUnit(t, 'sandpiper', r.env);
  await unit.said(/cgroup v2 limits: memory, pids, cpu"/);
  assert.equal((await r.py('mine = 42', 'neighbour')).reason, 'ok');
  const [neighbour] = unit.sessions();
  assert.equal((await r.py('print(1)', 'hostile')).stdout, '1\n');
  const group = unit.sessions().find((path) => path !== neighbour);
  assert.equal(unit.sessions().length, 2);
  checkLimits(neighbour);
  checkLimits(group);
  assert.notEqual(statSync(group).uid, 0, 'a user of systemd\'s, who may use what was delegated to him');

  const bomb = inGroup(group, 'import os, time\nn = 0\ntry:\n    while n < 400:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\n'
    + 'except OSError as e: print(e.errno, n)\n'
    + `open("${slice}/cgroup2.service/cgroup.procs", "w").write("0")\n`
    + `for pid in open("${group}/cgroup.procs").read().split():\n    if open(f"/proc/{pid}/cmdline").read().startswith("/usr/bin/python3\\0-c"): os.kill(int(pid), 9)`);
  assert.match(bomb.stdout, /^11 \d+\n$/, JSON.stringify(bomb));
  assert.ok(Number(bomb.stdout.split(' ')[1]) < 48);
  assert.match(read(group, 'pids.events'), /^max [1-9]/);
  assert.equal((await r.py('print(2)', 'hostile')).stdout, '2\n', 'the session lives');

  const victim = r.begin('import time\nprint("runs", flush=True)\ntime.sleep(600)', 'hostile');
  await becomes('it runs', async () => (await r.replyNow(await victim)).some(({ type }) => type === 'stdout'));
  // In one call: a loop would read its own program anew and anew before memory is out.
  const big = inGroup(group, 'import mmap\nmmap.mmap(-1, 800 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)\nprint("has it")');
  assert.deepEqual([big.signal, big.stdout], ['SIGKILL', ''], 'memory that the group has not');
  const ended = await r.result(await victim, patient);
  assert.deepEqual([ended.reason, ended.exitCode, ended.stdout], ['oom', 137, 'runs\n'], 'the whole group goes, not a part of it');
  assert.deepEqual((await r.py('print(3)', 'hostile')).sandbox.stateLost, 'kernel_died');

  const forks = await r.py('import os\nwhile True:\n    try: os.fork()\n    except OSError: pass', 'hostile', { timeoutMs: 10_000 });
  assert.equal(forks.reason, 'timeout', JSON.stringify(forks));
  assert.deepEqual([(await r.py(hog, 'hostile')).reason], ['oom']);
  assert.equal((await r.py('print(4)', 'hostile')).stdout, '4\n');
  const after = await r.py('print(mine)', 'neighbour');
  assert.deepEqual([after.stdout, after.sandbox.reused], ['42\n', true]);
  assert.equal((await r.py('', 'neighbour')).reason, 'ok');
  await becomes('the groups of dead kernels go', () => unit.sessions().length <= 2);
});

test('a worker of root, delegated: users of their own in groups of their own; a killed host leaves none behind', async (t) => {
  const r = await rig(t);
  const unit = await startUnit(t, 'of-root', r.env, ['Delegate=yes']);
  await unit.said(/cgroup v2 limits: memory, pids, cpu"/);
  assert.equal((await r.py('print(1)', 'a')).stdout, '1\n');
  const [group] = unit.sessions();
  checkLimits(group);
  const uids = read(group, 'cgroup.procs').split('\n').map((pid) => statSync(`/proc/${pid}`).uid);
  assert.ok(uids.length >= 2 && uids.every((uid) => uid !== 0), `${uids}`);
  const leaf = join(unit.folder, 'sandpiper-worker');
  const host = read(leaf, 'cgroup.procs').split('\n').find((pid) => /host\.pyz/.test(read(`/proc/${pid}/cmdline`)));
  process.kill(Number(host), 'SIGKILL');
  await becomes('it was seen', () => unit.log().some((line) => /kernel host/.test(line)));
  assert.equal((await r.py('print(2)', 'a')).stdout, '2\n');
  await becomes('one group', () => unit.sessions().length === 1);
  checkLimits(unit.sessions()[0]);
  assert.equal((await r.py(hog, 'a')).reason, 'oom');
});

test('nothing delegated: one line says so, and rlimits and looks bound sessions', async (t) => {
  const r = await rig(t);
  const unit = await startUnit(t, 'of-nobody', { ...r.env, CODE_INTERPRETER_LOCAL_DIR: '/run/of-nobody' }, ['User=nobody', 'RuntimeDirectory=of-nobody']);
  await unit.said(/no cgroup limits \(the cgroup is not delegated to the worker\)"/);
  assert.deepEqual(folders(unit.folder), []);
  assert.equal((await r.py('print(1)', 'a')).stdout, '1\n');
  const forks = await r.py('import os\nwhile True:\n    try: os.fork()\n    except OSError: pass', 'a', { timeoutMs: 10_000 });
  assert.equal(forks.reason, 'timeout', JSON.stringify(forks));
  assert.equal((await r.py(hog, 'a')).reason, 'oom');
  assert.equal((await r.py('print(2)', 'a')).stdout, '2\n');
});

test('a worker of root among others\' processes: it says so, and leaves their group as it is', async (t) => {
  const r = await rig(t);
  const worker = r.startWorker({ ...r.env, LOG_LEVEL: 'info' });
  assert.equal((await r.py('print(1)', 'a')).stdout, '1\n');
  const said = worker.lines.filter((line) => /cgroup/.test(line));
  assert.equal(said.length, 1, said.join('\n'));
  assert.match(said[0], /no cgroup limits \(the cgroup cannot be divided: other processes than the worker are in it\)"/);
  const own = join('/sys/fs/cgroup', /^0::(.*)$/m.exec(read('/proc/self/cgroup'))[1]);
  assert.deepEqual(folders(own), []);
  assert.equal((await r.py(hog, 'a')).reason, 'oom');
});
