// The application: one Redis connection for commands, the queue, the reader of replies, and what is built on them.
import { BullModule, getQueueToken } from '@nestjs/bullmq';
import { type DynamicModule, Inject, Logger, Module, type OnApplicationBootstrap, type OnApplicationShutdown } from '@nestjs/common';
import { APP_FILTER, APP_GUARD, Reflector } from '@nestjs/core';
import { MulterModule } from '@nestjs/platform-express';
import type { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { memoryStorage } from 'multer';
import { SandpiperClient } from 'sandpiper-client';
import { AuthGuard } from './auth.guard.js';
import type { Config } from './config.js';
import { ExecutionsController, ServerController, ThreadsController } from './controllers.js';
import { SandpiperDriver } from './driver.js';
import { MAX_FILES } from './dto.js';
import { ErrorsFilter } from './errors.filter.js';
import { ExecutionsService } from './executions.service.js';
import { RunQueue } from './queue.js';
import { Store } from './store.js';
import { CONFIG, DRIVER, REDIS } from './tokens.js';
import { Workers } from './workers.js';

const COMMAND_MS = 5_000; // a Redis that is away so long is an error for who asks now

function connect(config: Config): Redis {
  const redis = new Redis(config.redisUrl, { maxRetriesPerRequest: null, commandTimeout: COMMAND_MS, keepAlive: 10_000 });
  const logger = new Logger('redis');
  redis.on('error', (error: Error) => logger.warn(error.message));
  return redis;
}

function makeClient(config: Config, redis: Redis): SandpiperClient {
  const logger = new Logger('replies');
  return new SandpiperClient({
    connection: redis, prefix: config.prefix, queueName: config.queueName, onError: (error) => logger.warn(error.message),
  });
}

@Module({})
export class AppModule implements OnApplicationBootstrap, OnApplicationShutdown {
  private readonly logger = new Logger(AppModule.name);

  constructor(
    @Inject(CONFIG) private readonly config: Config, @Inject(REDIS) private readonly redis: Redis,
    private readonly client: SandpiperClient, private readonly workers: Workers,
  ) {}

  static forRoot(config: Config): DynamicModule {
    const redis = connect(config);
    return {
      module: AppModule,
      imports: [
        BullModule.forRoot({ connection: redis, prefix: config.prefix }),
        BullModule.registerQueue({ name: config.queueName }),
        MulterModule.register({
          storage: memoryStorage(), preservePath: true, defParamCharset: 'utf8',
          limits: { fileSize: config.inputMaxBytes, files: MAX_FILES, fields: 20, fieldSize: 1_000_000 },
        } as never),
      ],
      controllers: [ThreadsController, ExecutionsController, ServerController],
      providers: [
        { provide: CONFIG, useValue: config },
        { provide: REDIS, useValue: redis },
        { provide: SandpiperClient, useFactory: () => makeClient(config, redis) },
        { provide: Workers, useFactory: (client: SandpiperClient) => new Workers(redis, client.prefix), inject: [SandpiperClient] },
        {
          provide: RunQueue, inject: [getQueueToken(config.queueName), SandpiperClient],
          useFactory: (queue: Queue, client: SandpiperClient) => new RunQueue(queue, redis, client, config.inputTtlMs),
        },
        {
          provide: ExecutionsService, inject: [RunQueue, SandpiperClient],
          useFactory: (queue: RunQueue, client: SandpiperClient) =>
            new ExecutionsService(queue, client, new Store(redis, client.prefix, config.historyTtlMs), redis),
        },
        { provide: DRIVER, useFactory: (queue: RunQueue, client: SandpiperClient) => new SandpiperDriver(queue, client), inject: [RunQueue, SandpiperClient] },
        { provide: AuthGuard, useFactory: (reflector: Reflector) => new AuthGuard(config, reflector), inject: [Reflector] },
        { provide: APP_GUARD, useExisting: AuthGuard },
        { provide: APP_FILTER, useClass: ErrorsFilter },
      ],
      exports: [DRIVER, SandpiperClient],
    };
  }

  async onApplicationBootstrap(): Promise<void> {
    const names = Object.keys(this.config.runtimeSettings);
    try {
      await this.workers.publish(this.config.runtimeSettings);
      if (names.length) this.logger.log(`settings for the workers: ${names.join(', ')}`);
    } catch (error) {
      this.logger.error(`settings for the workers were not published: ${(error as Error).message}`);
    }
  }

  onApplicationShutdown(): void {
    this.client.close();
    this.redis.disconnect();
  }
}
