// What a queue left in Redis: every key and every event, times and texts that must differ replaced by marks.
import { isDeepStrictEqual } from 'node:util';
import { checkResult } from '../lib/contract.mjs';

// Keys that only Sandpiper makes, by name (README.md).
const ours = /^[^:]+:[^:]+:(reply|file|lease|parked|thread|index|replica|secret|turn|settings|stream|stats|cancel|e2b):/;
// The guard of the stalled pass: there or not, as the clock has it.
const timing = /:stalled-check$/;
const parkedAhead = 30 * 60_000; // what is delayed further than that was parked by Sandpiper

const isMs = (v) => /^1[0-9]{12}(\.\d+)?$/.test(String(v));
const ms = (v) => (isMs(v) ? '<ms>' : v);

function parse(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    return `${what} is no JSON: ${text}`;
  }
}

/** A return value is a JSON object on both sides; what it says is each side's own (ours keeps the contract). */
function value(text, kind) {
  const v = parse(text, 'value');
  if (typeof v !== 'object' || v === null) return v;
  if (kind === 'ours') checkResult(v);
  return '<value>';
}

/** Numbers within options that depend on the time of day. */
function options(o) {
  if (Array.isArray(o)) return o.map(options);
  if (o === null || typeof o !== 'object') return ms(o);
  const out = Object.fromEntries(Object.entries(o).map(([k, v]) => [k, options(v)]));
  if (out.repeat) {
    if (out.delay > 0) out.delay = '<delay>';
    if (out.repeat.offset !== undefined) out.repeat.offset = '<offset>';
  }
  return out;
}

const fieldReaders = {
  opts: (v) => options(parse(v, 'opts')),
  data: (v) => parse(v, 'data'),
  parent: (v) => parse(v, 'parent'),
  progress: (v) => parse(v, 'progress'),
  returnvalue: (v, kind) => value(v, kind),
  stacktrace: (v) => parse(v, 'stacktrace').map((s) => s.split('\n')[0].replace(/^\w*Error: /, '')),
};
const timeFields = new Set(['timestamp', 'processedOn', 'finishedOn', 'startDate', 'endDate', 'prevTS']);

const readers = {
  string: (redis, key) => redis.get(key),
  list: (redis, key) => redis.lrange(key, 0, -1),
  set: async (redis, key) => (await redis.smembers(key)).sort(),
  async hash(redis, key, kind) {
    const fields = await redis.hgetall(key);
    const processed = key.endsWith(':processed');
    const out = {};
    for (const [name, v] of Object.entries(fields)) {
      if (name.startsWith('sp:')) continue;
      if (processed) out[name] = value(v, kind);
      else if (timeFields.has(name)) out[name] = ms(v);
      else if (fieldReaders[name]) out[name] = fieldReaders[name](v, kind);
      else out[name] = v;
    }
    if (key.endsWith(':meta')) delete out.version; // the producer's
    if (/:repeat:/.test(key) && out.offset) out.offset = '<offset>';
    if (out.rjk && Number(out.delay) > 0) out.delay = '<delay>';
    return out;
  },
  async zset(redis, key) {
    const flat = await redis.zrange(key, 0, -1, 'WITHSCORES');
    const score = (v) => (key.endsWith(':delayed') && Number(v) > 1e15 ? '<due>' : key.endsWith(':repeat') ? '<ms>' : ms(v));
    const entries = flat.flatMap((v, i) => (i % 2 ? [] : [[v, score(flat[i + 1])]]));
    // Jobs that ended within one millisecond are sorted by their ids: their order is told by the events.
    return /:(completed|failed)$/.test(key) ? entries.sort() : entries;
  },
  async stream(redis, key, kind) {
    const entries = (await redis.xrange(key, '-', '+')).map(([, f]) =>
      Object.fromEntries(f.flatMap((v, i) => (i % 2 ? [] : [[v, f[i + 1]]]))));
    return withoutParking(entries).map((e) => ({
      ...e,
      ...(e.delay !== undefined && { delay: ms(e.delay) }),
      ...(e.returnvalue !== undefined && { returnvalue: value(e.returnvalue, kind) }),
      ...(e.data !== undefined && { data: parse(e.data, 'data') }),
    }));
  },
};

/** Parking is Sandpiper's own: its `delayed`, and the `waiting` that wakes the job. */
function withoutParking(entries) {
  const parked = new Set();
  return entries.filter((e) => {
    if (e.event === 'delayed' && Number(e.delay) > Date.now() + parkedAhead) return !parked.add(e.jobId);
    if (e.event === 'waiting' && e.prev === 'delayed' && parked.delete(e.jobId)) return false;
    return true;
  });
}

/** Ids of schedulers' jobs have their time in them: replaced by its rank. */
function rankTimes(state) {
  const text = JSON.stringify(state);
  const times = [...new Set(text.match(/repeat:[^":]+:1\d{12}/g) ?? [])].sort();
  return JSON.parse(times.reduce((t, id, i) => t.replaceAll(id, id.replace(/1\d{12}$/, `<time ${i}>`)), text));
}

/** {key: {type, expires, value}} of all keys of a database; events and hashes must agree about return values. */
export async function snapshot(redis, kind) {
  const state = {};
  const returned = {};
  for (const key of (await redis.keys('*')).sort()) {
    if (ours.test(key) || timing.test(key)) continue;
    const type = await redis.type(key);
    if (type === 'none') continue;
    state[key] = { type, expires: (await redis.pttl(key)) > 0, value: await readers[type](redis, key, kind) };
    if (type !== 'stream') continue;
    for (const [, f] of await redis.xrange(key, '-', '+')) {
      const at = f.indexOf('returnvalue');
      if (at > 0) returned[key.replace(/events$/, '') + f[f.indexOf('jobId') + 1]] = f[at + 1];
    }
  }
  for (const [key, inEvent] of Object.entries(returned)) {
    const inHash = await redis.hget(key, 'returnvalue');
    if (inHash !== null && inHash !== inEvent) state[`${key} returnvalue`] = { event: inEvent, hash: inHash };
  }
  return rankTimes(state);
}

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);

/** What two snapshots do not have alike: [{key, stock, ours}]. */
export function difference(stock, ours_) {
  const found = [];
  for (const key of new Set([...Object.keys(stock), ...Object.keys(ours_)])) {
    if (isDeepStrictEqual(stock[key], ours_[key])) continue;
    const [a, b] = [stock[key]?.value ?? stock[key], ours_[key]?.value ?? ours_[key]];
    if (Array.isArray(a) && Array.isArray(b)) {
      const at = a.findIndex((v, i) => !isDeepStrictEqual(v, b[i]));
      const from = at < 0 ? a.length : at;
      found.push({ key, at: from, stock: a.slice(Math.max(0, from - 1), from + 3), ours: b.slice(Math.max(0, from - 1), from + 3) });
    } else if (isObject(a) && isObject(b)) {
      const names = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((name) => !isDeepStrictEqual(a[name], b[name]));
      found.push({ key, fields: Object.fromEntries(names.map((name) => [name, { stock: a[name], ours: b[name] }])),
        ...(names.length === 0 && { stock: stock[key], ours: ours_[key] }) });
    } else {
      found.push({ key, stock: stock[key], ours: ours_[key] });
    }
  }
  return found;
}
