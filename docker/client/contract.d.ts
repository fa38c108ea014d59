// The contract's types, made from include/contract/v1.schema.json by generate.mjs: change that, not this.

/** Version of this contract. */
export type Version = 1;

/** BullMQ's id of the job. */
export type JobId = string;

/** UUID of one run of the code; each claim of a job makes a new one. */
export type ExecutionId = string;

/** Position in the reply, from 1, without gaps; also the first half of the stream entry's id. Goes on through retries, restarts after a `done`. */
export type Seq = number;

/** One output of the kernel in all the MIME types it gave. Binary types are base64 text, as in Jupyter; JSON types may be any JSON value. */
export type MimeBundle = Record<string, unknown>;

/** MIME types left out here because they were too large: type -> size in bytes. */
export type Omitted = Record<string, number>;

/** MIME types whose value is too large to be here: type -> where the bytes are (binary types as bytes, not base64): a Redis key, or one of the job's files. */
export type Refs = Record<string, {
  /** Redis key with the bytes; it expires. */
  key?: string;
  /** Of the entry in files. */
  fileId?: string;
  /** Of the entry in files. */
  filename?: string;
  /** Bytes. */
  size: number;
} & ({ key: unknown } | { fileId: unknown; filename: unknown })>;

/** Why the job ended; the outcome table of the README has what each means. */
export type Reason = 'ok' | 'code_error' | 'timeout' | 'cancelled' | 'drained' | 'oom' | 'kernel_died' | 'sandbox_lost' | 'outcome_unknown' | 'expired' | 'bad_job' | 'disabled' | 'worker_lost' | 'no_sandbox' | 'no_capacity' | 'driver_error' | 'unknown_name' | 'stalled' | 'deferred_failure' | 'removed';

/** null, or why the state of the thread's earlier calls (variables, files) is gone: other_replica, actor_changed, idle, kernel_died, killed_after_timeout, sandbox_gone, ... */
export type StateLost = string | null;

/** What kind of sandbox the code ran in. No id or token of it is ever shown. */
export type Sandbox = {
  /** A warm sandbox of the thread was used. */
  reused: boolean;
  /** It had been paused before. */
  resumed: boolean;
  stateLost: StateLost;
};

/** An output file, and the one place where its bytes are. */
export type OutputFile = {
  /** UUID of the file. */
  fileId: string;
  /** Path relative to /home/user/output, '/' between parts. */
  filename: string;
  /** By the name's ending; application/octet-stream when unknown. */
  mimeType: string;
  /** Bytes. */
  size: number;
  /** Where it was uploaded to (without the query string). */
  url?: string;
  /** Redis key with the raw bytes; it expires. */
  key?: string;
  /** The bytes in base64. */
  content?: string;
} & ({ url: unknown } | { key: unknown } | { content: unknown });

/** One rich output: the value of the last expression (main) or a display call. */
export type RichResult = {
  data: MimeBundle;
  /** True for the value of the last expression. */
  main: boolean;
  refs?: Refs;
  omitted?: Omitted;
};

/** A job's data. Fields that are not listed are ignored and named in the result's warnings. */
export type JobData = {
  v?: Version;
  /** What to run. */
  code: string;
  /** Jupyter kernel language or E2B context language. */
  language?: string;
  /** The conversation. Its jobs run one at a time and in order, in one warm sandbox. Absent or empty: a fresh sandbox, killed after the run. */
  threadId?: string;
  /** Tenant of the thread; equal threadIds of two workspaces are two threads. */
  workspaceId?: string;
  /** Whose run it is. A thread's sandbox is discarded when the actor changes. */
  actorKey?: string;
  /** Files put into /home/user before the run. */
  files?: Array<InputFile>;
  /** Environment variables for this run only; no NUL in values. */
  env?: Record<string, string>;
  /** Key of a Redis hash with more environment variables, beginning with `<prefix>:<queue>:secret:`; read when the run starts, deleted at the job's end. */
  secretsKey?: string;
  /** Milliseconds of running time; clamped to CODE_INTERPRETER_TIMEOUT_MS with a warning. */
  timeoutMs?: number;
  /** Milliseconds since 1970: not started by then, the job fails as expired. */
  startBy?: number;
  /** True: the code may be run again when a worker dies in mid-run. */
  idempotent?: boolean;
  output?: Output;
  /** False: no reply channel, only BullMQ's result. */
  reply?: boolean;
  /** For jobs named `release`: cancel the thread's running and parked jobs first. */
  force?: boolean;
};

/** One input: a name and exactly one source of bytes. */
export type InputFile = {
  /** Path under /home/user; made safe, never outside that folder; nested paths are kept. */
  filename: string;
  /** http or https URL that the worker fetches; private addresses only by the allow list. */
  url?: string;
  /** The bytes in base64. */
  content?: string;
  /** Key of a Redis string with the raw bytes, beginning with `<prefix>:<queue>:file:`. */
  key?: string;
  /** MIME type; informative. */
  mimeType?: string;
} & ({ url: unknown } | { content: unknown } | { key: unknown });

