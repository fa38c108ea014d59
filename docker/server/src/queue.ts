// How a run gets into the queue: its input files and environment in keys of their own, its job with the names of these.
import { randomUUID } from 'node:crypto';
import { PayloadTooLargeException } from '@nestjs/common';
import type { JobsOptions, Queue } from 'bullmq';
import type { Redis } from 'ioredis';
import type { JobData, SandpiperClient } from 'sandpiper-client';

export interface Input {
  filename: string;
  content: Buffer;
  mimeType?: string;
}

export interface Run {
  code: string;
  workspaceId?: string;
  threadId?: string;
  actorKey?: string;
  language?: string;
  timeoutMs?: number;
  env?: Record<string, string>;
  files?: Input[];
}

const JOB_DATA_MAX = 1_000_000; // a little less than the worker's default JOB_DATA_MAX_BYTES

/** Failures before the code was delivered are tried again; the code itself never runs twice. */
const options: JobsOptions = {
  attempts: 3, backoff: { type: 'exponential', delay: 1000 },
  removeOnComplete: { age: 14_400, count: 1000 }, removeOnFail: { age: 604_800, count: 1000 },
};

export class RunQueue {
  private readonly prefix: string;

  constructor(private readonly queue: Queue, private readonly redis: Redis, private readonly client: SandpiperClient, private readonly inputTtlMs: number) {
    this.prefix = client.prefix;
  }

  /** Adds a job; its id, and the function that removes its input files, which nobody needs after the run. */
  async add(run: Run, id: string = randomUUID()): Promise<{ id: string; cleanUp: () => Promise<void> }> {
    const files = (run.files ?? []).map((file, i) => ({ ...file, key: `${this.prefix}file:in-${id}-${i}` }));
    const secretsKey = `${this.prefix}secret:${id}`;
    const env = Object.entries(run.env ?? {});
    const data: JobData = {
      v: 1, code: run.code,
      ...(run.language && { language: run.language }), ...(run.timeoutMs && { timeoutMs: run.timeoutMs }),
      ...(run.workspaceId && { workspaceId: run.workspaceId }), ...(run.threadId && { threadId: run.threadId }),
      ...(run.actorKey && { actorKey: run.actorKey }),
      ...(files.length && { files: files.map(({ filename, key, mimeType }) => ({ filename, key, ...(mimeType && { mimeType }) })) }),
      ...(env.length && { secretsKey }),
      // What it needs is not kept for ever: better it says that it came too late.
      ...((files.length || env.length) && { startBy: Date.now() + this.inputTtlMs }),
    };
    if (Buffer.byteLength(JSON.stringify(data)) > JOB_DATA_MAX) throw new PayloadTooLargeException('the code is too long: a job holds 1 MB');
    const keys = files.map((file) => file.key);
    const cleanUp = async () => {
      if (keys.length || env.length) await this.redis.del(...keys, secretsKey);
    };
    try {
      await this.store(files, secretsKey, env);
      await this.queue.add('execute', data, { ...options, jobId: id });
    } catch (error) {
      // It may be there for all that: whoever asked was told that it is not.
      await this.client.cancel(id).catch(() => {});
      await cleanUp().catch(() => {});
      throw error;
    }
    return { id, cleanUp };
  }

  /** Ends the thread's sandbox, and first whatever of it runs or waits. */
  async release(workspaceId: string, threadId: string): Promise<string> {
    const id = randomUUID();
    await this.queue.add('release', { v: 1, workspaceId, threadId, force: true }, { ...options, jobId: id });
    return id;
  }

  // Each key with its end of life in the same step. The environment holds tokens: it is never in the job itself.
  private async store(files: Array<Input & { key: string }>, secretsKey: string, env: Array<[string, string]>): Promise<void> {
    if (!files.length && !env.length) return;
    const multi = this.redis.multi();
    for (const { key, content } of files) multi.set(key, content, 'PX', this.inputTtlMs + 60_000);
    if (env.length) multi.hset(secretsKey, Object.fromEntries(env)).pexpire(secretsKey, this.inputTtlMs + 60_000);
    for (const [error] of (await multi.exec()) ?? []) if (error) throw error;
  }
}
