// The three roles of README with exactly the rights that it lists: each can do its part and nothing else.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { FlowProducer, Queue, QueueEvents } from 'bullmq';
import { SandpiperClient } from '../../docker/client/index.mjs';
import { waitFor, within } from '../lib/process.mjs';
import { gather, readStream } from '../lib/reader.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, script, wait } from '../lib/scripted.mjs';

const minute = 60_000 * slow;
const redis = await startRedis();
const admin = redis.client();
const listed = /<!-- acl -->\n```\n(.*?)```/s.exec(readFileSync(fileURLToPath(new URL('../../README.md', import.meta.url)), 'utf8'))[1];

/** Clients tell a newer server what they are; an older one does not know the word. README says so. */
const [major, minor] = /redis_version:(\d+)\.(\d+)/.exec(await admin.info('server')).slice(1).map(Number);
const newer = major > 7 || (major === 7 && minor >= 2) ? ['+client|setinfo'] : [];

/** ACL SETUSER with the lines of README for this queue; the users' names get a suffix of the queue's. */
async function makeRoles(r) {
  const roles = {};
  for (const line of listed.trim().split(/\nuser /)) {
    const [name, ...rules] = line.replace(/^user /, '').replaceAll('bull:code-interpreter:', r.P).replace('PASSWORD', 'pw').trim().split(/\s+/);
    const user = `${name}-${r.name}`;
    await admin.call('ACL', 'SETUSER', user, 'reset', ...rules, ...newer);
    roles[name] = { user, client: redis.client({ username: user, password: 'pw' }), connection: { ...redis.connection, username: user, password: 'pw' } };
  }
  return roles;
}

/** A rig without workers and its roles; then worker() starts one as the role. */
async function rigWithRoles(t) {
  const r = await makeRig(t, redis, { replicas: 0, env: { ...shortLocks, DRAIN_DELAY_MS: '500' } });
  const roles = await makeRoles(r);
  await admin.call('ACL', 'LOG', 'RESET');
  const keep = [];
  t.after(() => Promise.all(keep.map((one) => one.close())));
  roles.work = () => r.startWorker({ REDIS_URL: `${redis.scheme}://${roles.worker.user}:pw@127.0.0.1:${redis.port}`, LOG_LEVEL: 'info', METRICS_MAX_DATA_POINTS: '10', LIMITER_MAX: '1000' });
  roles.queue = new Queue(r.name, { connection: roles.producer.connection });
  roles.flows = new FlowProducer({ connection: roles.producer.connection });
  roles.events = new QueueEvents(r.name, { connection: roles.reader.connection });
  for (const one of [roles.queue, roles.flows, roles.events]) {
    one.on('error', () => {});
    keep.push(one);
  }
  await roles.events.waitUntilReady();
  return { r, roles };
}
/** As a command says it, and as a script does. */
const refusal = /NOPERM|can't (run|access)|no permissions/i;
const data = (...steps) => ({ v: 1, code: script(...steps) });
const denied = async () => (await admin.call('ACL', 'LOG')).map((flat) => Object.fromEntries(flat.flatMap((v, i) => (i % 2 ? [] : [[v, flat[i + 1]]]))))
  .map((entry) => `${entry.username}: ${entry.reason} ${entry.object} (${entry.context})`);

