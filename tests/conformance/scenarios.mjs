// What is played on both sides. Each scenario gets a World; what it does and when must not depend on the kind of worker.
//   since: the oldest producer that has it.  threads: also played with every job in one thread.
//   world: options of the World.  Jobs are added before the worker starts unless the scenario is about the opposite,
//   so that the order of events is the same on both sides.
import { sleep } from '../lib/process.mjs';

const fail = (times) => ({ fail: 'no_sandbox', ...(times ? { times } : {}) });
const ok = [{ stdout: 'x' }];
const nap = (ms) => [{ sleep: ms }, { stdout: 'x' }];
const list = [];
const scenario = (name, play, options = {}) => list.push({ name, play, ...options });
const T = { threads: true };

/** Jobs with these options (and steps), then a worker, then the end. */
const jobs = (...specs) => async (w) => {
  for (const [opts, steps, more] of specs) await w.add(opts, steps, more);
  await w.work();
  await w.idle();
};
const withWorker = (options, ...specs) => async (w) => {
  for (const [opts, steps, more] of specs) await w.add(opts, steps, more);
  await w.work(options);
  await w.idle();
};

// ---- ends ----
scenario('completed', jobs([{}], [{}], [{}]), T);
scenario('failed', jobs([{}, [fail()]]), T);
scenario('an exception is a completed job', jobs([{}, [{ error: { name: 'E', value: 'v', traceback: 't' } }]]), T);
scenario('attempts, fixed backoff', jobs([{ attempts: 3, backoff: { type: 'fixed', delay: 40 } }, [fail()]]), T);
scenario('attempts, backoff as a number', jobs([{ attempts: 2, backoff: 50 }, [fail(1), ...ok]]), T);
scenario('attempts, exponential backoff', jobs([{ attempts: 4, backoff: { type: 'exponential', delay: 15 } }, [fail(3), ...ok]]), T);
scenario('attempts, jitter', jobs([{ attempts: 3, backoff: { type: 'fixed', delay: 60, jitter: 0.5 } }, [fail()]]));
scenario('attempts, backoff 0', jobs([{ attempts: 3, backoff: 0 }, [fail(2), ...ok]]), T);
scenario('attempts, no backoff, others wait', jobs([{ attempts: 2 }, [fail(1), ...ok]], [{}], [{}]));
scenario('attempts, lifo', jobs([{ attempts: 2, lifo: true }, [fail(1), ...ok]], [{}]), T);
scenario('attempts, priority', jobs([{ attempts: 2, priority: 3 }, [fail(1), ...ok]], [{ priority: 2 }]));
scenario('unrecoverable', jobs([{ attempts: 5 }, ok, { timeoutMs: -1, unrecoverable: "The job's data is wrong: timeoutMs must be a positive whole number of milliseconds." }]), T);
scenario('an unknown name', async (w) => {
  await w.queue().add('paint', w.data(), { attempts: 2 });
  await w.work();
  await w.idle();
});
scenario('stackTraceLimit 1', jobs([{ attempts: 3, stackTraceLimit: 1 }, [fail()]]));
scenario('stackTraceLimit 0', jobs([{ attempts: 2, stackTraceLimit: 0 }, [fail()]]));

// ---- order ----
scenario('delayed', jobs([{ delay: 1200 }], [{}]), T);
scenario('priorities', jobs([{ priority: 5 }], [{ priority: 1 }], [{ priority: 5 }], [{ priority: 3 }], [{}]), T);
scenario('priority 2097151', jobs([{ priority: 2097151 }], [{ priority: 1 }]));
scenario('every job has a priority, delayed ones too', jobs([{ priority: 4, delay: 1200 }], [{ priority: 7 }]));
scenario('lifo', jobs([{}], [{ lifo: true }], [{ lifo: true }], [{}]), T);
scenario('custom ids', jobs([{ jobId: 'mine' }], [{ jobId: 'a b/ü' }], [{ jobId: 'mine' }]), T);
scenario('addBulk', async (w) => {
  await w.queue().addBulk([1, 2, 3, 4].map((n) => ({ name: 'execute', data: w.data(), opts: n === 3 ? { priority: 2 } : {} })));
  await w.work();
  await w.idle();
}, T);

