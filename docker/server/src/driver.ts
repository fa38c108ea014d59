// The driver of Twenty's code interpreter, on Sandpiper: the same interface, so that a server changes it by configuration.
import { Logger } from '@nestjs/common';
import { type Done, type OutputFile as RemoteFile, type Result, SandpiperClient } from 'sandpiper-client';
import { RunQueue } from './queue.js';

export interface InputFile {
  filename: string;
  content: Buffer;
  mimeType: string;
}
export type OutputFile = InputFile;

export interface CodeExecutionResult {
  stdout: string;
  stderr: string;
  exitCode: number;
  files: OutputFile[];
  error?: string;
}

export interface ExecutionContext {
  env?: Record<string, string>;
  /** `<workspaceId>:<threadId>` */
  sessionId?: string;
  actorKey?: string;
  /** Beyond the interface: cancels the run, or what waits for it. */
  signal?: AbortSignal;
  timeoutMs?: number;
}

export interface StreamCallbacks {
  onStdout?(line: string): void;
  onStderr?(line: string): void;
  onResult?(result: OutputFile): Promise<void> | void;
}

export interface CodeInterpreterDriver {
  execute(code: string, files?: InputFile[], context?: ExecutionContext, callbacks?: StreamCallbacks): Promise<CodeExecutionResult>;
  releaseSession?(sessionId: string): Promise<void>;
  sweepExpiredSessions?(maxAgeMs: number): Promise<number>;
}

const RELEASE_MS = 60_000;

/** The two halves of a session's id; a thread without a workspace has no colon. */
export function parseSession(sessionId: string): { workspaceId: string; threadId: string } {
  const colon = sessionId.indexOf(':');
  return { workspaceId: sessionId.slice(0, Math.max(0, colon)), threadId: sessionId.slice(colon + 1) };
}

export class SandpiperDriver implements CodeInterpreterDriver {
  private readonly logger = new Logger(SandpiperDriver.name);

  constructor(private readonly queue: RunQueue, private readonly client: SandpiperClient) {}

  /** Runs code. Throws what keeps it from running; what the code does wrong is in the result. */
  async execute(code: string, files: InputFile[] = [], context: ExecutionContext = {}, callbacks: StreamCallbacks = {}): Promise<CodeExecutionResult> {
    const session = context.sessionId ? parseSession(context.sessionId) : {};
    const { env, actorKey, timeoutMs, signal } = context;
    signal?.throwIfAborted();
    const { id, cleanUp } = await this.queue.add({ code, files, env, actorKey, timeoutMs, ...session });
    const cancel = () => void this.client.cancel(id).catch((error: Error) => this.logger.warn(`cancel of ${id}: ${error.message}`));
    signal?.addEventListener('abort', cancel);
    if (signal?.aborted) cancel();
    try {
      return await this.follow(id, callbacks);
    } catch (error) {
      if (!(error instanceof RunError)) cancel(); // a callback threw, or the client was closed: nobody waits any more
      throw error;
    } finally {
      signal?.removeEventListener('abort', cancel);
      await cleanUp().catch(() => {}); // they expire
    }
  }

  async releaseSession(sessionId: string): Promise<void> {
    const { workspaceId, threadId } = parseSession(sessionId);
    const id = await this.queue.release(workspaceId, threadId);
    const done = await this.client.done(id, { signal: AbortSignal.timeout(RELEASE_MS) });
    if (done?.state === 'failed') throw new Error(done.error);
  }

  /** The workers do it themselves, by their own clock. */
  async sweepExpiredSessions(): Promise<number> {
    return 0;
  }

