// A NestJS application of the previous major, as a team has it: a service that enqueues and waits, a listener.
import 'reflect-metadata';
import { BullModule, getQueueToken, OnQueueEvent, QueueEventsHost, QueueEventsListener } from '@nestjs/bullmq';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FlowProducer, QueueEvents } from 'bullmq';

/** An application context on a queue: {service, listener, close}. Decorators are called as TypeScript calls them. */
export async function startApp({ connection, name }) {
  class Service {
    constructor(queue) {
      this.queue = queue;
      this.events = new QueueEvents(name, { connection });
      this.flow = new FlowProducer({ connection });
    }

    async run(data, options) {
      await this.events.waitUntilReady();
      const job = await this.queue.add('execute', { v: 1, ...data }, options);
      return job.waitUntilFinished(this.events, 20_000);
    }

    onModuleDestroy() {
      return Promise.all([this.events.close(), this.flow.close()]);
    }
  }
  class Listener extends QueueEventsHost {
    seen = [];

    onCompleted(event) {
      this.seen.push(['completed', event.jobId]);
    }

    onFailed(event) {
      this.seen.push(['failed', event.jobId]);
    }
  }
  for (const [method, event] of [['onCompleted', 'completed'], ['onFailed', 'failed']]) {
    OnQueueEvent(event)(Listener.prototype, method, Object.getOwnPropertyDescriptor(Listener.prototype, method));
  }
  QueueEventsListener(name)(Listener);
  class AppModule {}
  Module({
    imports: [BullModule.forRoot({ connection }), BullModule.registerQueue({ name })],
    providers: [Listener, { provide: Service, useFactory: (queue) => new Service(queue), inject: [getQueueToken(name)] }],
  })(AppModule);
  const app = await NestFactory.createApplicationContext(AppModule, { logger: false });
  const listener = app.get(Listener);
  await listener.queueEvents.waitUntilReady();
  return { service: app.get(Service), listener, close: () => app.close() };
}
