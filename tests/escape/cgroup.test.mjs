// The groups of sessions in this machine's own hierarchy (v2), with whatever controllers it has there; where none can be had,
// that it is said and harms nothing. Memory and processes bounded by them: tests/cgroup2, in a machine of its own.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { atEnd, start, waitFor } from '../lib/process.mjs';

const local = fileURLToPath(new URL('../../worker/drivers/local', import.meta.url));

/** A group at the top of the unified hierarchy, if we may make one there and it has a controller; else null. */
function makeGroup(name) {
  const line = readFileSync('/proc/self/mountinfo', 'utf8').split('\n').map((one) => one.split(' '))
    .find((fields) => fields[fields.indexOf('-') + 1] === 'cgroup2' && fields[3] === '/');
  try {
    const [controller] = line ? readFileSync(join(line[4], 'cgroup.controllers'), 'utf8').split(/\s+/).filter(Boolean) : [];
    const control = join(line[4], 'cgroup.subtree_control');
    const before = readFileSync(control, 'utf8').split(/\s+/);
    if (!before.includes(controller)) {
      writeFileSync(control, `+${controller}`);
      atEnd(() => {
        try {
          writeFileSync(control, `-${controller}`);
        } catch {} // another one uses it by now
      });
    }
    const folder = join(line[4], `sandpiper-${name}-${process.pid}`);
    mkdirSync(folder);
    atEnd(async () => {
      writeFileSync(join(folder, 'cgroup.kill'), '1'); // what a failed test left
      const emptied = () => spawnSync('find', [folder, '-depth', '-type', 'd', '-exec', 'rmdir', '{}', ';']).status !== null && !existsSync(folder);
      await waitFor(emptied, { what: 'the group is gone' });
    });
    return folder;
  } catch {
    return null;
  }
}

/** A worker with a host and another child that has a child; says what its host sees, one JSON object. */
const program = `
import json, os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from host import cgroup
folder = sys.argv[2]
if folder:
    open(folder + "/cgroup.procs", "w").write("0")
probe = subprocess.Popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True)
probe.stdout.readline()

def procs(path):
    return [int(pid) for pid in open(path + "/cgroup.procs").read().split()]

def dirs(path):
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir())

def host():
    said = {}
    if folder:
        cgroup.WANTED = tuple(cgroup.read(folder + "/cgroup.controllers").split())
    groups = cgroup.Groups()
    groups.setup("token")
    said.update(text=groups.describe(), wanted=cgroup.WANTED)
    if groups.folder is None:
        group = cgroup.Group(groups, "k1", {"memory_mb": 64})
        subprocess.run(["true"], preexec_fn=group.enter, check=True)
        group.kill()
        said["killed"] = group.killed_for_memory()
        group.close()
        said["left"] = dirs(folder) if folder else []
        return said
    said["above"], said["leaf"] = procs(folder), len(procs(folder + "/" + cgroup.LEAF))
    os.mkdir(groups.folder + "/k9")  # of a host that was killed
    group = cgroup.Group(groups, "k9", {})
    said["groups"] = dirs(groups.folder)
    child = subprocess.Popen(["sh", "-c", "(setsid sleep 600 &) ; echo; exec sleep 600"], stdout=subprocess.PIPE, preexec_fn=group.enter)
    child.stdout.readline()
    said["in"] = child.pid in procs(group.folder)
    inside = group.folder
    group.kill()
    said["status"] = child.wait()
    said["limits"] = list(cgroup.Group.limits(["memory", "pids", "cpu"], {"memory_mb": 64, "max_processes": 32}))
    group.close()
    deadline = time.monotonic() + 60
    while os.path.exists(inside) and time.monotonic() < deadline:
        groups.clear()
        time.sleep(0.01)
    again = cgroup.Groups()  # the next driver of the same worker, in the leaf by now
    again.setup("next")
    said["again"] = again.describe()
    again.close()
    groups.close()
    said["left"] = dirs(folder)
    return said

pid = os.fork()
if pid == 0:
    try:
        print(json.dumps(host()), flush=True)
    finally:
        os._exit(0)
os.waitpid(pid, 0)
os.killpg(probe.pid, 9)
`;
const run = (folder) => {
  const { stdout, stderr } = spawnSync('/usr/bin/python3', ['-B', '-c', program, local, folder], { encoding: 'utf8', timeout: 120_000 });
  assert.ok(stdout, stderr);
  return JSON.parse(stdout);
};

test('a hierarchy of its own is divided: worker and all its processes in a leaf, a group for each session, none left', () => {
  const folder = makeGroup('test');
  if (!folder) {
    const said = run('');
    assert.match(said.text, /^(no cgroup limits \(.+\)|cgroup v2 limits: .+)$/);
    return;
  }
  const said = run(folder);
  assert.ok(said.wanted.length > 0);
  assert.equal(said.text, `cgroup v2 limits: ${said.wanted.join(', ')}`);
  assert.deepEqual([said.above, said.leaf, said.groups, said.in, said.status], [[], 4, ['k9'], true, -9], JSON.stringify(said));
  assert.deepEqual(said.limits, [['memory.max', `${64 << 20}`], ['memory.swap.max', '0'], ['memory.oom.group', '1'], ['pids.max', '40'], ['cpu.weight', '50']]);
  assert.equal(said.again, said.text);
  assert.deepEqual(said.left, ['sandpiper-worker']);
});

test('a group with another\'s process in it is left alone, and it is said why', async () => {
  const folder = makeGroup('shared');
  if (!folder) return;
  const other = start('sleep', ['600']);
  atEnd(() => other.stop(1000));
  writeFileSync(join(folder, 'cgroup.procs'), String(other.pid));
  const said = run(folder);
  assert.equal(said.text, 'no cgroup limits (the cgroup cannot be divided: other processes than the worker are in it)');
  assert.deepEqual([said.left, said.killed], [[], false]);
});