// ---- what is kept ----
for (const option of ['removeOnComplete', 'removeOnFail']) {
  const steps = option === 'removeOnFail' ? [fail()] : ok;
  const kept = (...values) => jobs(...values.map((v) => [v === undefined ? {} : { [option]: v }, steps]));
  scenario(`${option} true`, kept(true, undefined), T);
  scenario(`${option} false`, kept(false, false));
  scenario(`${option} count`, kept(2, 2, 2, 2), T);
  scenario(`${option} {age}`, kept({ age: 3600 }, { age: 3600 }));
  scenario(`${option} {count}`, kept({ count: 1 }, { count: 1 }, { count: 1 }));
  scenario(`${option} {age, count, limit}`, kept({ age: 3600, count: 2, limit: 1 }, { age: 3600, count: 2, limit: 1 }, { age: 3600, count: 2, limit: 1 }));
}
scenario('kept by the worker\'s own default', withWorker({ removeOnComplete: { count: 1 }, removeOnFail: { count: 1 } },
  [{}], [{}], [{ removeOnComplete: false }], [{}, [fail()]], [{}, [fail()]], [{ removeOnFail: 5 }, [fail()]]));
scenario('keepLogs', withWorker({ jobLog: true }, [{ keepLogs: 2 },
  [{ stdout: 'a\n' }, { sleep: 1300 }, { stdout: 'b\n' }, { sleep: 1300 }, { stdout: 'c\n' }]]));
scenario('progress and logs', withWorker({ jobLog: true, jobProgress: true }, [{}, [{ stdout: 'a\nb\n' }, { stdout: 'ü\n' }]],
  [{ attempts: 2 }, [fail(1), ...ok]]), T);
scenario('progress and logs by a client', async (w) => {
  const job = await w.add({ keepLogs: 2 });
  for (const row of ['1', '2', '3']) await job.log(row);
  await job.updateProgress(42);
  await job.updateData({ ...job.data, more: true });
  await w.work();
  await w.idle();
  w.note('logs', await w.queue().getJobLogs(job.id));
});

// ---- deduplication ----
const dedup = (deduplication) => ({ deduplication });
scenario('deduplication, simple', jobs([dedup({ id: 'd' })], [dedup({ id: 'd' })], [dedup({ id: 'e' })]), T);
scenario('deduplication, again after the end', async (w) => {
  await w.work();
  for (let i = 0; i < 2; i++) {
    const job = await w.add(dedup({ id: 'd' }));
    await w.state(job.id, 'completed');
  }
  await w.idle();
});
scenario('deduplication, failed', jobs([dedup({ id: 'd' }), [fail()]]));
scenario('deduplication, throttle', jobs([dedup({ id: 'd', ttl: 60_000 })], [dedup({ id: 'd', ttl: 60_000 })]), T);
scenario('deduplication, debounce', jobs([{ ...dedup({ id: 'd', ttl: 2000, extend: true, replace: true }), delay: 2000 }],
  [{ ...dedup({ id: 'd', ttl: 2000, extend: true, replace: true }), delay: 2000 }]), { since: '5.81.5' });
scenario('deduplication, keepLastIfActive', async (w) => {
  await w.add(dedup({ id: 'd', keepLastIfActive: true }), nap(500));
  await w.work();
  await w.state('1', 'active');
  await w.add(dedup({ id: 'd', keepLastIfActive: true }), ok, { n: 2 });
  await w.add(dedup({ id: 'd', keepLastIfActive: true }), ok, { n: 3 });
  await w.idle();
}, { since: '5.81.5', threads: true });

// ---- flows ----
const flow = (build, { queues = ['work'], ...want } = {}) => async (w) => {
  const { job } = await w.flow.add(build(w));
  for (const name of queues) await w.work({}, name);
  await w.idle({ ...want, queues });
  w.note('values', Object.values(await job.getChildrenValues().catch((e) => ({ e: e.message }))).length);
  w.note('state', await w.queue(queues.at(-1)).getJobState(job.id));
};
const id = (jobId, more) => ({ jobId, ...more });
const two = (childOpts, steps = [fail()]) => (w) => w.node('work', ok, id('p'), [
  w.node('work', ok, id('a')), w.node('work', steps, id('b', childOpts))]);
scenario('flow: a parent waits for its children', flow(two({}, ok)), T);
scenario('flow: across queues', flow((w) => w.node('parents', ok, id('p'), [w.node('work', ok, id('a')), w.node('work', ok, id('b'))]),
  { queues: ['work', 'parents'] }));
