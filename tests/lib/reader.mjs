// Reads a job's reply from its stream until `done`, checking each message on the way.
import assert from 'node:assert/strict';
import { SandpiperClient } from '../../docker/client/index.mjs';
import { checkMessage } from './contract.mjs';

/** The messages now in a reply stream; checks form, ids, seq without gaps, and that `done` is last and single. */
export async function readStream(redis, key, { whole = true } = {}) {
  const entries = await redis.xrange(key, '-', '+');
  const messages = entries.map(([id, fields]) => {
    assert.equal(fields.length, 2, `entry ${id} of ${key} has one field`);
    assert.equal(fields[0], 'm');
    const message = checkMessage(JSON.parse(fields[1]));
    assert.equal(id, `${message.seq}-0`, `entry id and seq in ${key}`);
    return message;
  });
  messages.forEach((m, i) => assert.equal(m.seq, i + 1, `seq without gaps in ${key}`));
  messages.slice(0, -1).forEach((m) => assert.notEqual(m.type, 'done', `done is the last message of ${key}`));
  messages.forEach((m) => assert.notEqual(m.type, 'heartbeat', `heartbeats are not stored (${key})`));
  if (whole) assert.equal(messages.at(-1)?.type, 'done', `${key} ends with done`);
  return messages;
}

/** Follows the reply from `fromSeq` until `done` with docker/client, as a server does; only what the worker wrote counts. */
export async function follow(redis, key, { fromSeq = 1, timeout = 60_000, onMessage } = {}) {
  const [, prefix, queueName, jobId] = /^(.*?):(.*?):reply:(.*)$/s.exec(key);
  const client = new SandpiperClient({ connection: redis, prefix, queueName });
  const messages = [];
  try {
    const signal = AbortSignal.timeout(timeout);
    for await (const message of client.messages(jobId, { from: fromSeq, fallback: false, signal })) {
      messages.push(checkMessage(message));
      onMessage?.(message, Date.now());
    }
    return messages;
  } catch (error) {
    if (error.name !== 'TimeoutError') throw error;
    throw new Error(`no done in ${key} within ${timeout} ms; got ${messages.map((m) => m.type).join(' ')}`);
  } finally {
    client.close();
  }
}

/** What a reader shows: text and results of the last run (a `started` drops what came before). */
export function gather(messages) {
  const all = { stdout: '', stderr: '', results: [], files: [], retries: [], started: null, done: null };
  for (const m of messages) {
    if (m.type === 'started') Object.assign(all, { stdout: '', stderr: '', results: [], files: [], started: m });
    else if (m.type === 'stdout') all.stdout += m.text;
    else if (m.type === 'stderr') all.stderr += m.text;
    else if (m.type === 'result') all.results.push({ data: m.data, main: m.main, omitted: m.omitted });
    else if (m.type === 'file') all.files.push(m.file);
    else if (m.type === 'retrying') all.retries.push(m);
    else if (m.type === 'done') all.done = m;
  }
  return all;
}

/** All Pub/Sub messages of a reply channel from now on, heartbeats included, with their arrival times. */
export async function listen(redis, channel) {
  const connection = redis.duplicate();
  connection.on('error', () => {});
  const heard = [];
  connection.on('message', (_, text) => heard.push({ at: Date.now(), message: checkMessage(JSON.parse(text)) }));
  await connection.subscribe(channel);
  heard.stop = () => connection.disconnect();
  return heard;
}
