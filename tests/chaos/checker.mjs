// The invariants: each takes the facts of a queue and names what broke it.
import { byFault } from './load.mjs';

const show = (value) => JSON.stringify(value)?.slice(0, 600);

/** What a job ended with: its reason in the reply's `done`, else its return value, else what BullMQ says. */
export function reasonOf({ reply, hash, ends }) {
  const done = reply?.find((m) => m.type === 'done');
  if (done) return done.reason;
  const result = hash?.returnvalue && JSON.parse(hash.returnvalue);
  if (result?.reason) return result.reason;
  const failed = hash?.failedReason ?? '';
  if (failed.startsWith('WorkerLost')) return 'worker_lost';
  if (failed.includes('stalled more than')) return 'stalled';
  return ends[0]?.event;
}

/** Did the queue ever have it? An add whose answer was lost may or may not have got there. */
const wasTaken = ({ job, hash, ends, addedAs, runs }) => job.accepted || hash || ends.length || addedAs !== null || runs.length;

function endsOnce({ facts }) {
  return [...facts.values()].filter(wasTaken).filter(({ ends }) => ends.length !== 1)
    .map((fact) => `${fact.job.id} ended ${fact.ends.length} times: ${show({ ends: fact.ends, accepted: fact.job.accepted, stream: fact.job.door === 'stream', hash: fact.hash, runs: fact.runs, reply: fact.reply?.map((m) => [m.seq, m.type, m.reason]) })}`);
}

function oneDone({ facts }) {
  const wrong = [];
  for (const { job, reply, ends, published } of facts.values()) {
    if (published > 1) wrong.push(`${job.id}: ${published} done were published`);
    if (job.silent && reply) wrong.push(`${job.id} wanted no reply and has one`);
    if (!ends.length || job.silent) continue;
    const dones = reply?.filter((m) => m.type === 'done').length ?? 0;
    const gapless = (reply ?? []).every((m, i) => m.seq === i + 1 && m.entryId === `${i + 1}-0`);
    if (dones !== 1 || reply.at(-1).type !== 'done' || !gapless) {
      wrong.push(`${job.id}: its reply is ${show(reply?.map((m) => [m.seq, m.type, m.reason]))}`);
    }
  }
  return wrong;
}

function ranOnce({ facts }) {
  return [...facts.values()].filter(({ job, runs }) => runs.length > 1 && !job.idempotent)
    .map(({ job, runs, ends }) => `${job.id} ran ${runs.length} times: ${show({ runs, ends })}`);
}

/** Runs that started must say so before: one `started` for each, in the reply. */
function honest({ facts, queue }) {
  const wrong = [];
  for (const fact of facts.values()) {
    const { job, reply, runs, ends } = fact;
    if (ends.length !== 1) continue;
    const reason = reasonOf(fact);
    const say = (what) => wrong.push(`${job.id} (${reason}): ${what}; ${show({ runs, ends })}`);
    const cancelled = job.cancel || queue.cancelled.has(job.thread);
    if (![...job.ends, ...byFault, ...(cancelled ? ['cancelled'] : []), 'completed', 'failed'].includes(reason)) say(`it should have ended as ${job.ends}`);
    const late = runs.filter((run) => run.begin > ends[0].at + queue.clockMs);
    if (late.length) say('its code was delivered after its end');
    const ran = ['ok', 'code_error', 'kernel_died', 'oom', 'outcome_unknown', 'timeout', 'drained'].includes(reason);
    if (job.runs && ran && reason !== 'outcome_unknown' && !queue.e2b && runs.length === 0) say('nobody ran it');
    if (!job.runs && runs.length) say('its code was not to run');
    const never = ['expired', 'bad_job', 'no_sandbox', 'no_capacity', ...(job.idempotent ? [] : ['stalled'])];
    if (never.includes(reason) && runs.length) say('its code ran');
    if (!reply) continue;
    const started = reply.filter((m) => m.type === 'started').length;
    if (started < runs.length || (started > 1 && !job.idempotent && !queue.e2b)) say(`${started} started for ${runs.length} runs`);
    const said = reply.slice(reply.findLastIndex((m) => m.type === 'started') + 1).filter((m) => m.type === 'stdout').map((m) => m.text).join('');
    // When Redis runs out of memory a reply is only a beginning; the result has all, and a warning that says so.
    const result = reply.at(-1).result;
    const whole = !result?.warnings?.some((text) => /REDIS_MEMORY_WATERMARK_PERCENT|memory/i.test(text));
    if (job.runs && reason === 'ok' && result && result.stdout !== job.text) say(`its result has ${show(result.stdout)} and not ${show(job.text)}`);
    if (job.runs && whole && reason === job.ends[0] && said !== job.text) say(`it said ${show(said)} and not ${show(job.text)}`);
    if (job.runs && !job.text.startsWith(said)) say(`it said ${show(said)}, which is no beginning of ${show(job.text)}`);
  }
  return wrong;
}

