// Gathers, from the outside, what became of each job of a queue: Redis's events, hashes and replies, and who ran its code.
import { readFileSync } from 'node:fs';

const batchSize = 500;
async function inBatches(ids, take) {
  for (let i = 0; i < ids.length; i += batchSize) await take(ids.slice(i, i + batchSize));
}
const fieldsOf = (flat) => Object.fromEntries(flat.flatMap((v, i) => (i % 2 ? [] : [[v, flat[i + 1]]])));

/** All events of the queue in order: [{at, event, jobId, ...}]; `at` is the ms of the entry's id. */
async function readEvents(redis, queue) {
  const events = [];
  const { length, 'entries-added': added } = fieldsOf(await redis.xinfo('STREAM', `${queue.P}events`));
  if (added !== length) throw new Error(`${added - length} events of ${queue.name} were trimmed: nothing can be said of its jobs`);
  for (let from = '-';;) {
    const page = await redis.xrange(`${queue.P}events`, from, '+', 'COUNT', 5000);
    for (const [id, flat] of page) events.push({ at: Number(id.split('-')[0]), ...fieldsOf(flat) });
    if (page.length < 5000) return events;
    from = `(${page.at(-1)[0]}`;
  }
}

/** Deliveries told by the SCRIPTED driver: [{job, begin, end, pid, execution}]; one whose process died ends with it. */
function scriptedRuns(world, queue) {
  const open = new Map();
  const runs = [];
  let text = '';
  try {
    text = readFileSync(queue.journal, 'utf8');
  } catch { /* nothing was delivered */ }
  for (const line of text.split('\n').filter(Boolean)) {
    const { what, at, pid, job, execution } = JSON.parse(line);
    if (what === 'begin') {
      const run = { job, begin: at, end: null, pid, execution };
      runs.push(run);
      open.set(execution, run);
    } else if (open.has(execution)) {
      open.get(execution).end ??= at;
    }
  }
  for (const run of runs) run.end ??= world.deaths.get(run.pid)?.find((at) => at >= run.begin) ?? Infinity;
  return runs;
}

/** The same of the emulator: requests whose code ran. */
async function emulatedRuns(queue) {
  const entries = await queue.e2b.journal((entry) => entry.op === 'execute' && entry.ran);
  return entries.map((entry) => ({
    job: /# job:(\S+)/.exec(entry.code?.head ?? '')?.[1], sandbox: entry.sandbox,
    begin: Math.floor(entry.time + (entry.begun - entry.t) * 1000), end: entry.ms === null ? Infinity : Math.ceil(entry.time + entry.ms),
  })).filter((run) => run.job);
}

/**
 * Facts by job id: {job, hash (null: none), ends: [{at, event}], addedAs: rank among the added, cameAt: ms, when Redis got it, reply: [messages] or
 * null, runs: [{begin, end, ...}], published: how many `done` were heard}.
 */
export async function gatherFacts(world, queue) {
  const redis = world.server.client();
  const facts = new Map();
  for (const job of queue.jobs.values()) {
    facts.set(job.id, { job, hash: null, ends: [], addedAs: null, cameAt: null, reply: null, runs: [], published: queue.heard.get(job.id) ?? 0 });
  }
  const events = await readEvents(redis, queue);
  events.forEach(({ at, event, jobId }, rank) => {
    const fact = facts.get(jobId);
    if (!fact) return;
    if (event === 'added' && fact.addedAs === null) [fact.addedAs, fact.cameAt] = [rank, Number(fact.job.entry?.split('-')[0] ?? at)];
    if (event === 'completed' || event === 'failed') fact.ends.push({ at, event });
  });
  await inBatches([...facts.keys()], async (ids) => {
    const pipeline = redis.pipeline();
    for (const id of ids) pipeline.hgetall(queue.P + id).xrange(`${queue.P}reply:${id}`, '-', '+');
    const answers = await pipeline.exec();
    ids.forEach((id, i) => {
      const [hash, entries] = [answers[2 * i][1], answers[2 * i + 1][1]];
      if (Object.keys(hash).length) facts.get(id).hash = hash;
      if (entries.length) facts.get(id).reply = entries.map(([entryId, [, text]]) => ({ entryId, ...JSON.parse(text) }));
    });
  });
  const runs = queue.e2b ? await emulatedRuns(queue) : queue.counter ? queue.counter.runs : scriptedRuns(world, queue);
  for (const run of runs) facts.get(run.job)?.runs.push(run);
  redis.disconnect();
  return { facts, events };
}
