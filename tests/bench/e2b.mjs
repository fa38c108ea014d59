// The code interpreter's rows on the emulator of E2B, beside the official SDK doing what the incumbent does.
import { performance } from 'node:perf_hooks';
import { SandpiperClient } from '../../docker/client/index.mjs';
import { scriptLine, startE2b } from '../lib/e2b.mjs';
import { waitFor, within } from '../lib/process.mjs';
import { Incumbent, Snapshots } from './incumbent.mjs';
import { cpu, criticalPath, median, quick, redisCounters, rss } from './measure.mjs';
import { inTurns, launch, sizes } from './workers.mjs';

const LONG = 120_000;
const hello = 'print("hello")';
const inputs = [0, 1, 2].map((i) => ({ filename: `in${i}.txt`, content: Buffer.alloc(10_000, `${i}`) }));
const withFiles = `for i in range(3):
    text = open(f"/home/user/in{i}.txt").read()
    open(f"/home/user/output/out{i}.txt", "w").write(text)`;

/** Sandpiper as a server uses it: a job, its messages until `done`, its files. */
export class Through {
  constructor(w, redis) {
    this.queue = w.queue;
    this.client = new SandpiperClient({ connection: redis.client(), queueName: w.name });
  }

  async execute(code, files = [], { sessionId, onDone = () => {} } = {}) {
    const data = { v: 1, code, workspaceId: 'w', threadId: sessionId };
    if (files.length) data.files = files.map(({ filename, content }) => ({ filename, content: content.toString('base64') }));
    const job = await this.queue.add('execute', data, { removeOnComplete: true });
    for await (const message of this.client.messages(job.id, { signal: AbortSignal.timeout(LONG) })) {
      if (message.type !== 'done') continue;
      onDone();
      if (message.reason !== 'ok') throw new Error(`a run ended as ${message.reason}: ${message.error}`);
      const output = [];
      for (const file of message.result.files) output.push({ filename: file.filename, content: await this.client.file(file) });
      return { stdout: message.result.stdout, files: output };
    }
    throw new Error('no done');
  }

  close() {
    this.client.close();
  }
}

/** All that was asked of the emulator has been answered. */
async function settle(e2b) {
  await waitFor(async () => (await e2b.journal((entry) => entry.ms === null)).length === 0, { what: 'the emulator is at rest', timeout: LONG });
}

/** One run: ms until the caller has everything, and the requests that it waited for. */
export async function timed(e2b, one, code, files, sessionId) {
  await settle(e2b);
  await e2b.forget();
  let path = null;
  const begun = performance.now();
  // Ours goes on beside the run (lifetimes): what is not answered by `done` is not waited for.
  const onDone = () => { path = e2b.journal().then(criticalPath); };
  const result = await within(LONG, one.execute(code, files, { sessionId, onDone }), 'a run');
  const ms = performance.now() - begun;
  // The incumbent does one call after the other: each is waited for.
  return { ms, path: await (path ?? e2b.ops()), result };
}

/** The same on both, in turns; gives medians of ms, and the requests of the last run of each. */
async function compare(e2b, rounds, { ours, peer }, code, files, session) {
  const runs = await inTurns(rounds, {
    ours: (i) => timed(e2b, ours, code, files, session('ours', i)), peer: (i) => timed(e2b, peer, code, files, session('peer', i)),
  });
  return Object.fromEntries(Object.entries(runs).map(([who, list]) => {
    const expected = list[0].result.files.map((file) => file.filename).sort().join();
    if (files.length && expected !== 'out0.txt,out1.txt,out2.txt') throw new Error(`${who}: files are ${expected}`);
    return [who, { ms: median(list.map((run) => run.ms)), requests: median(list.map((run) => run.path.length)), ops: list.at(-1).path.join(' ') }];
  }));
}

/** A peer whose requests are not what incumbent.md lists would compare with something else. */
function expectCalls(peer, calls, what) {
  if (peer.requests !== calls) throw new Error(`${what}: the incumbent's way is ${calls} calls, seen ${peer.requests}: ${peer.ops}`);
}

export async function runs(rows, redis) {
  const e2b = await startE2b({ settings: { warm: 2, max_concurrent: 5000 } });
  const w = await launch('ours', redis, { concurrency: 20, env: { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env } });
  const both = { ours: new Through(w, redis), peer: new Incumbent(e2b.env) };
  const warm = (who) => `warm-${who}`;
  for (const [who, one] of Object.entries(both)) for (let i = 0; i < 2; i++) await timed(e2b, one, hello, [], warm(who));
  for (const rtt of [0, 20, 80]) {
    await e2b.set({ rtt_ms: rtt });
    const { ours, peer } = await compare(e2b, quick ? 3 : 7, both, hello, [], warm);
    expectCalls(peer, 8, 'warm run');
    if (rtt === 80) rows.add('warm run, no files: requests on the critical path', '', ours.requests, peer.requests, 'ours = 1');
    rows.add(`warm run, no files, ${rtt} ms RTT`, 'ms', ours.ms, peer.ms, rtt === 80 ? 'ratio <= 1/5' : null);
  }
  const files = await compare(e2b, quick ? 3 : 7, both, withFiles, inputs, warm);
  expectCalls(files.peer, 14, 'warm run with files');
  rows.add('warm run, 3 inputs and 3 outputs: requests on the critical path', '', files.ours.requests, files.peer.requests);
  rows.add('warm run, 3 inputs and 3 outputs, 80 ms RTT', 'ms', files.ours.ms, files.peer.ms, 'ratio <= 1/4');
  await cold(rows, e2b, both);
  both.ours.close();
  await w.stop();
  await e2b.stop();
}

