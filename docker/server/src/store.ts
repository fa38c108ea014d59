// Which executions a workspace's threads have: lists in Redis that expire, so that a second tab or server shows the same.
import type { Redis } from 'ioredis';
import { threadKey } from 'sandpiper-client';

export interface Execution {
  executionId: string;
  workspaceId: string;
  threadId: string;
  userId: string;
  code: string;
  language: string;
  inputs: string[];
  createdAt: number;
}

export interface ThreadEntry {
  threadId: string;
  title: string;
  executions: number;
  updatedAt: number;
}

export const MOST = 500; // executions of a thread, threads of a workspace

export class Store {
  constructor(private readonly redis: Redis, private readonly prefix: string, private readonly ttlMs: number) {}

  async add(execution: Execution): Promise<void> {
    const { workspaceId, threadId, executionId, createdAt } = execution;
    const one = this.execution(executionId);
    const list = this.thread(workspaceId, threadId);
    const threads = this.threads(workspaceId);
    const multi = this.redis.multi()
      .set(one, JSON.stringify(execution), 'PX', this.ttlMs)
      .zadd(list, createdAt, executionId).zremrangebyrank(list, 0, -MOST - 1).pexpire(list, this.ttlMs)
      .zadd(threads, createdAt, threadId).zremrangebyrank(threads, 0, -MOST - 1)
      .zremrangebyscore(threads, '-inf', createdAt - this.ttlMs).pexpire(threads, this.ttlMs);
    for (const [error] of (await multi.exec()) ?? []) if (error) throw error;
  }

  /** Forgets one that was not enqueued after all. */
  async drop({ workspaceId, threadId, executionId }: Execution): Promise<void> {
    await this.redis.del(this.execution(executionId));
    await this.redis.zrem(this.thread(workspaceId, threadId), executionId);
  }

  /** An execution of this workspace; another's is as if it were not there. */
  async find(workspaceId: string, executionId: string): Promise<Execution | null> {
    const execution = parse(await this.redis.get(this.execution(executionId)));
    return execution?.workspaceId === workspaceId ? execution : null;
  }

  /** The last executions of a thread, oldest first. */
  async list(workspaceId: string, threadId: string, limit: number): Promise<Execution[]> {
    const ids = await this.redis.zrange(this.thread(workspaceId, threadId), -limit, -1);
    return this.all(ids);
  }

  /** A workspace's threads, the latest first. */
  async listThreads(workspaceId: string): Promise<ThreadEntry[]> {
    const flat = await this.redis.zrevrange(this.threads(workspaceId), 0, -1, 'WITHSCORES');
    const entries: ThreadEntry[] = [];
    for (let i = 0; i < flat.length; i += 2) {
      const key = this.thread(workspaceId, flat[i]);
      const [count, [first]] = await Promise.all([this.redis.zcard(key), this.redis.zrange(key, 0, 0)]);
      if (count === 0) continue;
      const [execution] = first ? await this.all([first]) : [];
      const title = execution?.code.split('\n').find((line) => line.trim() !== '')?.trim().slice(0, 120) ?? '';
      entries.push({ threadId: flat[i], title, executions: count, updatedAt: Number(flat[i + 1]) });
    }
    return entries;
  }

  async remove(workspaceId: string, threadId: string): Promise<void> {
    const list = this.thread(workspaceId, threadId);
    const ids = await this.redis.zrange(list, 0, -1);
    await this.redis.del(list, ...ids.map((id) => this.execution(id)));
    await this.redis.zrem(this.threads(workspaceId), threadId);
  }

  private async all(ids: string[]): Promise<Execution[]> {
    if (ids.length === 0) return [];
    const texts = await this.redis.mget(ids.map((id) => this.execution(id)));
    return texts.map(parse).filter((one) => one !== null);
  }

  private execution(id: string): string {
    return `${this.prefix}server:execution:${id}`;
  }

  private thread(workspaceId: string, threadId: string): string {
    return `${this.prefix}server:thread:${threadKey({ workspaceId, threadId })}`;
  }

  private threads(workspaceId: string): string {
    return `${this.prefix}server:threads:${workspaceId}`;
  }
}

const parse = (text: string | null) => (text === null ? null : (JSON.parse(text) as Execution));
