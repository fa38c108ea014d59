// Child processes and resources of a test file: all of them are gone when the file ends, however it ends.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

export { sleep };

const cleanups = []; // run in reverse order after the file's last test
const pids = new Set(); // children alive; SIGKILLed when this process exits for whatever reason
const setpriv = ['/usr/bin/setpriv', '/bin/setpriv'].find(existsSync);

/** Registers fn to run when the file's tests are over (or when `cleanUp` is called by a script). */
export function atEnd(fn) {
  cleanups.push(fn);
}

export async function cleanUp() {
  const errors = [];
  while (cleanups.length) {
    try {
      await cleanups.pop()();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length) throw errors[0];
}

after(async () => {
  // A client that goes on trying to connect would keep a file that has failed, and with it all others, for ever.
  setTimeout(() => {
    console.error('something of this file is still open after its end');
    process.exit();
  }, 60_000).unref();
  await cleanUp();
});
process.on('exit', () => {
  for (const pid of pids) kill(pid, 'SIGKILL');
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(1));

export function kill(pid, signal) {
  try {
    process.kill(pid, signal);
    return true;
  } catch {
    return false;
  }
}

export function isAlive(pid) {
  return kill(pid, 0);
}

/** A private folder that goes away with the file. */
export function tempDir(name = 'sandpiper-test-') {
  const dir = mkdtempSync(join(tmpdir(), name));
  atEnd(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Polls until predicate() gives something truthy and returns that; throws after `timeout` ms naming `what`. */
export async function waitFor(predicate, { timeout = 60_000, interval = 20, what = predicate } = {}) {
  const deadline = Date.now() + timeout;
  let last;
  for (;;) {
    try {
      const value = await predicate();
      if (value) return value;
      last = undefined;
    } catch (error) {
      last = error;
    }
    if (Date.now() > deadline) {
      throw new Error(`waited ${timeout} ms in vain for: ${what}${last ? ` (last: ${last.message})` : ''}`);
    }
    await sleep(interval);
  }
}

/** A promise that fails after `ms` naming `what`. */
export function within(ms, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${ms} ms: ${what}`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/**
 * Starts a program. It is killed with this process, even by SIGKILL. The result has `pid`, `lines` (all of
 * stdout and stderr), `exited` (promise of {code, signal}), `waitLine(regexp)`, `kill(signal)`, and
 * `stop(graceMs)`: SIGTERM, after graceMs SIGKILL.
 */
export function start(program, args, { env = process.env, cwd } = {}) {
  const argv = setpriv ? [setpriv, '--pdeathsig', 'KILL', program, ...args] : [program, ...args];
  const child = spawn(argv[0], argv.slice(1), { env, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  const self = { pid: child.pid, lines: [], exit: null, watchers: new Set() };
  if (child.pid) pids.add(child.pid);
  self.exited = new Promise((resolve) => {
    const end = (code, signal) => {
      pids.delete(child.pid);
      self.exit ??= { code, signal };
      for (const watcher of self.watchers) watcher();
      resolve(self.exit);
    };
    child.on('close', end);
    child.on('error', (error) => {
      self.lines.push(String(error));
      end(127, null);
    });
  });
  for (const stream of [child.stdout, child.stderr]) splitLines(stream, (line) => {
    self.lines.push(line);
    for (const watcher of self.watchers) watcher();
  });
  self.kill = (signal) => self.exit === null && kill(child.pid, signal);
  self.stop = async (graceMs = 10_000) => {
    self.kill('SIGCONT');
    self.kill('SIGTERM');
    const timer = setTimeout(() => self.kill('SIGKILL'), graceMs);
    await self.exited;
    clearTimeout(timer);
    return self.exit;
  };
  self.tail = (n = 15) => self.lines.slice(-n).join('\n');
  self.waitLine = (pattern, { timeout = 60_000, from = 0 } = {}) => waitLine(self, pattern, timeout, from);
  return self;
}

function splitLines(stream, onLine) {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text) => {
    const parts = (rest + text).split('\n');
    rest = parts.pop();
    for (const part of parts) onLine(part);
  });
  stream.on('end', () => rest && onLine(rest));
}

function waitLine(self, pattern, timeout, from) {
  return new Promise((resolve, reject) => {
    const finish = (action, value) => {
      clearTimeout(timer);
      self.watchers.delete(look);
      action(value);
    };
    const look = () => {
      const hit = self.lines.slice(from).find((line) => pattern.test(line));
      if (hit !== undefined) finish(resolve, hit);
      else if (self.exit) finish(reject, new Error(`ended without a line like ${pattern}:\n${self.tail()}`));
    };
    const timer = setTimeout(
      () => finish(reject, new Error(`no line like ${pattern} in ${timeout} ms:\n${self.tail()}`)), timeout);
    self.watchers.add(look);
    look();
  });
}