/** New sandboxes of the emulator's scripted kind: their kernel is there at once, as in a snapshot of E2B's. */
async function cold(rows, e2b, { ours, peer }) {
  await e2b.set({ scripted: true });
  let n = 0;
  const fresh = (who) => `cold-${who}-${++n}`;
  const bare = new Incumbent(e2b.env, { scripts: false });
  const rounds = quick ? 2 : 5;
  const full = await compare(e2b, rounds, { ours, peer }, hello, [], fresh);
  expectCalls(full.peer, 17, 'cold run');
  rows.add('cold run: requests on the critical path', '', full.ours.requests, full.peer.requests);
  rows.add('cold run, 80 ms RTT', 'ms', full.ours.ms, full.peer.ms, 'ratio <= 1/2');
  const short = await compare(e2b, rounds, { ours, peer: bare }, hello, [], fresh);
  expectCalls(short.peer, 4, 'cold run without helper scripts');
  rows.add('cold run, 80 ms RTT, the incumbent without its helper scripts', 'ms', short.ours.ms, short.peer.ms);
  await e2b.set({ scripted: false, rtt_ms: 0 });
}

/** 1,000 runs at once in one replica. */
export async function thousand(rows, redis) {
  const count = quick ? 200 : 1000;
  const e2b = await startE2b({ settings: { scripted: true, max_concurrent: 5000 } });
  const env = { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env };
  const w = await launch('ours', redis, { concurrency: count, env });
  // Each run is open until the last one is: the emulator answers nothing more until the sleep is over.
  const code = `${scriptLine({ stdout: 'begun\n' }, { sleep: quick ? 4000 : 15_000 }, { stdout: 'ended\n' })}`;
  const before = cpu(w.pid);
  const begun = performance.now();
  const added = await w.queue.addBulk(Array.from({ length: count }, (_, i) => ({ name: 'execute', data: { code, threadId: `k${i}` } })));
  let most = { open: 0, rss: 0 };
  await waitFor(async () => {
    const open = (await e2b.journal((entry) => entry.op === 'execute' && entry.ms === null)).length;
    most = { open: Math.max(most.open, open), rss: Math.max(most.rss, rss(w.pid)) };
    return (await sizes(w)).all === 0;
  }, { what: `${count} runs end`, timeout: 180_000, interval: 250 });
  const results = await Promise.all(added.map(async ({ id }) => (await w.queue.getJob(id)).returnvalue));
  const served = results.filter((result) => result?.reason === 'ok' || (result?.state === 'completed' && result.stdout.includes('ended'))).length;
  const what = `${count.toLocaleString('en')} runs at once in one replica`;
  rows.add(`${what}: served`, '', served, null, `ours = ${count}`);
  rows.add(`${what}: most that ran together`, '', most.open);
  rows.add(`${what}: memory`, 'MiB', most.rss);
  rows.add(`${what}: worker CPU of a run, its sandbox made too`, 'ms', (cpu(w.pid) - before) * 1000 / count);
  rows.add(`${what}: all of it`, 's', (performance.now() - begun) / 1000);
  await w.stop();
  await e2b.stop();
}

/** Bytes that reach Redis for a run's output, job and result too; ours and the incumbent's snapshots. */
export async function bytes(rows, redis) {
  const e2b = await startE2b({ settings: { max_concurrent: 5000 } });
  const w = await launch('ours', redis, { env: { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env } });
  const client = redis.client();
  const ours = new Through(w, redis);
  const theirs = new Incumbent(e2b.env, { scripts: false });
  const used = async (run) => {
    const before = (await redisCounters(client)).input;
    await run();
    return (await redisCounters(client)).input - before;
  };
  const publish = async (code) => {
    const snapshots = new Snapshots(client, code);
    await theirs.execute(code, [], { sessionId: 'bytes-peer', onStdout: (text) => snapshots.stdout(text) });
    await snapshots.end();
    return snapshots.chunks;
  };
  const both = async (code) => ({
    ours: await used(() => ours.execute(code, [], { sessionId: 'bytes-ours' })), peer: await used(() => publish(code)),
  });
  await both(hello);
  const all = await both(`for i in range(${Math.ceil(1e6 / 60)}): print("x" * 59)`);
  rows.add('to Redis for 1 MB of prints of 60 bytes', 'bytes', all.ours, all.peer, 'ours <= 1300000');
  // The kernel gathers what is printed at once; lines that come one by one are chunks each.
  const count = Math.ceil(1e5 / 60);
  const single = await both(scriptLine({ repeat: count, steps: [{ stdout: `${'x'.repeat(59)}\n` }] }));
  rows.add('to Redis for 0.1 MB in chunks of 60 bytes', 'bytes', single.ours, single.peer);
  ours.close();
  await w.stop();
  await e2b.stop();
}
