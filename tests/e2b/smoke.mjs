// make smoke-e2b: the life of a thread's sandbox step by step, each with its time and a verdict. On the real service where
// E2B_API_KEY is set (it makes and removes a few sandboxes), else against the emulator, and it says which.
import { Queue, QueueEvents } from 'bullmq';
import { Sandbox } from 'e2b';
import { randomUUID } from 'node:crypto';
import { cleanUp, sleep, start } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';

const real = Boolean(process.env.E2B_API_KEY);
const idleMs = real ? 30_000 : 3000;
let service = process.env;
if (real) {
  console.log('smoke-e2b: on the real E2B, with the E2B_API_KEY of the environment');
} else {
  console.log('smoke-e2b: there is no E2B_API_KEY, so this runs against the emulator of tests/e2b, NOT against E2B');
  const { startE2b } = await import('../lib/e2b.mjs');
  service = (await startE2b({ settings: { warm: 1 } })).env;
}
const own = Object.fromEntries(['E2B_API_KEY', 'E2B_DOMAIN', 'E2B_API_URL', 'E2B_SANDBOX_URL'].filter((k) => service[k]).map((k) => [k, service[k]]));
Object.assign(process.env, own); // for the official client, which looks on

const redis = await startRedis();
const deployment = `smoke-${randomUUID()}`;
const thread = `smoke-${Date.now()}`;
const key = `:${thread}`;
const client = () => ({ connection: redis.connection });
const queue = new Queue('code-interpreter', client());
const events = new QueueEvents('code-interpreter', client());
await events.waitUntilReady();

function startWorker(more = {}) {
  return start('build/release/sandpiper', [], {
    env: {
      PATH: process.env.PATH, REDIS_URL: redis.url, CODE_INTERPRETER_TYPE: 'E2B', E2B_DEPLOYMENT_ID: deployment, LOG_LEVEL: 'warn',
      CODE_INTERPRETER_TIMEOUT_MS: String(idleMs), CODE_INTERPRETER_IDLE_TIMEOUT_MS: String(idleMs), ...own, ...more,
    },
  });
}
let worker = startWorker();

const run = async (code, data = {}, name = 'execute') => {
  const job = await queue.add(name, { threadId: thread, code, ...data });
  return job.waitUntilFinished(events, 180_000);
};
/** The thread's sandboxes as the official client sees them. */
async function list(state = ['running', 'paused']) {
  const found = [];
  const pages = Sandbox.list({ query: { state, metadata: { twentySessionId: key } } });
  while (pages.hasNext) found.push(...await pages.nextItems());
  return found.filter((s) => s.metadata.twentySessionId === key);
}
async function until(test, ms) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(real ? 1000 : 100)) if (await test()) return true;
  return false;
}

let failed = 0;
async function step(name, work) {
  const begun = Date.now();
  let verdict = 'ok';
  try {
    const wrong = await work();
    if (wrong) verdict = `FAILED: ${typeof wrong === 'string' ? wrong : JSON.stringify(wrong)}`;
  } catch (error) {
    verdict = `FAILED: ${error.message}`;
  }
  if (verdict !== 'ok') failed++;
  console.log(`  ${name.padEnd(52)} ${String(Date.now() - begun).padStart(7)} ms  ${verdict}`);
}

let first;
await step('create: the first run of a thread', async () => {
  const result = await run('x = 41; print("hello")');
  first = (await list())[0]?.sandboxId;
  return (result.stdout !== 'hello\n' || result.sandbox.reused || !first) && result;
});
await step('reuse hit: a warm run sees the state', async () => {
  const result = await run('x += 1; print(x)');
  return (result.stdout !== '42\n' || !result.sandbox.reused) && result;
});
await step('files: an input goes in, a file comes out', async () => {
  const result = await run('open("/home/user/output/copy.csv", "w").write(open("/home/user/in.csv").read() * 2)', {
    files: [{ filename: 'in.csv', content: Buffer.from('a,b\n').toString('base64') }],
  });
  const bytes = result.files[0] && await redis.client().getBuffer(result.files[0].key);
  return bytes?.toString() !== 'a,b\na,b\n' && result;
});
await step('timeout: interrupted, output kept, state kept', async () => {
  const result = await run('import time\nprint("before", flush=True)\ntime.sleep(120)', { timeoutMs: 2000 });
  const after = await run('print(x)');
  return (result.reason !== 'timeout' || result.stdout !== 'before\n' || after.stdout !== '42\n') && [result, after];
});
await step('idle: paused when the idle window is over', async () =>
  !await until(async () => (await list(['paused'])).length === 1, idleMs + 60_000) && 'it is not paused');
await step('resume: a run wakes it, with its state', async () => {
  const result = await run('print(x)');
  const found = await list();
  return (result.stdout !== '42\n' || found.length !== 1 || found[0].sandboxId !== first) && [result, found];
});
await step('duplicates: one of two is kept', async () => {
  const [{ metadata }] = await list();
  await Sandbox.create('code-interpreter-v1', { metadata, timeoutMs: 120_000 });
  worker.kill('SIGTERM'); // a fresh replica knows no handle, and a lost record makes it look
  await worker.exited;
  await redis.client().hdel(`bull:code-interpreter:thread:${key}`, 'sandbox');
  worker = startWorker();
  const result = await run('print("found", "x" in globals())');
  return (!/^found/.test(result.stdout) || !await until(async () => (await list()).length === 1, 30_000)) && [result, await list()];
});
await step('release: the sandbox is killed', async () => {
  await run('', {}, 'release');
  return !await until(async () => (await list()).length === 0, 30_000) && await list();
});
await step('sweep: a paused one that nobody used is deleted', async () => {
  await run('print("to be swept")');
  if (!await until(async () => (await list(['paused'])).length === 1, idleMs + 60_000)) return 'it is not paused';
  worker.kill('SIGTERM');
  await worker.exited;
  worker = startWorker({ CODE_INTERPRETER_SESSION_MAX_AGE_MS: '1000', E2B_SWEEP_INTERVAL_MS: '1000' });
  await run('print("another thread")', { threadId: `${thread}-other` });
  return !await until(async () => (await list()).length === 0, 60_000) && await list();
});
await step('kill: nothing of this run is left', async () => {
  await run('', { threadId: `${thread}-other` }, 'release');
  const pages = Sandbox.list({ query: { metadata: { sandpiperDeployment: deployment } } });
  const left = pages.hasNext ? await pages.nextItems() : [];
  for (const { sandboxId } of left) await Sandbox.kill(sandboxId);
  return left.length > 0 && left;
});

worker.kill('SIGTERM');
await worker.exited;
await Promise.all([queue.close(), events.close()]);
await cleanUp();
console.log(failed ? `smoke-e2b: ${failed} FAILED` : `smoke-e2b: ok (${real ? 'the real E2B' : 'the emulator'})`);
process.exit(failed ? 1 : 0);
