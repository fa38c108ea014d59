// An application of the previous major of @nestjs/bullmq, with BullMQ 5. (The current one: tests/integration.)
import assert from 'node:assert/strict';
import test from 'node:test';
import { startApp } from './apps/nest.mjs';
import { checkResult } from '../lib/contract.mjs';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { fail, raise, say, script } from '../lib/scripted.mjs';

const redis = await startRedis();

test('a NestJS 11 service with BullMQ 5 runs code, hears events, uses flows and retries', async (t) => {
  const r = await makeRig(t, redis, { version: '5.81.5', events: false });
  const app = await startApp({ connection: redis.connection, name: r.name });
  t.after(() => app.close());
  const { service, listener } = app;
  // A listener hears what comes after its first read, which nothing tells the time of.
  await waitFor(async () => (await service.run({ code: script(say('warm')) })) && listener.seen.length > 0, { what: 'it listens' });
  await waitFor(async () => listener.seen.at(-1)[1] === (await r.eventLog()).filter((e) => e.event === 'completed').at(-1).jobId,
    { what: 'it has heard all of it' });
  listener.seen.length = 0;
  const results = await Promise.all([
    service.run({ code: script({ state: 'n' }), threadId: 'a' }),
    service.run({ code: script({ state: 'n' }), threadId: 'a' }, { priority: 2 }),
    service.run({ code: script(raise('ZeroDivisionError', 'division by zero')) }, { attempts: 3, backoff: { type: 'exponential', delay: 100 } }),
    service.run({ code: script(fail('no_sandbox', 1), say('second try')) }, { attempts: 2 }),
  ]);
  results.forEach(checkResult);
  assert.deepEqual(results.map((x) => x.stdout.trim()), ['1', '2', '', 'second try']);
  assert.equal(results[2].reason, 'code_error');
  await assert.rejects(() => service.run({ code: 5 }), /code/);
  await waitFor(() => listener.seen.length === 5, { what: 'the listener heard all' });
  assert.equal(listener.seen.filter(([kind]) => kind === 'failed').length, 1);
  const { job } = await service.flow.add({ name: 'execute', queueName: r.name, data: { v: 1, code: script(say('p')) },
    children: [{ name: 'execute', queueName: r.name, data: { v: 1, code: script(say('c')) } }] });
  assert.equal((await job.waitUntilFinished(service.events, 10_000)).stdout, 'p');
  assert.equal(Object.values(await job.getChildrenValues())[0].stdout, 'c');
});