  private async follow(id: string, callbacks: StreamCallbacks): Promise<CodeExecutionResult> {
    const stdout = new Lines(callbacks.onStdout);
    const stderr = new Lines(callbacks.onStderr);
    const files = new Files(this.client, id, callbacks.onResult, this.logger);
    let cut = false;
    for await (const message of this.client.messages(id)) {
      if (message.type === 'stdout') stdout.push(message.text);
      else if (message.type === 'stderr') stderr.push(message.text);
      else if (message.type === 'truncated') cut = true;
      else if (message.type === 'result') await files.chart(message.data['image/png'], message.refs?.['image/png']?.key);
      else if (message.type === 'file') await files.add(message.file);
      else if (message.type === 'done') {
        stdout.end();
        stderr.end();
        if (message.result === undefined) throw new RunError(message);
        for (const file of message.result.files) await files.add(file);
        return this.finish(message.result, cut, stdout.text, stderr.text, files.list);
      }
    }
    throw new Error('The reply ended without an end.'); // the client never does that
  }

  private finish(result: Result, cut: boolean, stdout: string, stderr: string, files: OutputFile[]): CodeExecutionResult {
    // The reply has the whole text, the result only head and tail of what is long.
    return {
      stdout: cut ? result.stdout : stdout || result.stdout,
      stderr: cut ? result.stderr : stderr || result.stderr,
      exitCode: result.exitCode ?? 1,
      files,
      ...(result.error !== null && { error: result.errorDetail?.value || result.error }),
    };
  }
}

/** The code was not run; `reason` is the worker's. */
export class RunError extends Error {
  readonly reason: Done['reason'];

  constructor(done: Done) {
    super(done.error ?? 'The code could not be run.');
    this.reason = done.reason;
  }
}

/** A run's files, each given to the callback once: charts when they are shown, the others when the run has ended. */
class Files {
  readonly list: OutputFile[] = [];
  private readonly known = new Set<string>(); // ids
  private readonly charts: Buffer[] = []; // shown, and not yet met among the files
  private count = 0;

  constructor(
    private readonly client: SandpiperClient, private readonly id: string, private readonly onResult: StreamCallbacks['onResult'],
    private readonly logger: Logger,
  ) {}

  /** A picture in a result; the worker lists it among the files too, at the end. */
  async chart(base64: unknown, key: string | undefined): Promise<void> {
    if (typeof base64 !== 'string' && key === undefined) return;
    const filename = `chart-${this.count++}.png`;
    await this.isolate(filename, async () => {
      const content = typeof base64 === 'string' ? Buffer.from(base64, 'base64') : await this.client.file(key as string);
      if (content === null) throw new Error('it has expired');
      this.charts.push(content);
      await this.give({ filename, content, mimeType: 'image/png' });
    });
  }

  async add(file: RemoteFile): Promise<void> {
    if (this.known.has(file.fileId)) return;
    this.known.add(file.fileId);
    await this.isolate(file.filename, async () => {
      const content = await this.client.file(file);
      if (content === null) throw new Error('it has expired');
      const shown = file.mimeType === 'image/png' ? this.charts.findIndex((chart) => chart.equals(content)) : -1;
      if (shown >= 0) this.charts.splice(shown, 1);
      else await this.give({ filename: this.free(file.filename), content, mimeType: file.mimeType });
    });
  }

  // A name that callers have not got yet: they tell files apart by it.
  private free(filename: string): string {
    const [, stem, ending] = /^(.*?)(\.[^./]*)?$/s.exec(filename) as unknown as [string, string, string | undefined];
    let name = filename;
    for (let n = 1; this.list.some((file) => file.filename === name); n++) name = `${stem}-${n}${ending ?? ''}`;
    return name;
  }

  private async give(file: OutputFile): Promise<void> {
    this.list.push(file);
    await this.onResult?.(file);
  }

  // A file that cannot be fetched or taken does not hide the others.
  private async isolate(filename: string, act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (error) {
      this.logger.warn(`file ${filename} of ${this.id}: ${(error as Error).message}`);
    }
  }
}

/** Gives whole lines to a callback as text comes in; keeps all of it. */
class Lines {
  text = '';
  private rest = '';

  constructor(private readonly onLine?: (line: string) => void) {}

  push(text: string): void {
    this.text += text;
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    for (const line of lines) this.onLine?.(line);
  }

  end(): void {
    if (this.rest !== '') this.onLine?.(this.rest);
    this.rest = '';
  }
}