scenario('flow: three levels', flow((w) => w.node('work', ok, id('p'), [w.node('work', ok, id('a'), [w.node('work', ok, id('x')), w.node('work', ok, id('y'))])])), T);
scenario('flow: a child fails, nothing said', flow(two({}), { waitingChildren: 1 }), T);
scenario('flow: failParentOnFailure', flow(two({ failParentOnFailure: true })), T);
scenario('flow: failParentOnFailure over three levels', flow((w) => w.node('work', ok, id('p'), [
  w.node('work', ok, id('a', { failParentOnFailure: true }), [w.node('work', [fail()], id('x', { failParentOnFailure: true }))])])));
scenario('flow: ignoreDependencyOnFailure', flow(two({ ignoreDependencyOnFailure: true })), T);
scenario('flow: continueParentOnFailure', flow(two({ continueParentOnFailure: true })), { since: '5.81.5', threads: true });
scenario('flow: continueParentOnFailure, a child not done', flow((w) => w.node('work', ok, id('p'), [
  w.node('work', [fail()], id('a', { continueParentOnFailure: true })), w.node('work', ok, id('b', { delay: 600 }))])),
{ since: '5.81.5' });
scenario('flow: removeDependencyOnFailure', flow(two({ removeDependencyOnFailure: true })), T);
scenario('flow: a child is retried', flow(two({ attempts: 2, backoff: 40 }, [fail(1), ...ok])), T);
scenario('flow: children removed on completion', flow(two({ removeOnComplete: true }, ok)));
scenario('flow: priorities', flow((w) => w.node('work', ok, id('p', { priority: 3 }), [
  w.node('work', ok, id('a', { priority: 9 })), w.node('work', ok, id('b', { priority: 1 }))])), T);
scenario('flow: children added while the parent waits for a worker', async (w) => {
  await w.add({ jobId: 'p' });
  await w.add({ jobId: 'c', parent: { id: 'p', queue: `${w.prefix ?? 'bull'}:work` } });
  await w.work();
  await w.idle();
}, T);
for (const [what, opts, steps, want] of [['fails', { failParentOnFailure: true }, [fail()], {}], ['is pending', { delay: 600_000 }, ok, { delayed: 1 }]]) {
  scenario(`flow: a child ${what} at the end of a parent that ran meanwhile`, async (w) => {
    await w.add({ jobId: 'p' }, nap(700));
    await w.work({ concurrency: 2 });
    await w.state('p', 'active');
    await sleep(200); // the parent has looked for children
    await w.add({ jobId: 'c', parent: { id: 'p', queue: `${w.prefix ?? 'bull'}:work` }, ...opts }, steps);
    await w.idle(want);
  });
}
scenario('flow: a failed child removed its parent\'s wait', async (w) => {
  const { job } = await w.flow.add(two({ failParentOnFailure: true })(w));
  await w.work();
  await w.idle();
  await w.queue().getJob('b').then((b) => b.retry());
  await w.idle();
  w.note('dependencies', Object.keys(await job.getDependencies()));
});

// ---- limits ----
const four = [[{}], [{}], [{}], [{}]];
scenario('rate limit by the worker', async (w) => {
  for (const [opts] of four) await w.add(opts);
  await w.work({ limiter: { max: 2, duration: 1200 } });
  await w.idle();
  await sleep(1300);
}, T);
scenario('rate limit by the queue', async (w) => {
  await w.queue().setGlobalRateLimit(1, 700);
  for (const [opts] of four.slice(1)) await w.add(opts);
  await w.work();
  await w.idle();
  await sleep(800);
}, { since: '5.81.5', threads: true });
scenario('rate limited by hand', async (w) => {
  await w.add();
  await w.queue().rateLimit(400);
  await w.work({ limiter: { max: 50, duration: 100 } });
  await sleep(200);
  w.note('while limited', await w.queue().getWaitingCount());
  await w.idle();
  await sleep(200);
}, { since: '5.81.5' });
scenario('global concurrency', async (w) => {
  await w.queue().setGlobalConcurrency(1);
  for (let i = 0; i < 3; i++) await w.add({}, nap(60));
  await w.work({ concurrency: 3 });
  await w.idle();
}, T);
scenario('worker concurrency', async (w) => {
  for (let i = 0; i < 4; i++) await w.add({}, nap(120 + 120 * i));
  await w.work({ concurrency: 4 });
  await w.idle();
});
scenario('maxStartedAttempts ends retries', withWorker({ maxStartedAttempts: 2 }, [{ attempts: 9, backoff: 10 }, [fail()]]));
scenario('started more than allowed', async (w) => {
  await w.add({ attempts: 3 });
  await w.claimAndDie();
  await w.work({ maxStartedAttempts: 1, lockDuration: 1000, stalledInterval: 250 });
  await w.idle();
});

