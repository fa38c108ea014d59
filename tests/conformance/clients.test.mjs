// Every method of the stock clients that looks at a queue or changes it, against a queue that Sandpiper works.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const rig = (t, options = {}) => makeRig(t, redis, { ...options, env: { ...shortLocks, METRICS_MAX_DATA_POINTS: '60', ...options.env } });
const until = (r, job, state) => waitFor(async () => (await r.state(job)) === state, { what: `${job.id} ${state}`, timeout: 10_000 * slow });
const ids = (jobs) => jobs.map((j) => j.id);
const thread = { threadId: 't', workspaceId: 'w' };

for (const version of ['6.7.0', '5.81.5', '5.40.0']) {
  const v6 = version.startsWith('6');

  test(`${version}: lists, counts and states, parked jobs among them`, async (t) => {
    const r = await rig(t, { version, env: { WORKER_CONCURRENCY: '2', WORKER_NAME: 'w1' } });
    const failed = await r.add([fail('no_sandbox')]);
    await r.failure(failed);
    const done = await r.add([say('x')]);
    await r.result(done);
    const long = await r.add([wait(2500 * slow)], thread);
    await until(r, long, 'active');
    const parked = await r.add([say('p')], thread);
    await until(r, parked, 'delayed');
    const delayed = await r.add([say('d')], {}, { delay: 600_000 });
    const other = await r.add([wait(2500 * slow)]);
    await until(r, other, 'active');
    const waiting = await r.add([say('w')]);
    const prior = await r.add([say('p')], {}, { priority: 4 });

    const counts = await r.queue.getJobCounts();
    assert.equal(counts.active, 2);
    assert.equal(counts.completed, 1);
    assert.equal(counts.failed, 1);
    assert.equal(counts.delayed, 2);
    assert.equal(counts.waiting, 1);
    assert.equal(counts.prioritized, 1);
    assert.equal(counts['waiting-children'], 0);
    const state = async (job) => (await r.queue.getJob(job.id)).getState();
    assert.deepEqual(await Promise.all([failed, done, long, parked, delayed, waiting, prior].map(state)),
      ['failed', 'completed', 'active', 'delayed', 'delayed', 'waiting', 'prioritized']);
    assert.deepEqual(ids(await r.queue.getJobs(['delayed'])).sort(), [parked.id, delayed.id].sort());
    assert.deepEqual(ids(await r.queue.getActive()).sort(), [long.id, other.id].sort());
    assert.deepEqual(ids(await r.queue.getWaiting()), [waiting.id]);
    assert.deepEqual(ids(await r.queue.getPrioritized()), [prior.id]);
    assert.equal((await r.queue.getJobs()).length, 8);
    const [shown] = (await r.queue.getDelayed()).filter((j) => j.id === parked.id);
    assert.ok(shown.timestamp + shown.delay > Date.now(), 'a parked job is due later');
    assert.equal(shown.attemptsMade, 0);
    assert.equal(shown.processedOn, undefined);

    const workers = await r.queue.getWorkers();
    assert.equal(workers.length, 1);
    assert.match(workers[0].rawname ?? workers[0].name, /w1/);
    const back = await r.queue.getJob(done.id);
    assert.equal(back.returnvalue.state, 'completed');
    assert.ok(back.processedOn >= back.timestamp && back.finishedOn >= back.processedOn);
    assert.equal(back.processedBy, 'w1');
    const bad = await r.queue.getJob(failed.id);
    assert.match(bad.failedReason, /no sandbox/);
    assert.equal(bad.stacktrace.length, 1);
    assert.equal(await bad.isFailed(), true);
    const metrics = await r.queue.getMetrics('completed');
    assert.equal(metrics.meta.count, 1);
    await delayed.remove();
    for (const job of [long, parked, other, waiting, prior]) await r.result(job);
  });

  test(`${version}: a job's methods`, async (t) => {
    const r = await rig(t, { version });
    const failed = await r.add([fail('no_sandbox', 1), say('again')]);
    await r.failure(failed);
    await (await r.queue.getJob(failed.id)).retry();
    assert.equal((await waitFor(async () => (await r.queue.getJob(failed.id)).returnvalue, { what: 'its second run' })).stdout, 'again');
    const late = await r.add([say('late')], {}, { delay: 600_000 });
    await late.changeDelay(300_000);
    await late.promote();
    assert.equal((await r.result(late)).stdout, 'late');
    const soon = await r.add([say('soon')], {}, { delay: 600_000 });
    await soon.changeDelay(200);
    assert.equal((await r.result(soon)).stdout, 'soon');
    const gone = await r.add([say('gone')], {}, { delay: 600_000 });
    await gone.remove();
    assert.equal(await r.state(gone), 'unknown');

    await r.queue.pause();
    const low = await r.add([say('low')], {}, { priority: 9 });
    const high = await r.add([say('high')], {}, { priority: 10 });
    await high.changePriority({ priority: 1 });
    await low.updateData({ v: 1, code: script(say('new')) });
    await low.log('by a client');
    await low.updateProgress({ by: 'a client' });
    await r.queue.resume();
    assert.equal((await r.result(low)).stdout, 'new');
    await r.result(high);
    const order = (await r.eventLog()).filter((e) => e.event === 'active' && [low.id, high.id].includes(e.jobId)).map((e) => e.jobId);
    assert.deepEqual(order, [high.id, low.id]);
    const again = await r.queue.getJob(low.id);
    assert.deepEqual(again.progress, { by: 'a client' });
    assert.deepEqual((await r.queue.getJobLogs(low.id)).logs, ['by a client']);

    const flow = new clients[version].FlowProducer({ connection: redis.connection });
    t.after(() => flow.close());
    const node = (text, children) => ({ name: 'execute', queueName: r.name, data: { v: 1, code: script(say(text)) }, children });
    const { job: parent } = await flow.add(node('parent', [node('one'), node('two')]));
    await r.result(parent);
    const values = Object.values(await parent.getChildrenValues()).map((v) => v.stdout).sort();
    assert.deepEqual(values, ['one', 'two']);
    assert.equal(Object.keys((await parent.getDependencies()).processed).length, 2);
    assert.deepEqual(await parent.getDependenciesCount({ processed: true, unprocessed: true }), { processed: 2, unprocessed: 0 });
    const tree = await flow.getFlow({ id: parent.id, queueName: r.name });
    assert.equal(tree.children.length, 2);
  });

  test(`${version}: a queue's methods`, async (t) => {
    const r = await rig(t, { version, env: { LIMITER_MAX: '1000', LIMITER_DURATION_MS: '50' } });
    await r.run([say('warm')], thread);
    const parkedBehind = await r.add([wait(1500 * slow)], thread);
    await until(r, parkedBehind, 'active');
    const parked = await r.add([say('still here')], thread);
    await until(r, parked, 'delayed');
    if (r.queue.removeOrphanedJobs) assert.equal(await r.queue.removeOrphanedJobs(), 0, 'none of our keys is taken for an orphan');
    assert.equal((await r.result(parked)).stdout, 'still here');

    await r.queue.rateLimit(800);
    const limited = await r.add([say('l')]);
    await sleep(300);
    assert.equal(await r.state(limited), 'waiting');
    await r.result(limited);

    if (r.queue.setGlobalConcurrency) {
      await r.queue.setGlobalConcurrency(1);
      const two = [await r.add([wait(200)]), await r.add([wait(200)])];
      await until(r, two[0], 'active');
      await sleep(60);
      assert.equal(await r.queue.getActiveCount(), 1);
      for (const job of two) await r.result(job);
      await (r.queue.removeGlobalConcurrency?.() ?? r.redis.hdel(`${r.P}meta`, 'concurrency'));
    }
    await r.queue.pause();
    assert.equal(await r.queue.isPaused(), true);
    const held = await r.add([say('h')]);
    await sleep(150);
    assert.notEqual(await r.state(held), 'active');
    await r.queue.resume();
    await r.result(held);
    assert.ok((await r.queue.clean(0, 100, 'completed')).length > 0);
    assert.equal(await r.queue.getCompletedCount(), 0);

    await r.queue.pause();
    for (let i = 0; i < 3; i++) await r.add([say('x')]);
    await r.queue.drain();
    assert.equal((await r.queue.getJobCounts()).waiting + ((await r.queue.getJobCounts()).paused ?? 0), 0);
    await r.queue.resume();
    const stopper = await r.add([wait(60_000)]);
    await waitFor(async () => (await r.replyNow(stopper)).length > 0, { what: 'it has started' });
    await r.queue.obliterate({ force: true });
    assert.equal((await r.reply(stopper)).at(-1).reason, 'removed');
    await r.run([say('alive')]);
    const left = (await r.redis.keys(`${r.P}*`)).filter((k) => `${k}:`.startsWith(`${r.P}${stopper.id}:`));
    assert.deepEqual(left, []);
  });

  test(`${version}: QueueEvents says everything`, async (t) => {
    const r = await rig(t, { version, env: { JOB_PROGRESS: 'true' } });
    const seen = new Map();
    const names = ['added', 'waiting', 'active', 'progress', 'completed', 'failed', 'retries-exhausted', 'delayed', 'drained', 'paused',
      'resumed', 'removed', 'waiting-children', 'deduplicated', 'duplicated', 'stalled', 'cleaned'];
    for (const name of names) r.events.on(name, (e) => seen.set(name, [...(seen.get(name) ?? []), e]));
    await r.run([say('x')], {}, { jobId: 'same' });
    await r.queue.add('execute', { v: 1, code: script(say('x')) }, { jobId: 'same' });
    const twice = { deduplication: { id: 'd', ttl: 60_000 } };
    await r.run([say('x')], {}, twice);
    await r.add([say('x')], {}, twice);
    await r.failure(await r.add([fail('no_sandbox')], {}, { attempts: 2, backoff: 50 }));
    const flow = new clients[version].FlowProducer({ connection: redis.connection });
    t.after(() => flow.close());
    const { job } = await flow.add({ name: 'execute', queueName: r.name, data: { v: 1, code: script(say('p')) },
      children: [{ name: 'execute', queueName: r.name, data: { v: 1, code: script(say('c')) } }] });
    await r.result(job);
    await r.queue.pause();
    const gone = await r.add([say('x')]);
    await gone.remove();
    await r.queue.resume();
    const first = await r.add([wait(60_000)]);
    await waitFor(async () => (await r.replyNow(first)).length > 0, { what: 'it has started' });
    await r.worker.kill9();
    r.workers.splice(0, 1);
    r.worker = r.startWorker({ ...shortLocks, JOB_PROGRESS: 'true' });
    assert.match(await r.failure(first), /^WorkerLost/);
    await r.queue.clean(0, 1, 'failed');
    await waitFor(() => names.every((name) => seen.has(name)),
      { what: 'all events', timeout: 8000 * slow }).catch(() => assert.deepEqual(names.filter((name) => !seen.has(name)), []));
    assert.ok(seen.get('progress').some((e) => e.data.state === 'running'));
    assert.equal(seen.get('completed')[0].returnvalue.state, 'completed');
    assert.match(seen.get('failed')[0].failedReason, /no sandbox/);
    assert.equal(seen.get('retries-exhausted')[0].attemptsMade, '2');
  });

  test(`${version}: waitUntilFinished with removal on completion and failure`, async (t) => {
    const r = await rig(t, { version });
    // A job that is gone before somebody listens for it is "Missing key" with every worker: so they take a moment.
    const jobs = await Promise.all(Array.from({ length: 40 }, (_, i) =>
      r.add([{ prepare: 500 }, i % 4 ? say(String(i)) : fail('no_sandbox')], {}, { removeOnComplete: true, removeOnFail: true })));
    const results = await Promise.allSettled(jobs.map((j) => j.waitUntilFinished(r.events, 15_000 * slow)));
    results.forEach(({ value, reason }, i) => {
      if (i % 4) assert.equal(value?.stdout, String(i), reason?.message);
      else assert.match(reason.message, /no sandbox/);
    });
    assert.equal((await r.queue.getJobs()).length, 0);
  });
  if (!v6) continue;

  test(`${version}: the log of a job has what its code printed, cut by keepLogs and by size`, async (t) => {
    const r = await rig(t, { env: { JOB_LOG: 'true', REPLY_MAX_BYTES: '100000' } });
    const job = await r.add([say('first\n'), { stderr: 'warning\n' }, say('ünd so\nweiter')]);
    await r.result(job);
    assert.deepEqual((await r.queue.getJobLogs(job.id)).logs.join('\n').split('\n'), ['first', 'warning', 'ünd so', 'weiter']);
    const big = await r.add([say(`${'x'.repeat(99)}\n`, 5000)], {}, { keepLogs: 3 });
    await r.result(big);
    const { logs } = await r.queue.getJobLogs(big.id);
    assert.ok(logs.length <= 3);
    assert.match(logs.at(-1), /left out/);
    const silent = await r.add([{ prepare: 500 }, say('x\n')], {}, { removeOnComplete: true });
    await r.result(silent);
    assert.deepEqual(await r.redis.keys(`${r.P}${silent.id}*`), []); // no log either
  });
}
