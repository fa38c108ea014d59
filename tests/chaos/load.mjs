// Who adds the jobs: stock BullMQ producers and XADD, in the mix and at the pace that the seed says.
import { Redis } from 'ioredis';
import { scriptLine } from '../lib/e2b.mjs';
import { atEnd, sleep } from '../lib/process.mjs';
import { clients } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';

/** Ends that faults can bring to any job: its worker died before or after the start, or was drained too early. */
export const byFault = ['worker_lost', 'stalled', 'drained'];

/** Kinds of SCRIPTED jobs: steps, job options, and the reasons they may end with. */
const scriptedKinds = {
  plain: { weight: 40, make: (r, id) => ({ steps: [say(`${id} `), wait(r.int(5, 400)), say('end')], text: `${id} end` }) },
  chatty: { weight: 8, make: (r) => {
    const n = r.int(5, 30);
    return { steps: Array.from({ length: n }, (_, i) => [say(`${i},`), wait(r.int(5, 40))]).flat(),
      text: Array.from({ length: n }, (_, i) => `${i},`).join('') };
  } },
  slow: { weight: 4, make: (r) => ({ steps: [say('a'), wait(r.int(1500, 4000)), say('b')], text: 'ab' }) },
  prepared: { weight: 8, make: (r) => ({ steps: [{ prepare: r.int(50, 900) }, say('p')], text: 'p' }) },
  again: { weight: 8, make: (r) => ({ steps: [fail(r.pick(['no_sandbox', 'no_capacity', 'driver_error']), r.int(1, 2)), say('then')],
    text: 'then', opts: { attempts: 8, backoff: r.pick([0, 150, { type: 'exponential', delay: 80 }]) },
    ends: ['ok', 'no_sandbox', 'no_capacity', 'driver_error'] }) },
  idempotent: { weight: 10, make: (r) => ({ steps: Array.from({ length: 8 }, (_, i) => [say(`${i}`), wait(r.int(10, 200))]).flat(),
    text: '01234567', data: { idempotent: true } }) },
  raises: { weight: 4, make: () => ({ steps: [say('x'), raise()], text: 'x', ends: ['code_error'] }) },
  exits: { weight: 3, make: (r) => ({ steps: [wait(r.int(0, 100)), { exit: 3 }], text: '', ends: ['code_error'] }) },
  dies: { weight: 2, make: () => ({ steps: [say('x'), { die: 9 }], text: 'x', ends: ['kernel_died'] }) },
  oom: { weight: 1, make: () => ({ steps: [{ oom: true }], text: '', ends: ['oom'] }) },
  unknown: { weight: 1, make: () => ({ steps: [say('x'), { unknown: true }], text: 'x', ends: ['outcome_unknown'] }) },
  timesOut: { weight: 3, make: (r) => ({ steps: [say('x'), r.chance(0.3) ? { resist: true } : wait(1), { hang: true }], text: 'x',
    data: { timeoutMs: 300 }, ends: ['timeout'] }) },
  files: { weight: 4, make: (r) => ({ steps: [say('f'), { file: 'a.txt', content: 'a'.repeat(r.int(1, 200_000)) }], text: 'f' }) },
  quiet: { weight: 3, make: () => ({ steps: [say('x'), wait(50)], text: 'x', data: { reply: false } }) },
  expired: { weight: 1, make: () => ({ steps: [say('x')], text: '', data: { startBy: 1 }, ends: ['expired'], runs: false }) },
  bad: { weight: 1, make: () => ({ steps: [], text: '', data: { timeoutMs: 'soon' }, ends: ['bad_job'], runs: false }) },
};

/** Variations on the way in; those that are `unordered` may overtake others of their thread. */
const ways = {
  plain: { weight: 70 },
  removed: { weight: 12, opts: { removeOnComplete: true, removeOnFail: true } },
  delayed: { weight: 5, opts: { delay: 300 }, unordered: true },
  priority: { weight: 6, opts: { priority: 3 }, unordered: true },
  lifo: { weight: 4, opts: { lifo: true }, unordered: true },
};
const weights = (table) => Object.fromEntries(Object.entries(table).map(([name, { weight }]) => [name, weight]));

export function scriptedJob(r, id) {
  const made = scriptedKinds[r.weighed(weights(scriptedKinds))].make(r, id);
  return { text: made.text, ends: made.ends ?? ['ok'], idempotent: made.data?.idempotent ?? false, silent: made.data?.reply === false,
    runs: made.runs ?? true, code: script(...made.steps), data: made.data ?? {}, opts: made.opts ?? {} };
}

const lostSandbox = ['sandbox_lost', 'outcome_unknown', 'kernel_died', 'no_sandbox', 'no_capacity', 'driver_error'];
const sandboxJob = (code, text) => ({ text, ends: ['ok', ...lostSandbox], idempotent: false, silent: false, runs: true, code, data: {},
  opts: { attempts: 6, backoff: 300 } });

