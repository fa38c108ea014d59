// A world with things in it that code must not reach, and workers in it.
import assert from 'node:assert/strict';
import { chmodSync, chownSync, copyFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { atEnd, start, tempDir } from '../lib/process.mjs';
import { makeRig, workerBin } from '../lib/rig.mjs';

export const NOBODY = 65534;
let worlds = 0;
/** As whom a worker is run: CI is root; for others there is only one way. */
export const users = process.getuid() === 0 ? ['root', 'nobody'] : ['self'];

/** A program that runs the worker as that user; undefined: as we are. */
export function wrapper(user, before = '') {
  if (user !== 'nobody' && !before) return undefined;
  const dir = tempDir('sandpiper-escape-');
  chmodSync(dir, 0o755);
  copyFileSync(workerBin, join(dir, 'sandpiper'));
  const drop = user === 'nobody' ? `setpriv --pdeathsig KILL --reuid ${NOBODY} --regid ${NOBODY} --clear-groups` : '';
  writeFileSync(join(dir, 'run'), `#!/bin/sh\ncd /\nexec ${drop} ${before} ${dir}/sandpiper\n`, { mode: 0o755 });
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
  const sleeper = user === 'nobody'
    ? start('setpriv', ['--reuid', NOBODY, '--regid', NOBODY, '--clear-groups', '--pdeathsig', 'KILL', 'sleep', '600'].map(String))
    : start('sleep', ['600']);
  atEnd(() => sleeper.stop(1000));
  assert.ok(sleeper.pid);
  return { outside, abstractName, serverPort: open.address().port, address: ownAddress(), redisPort: redis.port,
    redisSocket: redis.socket, sleeper: sleeper.pid, canary: 'c4n4ry-0f-th3-w0rk3r', secret: 's3cr3t-0f-s0m30n3' };
}