// ---- pause, removal ----
scenario('paused before, resumed', async (w) => {
  await w.queue().pause();
  await w.add();
  await w.add({ priority: 2 });
  await w.work();
  await sleep(150);
  w.note('paused', [await w.queue().isPaused(), await w.redis.llen('bull:work:active')]);
  await w.queue().resume();
  await w.idle();
}, T);
scenario('paused while a job runs', async (w) => {
  await w.add({}, nap(400));
  await w.add();
  await w.work();
  await w.state('1', 'active');
  await w.queue().pause();
  await w.state('1', 'completed');
  await sleep(100);
  await w.queue().resume();
  await w.idle();
}, T);
for (const [pauser, adder, resumer] of [['5.81.5', '5.81.5', '6.7.0'], ['6.7.0', '5.81.5', '6.7.0'], ['5.40.0', '5.81.5', '5.81.5'], ['6.7.0', '6.7.0', '5.81.5']]) {
  scenario(`paused by ${pauser}, added by ${adder}, resumed by ${resumer}`, async (w) => {
    await w.queue('work', pauser).pause();
    await w.work();
    for (let i = 0; i < 2; i++) await w.queue('work', adder).add('execute', w.data());
    await sleep(150);
    await w.queue('work', resumer).resume();
    await w.idle({ wait: 0 });
  }, { only: '6.7.0' });
}
scenario('removed while waiting', async (w) => {
  await w.add();
  const job = await w.add();
  await w.add({ delay: 1200 });
  await job.remove();
  await w.work();
  await w.idle();
}, T);
scenario('removed while active', async (w) => {
  const job = await w.add({}, nap(400));
  await w.work();
  await w.state('1', 'active');
  await w.noteOf('remove', job.remove().catch((e) => { throw new Error(e.message.replace(/\d+/g, 'n')); }));
  await w.idle();
});
scenario('obliterated while a job runs', async (w) => {
  await w.add({}, nap(400));
  await w.add();
  await w.work({ lockDuration: 1000, stalledInterval: 250 });
  await w.state('1', 'active');
  await w.queue().obliterate({ force: true });
  await sleep(700);
  await w.add({ jobId: 'after' });
  await w.idle();
}, T);
for (const delayed of [false, true]) {
  scenario(`drain(${delayed}) while a job runs`, async (w) => {
    await w.add({}, nap(400));
    for (let i = 0; i < 3; i++) await w.add({ priority: i });
    await w.add({ delay: 900 });
    await w.work();
    await w.state('1', 'active');
    await w.queue().drain(delayed);
    await w.idle();
  }, { threads: delayed });
}
scenario('cleaned', async (w) => {
  for (const [opts] of four) await w.add(opts);
  await w.add({}, [fail()]);
  await w.work();
  await w.idle();
  w.note('cleaned', (await w.queue().clean(0, 2, 'completed')).length);
  w.note('failed', await w.queue().clean(0, 0, 'failed'));
});

// ---- by hand ----
scenario('retry of a failed and a completed job by hand', async (w) => {
  const failed = await w.add({}, [fail(1), ...ok]);
  const completed = await w.add();
  await w.work();
  await w.idle();
  await (await w.queue().getJob(failed.id)).retry('failed');
  await w.idle();
  await (await w.queue().getJob(completed.id)).retry('completed');
  await w.idle();
}, T);
scenario('promoted', async (w) => {
  const job = await w.add({ delay: 60_000 });
  await w.work();
  await sleep(60);
  await job.promote();
  await w.idle();
}, T);
scenario('changeDelay, changePriority', async (w) => {
  const late = await w.add({ delay: 60_000 });
  await late.changeDelay(1500);
  const jobs_ = [await w.add({ priority: 5 }), await w.add({ priority: 6 })];
  await jobs_[1].changePriority({ priority: 1 });
  await w.work();
  await w.idle();
}, T);
scenario('retryJobs, promoteJobs', async (w) => {
  await w.add({}, [fail(1), ...ok]);
  await w.add({}, [fail(1), ...ok]);
  await w.work();
  await w.idle();
  await w.queue().retryJobs({ count: 10 });
  await w.idle();
  await w.add({ delay: 100_000 });
  await w.queue().promoteJobs();
  await w.idle();
});