test('the whole life of jobs with exactly the rights that README lists', async (t) => {
  const { r, roles } = await rigWithRoles(t);
  roles.work();
  const { queue, events, producer, reader } = roles;
  const done = async (job) => {
    const key = `${r.P}reply:${job.id ?? job}`;
    const entries = () => reader.client.xrange(key, '-', '+');
    try {
      await waitFor(async () => (await entries()).some(([, [, text]]) => JSON.parse(text).type === 'done'), { timeout: minute, what: `the end of ${key}` });
      return gather(await readStream(reader.client, key)).done;
    } catch (error) {
      throw new Error(`${error.message}; refused: ${await denied()}; ${r.workers.at(-1).tail(5)}`);
    }
  };

  const plain = await queue.add('execute', data(say('plain'), { file: 'f.txt', content: 'bytes' }));
  const result = await plain.waitUntilFinished(events, minute);
  assert.equal(result.stdout, 'plain');
  assert.equal(await reader.client.get(result.files[0].key), 'bytes');
  for (const opts of [{ delay: 100 }, { priority: 3 }, { lifo: true }, { attempts: 2, backoff: 50 }, { removeOnComplete: true }, { deduplication: { id: 'd' } }]) {
    assert.equal((await done(await queue.add('execute', data(say('x')), opts))).reason, 'ok', JSON.stringify(opts));
  }
  const chain = await queue.addBulk([0, 1, 2].map((i) => ({ name: 'execute', data: { ...data(say(`${i}`), wait(50)), threadId: 't', actorKey: 'a' } })));
  for (const job of chain) assert.equal((await done(job)).reason, 'ok');
  for (const backoff of [0, 50]) {
    const retried = await queue.add('execute', data(fail('driver_error', 1), say('y')), { attempts: 3, backoff });
    assert.equal((await done(retried)).reason, 'ok');
  }
  assert.equal((await done(await queue.add('execute', data(fail('driver_error', 9))))).reason, 'driver_error');
  const tree = await roles.flows.add({
    name: 'execute', queueName: r.name, data: data(say('parent')), children: [{ name: 'execute', queueName: r.name, data: data(say('child')) }],
  }).catch(async (error) => assert.fail(`${error.message}; refused: ${await denied()}`));
  assert.equal((await done(tree.job)).reason, 'ok');
  await queue.upsertJobScheduler('tick', { every: 150, limit: 2 }, { name: 'execute', data: data(say('tick')) });
  await waitFor(async () => (await r.queue.getCompleted()).filter((job) => job.repeatJobKey).length === 2, { timeout: minute, what: 'two ticks' });

  await producer.client.hset(`${r.P}secret:s`, 'TOKEN', 'v');
  await producer.client.set(`${r.P}file:in`, 'input', 'EX', 600);
  await producer.client.xadd(`${r.P}stream:jobs`, '*', 'data', JSON.stringify({
    ...data(say('by stream')), secretsKey: `${r.P}secret:s`, files: [{ filename: 'in', key: `${r.P}file:in` }],
  }), 'id', 's-acl');
  assert.equal((await done('s-acl')).reason, 'ok');
  await producer.client.xadd(`${r.P}stream:jobs`, '*', 'data', 'no JSON');
  await waitFor(() => admin.xlen(`${r.P}stream:dead`), { timeout: minute, what: 'a dead letter' });
  const hung = await queue.add('execute', { ...data({ hang: true }), threadId: 'h' });
  const parked = await queue.add('execute', { ...data(say('z')), threadId: 'h' });
  await waitFor(async () => (await r.replyNow(hung)).length > 0, { timeout: minute, what: 'it runs' });
  await producer.client.xadd(`${r.P}stream:control`, '*', 'cancel-thread', ':h');
  for (const job of [hung, parked]) assert.equal((await done(job)).reason, 'cancelled');

  // A worker that dies: the next one brings back what it held. Then one that is drained.
  const killed = await queue.add('execute', { ...data(say('k'), { hang: true }), threadId: 'k' });
  await waitFor(async () => (await r.replyNow(killed)).length > 1, { timeout: minute, what: 'it runs' });
  await r.workers[0].kill9();
  r.workers.length = 0;
  const worker = roles.work();
  assert.equal((await done(killed)).reason, 'worker_lost');
  assert.equal((await reader.client.zrange(`${r.P}index:replicas`, 0, -1)).length > 0, true);
  const messages = [];
  await reader.client.subscribe(`${r.P}reply:heard`);
  reader.client.on('message', (channel, text) => messages.push(JSON.parse(text).type));
  await producer.client.xadd(`${r.P}stream:jobs`, '*', 'data', JSON.stringify(data(say('heard'))), 'id', 'heard');
  await waitFor(() => messages.includes('done'), { timeout: minute, what: 'the channel' });
  await waitFor(() => worker.lines.some((line) => /slots, driver/.test(line)), { timeout: minute, what: 'a log' });
  assert.deepEqual(await denied(), [], 'nothing was refused');
});

