// Stock BullMQ clients of two majors against the worker: add, wait, events, retention, retries, pause, priority.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { clients, makeRig, slow } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const names = (log) => log.map((e) => (e.prev ? `${e.event}<${e.prev}` : e.event));
const UNIQUE = /\S.{10,}/; // a reason is a sentence

for (const version of ['6.7.0', '5.81.5']) {
  const rig = (t, options) => makeRig(t, redis, { version, ...options });

  test(`${version}: a job completes as under a stock Worker`, async (t) => {
    const r = await rig(t, { env: { WORKER_NAME: 'alpha' } });
    const seen = [];
    for (const event of ['waiting', 'active', 'completed', 'failed']) r.events.on(event, () => seen.push(event));
    const job = await r.add([say('hello\n'), { stderr: 'oh\n' }, { result: { 'text/plain': '2' }, main: true }]);
    const result = await r.result(job);
    assert.equal(result.state, 'completed');
    assert.equal(result.reason, 'ok');
    assert.equal(result.exitCode, 0);
    assert.equal(result.stdout, 'hello\n');
    assert.equal(result.stderr, 'oh\n');
    assert.equal(result.language, 'python');
    assert.deepEqual(result.results, [{ data: { 'text/plain': '2' }, main: true }]);
    assert.equal(await job.getState(), 'completed');
    assert.deepEqual(seen, ['waiting', 'active', 'completed']);
    await waitFor(async () => (await r.eventLog()).at(-1).event === 'drained', { what: 'drained' });
    assert.deepEqual(names(await r.eventLog()),
      ['added', 'waiting', 'active<waiting', 'completed<active', 'drained']);
    const stored = await r.queue.getJob(job.id);
    assert.deepEqual(stored.returnvalue, result);
    assert.equal(stored.attemptsMade, 1);
    assert.equal(stored.attemptsStarted, 1);
    assert.equal(stored.processedBy, 'alpha');
    assert.ok(stored.timestamp <= stored.processedOn && stored.processedOn <= stored.finishedOn);
    assert.ok(Date.now() - stored.finishedOn < 10_000);
    assert.deepEqual(await r.queue.getJobCounts('active', 'wait', 'completed', 'failed', 'delayed'),
      { active: 0, wait: 0, completed: 1, failed: 0, delayed: 0 });
    assert.equal(await r.redis.exists(`${r.P}${job.id}:lock`), 0);
  });

  test(`${version}: a failed job tells why`, async (t) => {
    const r = await rig(t);
    const job = await r.add([fail('driver_error')]);
    const reason = await r.failure(job);
    assert.match(reason, UNIQUE);
    assert.equal(await job.getState(), 'failed');
    const stored = await r.queue.getJob(job.id);
    assert.equal(stored.failedReason, reason);
    assert.equal(stored.stacktrace.length, 1);
    assert.ok(stored.stacktrace[0].includes(reason));
    assert.equal(stored.attemptsMade, 1);
    assert.equal(stored.returnvalue ?? null, null);
    const log = names(await r.eventLog(job.id));
    assert.deepEqual(log.filter((e) => e !== 'retries-exhausted'),
      ['added', 'waiting', 'active<waiting', 'failed<active']);
  });

  test(`${version}: an exception in the code is a completed job, never retried`, async (t) => {
    const r = await rig(t);
    const job = await r.add([say('before\n'), raise('KeyError', "'x'", 'Traceback…\nKeyError: \'x\'')], {},
      { attempts: 5, backoff: { type: 'exponential', delay: 10 } });
    const result = await r.result(job);
    assert.equal(result.state, 'error');
    assert.equal(result.reason, 'code_error');
    assert.equal(result.exitCode, 1);
    assert.equal(result.stdout, 'before\n');
    assert.deepEqual(result.errorDetail, { name: 'KeyError', value: "'x'", traceback: 'Traceback…\nKeyError: \'x\'' });
    assert.match(result.error, /KeyError/);
    assert.equal((await r.queue.getJob(job.id)).attemptsStarted, 1);
  });

  for (const [option, steps, set] of [['removeOnComplete', [say('x')], 'completed'],
    ['removeOnFail', [fail('driver_error')], 'failed']]) {
    test(`${version}: ${option} in all its forms`, async (t) => {
      const r = await rig(t);
      const runs = async (value, count, spacing = 0) => {
        const ids = [];
        for (let i = 0; i < count; i++) {
          const job = await r.add(steps, {}, { [option]: value });
          await r.reply(job); // BullMQ's own wait can miss a job that is removed at once
          ids.push(job.id);
          if (spacing) await sleep(spacing);
        }
        return ids;
      };
      const left = () => r.redis.zrange(`${r.P}${set}`, 0, -1);
      const exist = async (ids) => (await Promise.all(ids.map((id) => r.redis.exists(r.P + id)))).join('');

      const gone = await runs(true, 2);
      assert.equal(await exist(gone), '00');
      assert.deepEqual(await left(), []);
      const kept = await runs(false, 2);
      assert.equal(await exist(kept), '11');
      const counted = await runs(2, 3);
      assert.deepEqual(await left(), counted.slice(1));
      assert.equal(await exist([...kept, ...counted]), '00011');
      const aged = await runs({ age: 1 }, 2, 2100); // seconds
      assert.deepEqual(await left(), aged.slice(1));
      const both = await runs({ age: 3600, count: 3 }, 4);
      assert.deepEqual(await left(), both.slice(1));
      const object = await runs({ count: 1 }, 2);
      assert.deepEqual(await left(), object.slice(1));
    });
  }

  test(`${version}: fixed, numeric and exponential backoff`, async (t) => {
    const r = await rig(t);
    const cases = [
      [{ type: 'fixed', delay: 300 }, [300, 300]],
      [250, [250, 250]],
      [{ type: 'exponential', delay: 150 }, [150, 300]],
    ];
    await Promise.all(cases.map(async ([backoff, delays]) => {
      const job = await r.add([fail('no_sandbox', 2), say('at last')], {}, { attempts: 3, backoff });
      const result = await r.result(job);
      assert.equal(result.stdout, 'at last');
      assert.deepEqual(names(await r.eventLog(job.id)), ['added', 'waiting', 'active<waiting', 'delayed',
        'waiting<delayed', 'active<waiting', 'delayed', 'waiting<delayed', 'active<waiting', 'completed<active']);
      const stored = await r.queue.getJob(job.id);
      assert.equal(stored.attemptsMade, 3);
      assert.equal(stored.stacktrace.length, 2);
      const reply = await r.gathered(job);
      assert.deepEqual(reply.retries.map((m) => m.delayMs), delays);
      assert.deepEqual(reply.retries.map((m) => m.reason), ['no_sandbox', 'no_sandbox']);
      assert.deepEqual(reply.retries.map((m) => m.attempt), [1, 2]);
      assert.equal(reply.started.attempt, 3);
      await checkPauses(r, job, delays);
    }));
  });

  test(`${version}: a retry without backoff comes at once; attempts run out`, async (t) => {
    const r = await rig(t);
    const job = await r.add([fail('no_capacity')], {}, { attempts: 3 });
    assert.match(await r.failure(job), UNIQUE);
    assert.deepEqual(names(await r.eventLog(job.id)), ['added', 'waiting', 'active<waiting', 'waiting<active',
      'active<waiting', 'waiting<active', 'active<waiting', 'failed<active', 'retries-exhausted']);
    const stored = await r.queue.getJob(job.id);
    assert.equal(stored.attemptsMade, 3);
    assert.equal(stored.stacktrace.length, 3);
  });

  test(`${version}: stackTraceLimit`, async (t) => {
    const r = await rig(t);
    const job = await r.add([fail('no_capacity')], {}, { attempts: 4, stackTraceLimit: 2 });
    await r.failure(job);
    assert.equal((await r.queue.getJob(job.id)).stacktrace.length, 2);
    const none = await r.add([fail('no_capacity')], {}, { attempts: 2, stackTraceLimit: 0 });
    await r.failure(none);
    assert.equal((await r.queue.getJob(none.id)).stacktrace.length, 0);
  });

  test(`${version}: jitter stays within its bounds`, async (t) => {
    const r = await rig(t);
    const delays = await Promise.all(Array.from({ length: 12 }, async (_, i) => {
      const type = i % 2 ? 'exponential' : 'fixed';
      const job = await r.add([fail('no_sandbox', 1), say('x')], {}, { attempts: 2, backoff: { type, delay: 800, jitter: 0.5 } });
      await r.result(job);
      return (await r.gathered(job)).retries[0].delayMs;
    }));
    for (const delay of delays) assert.ok(delay >= 400 && delay <= 800, `${delays}`);
    assert.ok(new Set(delays).size >= 6, `spread out: ${delays}`);
  });

  test(`${version}: an unknown backoff type waits like a fixed one`, async (t) => {
    const r = await rig(t);
    const job = await r.add([fail('no_sandbox')], {}, { attempts: 3, backoff: { type: 'fibonacci', delay: 20 } });
    assert.match(await r.failure(job), UNIQUE);
    assert.equal((await r.queue.getJob(job.id)).attemptsMade, 3);
    assert.deepEqual((await r.gathered(job)).retries.map((m) => m.delayMs), [20, 20]);
    assert.equal((await r.run([say('next')])).stdout, 'next');
  });

  test(`${version}: odd option values`, async (t) => {
    const r = await rig(t);
    for (const opts of [{ attempts: 0 }, { attempts: '3' }, { attempts: 2.5 }, { backoff: 'custom' }, { priority: 0 },
      { jobId: `ü:${'x'.repeat(300)}:é` }, { jobId: 'a b"c\'d\\e\n' }, { delay: 0 }, { timestamp: 1 }]) {
      let job;
      try {
        job = await r.add([say('ok')], {}, opts);
      } catch {
        continue; // this client refuses it
      }
      assert.equal((await r.result(job)).stdout, 'ok', JSON.stringify(opts));
    }
    const text = await r.add([fail('no_sandbox', 1), say('second')], {}, { attempts: 2, backoff: '40' }).catch(() => null);
    if (text) await Promise.race([r.result(text), r.failure(text)]).catch(() => {});
    assert.equal((await r.run([say('alive')])).stdout, 'alive');
  });

  test(`${version}: getWorkers shows one worker a replica`, async (t) => {
    const r = await rig(t, { replicas: 2 });
    const workers = await waitFor(async () => {
      const list = await r.queue.getWorkers();
      return list.length >= 2 && list;
    }, { what: 'two workers' });
    await sleep(300);
    assert.equal((await r.queue.getWorkers()).length, 2);
    assert.equal(new Set(workers.map((w) => w.id)).size, 2);
    assert.equal(await r.queue.getWorkersCount(), 2);
    await r.workers[0].done();
    await waitFor(async () => (await r.queue.getWorkers()).length === 1, { what: 'one worker left' });
    r.workers.shift();
  });

  test(`${version}: pause and resume`, async (t) => {
    const r = await rig(t, { env: { DRAIN_DELAY_MS: '1000' } });
    const running = await r.add([say('a'), wait(700)]);
    await waitFor(async () => (await r.state(running)) === 'active', { what: 'active' });
    await r.queue.pause();
    const before = await r.add([say('b')]);
    const more = await r.add([say('c')], {}, { priority: 3 });
    assert.equal((await r.result(running)).stdout, 'a');
    await sleep(1500);
    for (const job of [before, more]) assert.match(await r.state(job), /waiting|paused|prioritized/);
    assert.equal(await r.redis.llen(`${r.P}active`), 0);
    await r.queue.resume();
    assert.equal((await r.result(before)).stdout, 'b');
    assert.equal((await r.result(more)).stdout, 'c');
  });

  test(`${version}: order by priority, lifo and delay`, async (t) => {
    const r = await rig(t, { replicas: 0 });
    const plain = await r.add([say('x')]);
    const low = await r.add([say('x')], {}, { priority: 9 });
    const high = await r.add([say('x')], {}, { priority: 1 });
    const middle = await r.add([say('x')], {}, { priority: 5 });
    const plain2 = await r.add([say('x')]);
    const lifo = await r.add([say('x')], {}, { lifo: true });
    const delayed = await r.add([say('x')], {}, { delay: 1500 });
    assert.equal(await r.state(delayed), 'delayed');
    r.startWorker({ WORKER_CONCURRENCY: '1' });
    await r.result(delayed);
    const order = (await r.eventLog()).filter((e) => e.event === 'active').map((e) => e.jobId);
    assert.deepEqual(order, [lifo, plain, plain2, high, middle, low, delayed].map((j) => j.id));
    const stored = await r.queue.getJob(delayed.id);
    assert.ok(stored.processedOn - stored.timestamp >= 1490, 'not before its time');
    assert.ok(stored.processedOn - stored.timestamp < 1500 + 1000 * slow, 'soon after its time');
  });

  test(`${version}: a delayed job wakes an idle worker in time; promote runs it now`, async (t) => {
    const r = await rig(t);
    await r.run([say('warm')]);
    const job = await r.add([say('x')], {}, { delay: 700 });
    await r.result(job);
    const stored = await r.queue.getJob(job.id);
    assert.ok(stored.processedOn - stored.timestamp >= 690);
    assert.ok(stored.processedOn - stored.timestamp < 700 + 600 * slow, `${stored.processedOn - stored.timestamp} ms`);
    const far = await r.add([say('now')], {}, { delay: 3_600_000 });
    await sleep(200);
    await far.promote();
    assert.equal((await r.result(far, 5000)).stdout, 'now');
  });

  test(`${version}: retry by hand, of failed and of completed jobs`, async (t) => {
    const r = await rig(t);
    const job = await r.add([fail('driver_error', 1), say('good')]);
    await r.failure(job);
    await job.retry('failed');
    assert.equal((await r.result(job)).stdout, 'good');
    const reply = await r.reply(job);
    assert.equal(reply[0].seq, 1);
    assert.equal(reply[0].type, 'started', 'the stream starts afresh after a done');
  });

  test(`${version}: addBulk, many at once`, async (t) => {
    const r = await rig(t, { env: { WORKER_CONCURRENCY: '20' } });
    const jobs = await r.queue.addBulk(Array.from({ length: 300 }, (_, i) => (
      { name: 'execute', data: { code: script(say(`${i}`)) }, opts: i % 3 ? {} : { priority: 1 + (i % 7) } })));
    const results = await Promise.all(jobs.map((job) => r.result(job)));
    results.forEach((result, i) => assert.equal(result.stdout, `${i}`));
  });

  test(`${version}: removeOnComplete and waitUntilFinished, 300 short jobs`, async (t) => {
    const r = await rig(t);
    for (let i = 0; i < 300; i += 50) {
      await Promise.all(Array.from({ length: 50 }, async () => {
        const job = await r.add([say('x')], {}, { removeOnComplete: true });
        const reply = await r.follow(job);
        assert.equal(reply.at(-1).result.stdout, 'x');
      }));
    }
    const completed = (await r.eventLog()).filter((e) => e.event === 'completed');
    assert.equal(completed.length, 300);
    for (const e of completed) assert.equal(JSON.parse(e.returnvalue).stdout, 'x');
    assert.equal(await r.queue.count(), 0);
  });

  test(`${version}: queue-wide concurrency and rate limit`, async (t) => {
    const r = await rig(t, { replicas: 2 });
    await r.queue.setGlobalConcurrency(1);
    const jobs = await Promise.all([1, 2, 3, 4].map(() => r.add([wait(100)])));
    await Promise.all(jobs.map((job) => r.result(job)));
    const log = (await r.eventLog()).filter((e) => /^(active|completed)$/.test(e.event)).map((e) => e.event);
    assert.deepEqual(log, Array(4).fill(['active', 'completed']).flat());
    await r.queue.removeGlobalConcurrency();
    await r.queue.setGlobalRateLimit(2, 600);
    const limited = await Promise.all(Array.from({ length: 6 }, () => r.add([say('x')])));
    await Promise.all(limited.map((job) => r.result(job)));
    const starts = (await Promise.all(limited.map((j) => r.queue.getJob(j.id)))).map((j) => j.processedOn).sort((a, b) => a - b);
    assert.ok(starts[5] - starts[0] >= 1100, `${starts.map((s) => s - starts[0])}`);
    await r.queue.removeGlobalRateLimit();
  });

  test(`${version}: an unknown name fails, subject to its attempts`, async (t) => {
    const r = await rig(t);
    const job = await r.queue.add('exceute', { code: script(say('x')) }, { attempts: 2, backoff: 50 });
    assert.match(await r.failure(job), /exceute/);
    assert.equal((await r.queue.getJob(job.id)).attemptsMade, 2);
    const { done, retries } = await r.gathered(job);
    assert.deepEqual([done.state, done.reason, retries.length], ['failed', 'unknown_name', 1]);
  });
}

