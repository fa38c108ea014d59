// What the figures are made of: medians, a process's memory and CPU, Redis's counters, and the rows of the table.
import { readFileSync, readdirSync } from 'node:fs';

export const quick = Boolean(process.env.QUICK);

/** The q-quantile (0..1) of numbers. */
export function quantile(list, q) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
}
export const median = (list) => quantile(list, 0.5);

/** Memory of a process, MiB. */
export function rss(pid) {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
}

/** CPU seconds of all threads of a process: by the scheduler in ns, where that is not kept in ticks. */
export function cpu(pid) {
  try {
    const threads = readdirSync(`/proc/${pid}/task`);
    return threads.reduce((sum, id) => sum + Number(readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8').split(' ')[0]), 0) / 1e9;
  } catch {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /s, '').split(' ');
    return (Number(fields[11]) + Number(fields[12])) / 100;
  }
}

/** Redis's counters: `script` (µs in what workers call: scripts and the wait for a job), `cpu` (µs of the process), `input` (bytes). */
export async function redisCounters(client) {
  const text = await client.info('everything');
  // The time of what a script calls is in its own; of these four no script calls another.
  const usec = (name) => Number(new RegExp(`cmdstat_${name}:.*?usec=(\\d+)`).exec(text)?.[1] ?? 0);
  const value = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(text)[1]);
  return {
    script: usec('evalsha') + usec('eval') + usec('fcall') + usec('bzpopmin'),
    cpu: 1e6 * (value('used_cpu_user') + value('used_cpu_sys')),
    input: value('total_net_input_bytes'),
  };
}

/** after - before, each number by itself. */
export function difference(after, before) {
  return Object.fromEntries(Object.keys(after).map((name) => [name, after[name] - before[name]]));
}

/** The name of connections that add jobs. */
export const producer = 'producer';

/**
 * The longest script calls since `reset()` by Redis's slow log, ms: `workers`, and `producers` (connections called
 * `producer`: BullMQ's `add`, whose work is the same whatever is there: what is long in it is the machine).
 */
export function slowest(client) {
  const longest = (entries, what) => {
    const [, , usec, argv] = entries.reduce((most, entry) => (entry[2] > most[2] ? entry : most), [0, 0, 200, []]);
    if (process.env.VERBOSE && usec > 10_000) console.log(`# ${what}: ${usec} us: ${argv.join(' ').slice(0, 300)}`);
    return usec / 1000;
  };
  return {
    async reset() {
      await client.config('SET', 'slowlog-log-slower-than', '200', 'slowlog-max-len', '100000');
      await client.slowlog('RESET');
    },
    async read() {
      const entries = (await client.slowlog('GET', 100_000)).filter(([, , , [command]]) => /^(evalsha|eval|fcall)$/i.test(command));
      const by = (isProducer) => entries.filter(([, , , , , name]) => (name === producer) === isProducer);
      return { workers: longest(by(false), 'a worker'), producers: longest(by(true), 'a producer') };
    },
  };
}

/**
 * Of the emulator's journal as it was when a run was done: the operations that had to wait for one another, the longest chain of
 * requests that do not overlap by more than 5 ms. What is not answered by then was not waited for.
 */
export function criticalPath(entries) {
  const ended = entries.filter(({ op, ms }) => ms !== null || op === 'execute'); // its end is noted a moment after it is sent
  const spans = ended.map(({ op, t, ms }) => ({ op, from: t * 1000, to: ms === null ? Infinity : t * 1000 + ms })).sort((a, b) => a.to - b.to);
  const chain = [];
  for (const span of spans) if (!chain.length || span.from >= chain.at(-1).to - 5) chain.push(span);
  return chain.map((span) => span.op);
}

const operators = { '>=': (a, b) => a >= b, '<=': (a, b) => a <= b, '=': (a, b) => a === b };

/** Whether `target` holds: 'ratio >= 1.1', 'ours <= 12, ratio <= 1/6'; null where there is none. */
export function judge(target, values) {
  if (!target) return null;
  return target.split(', ').every((condition) => {
    const [, what, operator, number, divisor = 1] = /^(ours|ratio) (>=|<=|=) ([\d.]+)(?:\/(\d+))?$/.exec(condition);
    return values[what] !== null && operators[operator](values[what], number / divisor);
  });
}

/** The rows of the table. */
export class Rows {
  list = [];
  onRow = () => {};

  /** One figure: ours, a peer's (null: there is none), what must hold. */
  add(figure, unit, ours, peer = null, target = null) {
    const ratio = peer === null ? null : ours / peer;
    const row = { figure, unit, ours, peer, ratio, target, met: judge(target, { ours, ratio }) };
    this.list.push(row);
    this.onRow(row);
    return row;
  }
}
