// The E2B emulator (tests/e2b/README.md) in a test: start and stop it, read its journal, set faults.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { atEnd, waitFor } from './process.mjs';

const emulator = fileURLToPath(new URL('../e2b/emulator.py', import.meta.url));
export const apiKey = `e2b_${'0123456789abcdef'.repeat(2)}01234567`;
/** Another account's key. */
export const otherKey = `e2b_${'f'.repeat(40)}`;

/** The line that makes a run scripted: its steps are listed in tests/e2b/README.md. */
export const scriptLine = (...steps) => `#e2b-script:${JSON.stringify(steps.flat())}\n`;

/**
 * Starts an emulator; it goes away with the file, and with this process whatever happens. `settings` are those
 * of README.md. The result: `url`, `env` (what a worker or an official client needs), `journal`, `faults`...
 */
export async function startE2b({ settings = {}, args = [] } = {}) {
  const sets = Object.entries(settings).flatMap(([name, value]) => ['--set', `${name}=${JSON.stringify(value)}`]);
  const child = spawn('/usr/bin/python3', [emulator, ...sets, ...args], { stdio: ['pipe', 'pipe', 'pipe'] });
  const self = { pid: child.pid, log: [], exit: null };
  child.stdin.on('error', () => {});
  createInterface(child.stderr).on('line', (line) => self.log.push(line));
  const exited = new Promise((resolve) => child.once('exit', (code, signal) => {
    self.exit = { code, signal };
    resolve(self.exit);
  }));
  const first = new Promise((resolve) => createInterface(child.stdout).once('line', resolve));
  const line = await Promise.race([first, exited.then(() => null)]);
  if (line === null) throw new Error(`the emulator did not start:\n${self.log.join('\n')}`);
  Object.assign(self, JSON.parse(line));
  self.env = { E2B_API_KEY: apiKey, E2B_API_URL: self.apiUrl, E2B_SANDBOX_URL: self.sandboxUrl };

  const admin = async (method, path, body) => {
    const response = await fetch(`${self.admin}/${path}`, {
      method, body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
  let mark = 0;
  /** All entries since the last `forget()`, or those that `filter` matches: {op: 'execute', sandbox: id}, or a function. */
  self.journal = async (filter = {}) => {
    const { entries } = await admin('GET', `journal?since=${mark}`);
    if (typeof filter === 'function') return entries.filter(filter);
    return entries.filter((entry) => Object.entries(filter).every(([name, value]) => entry[name] === value));
  };
  self.forget = async () => {
    mark = (await admin('GET', 'journal?since=999999999')).next;
  };
  /** ['create', 'execute', ...]: the operations since `forget()`, in order of their beginning. */
  self.ops = async () => (await self.journal()).map((entry) => entry.op);
  /** Adds fault rules; the result is a function that takes them away, with `hits()`. */
  self.fault = async (...rules) => {
    const added = await admin('POST', 'faults', rules.flat());
    const remove = async () => {
      for (const { id } of added) await admin('DELETE', `faults/${id}`);
    };
    remove.hits = async () => (await admin('GET', 'faults')).filter((rule) => added.some(({ id }) => id === rule.id))
      .reduce((sum, rule) => sum + rule.hits, 0);
    return remove;
  };
  self.clearFaults = () => admin('DELETE', 'faults');
  self.set = (changes) => admin('PATCH', 'settings', changes);
  self.settings = () => admin('GET', 'settings');
  self.stats = () => admin('GET', 'stats');
  self.reset = async () => {
    await admin('POST', 'reset');
    mark = 0;
    await self.forget();
  };
  /** Sandboxes that live; with {dead: true} also those that did. */
  self.sandboxes = ({ dead = false } = {}) => admin('GET', `sandboxes${dead ? '?dead=1' : ''}`);
  self.sandbox = (id) => admin('GET', `sandboxes/${id}`);
  /** Behind the client's back: kill, pause, pause-disk, expire, freeze, thaw, kill-kernel. */
  self.act = (id, action) => admin('POST', `sandboxes/${id}/${action}`, {});
  self.patch = (id, changes) => admin('PATCH', `sandboxes/${id}`, changes);
  /** The bytes of a file in a sandbox, without a trace in the journal; null when absent. */
  self.file = async (id, path) => {
    const response = await fetch(`${self.admin}/sandboxes/${id}/file?path=${encodeURIComponent(path)}`);
    return response.ok ? Buffer.from(await response.arrayBuffer()) : null;
  };
  self.waitState = (id, state, timeout = 60_000) => waitFor(
    async () => (await self.sandbox(id)).state === state, { timeout, what: `sandbox ${id} is ${state}` });
  self.stop = async () => {
    child.stdin.end();
    const timer = setTimeout(() => child.kill('SIGKILL'), 15_000);
    await exited;
    clearTimeout(timer);
    return self.exit;
  };
  atEnd(self.stop);
  return self;
}