// ---- stalled ----
const dead = (options, opts = {}) => async (w) => {
  await w.add(opts);
  await w.claimAndDie();
  await w.work({ lockDuration: 1000, stalledInterval: 250, ...options });
  await w.idle();
};
scenario('stalled once', dead({ maxStalledCount: 1 }), T);
scenario('stalled too often', dead({ maxStalledCount: 0 }, { attempts: 3 }), T);
scenario('stalled twice, by two dead workers', async (w) => {
  await w.add();
  await w.claimAndDie();
  const first = await w.work({ lockDuration: 1000, stalledInterval: 250, concurrency: 1 });
  await w.idle();
  await first.stop();
});
scenario('a priority job stalled', dead({ maxStalledCount: 2 }, { priority: 3 }));

// ---- schedulers ----
const schedule = (repeat, want = {}, template = {}) => async (w) => {
  await w.queue().upsertJobScheduler('nightly', typeof repeat === 'function' ? await repeat() : repeat,
    { name: 'execute', data: w.data(), ...template });
  await w.work();
  await w.idle(want);
};
scenario('scheduler: every', schedule({ every: 1200, limit: 3 }), { threads: true });
scenario('scheduler: every, offset', schedule({ every: 1200, offset: 100, limit: 2 }));
scenario('scheduler: every, from a date', schedule(() => ({ every: 1200, startDate: Date.now() + 1000, limit: 2 })));
// (A job that falls due while it is being added would be seen as waiting on one side and as delayed on the other.)
const wellBefore = (repeat) => async () => {
  await sleep(2000 - (Date.now() % 2000) + 20);
  return repeat();
};
scenario('scheduler: cron with seconds and tz', schedule(wellBefore(() => ({ pattern: '*/2 * * * * *', tz: 'America/New_York', limit: 2 }))));
scenario('scheduler: cron from a date', schedule(wellBefore(() => ({ pattern: '*/2 * * * * *', startDate: new Date(Date.now() + 900), limit: 2 }))));
scenario('scheduler: immediately, then far ahead', schedule({ pattern: '0 0 3 29 2 *', tz: 'Asia/Kathmandu', immediately: true }, { delayed: 1 }));
scenario('scheduler: names, L, #, far ahead', async (w) => {
  for (const [name, pattern] of [['a', '0 0 9 * JAN-MAR MON#1'], ['b', '0 30 2 L * *'], ['c', '0 15 10 ? * 6L'], ['d', '0 0 0 1 1 *']]) {
    await w.queue().upsertJobScheduler(name, { pattern, tz: 'Europe/Berlin' }, { name: 'execute', data: w.data() });
  }
  for (const job of await w.queue().getDelayed()) await job.promote();
  await w.work();
  await w.idle({ delayed: 4 });
});
scenario('scheduler: end date', schedule(() => ({ every: 86_400_000, endDate: Date.now() + 5000 }), { delayed: 1 }));
scenario('scheduler: template with options', schedule({ every: 1200, limit: 2 }, {},
  { opts: { attempts: 2, backoff: 20, priority: 3, removeOnComplete: 1, keepLogs: 5 } }));
scenario('scheduler: its jobs fail', schedule({ every: 1200, limit: 2 }, {}, { data: { v: 1, code: JSON.stringify(fail()) } }));
scenario('scheduler: removed while its job runs', async (w) => {
  await w.queue().upsertJobScheduler('n', { pattern: '0 0 1 1 *', immediately: true }, { name: 'execute', data: w.data(nap(400)) });
  await w.work();
  await w.idle({ delayed: 1 }).catch(() => {});
  w.note('removed', await w.queue().removeJobScheduler('n'));
  await w.idle();
});

// ---- the rest ----
scenario('metrics', withWorker({ metrics: { maxDataPoints: 60 } }, [{}], [{}], [{}, [fail()]]), T);
scenario('telemetry metadata', jobs([{ telemetry: { metadata: '{"traceparent":"00-1-2-01"}' } }],
  [{ telemetry: { metadata: 'm', omitContext: true } , attempts: 2 }, [fail()]]), { since: '5.81.5' });
scenario('braces in queue and prefix', jobs([{}], [{ attempts: 2 }, [fail(1), ...ok]], [{ priority: 1 }]), { world: { queue: '{work}', prefix: '{bull}' } });
scenario('another prefix', jobs([{}], [{ delay: 900 }]), { world: { prefix: 'my-app' } });

export const scenarios = list;