function byThread(facts) {
  const threads = new Map();
  for (const fact of facts.values()) {
    if (!fact.job.thread) continue;
    if (!threads.has(fact.job.thread)) threads.set(fact.job.thread, []);
    threads.get(fact.job.thread).push(fact);
  }
  return threads;
}

/** A run is over when its code is, or when its job has been ended without it (its worker is then dead or fenced). */
function noOverlap({ facts, queue }) {
  const wrong = [];
  for (const [thread, all] of byThread(facts)) {
    const runs = all.flatMap(({ runs: list, ends }) => list.map((run) => ({ ...run, over: Math.min(run.end, ends[0]?.at ?? Infinity) })))
      .sort((a, b) => a.begin - b.begin || a.over - b.over);
    runs.forEach((run, i) => {
      const before = runs.slice(0, i).find((one) => one.job !== run.job && one.over > run.begin + queue.clockMs);
      if (before) wrong.push(`thread ${thread}: ${run.job} began at ${run.begin} while ${before.job} ran: ${show([before, run])}`);
    });
  }
  return wrong;
}

/** Plain jobs of a thread start in the order in which they came into the queue. */
function inOrder({ facts }) {
  const wrong = [];
  for (const [thread, all] of byThread(facts)) {
    const line = all.filter(({ job, runs, addedAs }) => job.ordered && runs.length && addedAs !== null).sort((a, b) => a.addedAs - b.addedAs);
    line.slice(1).forEach((fact, i) => {
      if (fact.runs[0].begin < line[i].runs[0].begin) {
        wrong.push(`thread ${thread}: ${fact.job.id} ran before ${line[i].job.id}: ${show([line[i].runs, fact.runs, line[i].ends, fact.ends])}`);
      }
    });
  }
  return wrong;
}

/** Entries of the stream become jobs in the stream's order, whichever replicas admit them. */
function admittedInOrder({ facts }) {
  const order = (entry) => entry.split('-').map(Number);
  const line = [...facts.values()].filter(({ job, addedAs }) => job.entry && addedAs !== null)
    .sort(({ job: { entry: a } }, { job: { entry: b } }) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
  return line.slice(1).filter((fact, i) => fact.addedAs < line[i].addedAs).map(({ job }) => `${job.id} (entry ${job.entry}) was admitted before the entry before it`);
}

export const invariants = {
  'every accepted job ends exactly once': endsOnce,
  'at most one done for each job, and it is the last message': oneDone,
  'code runs at most once, unless it is idempotent': ranOnce,
  'no two jobs of a thread overlap': noOverlap,
  'the jobs of a thread start in order': inOrder,
  'entries of the stream come in in order': admittedInOrder,
  'what a job ended with is what happened': honest,
};

/** The longest time in which a thread had work and none of its jobs ended: {ms, thread}. */
export function longestWait({ facts }) {
  let worst = { ms: 0, thread: null };
  for (const [thread, all] of byThread(facts)) {
    const moves = all.filter(({ ends, cameAt }) => ends.length && cameAt).flatMap(({ cameAt, ends }) => [[cameAt, 1], [ends[0].at, -1]]).sort((a, b) => a[0] - b[0]);
    let [open, since] = [0, 0];
    for (const [at, step] of moves) {
      if (open > 0 && step < 0 && at - since > worst.ms) worst = { ms: at - since, thread };
      if (open === 0 || step < 0) since = at;
      open += step;
    }
  }
  return worst;
}
