// Executions as users see them: run, list, follow, cancel, fetch; each only within its workspace.
import { Injectable, Logger, NotFoundException } from '@nestjs/common';
import type { Redis } from 'ioredis';
import type { Done, HeartbeatMessage, Message, OutputFile, Result, SandpiperClient } from 'sandpiper-client';
import type { Identity } from './config.js';
import type { ExecutionDto } from './dto.js';
import { type Input, RunQueue } from './queue.js';
import { type Execution, Store } from './store.js';

export interface Request {
  code: string;
  language?: string;
  timeoutMs?: number;
  env?: Record<string, string>;
  files: Input[];
}

const PAGE = 500;

@Injectable()
export class ExecutionsService {
  private readonly logger = new Logger(ExecutionsService.name);

  constructor(
    private readonly queue: RunQueue, private readonly client: SandpiperClient, private readonly store: Store, private readonly redis: Redis,
  ) {}

  async run(who: Identity, threadId: string, request: Request): Promise<Execution> {
    const executionId = crypto.randomUUID();
    const execution: Execution = {
      executionId, workspaceId: who.workspaceId, threadId, userId: who.userId, code: request.code, language: request.language ?? 'python',
      inputs: request.files.map((file) => file.filename), createdAt: Date.now(),
    };
    await this.store.add(execution); // first: a job that runs can always be found
    const run = { ...request, workspaceId: who.workspaceId, threadId, actorKey: `${who.userId}:none` };
    const { cleanUp } = await this.queue.add(run, executionId).catch(async (error: Error) => {
      await this.store.drop(execution).catch(() => {});
      throw error;
    });
    if (request.files.length > 0) {
      this.client.done(executionId).then(cleanUp).catch((error: Error) => this.logger.debug(`inputs of ${executionId}: ${error.message}`));
    }
    return execution;
  }

  async find(who: Identity, executionId: string): Promise<Execution> {
    const execution = await this.store.find(who.workspaceId, executionId);
    if (!execution) throw new NotFoundException('there is no such execution');
    return execution;
  }

  async list(who: Identity, threadId: string, limit: number): Promise<ExecutionDto[]> {
    return Promise.all((await this.store.list(who.workspaceId, threadId, limit)).map((one) => this.describe(one)));
  }

  listThreads(who: Identity) {
    return this.store.listThreads(who.workspaceId);
  }

  async describe(execution: Execution): Promise<ExecutionDto> {
    const { workspaceId: _, ...shown } = execution;
    const end = await this.end(execution.executionId);
    if (end) return { ...shown, ahead: 0, ...shownEnd(execution.executionId, end) };
    const { state, ahead } = await this.client.position(execution.executionId);
    if (state === 'unknown') return { ...shown, ahead: 0, state: 'gone' };
    const running = (await this.redis.exists(this.client.replyKey(execution.executionId))) === 1;
    return { ...shown, ahead, state: running ? 'running' : 'waiting' };
  }

  async cancel(who: Identity, executionId: string): Promise<'cancelling' | 'ended'> {
    await this.find(who, executionId);
    if (await this.end(executionId)) return 'ended';
    await this.client.cancel(executionId);
    return 'cancelling';
  }

  /** Ends the thread's sandbox and forgets its executions. */
  async removeThread(who: Identity, threadId: string): Promise<void> {
    await this.queue.release(who.workspaceId, threadId);
    await this.store.remove(who.workspaceId, threadId);
  }

  /** Messages for a user from a seq on: with addresses where the worker has keys. Nothing behind the end. */
  async *follow(execution: Execution, from: number, signal: AbortSignal): AsyncGenerator<Message | HeartbeatMessage> {
    for await (const message of this.client.messages(execution.executionId, { from, signal, heartbeats: true })) {
      yield shownMessage(execution.executionId, message);
    }
  }

  position(executionId: string) {
    return this.client.position(executionId);
  }

  /** An output file by its name or id. */
  async file(executionId: string, name: string): Promise<{ file: OutputFile; content: Buffer }> {
    const file = (await this.files(executionId)).find((one) => one.filename === name || one.fileId === name);
    const content = file && (await this.client.file(file));
    if (!file || !content) throw new NotFoundException('there is no such file, or it has expired');
    return { file, content };
  }

  /** A value of a result that was too large to be in the reply. */
  async value(executionId: string, n: number): Promise<Buffer> {
    const content = await this.client.file(`${this.client.prefix}file:${executionId}:${n}`);
    if (!content) throw new NotFoundException('there is no such value, or it has expired');
    return content;
  }

  // The last message, where there is one; else what BullMQ has of the job's end.
  private async end(executionId: string): Promise<Done | null> {
    const [last] = await this.redis.xrevrange(this.client.replyKey(executionId), '+', '-', 'COUNT', 1);
    const message = last ? (JSON.parse(last[1][1]) as Message) : null;
    if (message?.type === 'done') return message;
    const finished = await this.redis.hget(`${this.client.prefix}${executionId}`, 'finishedOn');
    return finished === null ? null : this.client.done(executionId, { signal: AbortSignal.timeout(5_000) });
  }

  private async files(executionId: string): Promise<OutputFile[]> {
    const end = await this.end(executionId);
    if (end?.result) return end.result.files;
    const files: OutputFile[] = [];
    for (let from = '-'; ;) {
      const entries = await this.redis.xrange(this.client.replyKey(executionId), from, '+', 'COUNT', PAGE);
      for (const [, fields] of entries) {
        const message = JSON.parse(fields[1]) as Message;
        if (message.type === 'started') files.length = 0;
        if (message.type === 'file') files.push(message.file);
      }
      if (entries.length < PAGE) return files;
      from = `(${entries[entries.length - 1][0]}`;
    }
  }
}

const encodePath = (name: string) => name.split('/').map(encodeURIComponent).join('/');

function shownFile(executionId: string, { key: _, content: __, ...file }: OutputFile) {
  return { ...file, url: `/executions/${executionId}/files/${encodePath(file.filename)}` };
}

// What is too large for the reply has an address in place of its key.
function shownRefs<T extends { refs?: Record<string, { key?: string; filename?: string; size: number }> }>(executionId: string, output: T): T {
  if (!output.refs) return output;
  const refs = Object.entries(output.refs).map(([type, { key, ...ref }]) => {
    const n = key?.slice(key.lastIndexOf(':') + 1);
    const url = ref.filename ? `/executions/${executionId}/files/${encodePath(ref.filename)}` : `/executions/${executionId}/values/${n}`;
    return [type, { ...ref, url }];
  });
  return { ...output, refs: Object.fromEntries(refs) };
}

function shownResult(executionId: string, result: Result): Result {
  return {
    ...result, files: result.files.map((file) => shownFile(executionId, file) as OutputFile),
    results: result.results.map((one) => shownRefs(executionId, one as never)),
  };
}

function shownEnd(executionId: string, end: Done) {
  const result = end.result && shownResult(executionId, end.result);
  return { state: end.state, ...(result && { result: result as unknown as Record<string, unknown> }), ...(end.error && { error: end.error }) };
}

function shownMessage(executionId: string, message: Message | HeartbeatMessage): Message | HeartbeatMessage {
  if (message.type === 'file') return { ...message, file: shownFile(executionId, message.file) as OutputFile };
  if (message.type === 'result') return shownRefs(executionId, message as never);
  if (message.type === 'done' && message.result) return { ...message, result: shownResult(executionId, message.result) };
  return message;
}
