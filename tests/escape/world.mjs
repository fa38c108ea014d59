// A world with things in it that code must not reach, and workers in it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { atEnd, start, tempDir, waitFor } from '../lib/process.mjs';
import { makeRig, workerBin } from '../lib/rig.mjs';

export const NOBODY = 65534;
let worlds = 0;
/** As whom a worker is run: CI is root; for others there is only one way. */
export const users = process.getuid() === 0 ? ['root', 'nobody'] : ['self'];

const asNobody = ['setpriv', '--pdeathsig', 'KILL', '--reuid', NOBODY, '--regid', NOBODY, '--clear-groups'].map(String);
/** The start of a command line that runs a program as that user. */
export const as = (user) => (user === 'nobody' ? asNobody : []);
export const works = (program, ...args) => spawnSync(program, args, { stdio: 'ignore', timeout: 60_000 }).status === 0;

/** Whether this machine can isolate code at all. A worker of root runs code as users without rights, too. */
export const machineIsolates = works(...as(process.getuid() === 0 ? 'nobody' : 'self'), 'bwrap', '--unshare-all', '--unshare-user',
  '--uid', '1000', '--gid', '1000', '--cap-drop', 'ALL', '--ro-bind', '/', '/', '--proc', '/proc', '--dev', '/dev', 'true');
if (!machineIsolates) console.log('# this machine cannot isolate code: LOCAL must be DISABLED in production, all else is not seen here');

const rights = BigInt(`0x${/^CapEff:\s*(\S+)/m.exec(readFileSync('/proc/self/status', 'utf8'))[1]}`);
/** Whether root has what it takes to look into processes of its sessions' users, and to enter their networks. */
export const rootMay = { ptrace: (rights >> 19n & 1n) === 1n, enter: (rights >> 19n & rights >> 21n & 1n) === 1n };

const sentence = 'LOCAL code interpreter driver is not allowed in production. Use E2B driver instead by setting '
  + 'CODE_INTERPRETER_TYPE=E2B and providing E2B_API_KEY.';

export const replica = async (r, wanted) => waitFor(async () => {
  const [key] = await r.redis.keys(`${r.P}replica:*`);
  const seen = key ? await r.redis.hgetall(key) : {};
  return wanted(seen) && seen;
}, { what: 'the replica says so', timeout: 60_000 });

/** All jobs fail at once with the known sentence and the reason, and the replica says so too. */
export async function refused(r, why) {
  const told = await r.failure(await r.add('print(1)', { threadId: 't' }, { attempts: 3 }), 60_000);
  assert.ok(told.startsWith(`${sentence} (Why: `), told);
  assert.match(told, why);
  const seen = await replica(r, (one) => one.why === told);
  assert.deepEqual([seen.driver, seen.enabled], ['DISABLED', '0']);
}

/** The body of a test of isolated code; where code cannot be isolated, that nothing runs at all. */
export const isolated = (redis, user, body) => async (t) =>
  (machineIsolates ? body(t) : refused(await worker(t, redis, user, { NODE_ENV: 'production' }), /./));

/** A program that runs the worker as that user; undefined: as we are. */
export function wrapper(user, before = '') {
  if (user !== 'nobody' && !before) return undefined;
  const dir = tempDir('sandpiper-escape-');
  chmodSync(dir, 0o755);
  copyFileSync(workerBin, join(dir, 'sandpiper'));
  writeFileSync(join(dir, 'run'), `#!/bin/sh\ncd /\nexec ${as(user).join(' ')} ${before} ${dir}/sandpiper\n`, { mode: 0o755 });
  return join(dir, 'run');
}

export async function worker(t, redis, user, env, { before } = {}) {
  process.env.WORKER_WRAPPER = wrapper(user, before) ?? '';
  if (!process.env.WORKER_WRAPPER) delete process.env.WORKER_WRAPPER;
  try {
    const r = await makeRig(t, redis, { env: { CODE_INTERPRETER_TYPE: 'LOCAL', WORKER_CONCURRENCY: '4', ...env } });
    r.py = async (code, data = {}, ms = 60_000) => r.result(await r.add(code, data), ms);
    return r;
  } finally {
    delete process.env.WORKER_WRAPPER;
  }
}

/** A server that answers PONG, on all addresses. */
async function server() {
  const self = createServer((socket) => socket.on('error', () => {}).once('data', () => socket.end('+PONG\r\n'))).listen(0, '0.0.0.0');
  await new Promise((resolve, reject) => self.once('listening', resolve).once('error', reject));
  atEnd(() => self.close());
  return self;
}

/** An address of this machine that is not the loopback's (or, where there is none, not its usual one). */
export const ownAddress = () => Object.values(networkInterfaces()).flat()
  .find((one) => one.family === 'IPv4' && !one.internal)?.address ?? '127.0.0.2';

export async function world(redis, user) {
  const outside = tempDir('sandpiper-outside-');
  writeFileSync(join(outside, 'marker'), 'm4rk3r-0uts1d3');
  const own = user === 'nobody' ? NOBODY : process.getuid();
  chownSync(outside, own, own);
  chownSync(join(outside, 'marker'), own, own);
  chmodSync(redis.dir, 0o755);
  chmodSync(redis.socket, 0o777);
  const abstractName = `sandpiper-escape-${process.pid}-${++worlds}`;
  // Not Node's: it fills the name up with NULs, or not, by its version.
  const abstract = start('/usr/bin/python3', ['-c', 'import socket, sys\ns = socket.socket(socket.AF_UNIX)\n'
    + 's.bind("\\0" + sys.argv[1])\ns.listen()\nprint("listening", flush=True)\n'
    + 'while True: c = s.accept()[0]; c.recv(64); c.sendall(b"+PONG\\r\\n"); c.close()', abstractName]);
  atEnd(() => abstract.stop(1000));
  await abstract.waitLine(/listening/, { timeout: 60_000 });
  const open = await server();
  const [program, ...args] = [...as(user), 'sleep', '600'];
  const sleeper = start(program, args);
  atEnd(() => sleeper.stop(1000));
  await waitFor(() => readFileSync(`/proc/${sleeper.pid}/comm`, 'utf8') === 'sleep\n', { what: 'it sleeps', timeout: 60_000 });
  return { outside, abstractName, serverPort: open.address().port, address: ownAddress(), redisPort: redis.port,
    redisSocket: redis.socket, sleeper: sleeper.pid, canary: 'c4n4ry-0f-th3-w0rk3r', secret: 's3cr3t-0f-s0m30n3' };
}