/** A run in an emulated sandbox without a kernel; its first line names the job to the emulator's journal. */
export const emulatedJob = (r, id) =>
  sandboxJob(`# job:${id}\n${scriptLine({ stdout: `${id} ` }, { sleep: r.int(5, 600) }, { stdout: 'end' })}`, `${id} end`);

/** A run in a real kernel: the file of its sandbox counts it too. */
export const kernelJob = (r, id) => sandboxJob(
  `# job:${id}\nimport time\nopen("/home/user/ran.txt", "a").write("${id}\\n")\ntime.sleep(${r.int(5, 500) / 1000})\nprint("${id}")`, `${id}\n`);

/**
 * Adds `count` jobs to a queue of the world within `ms`, thread after thread by chance; those of one thread one
 * after the other. Every job is in queue.jobs (id -> job) with `accepted`: true, or null when nobody can say.
 */
export async function produce(world, queue, { count, threads, ms }) {
  const r = randomOfQueue(world, queue);
  const relay = await world.server.relay();
  world.producerRelays.push(relay);
  const connection = { host: '127.0.0.1', port: relay.port, maxRetriesPerRequest: null, autoResendUnfulfilledCommands: false,
    commandTimeout: 60_000, retryStrategy: () => 200 };
  const queues = Object.values(clients).map(({ Queue }) => {
    const one = new Queue(queue.name, { connection, streams: { events: { maxLen: 10_000_000 } } });
    one.on('error', () => {});
    return one;
  });
  const redis = new Redis(connection);
  redis.on('error', () => {});
  atEnd(async () => {
    redis.disconnect();
    await Promise.race([Promise.allSettled(queues.map((one) => one.close())), sleep(5000)]);
  });

  const add = async (job, again = false) => {
    const { id, opts } = job;
    const data = { v: 1, code: job.code, ...(job.thread && { threadId: job.thread }), ...job.data };
    if (job.door === 'stream') {
      const entry = await redis.xadd(`${queue.P}stream:jobs`, '*', 'id', id, 'data', JSON.stringify(data), 'opts', JSON.stringify(opts));
      if (!again) job.entry = entry; // if the first one's answer is lost, nobody knows which of the two came in
    } else {
      await job.door.add(job.name ?? 'execute', data, { ...opts, jobId: id });
    }
  };
  const control = (...args) => redis.xadd(`${queue.P}stream:control`, '*', ...args).catch(() => {});
  const chains = new Map(); // the last add of each thread
  const pending = new Set();
  const submit = (job) => {
    queue.jobs.set(job.id, job);
    const before = chains.get(job.thread) ?? Promise.resolve();
    const mine = before.then(async () => {
      job.accepted = await add(job).then(() => true, (error) => {
        const why = error.message.split('\n')[0].slice(0, 40);
        queue.refusals.set(why, (queue.refusals.get(why) ?? 0) + 1);
        return null;
      });
      if (job.twice) await add(job, true).catch(() => {});
      if (job.cancel) await control('cancel', job.id);
    });
    if (job.thread) chains.set(job.thread, mine);
    pending.add(mine);
    mine.finally(() => pending.delete(mine));
  };

  const begun = Date.now();
  for (let i = 0; i < count; i++) {
    const due = begun + (ms * i) / count;
    if (Date.now() < due) await sleep(due - Date.now());
    while (pending.size > 2000) await sleep(50);
    submit(makeJob(world, queue, r, i, threads, queues));
    if (queue.cancels && r.chance(0.003)) {
      const thread = `t${r.int(1, threads)}`;
      queue.cancelled.add(thread);
      await Promise.race([control('cancel-thread', `:${thread}`), sleep(2000)]);
    }
  }
  await Promise.all(pending);
}

function randomOfQueue(world, queue) {
  return world.random(`load of ${queue.name}`);
}

function makeJob(world, queue, r, i, threads, queues) {
  const id = `${queue.name}-${i}`;
  const way = ways[r.weighed(weights(ways))];
  const job = { id, ...queue.make(r, id), thread: r.chance(queue.threadless ?? 0.05) ? null : `t${r.int(1, threads)}`,
    door: r.chance(0.4) ? 'stream' : r.pick(queues), ordered: !way.unordered };
  job.opts = { ...job.opts, ...way.opts };
  job.twice = !way.opts?.removeOnComplete && r.chance(0.02);
  job.cancel = Boolean(queue.cancels) && r.chance(0.02);
  if (queue.cancels && job.thread && r.chance(0.01)) { // gives the thread's sandbox back, in its turn
    Object.assign(job, { name: 'release', code: undefined, data: {}, text: '', ends: ['ok'], runs: false, idempotent: false,
      silent: false, door: r.pick(queues) });
  }
  if (job.cancel) job.ends = [...job.ends, 'cancelled'];
  return job;
}