test('every command of our scripts is in the line of the worker', () => {
  const dir = fileURLToPath(new URL('../../worker/queue/lua/', import.meta.url));
  const called = new Set(readdirSync(dir).filter((name) => name.endsWith('.lua'))
    .flatMap((name) => [...readFileSync(dir + name, 'utf8').matchAll(/r?call\(\s*["'](\w+)["']/g)].map((m) => m[1].toLowerCase())));
  assert.ok(called.size > 20 && called.has('hset'), [...called].join(' '));
  const allowed = new Set(/^user worker .*/ms.exec(listed)[0].split(/\s+/));
  assert.deepEqual([...called].filter((name) => !allowed.has(`+${name}`)), []);
});

test('docker/client reads as the reader: live, late, files, an end that only the hash tells; and without the hash', async (t) => {
  const { r, roles } = await rigWithRoles(t);
  const { reader } = roles;
  const problems = [];
  const open = () => {
    const client = new SandpiperClient({ connection: reader.client, queueName: r.name, onError: (error) => problems.push(error.message) });
    t.after(() => client.close());
    return client;
  };
  const client = open();
  const read = async (one, id, onMessage = () => {}, options = {}) => {
    const messages = [];
    for await (const message of one.messages(id, options)) {
      messages.push(message);
      await onMessage(message);
    }
    return gather(messages);
  };
  const run = async (one, steps, more = {}, options = {}) => {
    const job = await roles.queue.add('execute', { ...data(...steps), ...more });
    const reading = read(one, job.id, undefined, options); // before a worker has it, or while it runs
    return { id: job.id, ...(await within(minute, reading, `the reply of ${job.id}; ${problems}`)) };
  };
  roles.work();
  const live = await run(client, [say('a'), wait(300), say('b'), { file: 'f.txt', content: 'bytes' }]);
  assert.deepEqual([live.stdout, live.done.reason], ['ab', 'ok']);
  assert.equal((await client.file(live.done.result.files[0])).toString(), 'bytes');
  assert.equal((await within(minute, read(open(), live.id), 'a late reader')).stdout, 'ab');
  const silent = await run(client, [say('x')], { reply: false });
  assert.deepEqual([silent.done.reason, silent.done.source], ['ok', 'job']);
  // A job run anew by hand, while somebody holds a place in its first life.
  const job = await r.queue.getJob(live.id);
  await job.retry('completed');
  await waitFor(async () => (await r.replyNow(job)).at(-1)?.executionId !== live.started.executionId, { timeout: minute, what: 'the second run' });
  const again = await within(minute, read(client, job.id, undefined, { from: 3, executionId: live.started.executionId }), 'the second life');
  assert.deepEqual([again.stdout, again.done.reason], ['ab', 'ok']);
  assert.deepEqual([problems, await denied()], [[], []], 'nothing was refused');

  await admin.call('ACL', 'SETUSER', reader.user, 'resetkeys', `%R~${r.P}reply:*`, `%R~${r.P}file:*`);
  const blind = open();
  assert.equal((await within(minute, read(blind, live.id), 'a late reader without the hash')).stdout, 'ab');
  assert.equal((await run(blind, [say('c'), wait(300), say('d')])).stdout, 'cd');
  assert.ok(problems.length > 0 && problems.every((text) => /EXECABORT|NOPERM/.test(text)), `it is told: ${problems}`);
});

test('what each role may not', async (t) => {
  const { r, roles } = await rigWithRoles(t);
  await admin.hset(`${r.P}secret:s`, 'TOKEN', 'v');
  await admin.set(`${r.P}file:x`, 'v');
  const no = (promise, what) => assert.rejects(promise, refusal, what);
  const { producer, reader, worker } = roles;
  await no(producer.client.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', 'LOCAL'), 'settings');
  await no(producer.client.eval("return redis.call('HSET', KEYS[1], 'a', 'b')", 1, `${r.P}settings:runtime`), 'settings by a script');
  await no(producer.client.eval("return redis.call('HSET', ARGV[1], 'a', 'b')", 0, `${r.P}settings:runtime`), 'settings behind a script');
  await no(producer.client.hgetall(`${r.P}secret:s`), 'secrets');
  await no(producer.client.hget(`${r.P}secret:s`, 'TOKEN'), 'a secret');
  await no(producer.client.get(`${r.P}file:x`), 'files');
  await no(producer.client.xrange(`${r.P}reply:1`, '-', '+'), 'replies');
  await no(producer.client.set(`${r.P}lease:t`, 'x'), 'leases');
  await no(producer.client.get('bull:other:1'), 'other queues');
  await no(producer.client.config('GET', 'maxmemory'), 'the server');
  await no(reader.client.xadd(`${r.P}reply:1`, '*', 'm', '{}'), 'writes');
  await no(reader.client.hgetall(`${r.P}secret:s`), 'secrets');
  await no(reader.client.hgetall(`${r.P}settings:runtime`), 'settings');
  await no(reader.client.subscribe('bull:other:reply:1'), 'other channels');
  await no(worker.client.get('bull:other:1'), 'other queues');
  await no(worker.client.flushall(), 'the server');
  await no(worker.client.keys('*'), 'all keys');
  await admin.del(`${r.P}secret:s`, `${r.P}file:x`);
});

test('with one right less each role fails', async (t) => {
  const { r, roles } = await rigWithRoles(t);
  const { producer, reader, worker } = roles;
  const without = (role, right) => admin.call('ACL', 'SETUSER', role.user, right);
  await without(producer, '-zadd');
  await assert.rejects(roles.queue.add('execute', data(say('x'))), refusal);
  await without(producer, '+zadd');
  await without(reader, '-xread');
  await assert.rejects(reader.client.xread('STREAMS', `${r.P}reply:1`, '0'), refusal);
  await without(worker, '-hset');
  const process = roles.work();
  const job = await roles.queue.add('execute', { ...data(say('x')), threadId: 't' });
  await process.waitLine(refusal, { timeout: minute });
  await without(worker, '+hset');
  assert.equal((await r.gathered(job, 60_000)).done.reason, 'ok', 'given back, it goes on');
});