test('a v5 pause, jobs of both majors, a v5 resume', async (t) => {
  const r = await makeRig(t, redis, { version: '5.81.5' });
  await r.queue.pause();
  const old = await r.add([say('v5')]);
  await sleep(1200);
  assert.match(await r.state(old), /paused|waiting/);
  await r.queue.resume();
  assert.equal((await r.result(old)).stdout, 'v5');
  const queue6 = new clients['6.7.0'].Queue(r.name, { connection: redis.connection });
  t.after(() => queue6.close());
  const job = await queue6.add('execute', { code: script(say('v6')) });
  await waitFor(async () => (await job.getState()) === 'completed', { what: 'completed' });
});

test('the oldest supported client, 5.40.0', async (t) => {
  const r = await makeRig(t, redis, { version: '5.40.0' });
  const jobs = [await r.add([say('plain')]), await r.add([say('prio')], {}, { priority: 2 }),
    await r.add([say('late')], {}, { delay: 300 }),
    await r.add([fail('no_sandbox', 1), say('again')], {}, { attempts: 2, backoff: { type: 'fixed', delay: 100 } })];
  const out = await Promise.all(jobs.map(async (job) => (await r.result(job)).stdout));
  assert.deepEqual(out, ['plain', 'prio', 'late', 'again']);
  assert.equal((await r.queue.getWorkers()).length, 1);
});

/** Between an attempt's end and the next one's start lies the backoff (as the delayed event dates it), and not much more. */
async function checkPauses(r, job, delays) {
  const entries = await r.redis.xrange(`${r.P}events`, '-', '+');
  const of = (kind) => entries.filter(([, f]) => f[1] === kind && f[3] === String(job.id))
    .map(([id, f]) => ({ at: Number(id.split('-')[0]), due: Number(f[5]) }));
  const [starts, pauses] = [of('active'), of('delayed')];
  delays.forEach((delay, i) => {
    const pause = pauses[i].due - pauses[i].at; // the worker's clock reads a little before Redis runs the call
    assert.ok(pause <= delay && pause > delay - 150 * slow, `due in ${pause} ms for a backoff of ${delay}`);
    const late = starts[i + 1].at - pauses[i].due;
    assert.ok(late >= 0 && late < 1000 * slow, `started ${late} ms after it was due`);
  });
}
