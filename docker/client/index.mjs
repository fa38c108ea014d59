// Reads what Sandpiper says about jobs: messages, snapshots, files, places in the line; cancels.
import { position, SCAN, script } from './position.mjs';
import { Reader } from './reader.mjs';
import { Snapshots } from './snapshots.mjs';
import { Subscriber } from './subscriber.mjs';

export { Snapshots };

const REMEMBERED_CANCELS = 10_000;
const encode = (text) => text.replace(/[%:]/g, (c) => (c === '%' ? '%25' : '%3A'));

/** The name of a thread in Redis: lease:<T>, parked:<T>, thread:<T>. */
export const threadKey = ({ workspaceId = '', threadId }) => `${encode(workspaceId)}:${encode(threadId)}`;

export class SandpiperClient {
  #prefix;
  #readers = new Set();
  #open;
  #reading = null;

  /** Options: see index.d.ts. */
  constructor({ connection, reader = connection, queueName = 'code-interpreter', prefix = 'bull',
    timeoutMs = 10_000, onError = () => {} }) {
    if (!connection) throw new TypeError('connection: an ioredis client is needed');
    for (const one of [connection, reader]) {
      if (one.options?.keyPrefix) throw new TypeError('connection: keyPrefix does not go with BullMQ');
    }
    this.#prefix = `${prefix}:${queueName}:`;
    this.connection = connection;
    this.onError = (error) => this.closed || onError(error);
    this.closed = false;
    this.subscriber = new Subscriber(() => duplicate(reader, { autoResubscribe: false }), timeoutMs, this.onError);
    this.#open = () => duplicate(reader, { commandTimeout: timeoutMs });
  }

  /** The connection for reading; of its own, so that it can be replaced when it no longer answers. */
  get reader() {
    if (this.closed) throw new Error('the client was closed');
    if (!this.#reading) {
      this.#reading = this.#open();
      this.#reading.on('error', this.onError);
    }
    return this.#reading;
  }

  /** An error of the reader's: a command that had no answer in time means another connection. */
  failed(error) {
    this.onError(error);
    if (/timed out/i.test(error.message) && this.#reading?.status === 'ready') this.#reading.disconnect(true);
  }

  /** The part before every key of the queue. */
  get prefix() {
    return this.#prefix;
  }

  jobKey(jobId) {
    return `${this.#prefix}${jobId}`;
  }

  replyKey(jobId) {
    return `${this.#prefix}reply:${jobId}`;
  }

  messages(jobId, options = {}) {
    return new Reader(this, String(jobId), options).messages();
  }

  /** The last message: `done`. */
  async done(jobId, options) {
    for await (const message of this.messages(jobId, options)) if (message.type === 'done') return message;
    return null; // asked to go on behind the end
  }

  /** CodeExecutionData whenever it has changed, at most once in `everyMs`; the last one is final. */
  async *snapshots(jobId, { everyMs = 100, code, language, executionId, fileUrl, signal, ...options } = {}) {
    const snapshots = new Snapshots({ executionId, code, language, fileUrl });
    const left = new AbortController(); // a reader that waits inside cannot be returned from, but told
    const signals = signal ? AbortSignal.any([signal, left.signal]) : left.signal;
    const messages = this.messages(jobId, { ...options, signal: signals });
    let given = snapshots.current;
    let due = 0;
    let next = messages.next();
    try {
      yield given;
      for (;;) {
        const wait = snapshots.current === given ? null : Math.max(0, due - Date.now());
        const step = wait === null ? await next : await firstOf(next, wait);
        if (step === null) {
          given = snapshots.current;
          due = Date.now() + everyMs;
          yield given;
          continue;
        }
        if (step.done) break;
        snapshots.push(step.value);
        next = messages.next();
      }
      if (snapshots.current !== given) yield snapshots.current;
    } finally {
      next.catch(() => {});
      left.abort();
    }
  }

  async position(jobId) {
    return position(await this.reader.eval(script, 1, `${this.#prefix}meta`, this.#prefix, String(jobId), SCAN));
  }

  async cancel(jobId) {
    await this.#control('cancel', String(jobId));
  }

  async cancelThread(thread) {
    await this.#control('cancel-thread', threadKey(thread));
  }

  async #control(what, whom) {
    await this.connection.xadd(`${this.#prefix}stream:control`, 'MAXLEN', '~', REMEMBERED_CANCELS, '*', what, whom);
  }

  /** The bytes of a file (its entry in a result or message, or its key); null when they have expired. */
  async file(file) {
    if (typeof file === 'object' && file.content !== undefined) return Buffer.from(file.content, 'base64');
    const key = typeof file === 'string' ? file : file.key;
    if (key === undefined) throw new TypeError('the file was uploaded: fetch it from its url');
    if (!key.startsWith(`${this.#prefix}file:`)) throw new TypeError('not the key of a file');
    return this.reader.getBuffer(key);
  }

  /** What readers have in common: told when the client is closed. Returns what undoes it. */
  enter(closed) {
    this.#readers.add(closed);
    return () => this.#readers.delete(closed);
  }

  /** Ends all readers (they throw) and the client's own connections; `connection` stays open. */
  close() {
    this.closed = true;
    this.subscriber.close();
    this.#reading?.disconnect();
    for (const closed of this.#readers) closed();
  }
}

// Waits for the promise for `ms`; null when it took longer. The promise is left as it is.
function firstOf(promise, ms) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => resolve(null), ms);
    promise.then((value) => {
      clearTimeout(timer);
      resolve(value);
    }, (error) => {
      clearTimeout(timer);
      reject(error);
    });
  });
}

// After a reconnect the subscriber subscribes itself: only then it knows from when on it hears again.
function duplicate(connection, more) {
  const options = {
    maxRetriesPerRequest: null, lazyConnect: false, keepAlive: 10_000,
    retryStrategy: (times) => Math.min(2_000, 50 * 2 ** Math.min(times, 10)), ...more,
  };
  if (!connection.isCluster) return connection.duplicate(options);
  // A Cluster's own duplicate takes new redisOptions for all of them, password and TLS as well.
  return connection.duplicate(undefined, { redisOptions: { ...connection.options.redisOptions, ...options } });
}
