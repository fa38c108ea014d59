// What the demo runs on: a private Redis and one worker with default settings, both gone when the demo ends.
import { execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const dir = mkdtempSync(join(tmpdir(), 'sandpiper-demo-'));
const children = [];

process.on('exit', () => {
  for (const child of children) if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
  rmSync(dir, { recursive: true, force: true });
});
let onSignal = (signal) => fail(`stopped by ${signal}`);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => onSignal(signal));

/** For what runs until Ctrl-C: everything is stopped then, and that is a good end. */
export function runUntilStopped(bye) {
  onSignal = async () => {
    onSignal = () => process.exit(1); // who cannot wait
    await stopAll({ anyEnd: true });
    console.log(`\n${bye}`);
    process.exit(0);
  };
}

process.on('unhandledRejection', (error) => fail(error?.message ?? error));
process.on('uncaughtException', (error) => fail(error?.message ?? error));

export function fail(message) {
  console.error(`\ndemo: FAILED: ${message}`);
  process.exit(1);
}

function launch(name, program, args, env) {
  const log = join(dir, `${name}.log`);
  const fd = openSync(log, 'a');
  const child = spawn(program, args, { env, stdio: ['ignore', fd, fd] });
  child.log = () => readFileSync(log, 'utf8');
  child.on('error', (error) => fail(`${program} cannot be started: ${error.message}`));
  child.on('exit', (code) => {
    if (!child.stopping) fail(`${name} has ended (${code}):\n${child.log().split('\n').slice(-8).join('\n')}`);
  });
  children.push(child);
  return child;
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

async function until(what, test, ms = 20_000) {
  for (const end = Date.now() + ms; Date.now() < end; await new Promise((r) => setTimeout(r, 25))) {
    if (await test()) return;
  }
  fail(`${what} did not happen within ${ms / 1000} s`);
}

/** A Redis on a port that the system chose; `cli(...)` is redis-cli against it. */
export async function startRedis() {
  const port = await freePort();
  launch('redis', 'redis-server', ['--port', port, '--bind', '127.0.0.1', '--dir', dir, '--save', '', '--appendonly', 'no'], process.env);
  const cli = async (...args) => (await promisify(execFile)('redis-cli', ['-p', port, ...args])).stdout.trim();
  await until('Redis answering', async () => (await cli('PING').catch(() => '')) === 'PONG');
  return { port, cli };
}

/** The worker, in development and otherwise with its defaults (but for a machine that has no bubblewrap). */
export async function startWorker(port) {
  const boxed = spawnSync('bwrap', ['--unshare-all', '--ro-bind', '/', '/', 'true']).status === 0;
  if (!boxed) console.log('bubblewrap cannot run on this machine: CODE_INTERPRETER_LOCAL_ISOLATION=none');
  const env = {
    ...(boxed ? {} : { CODE_INTERPRETER_LOCAL_ISOLATION: 'none' }),
    PATH: process.env.PATH, HOME: process.env.HOME, NODE_ENV: 'development', REDIS_URL: `redis://127.0.0.1:${port}`,
  };
  const worker = launch('worker', 'build/release/sandpiper', [], env);
  await until('the worker connecting', () => /"msg":"redis \(commands\)[^"]*connected/.test(worker.log()));
  return worker;
}

/** The server with its page, in development mode; its address. On `wanted`, or where that is taken on any free port. */
export async function startServer(redisPort, wanted) {
  const probe = createServer();
  const free = await new Promise((resolve) => {
    probe.once('error', () => resolve(false));
    probe.listen(wanted, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
  const server = launch('server', process.execPath, ['docker/server/dist/main.js'], {
    PATH: process.env.PATH, NODE_ENV: 'development', REDIS_URL: `redis://127.0.0.1:${redisPort}`, PORT: String(free ? wanted : 0), NO_COLOR: '1',
  });
  await until('the server listening', () => /^listening on /m.test(server.log()), 60_000);
  return /^listening on (\S+)/m.exec(server.log())[1].replace('127.0.0.1', 'localhost');
}

export async function stopAll({ anyEnd = false } = {}) {
  for (const child of children) child.stopping = true; // Ctrl-C reaches all of them at once
  for (const child of children.reverse()) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill('SIGTERM');
    await Promise.race([once(child, 'exit'), new Promise((r) => setTimeout(r, 10_000))]);
    if (child.exitCode !== 0 && !anyEnd) fail(`a process did not end well (${child.exitCode ?? child.signalCode})`);
  }
}