/** Where output files go. Without it each goes into a Redis key that expires. */
export type Output = {
  /** Upload of each file by the worker. */
  upload?: {
    /** URL template; {jobId}, {fileId} and {filename} are put in percent-encoded. */
    url: string;
    /** PUT sends the bytes as the body, POST a multipart form. */
    method?: 'PUT' | 'POST';
    /** More request headers. */
    headers?: Record<string, string>;
    /** Form fields before the file (presigned POST). */
    fields?: Record<string, string>;
  };
  /** True: files up to 32 KiB are put into the result as base64. */
  inline?: boolean;
};

/** One message of a job's reply: an entry's field `m` in the stream `<prefix>:<queue>:reply:<jobId>`, and the same text on the Pub/Sub channel of that name. */
export type ReplyMessage = StartedMessage | StdoutMessage | StderrMessage | ResultMessage | FileMessage | RetryingMessage | HeartbeatMessage | TruncatedMessage | DoneMessage;

/** The code is being handed to the sandbox. A reader drops what it had gathered before. */
export type StartedMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'started';
  /** Which attempt of the job this is, from 1. */
  attempt: number;
  sandbox: Sandbox;
};

/** A piece of standard output. Pieces are joined without anything between them. */
export type StdoutMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'stdout';
  /** Whole characters; no line structure. */
  text: string;
};

/** A piece of standard error. */
export type StderrMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'stderr';
  /** Whole characters; no line structure. */
  text: string;
};

/** A rich output of the kernel. */
export type ResultMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'result';
  data: MimeBundle;
  /** True for the value of the last expression. */
  main: boolean;
  refs?: Refs;
  omitted?: Omitted;
};

/** An output file is in its place and can be fetched. */
export type FileMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'file';
  file: OutputFile;
};

/** This attempt failed before the code was delivered; another will follow. */
export type RetryingMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'retrying';
  /** What went wrong, one sentence. */
  error: string;
  reason: Reason;
  /** Milliseconds until the next attempt may start. */
  delayMs: number;
  /** The attempt that failed, from 1. */
  attempt: number;
};

/** The run is alive but silent. Published only, never stored; repeats the last seq. */
export type HeartbeatMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'heartbeat';
};

/** The cap is reached: what comes after is no longer stored here, but for `done`. */
export type TruncatedMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'truncated';
  /** What was cut. */
  what: 'reply';
  /** The cap, in bytes. */
  limit: number;
};

/** The last message of a job, exactly once. */
export type DoneMessage = {
  v: Version;
  jobId: JobId;
  executionId: ExecutionId;
  seq: Seq;
  /** Kind of message. */
  type: 'done';
  /** completed: ran well; error: ran and ended badly (BullMQ: completed); failed: did not run (BullMQ: failed). */
  state: 'completed' | 'error' | 'failed';
  reason: Reason;
  /** What went wrong, one sentence. */
  error?: string;
  result?: Result;
  /** The producer's trace context (W3C), as its BullMQ put it into the job's options (telemetry). */
  trace?: {
    traceparent: string;
    tracestate?: string;
  };
};

/** The return value of a job that ran: a superset of CodeExecutionData. */
export type Result = {
  v: Version;
  executionId: ExecutionId;
  /** completed iff the code ended well. */
  state: 'completed' | 'error';
  /** The code that ran, where it was asked for. */
  code?: string;
  /** The language that ran. */
  language: string;
  /** Standard output; when long, its head and tail with a line that says what was cut. */
  stdout: string;
  /** Standard error; cut like stdout. */
  stderr: string;
  /** 0 ok; 1 or SystemExit's code; 124 timeout; 130 cancelled; 143 drained; 128+signal when the interpreter was killed; null when nobody knows. */
  exitCode: number | null;
  /** Milliseconds the code ran. */
  executionTimeMs: number;
  /** Output files, and PNG results as chart-<n>.png. */
  files: Array<OutputFile>;
  /** One sentence, or null when all went well. */
  error: string | null;
  /** The exception of the user's code, or null. */
  errorDetail: {
    /** Class of the exception. */
    name: string;
    /** Its text. */
    value: string;
    /** Without colour codes; line numbers are those of the code as sent. */
    traceback: string;
  } | null;
  reason: Reason;
  /** Rich outputs in order. */
  results: Array<RichResult>;
  /** Bytes left out of stdout and stderr. */
  truncated: {
    /** Bytes. */
    stdout: number;
    /** Bytes. */
    stderr: number;
  };
  sandbox: Sandbox;
  /** Where the time went, in milliseconds. */
  timings: {
    /** From being added (or due) to being claimed. */
    queuedMs: number;
    /** Getting the sandbox ready. */
    sandboxMs: number;
    /** The code itself. */
    runMs: number;
    /** Fetching inputs and storing outputs. */
    filesMs: number;
  };
  /** Things worth knowing, a sentence each. */
  warnings: Array<string>;
};
