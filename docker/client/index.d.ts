// Types of sandpiper-client; those of messages, results and job data are in contract.d.ts.
import type { DoneMessage, HeartbeatMessage, OutputFile, Reason, ReplyMessage, Result } from './contract.js';

export type * from './contract.js';

/** What is used of an ioredis client (Redis or Cluster, 5.3 or later). */
export interface RedisClient {
  duplicate(...args: never[]): unknown;
  readonly status: string;
}

export interface ClientOptions {
  /** An ioredis client of yours, without keyPrefix; used for cancels, and duplicated twice when something is read: for Pub/Sub and for reading. */
  connection: RedisClient;
  /** Where replies are read and listened to, an ioredis client of, say, a Redis replica; default: `connection`. */
  reader?: RedisClient;
  /** QUEUE_NAME of the worker; default code-interpreter. */
  queueName?: string;
  /** QUEUE_PREFIX of the worker; default bull. */
  prefix?: string;
  /** A connection that is silent so long when asked is replaced; default 10,000. */
  timeoutMs?: number;
  /** Told of errors of Redis; readers go on when it is back. */
  onError?: (error: Error) => void;
}

/** A `done` that the worker wrote, or (source: job) one made from BullMQ's hash of the job, where the reply has none. */
export type Done = Omit<DoneMessage, 'reason'> & { reason: Reason | 'unknown'; source?: 'job' };
export type Message = Exclude<ReplyMessage, DoneMessage | HeartbeatMessage> | Done;

export interface ReadOptions {
  /** First seq that is wanted; default 1. Behind the last message of a reply that has ended nothing comes. */
  from?: number;
  /** The run of the message before `from`, where it is known: proves that the job was not run anew since. */
  executionId?: string;
  /** Ends the reading; the iterator throws its reason. */
  signal?: AbortSignal;
  /** False: only the reply counts; a job without one is waited for until `signal`. */
  fallback?: boolean;
  /** Milliseconds without a sign (heartbeats come every 10 s) after which a run is looked at; default 15,000. */
  silenceMs?: number;
  /** Longest milliseconds between looks at a job that has not been heard of; default 5,000. */
  pollMs?: number;
  /** Milliseconds for which an unknown job is waited for; default 10,000. */
  missingMs?: number;
}

/** Twenty's snapshot of an execution. */
export interface CodeExecutionData {
  executionId: string;
  state: 'pending' | 'running' | 'completed' | 'error';
  code: string;
  language: string;
  stdout: string;
  stderr: string;
  exitCode?: number;
  executionTimeMs?: number;
  files: CodeExecutionFile[];
  error?: string;
}

export interface CodeExecutionFile {
  fileId: string;
  filename: string;
  url: string;
  mimeType: string;
}

export interface SnapshotOptions {
  /** Id of the snapshots; default: the run's own, which changes when the job is tried again. */
  executionId?: string;
  code?: string;
  /** Default python. */
  language?: string;
  /** The address that a user gets for a file; default: its url, or nothing. */
  fileUrl?: (file: OutputFile, jobId: string) => string;
}

/** Reduces messages to snapshots. */
export class Snapshots {
  constructor(options?: SnapshotOptions);
  readonly current: CodeExecutionData;
  /** The snapshot after this message: a new object when something changed. */
  push(message: Message | HeartbeatMessage): CodeExecutionData;
}

export interface Position {
  /** unknown: no such job; waiting: no worker has seen it; parked: seen, its thread is busy; first: runs, or is to run or to be tried again; ended. */
  state: 'unknown' | 'waiting' | 'parked' | 'first' | 'ended';
  /** Jobs of its thread that come before it: the one that holds the thread, the parked, those that wait. */
  ahead: number;
  /** False: the queue is so long that only its first thousand jobs were looked at. */
  exact: boolean;
  /** The thread's name in Redis; null: the job has none. */
  thread: string | null;
}

export interface Thread {
  workspaceId?: string;
  threadId: string;
}

/** `<workspaceId>:<threadId>`, with % and : in each percent-encoded. */
export function threadKey(thread: Thread): string;

export class SandpiperClient {
  constructor(options: ClientOptions);
  /** The part before every key of the queue, e.g. bull:code-interpreter: */
  readonly prefix: string;
  replyKey(jobId: string): string;
  /** The job's messages from a seq on, each once and in order, the last one a `done`. */
  messages(jobId: string, options: ReadOptions & { heartbeats: true }): AsyncGenerator<Message | HeartbeatMessage, void, undefined>;
  messages(jobId: string, options?: ReadOptions): AsyncGenerator<Message, void, undefined>;
  /** How the job ended, when it has. */
  done(jobId: string, options?: ReadOptions): Promise<Done | null>;
  /** Snapshots, the first one `pending`, at most one in `everyMs` (default 100), the last one final. */
  snapshots(jobId: string, options?: ReadOptions & SnapshotOptions & { everyMs?: number }): AsyncGenerator<CodeExecutionData, void, undefined>;
  position(jobId: string): Promise<Position>;
  cancel(jobId: string): Promise<void>;
  cancelThread(thread: Thread): Promise<void>;
  /** The bytes of a file, by its entry in a message or result, or by its key; null when they have expired. */
  file(file: OutputFile | string): Promise<Buffer | null>;
  /** Ends all reading; the connection that was given stays open. */
  close(): void;
}

export type { Result };
