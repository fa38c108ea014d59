// A NestJS application with @nestjs/bullmq enqueues jobs and awaits their results.
import 'reflect-metadata';
import assert from 'node:assert/strict';
import test from 'node:test';
import { BullModule, getQueueToken, OnQueueEvent, QueueEventsHost, QueueEventsListener } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { QueueEvents } from 'bullmq';
import { checkResult } from '../lib/contract.mjs';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { follow, gather } from '../lib/reader.mjs';
import { raise, say, script, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const name = 'code-interpreter';

/** What an application has: a service that runs code for a conversation. */
class CodeInterpreterService {
  constructor(queue) {
    this.queue = queue;
    this.events = new QueueEvents(name, { connection: redis.connection });
  }

  async run(workspaceId, threadId, steps, options) {
    await this.events.waitUntilReady();
    const job = await this.queue.add('execute', { v: 1, code: script(...steps), workspaceId, threadId }, options);
    return job.waitUntilFinished(this.events, 20_000);
  }

  onModuleDestroy() {
    return this.events.close();
  }
}

/** An application's listener, as with decorators in TypeScript. */
class Listener extends QueueEventsHost {
  seen = [];
  onCompleted(event) {
    this.seen.push(['completed', event.jobId]);
  }
  onFailed(event) {
    this.seen.push(['failed', event.jobId, event.failedReason]);
  }
}
const describe = (method) => Object.getOwnPropertyDescriptor(Listener.prototype, method);
OnQueueEvent('completed')(Listener.prototype, 'onCompleted', describe('onCompleted'));
OnQueueEvent('failed')(Listener.prototype, 'onFailed', describe('onFailed'));
// From the first event on: a client that is ready may yet miss what happens before its first read.
QueueEventsListener(name, { connection: redis.connection, lastEventId: '0-0' })(Listener);

class AppModule {}
Module({
  imports: [BullModule.forRoot({ connection: redis.connection }), BullModule.registerQueue({ name })],
  providers: [
    { provide: CodeInterpreterService, useFactory: (queue) => new CodeInterpreterService(queue), inject: [getQueueToken(name)] },
    Listener,
  ],
})(AppModule);

test('a NestJS service runs code in two conversations', async (t) => {
  const r = await makeRig(t, redis, { name, events: false });
  const app = await NestFactory.createApplicationContext(AppModule, { logger: false });
  t.after(() => app.close());
  const service = app.get(CodeInterpreterService);
  const listener = app.get(Listener);
  await listener.queueEvents.waitUntilReady();

  const results = await Promise.all([
    service.run('w', 'a', [{ state: 'n' }, wait(100)]),
    service.run('w', 'a', [{ state: 'n' }], { priority: 2 }),
    service.run('w', 'b', [say('other')]),
    service.run('w', 'b', [raise('ZeroDivisionError', 'division by zero')], { attempts: 3, backoff: { type: 'exponential', delay: 100 } }),
  ]);
  results.forEach(checkResult);
  assert.deepEqual(results.map((x) => x.stdout.trim()).slice(0, 3), ['1', '2', 'other']);
  assert.deepEqual([results[3].state, results[3].reason], ['error', 'code_error']);

  await assert.rejects(() => service.queue.add('execute', { code: 5 })
    .then((job) => job.waitUntilFinished(service.events, 10_000)), /code/);
  await waitFor(() => listener.seen.length === 5, { what: 'the listener heard all' });
  assert.deepEqual(listener.seen.filter(([kind]) => kind === 'failed').map(([, id]) => id), ['5']);

  const job = await service.queue.add('execute', { code: script(say('live'), wait(50)) });
  const reply = gather(await follow(r.redis, `${r.P}reply:${job.id}`));
  assert.equal(reply.stdout, 'live');
});
