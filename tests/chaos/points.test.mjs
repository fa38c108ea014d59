// A worker met at one point of a job's life, on purpose: what the random runs have found once stays found.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { sleep, tempDir, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { say, wait } from '../lib/scripted.mjs';
import { scriptHashes, startRelay } from './relay.mjs';

const redis = await startRedis();
const hashes = scriptHashes();
const lockMs = Number(shortLocks.LOCK_DURATION_MS);

/** A rig with worker `a` behind a relay; `b` is started by hand. `begins(id)`: how often the code of a job was delivered. */
async function rig(t) {
  const relay = await startRelay(() => redis.port);
  const journal = join(tempDir(), 'journal');
  const r = await makeRig(t, redis, { replicas: 0, env: { ...shortLocks, SCRIPTED_JOURNAL: journal } });
  r.relay = relay;
  r.startWorker({ REDIS_URL: relay.url, WORKER_NAME: 'a' });
  await waitFor(async () => (await r.queue.getWorkers()).length === 1, { timeout: 60_000, what: 'worker a' });
  // Redis has the scripts that are met: else the relay could hold back its word that it has not, and the call never be made.
  await r.run([say('warm')], { threadId: 'warm' });
  await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', 'nobody');
  await waitFor(async () => !(await r.redis.script('EXISTS', hashes.reply, hashes.cancel)).includes(0), { timeout: 60_000, what: 'the scripts' });
  r.begins = (id) => {
    try {
      return readFileSync(journal, 'utf8').split('\n').filter((line) => line.includes('"begin"') && line.includes(`"${id}"`)).length;
    } catch {
      return 0;
    }
  };
  /** The job's mark is in Redis. (As below: until then the relay may have met the answer to an earlier call.) */
  r.marked = (job) => waitFor(() => job() && r.redis.hget(r.P + job().id, 'sp:run'), { timeout: 60_000, what: 'the mark' });
  /**
   * Kills the worker when Redis has done the next call that matches, which `isDone()` sees: the relay meets the next
   * answer on that connection, and that may still be one to an earlier call.
   */
  r.killAfter = (matches, isDone) => new Promise((resolve, reject) => {
    relay.trap(matches, 'after', async () => {
      await waitFor(isDone, { timeout: 60_000, what: 'the call is done' }).catch(reject);
      resolve(await r.workers.shift().kill9());
    });
  });
  return r;
}
const calls = (script, text = '') => (bytes) => bytes.includes(hashes[script]) && bytes.includes(text);

test('frozen between the mark and its answer: what is WorkerLost meanwhile is never delivered', async (t) => {
  const r = await rig(t);
  const frozen = r.workers[0];
  let thaw;
  const until = new Promise((resolve) => { thaw = resolve; });
  let job = null;
  const met = new Promise((resolve, reject) => {
    r.relay.trap(calls('reply', '"type":"started"'), 'after', async () => {
      await r.marked(() => job).catch(reject);
      frozen.kill('SIGSTOP');
      resolve();
      await until;
    });
  });
  job = await r.add([say('late')], { threadId: 't' });
  await met;
  r.startWorker({ WORKER_NAME: 'b' });
  assert.match(await r.failure(job, 60_000), /^WorkerLost/);
  assert.equal((await r.run([say('next')], { threadId: 't' })).stdout, 'next');
  thaw();
  frozen.kill('SIGCONT');
  await frozen.waitLine(/nothing more is written/, { timeout: 60_000 });
  assert.equal(r.begins(job.id), 0);
});

test('an answer to the mark that is late, but in time: the code is delivered, once', async (t) => {
  const r = await rig(t);
  let job = null;
  const met = new Promise((resolve, reject) => {
    r.relay.trap(calls('reply', '"type":"started"'), 'after', async () => {
      await r.marked(() => job).catch(reject);
      r.workers[0].kill('SIGSTOP');
      await sleep(lockMs / 2);
      r.workers[0].kill('SIGCONT');
      resolve();
    });
  });
  job = await r.add([say('in time')], { threadId: 't' });
  await met;
  assert.equal((await r.result(job, 60_000)).stdout, 'in time');
  assert.equal(r.begins(job.id), 1);
});

for (const [name, data] of [['of a thread', { threadId: 't' }], ['without a thread', {}]]) {
  test(`a cancelled job ${name}, taken out of its line by a worker that dies, is still cancelled`, async (t) => {
    const r = await rig(t);
    const first = await r.add([say('first'), wait(1500 * slow)], { threadId: 't' });
    await waitFor(() => r.begins(first.id), { timeout: 60_000, what: 'the first job runs' });
    const job = await r.add([say('never')], data, { delay: 600_000 });
    const after = await r.add([say('after')], { threadId: 't' });
    const killed = r.killAfter(calls('cancel'), async () => (await r.redis.hget(r.P + job.id, 'sp:c')) === '1');
    await r.redis.xadd(`${r.P}stream:control`, '*', 'cancel', job.id);
    await killed;
    await r.redis.xtrim(`${r.P}stream:control`, 'MAXLEN', 0); // the next worker does not hear of it
    r.startWorker({ WORKER_NAME: 'b' });
    assert.match(await r.failure(job, 60_000), /cancelled/);
    assert.equal((await r.result(after, 60_000)).stdout, 'after');
    assert.equal(r.begins(job.id), 0);
    assert.equal(await r.redis.hexists(r.P + job.id, 'sp:c'), 0, 'the mark of the cancel goes with the end');
    await job.retry();
    // (Until the retry is claimed the old reply stands, with its `done`.)
    await waitFor(async () => (await r.replyNow(job)).at(-1)?.reason === 'ok', { timeout: 60_000, what: 'the retry ends well' });
  });
}

test('a connection that breaks again and again does not keep a dead worker\'s job from being taken over', async (t) => {
  const r = await rig(t);
  const job = await r.add([say('a'), wait(600_000)], { threadId: 't' });
  await waitFor(() => r.begins(job.id), { timeout: 60_000, what: 'the job runs' });
  const relay = await startRelay(() => redis.port);
  r.startWorker({ WORKER_NAME: 'b', REDIS_URL: relay.url });
  await waitFor(async () => (await r.queue.getWorkers()).length === 2, { timeout: 60_000, what: 'worker b' });
  const breaking = setInterval(() => relay.cut(), lockMs * 0.3);
  try {
    await r.workers.shift().kill9();
    assert.match(await r.failure(job, 60_000), /^WorkerLost/);
  } finally {
    clearInterval(breaking);
  }
});
