// The messages of one job from any seq on: stored ones from the stream, live ones from the channel, without gap or
// duplicate; and when nothing comes, what the job's hash says.
import { endOf, FIELDS, jobState, removed } from './state.mjs';

export const defaults = {
  page: 500, // entries read at once
  buffer: 1000, // live messages kept for a slow consumer; what is beyond is read from the stream later
  pollMs: 5_000, // longest time between two looks at a job that has not been heard of
  silenceMs: 15_000, // a run that is silent so long (heartbeats come every 10 s) is looked at
  missingMs: 10_000, // how long an id may be unknown: its job may be on its way (stream intake, a lagging replica)
};

const CONFIRM_MS = 200; // an end that only the hash tells is looked at twice

export class Reader {
  #client;
  #jobId;
  #key;
  #options;
  #queue = [];
  #last; // seq of the last message that was queued
  #lastExecution = null; // whose it was; null: not known (a reader that goes on from a seq)
  #executions = new Set(); // runs of this life of the stream
  #behind = true; // the stream may have more than we have
  #reading = false; // a read is under way: live messages are left to the next
  #expected = 0; // highest seq that was heard live
  #heardAt;
  #checkAt;
  #checks = 0;
  #seen = false; // the job's hash was there
  #missingSince = null;
  #endSince = null;
  #ended = false;
  #wake = () => {};
  #interrupt = () => {};
  #failures = 0;
  #lags = 0;
  #blind = false; // the user may read the reply, but not the job's hash

  constructor(client, jobId, options) {
    this.#client = client;
    this.#jobId = jobId;
    this.#key = client.replyKey(jobId);
    this.#options = { ...defaults, ...options };
    this.#last = Math.max(1, Math.trunc(this.#options.from ?? 1)) - 1;
    if (this.#last > 0) this.#lastExecution = this.#options.executionId ?? null;
    this.#heardAt = Date.now();
    this.#checkAt = this.#heardAt;
  }

  /** The messages, the last one `done` unless the reader is aborted (then it throws the signal's reason). */
  async *messages() {
    const { signal } = this.#options;
    const abort = () => {
      this.#wake();
      this.#interrupt();
    };
    signal?.throwIfAborted();
    signal?.addEventListener('abort', abort);
    const listener = { message: (text) => this.#heard(text), subscribed: () => this.#catchUp() };
    this.#client.subscriber.add(this.#key, listener);
    const leave = this.#client.enter(abort);
    try {
      for (;;) {
        while (this.#queue.length > 0) {
          const message = this.#queue.shift();
          if (message.type === 'done') {
            this.#stopListening(listener);
            yield message;
            return;
          }
          yield message;
          signal?.throwIfAborted();
        }
        if (this.#ended) return;
        if (this.#client.closed) throw new Error('the client was closed');
        await this.#interruptible(this.#step());
        signal?.throwIfAborted();
      }
    } finally {
      leave();
      signal?.removeEventListener('abort', abort);
      this.#stopListening(listener);
    }
  }

  #stopListening(listener) {
    this.#client.subscriber.remove(this.#key, listener);
  }

  // A command to a Redis that is away may take long; nobody who has given up waits for it.
  #interruptible(promise) {
    return new Promise((resolve, reject) => {
      this.#interrupt = resolve;
      promise.then(resolve, reject);
    });
  }

  // Reads, looks at the job, or waits for something to happen.
  async #step() {
    try {
      const now = Date.now();
      if (now >= this.#checkAt) await this.#check();
      else if (this.#behind) await this.#read();
      else await this.#pause(this.#checkAt - now);
      this.#failures = 0;
    } catch (error) {
      // Redis is away or says no; whoever does not want to wait has a signal.
      if (this.#client.closed) return;
      this.#client.failed(error);
      this.#behind = true;
      await this.#pause(Math.min(5_000, 50 * 2 ** Math.min(this.#failures++, 7)), true);
    }
  }

  #pause(ms, whole = false) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        const { signal } = this.#options;
        if (whole && !signal?.aborted && !this.#client.closed) return;
        clearTimeout(timer);
        resolve();
      };
    }).finally(() => {
      this.#wake = () => {};
    });
  }

  #catchUp() {
    this.#behind = true;
    this.#wake();
  }

  // A message from the channel.
  #heard(text) {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // not the worker's
    }
    this.#note();
    if (message.type === 'heartbeat') {
      if (this.#options.heartbeats && this.#queue.length < this.#options.buffer) this.#queue.push(message);
    } else if (this.#reading || this.#behind || this.#queue.length >= this.#options.buffer) {
      this.#expected = Math.max(this.#expected, message.seq);
      this.#behind = true;
    } else if (message.seq === this.#last + 1) {
      this.#accept(message);
    } else if (message.seq > this.#last || !this.#executions.has(message.executionId)) {
      this.#expected = Math.max(this.#expected, message.seq);
      this.#behind = true; // a gap, or another life of the stream: it will tell
    }
    this.#wake();
  }

  #note() {
    this.#heardAt = Date.now();
    this.#checkAt = this.#heardAt + this.#options.silenceMs;
    this.#checks = 0;
    this.#endSince = null;
  }

  #accept(message) {
    this.#last = message.seq;
    this.#lastExecution = message.executionId;
    this.#executions.add(message.executionId);
    this.#queue.push(message);
  }

  // From the last message on, that one included: it proves that the stream is still the one we know.
  #range(redis) {
    return redis.xrange(this.#key, `${this.#last}-0`, '+', 'COUNT', this.#options.page + 1);
  }

  async #read() {
    this.#behind = false;
    this.#reading = true;
    try {
      await this.#take(await this.#range(this.#client.reader));
    } finally {
      this.#reading = false;
    }
    // Heard live, but not there: a replica that lags, or a stream that is gone.
    if (this.#expected <= this.#last) this.#lags = 0;
    else if (!this.#behind && !this.#ended && this.#lags < 12) {
      this.#behind = true;
      await this.#pause(Math.min(1_000, 10 * 2 ** this.#lags++), true);
    }
  }

  /** Queues what is new of these entries. True when there was something. */
  async #take(entries) {
    const messages = entries.map(([, fields]) => JSON.parse(fields[1]));
    if (this.#last > 0) {
      const anchor = messages[0]?.seq === this.#last ? messages.shift() : null;
      if (anchor && (this.#lastExecution === null || anchor.executionId === this.#lastExecution)) {
        this.#lastExecution = anchor.executionId;
        this.#executions.add(anchor.executionId);
        if (anchor.type === 'done') this.#ended = true; // asked to go on behind the end
      } else if (await this.#isAfresh()) {
        this.#restart();
        return true;
      }
    }
    // Somebody who trims the stream makes a gap; the numbers show it.
    for (const message of messages) this.#accept(message);
    if (messages.length > 0) this.#note();
    if (messages.length >= this.#options.page) this.#behind = true;
    return messages.length > 0;
  }

  // The last message we have is not in the stream: is that another life of it, or a replica that lags?
  async #isAfresh() {
    const [last] = await this.#client.reader.xrevrange(this.#key, '+', '-', 'COUNT', 1);
    if (!last) return false; // expired, or not there yet
    const message = JSON.parse(last[1][1]);
    if (this.#executions.has(message.executionId)) return false;
    // A reader that goes on from a seq knows no run: the same, but it gives a lagging replica some time.
    return this.#lastExecution !== null || Date.now() - this.#heardAt > 2_000 || message.seq >= this.#last;
  }

  #restart() {
    this.#last = 0;
    this.#lastExecution = null;
    this.#executions.clear();
    this.#expected = 0;
    this.#behind = true;
  }

  // Nothing was heard for a while: the rest of the stream, and beside it (at the same moment) the job.
  async #check() {
    this.#reading = true;
    this.#behind = false;
    let state;
    try {
      const { entries, hash } = await this.#look();
      if (this.#checks++ > 0) this.#client.subscriber.doubt();
      state = hash && jobState(hash);
      if (await this.#take(entries)) return;
    } finally {
      this.#reading = false;
    }
    if (this.#ended || this.#queue.length > 0) return;
    if (this.#options.fallback === false || !state) this.#next(this.#options.pollMs);
    else this.#judge(state);
  }

  async #look() {
    const redis = this.#client.reader;
    if (this.#blind) return { entries: await this.#range(redis), hash: null };
    try {
      const multi = redis.multi();
      this.#range(multi);
      multi.hmget(this.#client.jobKey(this.#jobId), ...FIELDS);
      const [range, hash] = await multi.exec();
      for (const [error] of [range, hash]) if (error) throw error;
      return { entries: range[1], hash: hash[1] };
    } catch (error) {
      if (![error, ...(error.previousErrors ?? [])].some(({ message }) => /^NOPERM/.test(message))) throw error;
      const entries = await this.#range(redis); // when this is refused too, it is the reply that may not be read
      this.#blind = true;
      this.#client.onError(error);
      return { entries, hash: null };
    }
  }

  #next(longest) {
    const wait = Math.min(longest, 100 * 2 ** Math.min(this.#checks, 10));
    this.#checkAt = Date.now() + wait;
  }

  // No message, but the job's state: has it ended?
  #judge(state) {
    const now = Date.now();
    if (state.exists) {
      this.#seen = true;
      this.#missingSince = null;
      if (!state.ended) {
        this.#endSince = null;
        // A worker has it and nothing is heard: it may be one without a reply.
        this.#next(state.claimed ? Math.min(1_000, this.#options.pollMs) : this.#options.pollMs);
        if (this.#last > 0) this.#checkAt = now + this.#options.silenceMs;
        return;
      }
      if (this.#sure('endSince', now, CONFIRM_MS)) this.#end(endOf(state, this.#jobId, this.#lastExecution, this.#last + 1));
      return;
    }
    // A job removed in mid-run gets its `done` from its worker, when that has noticed.
    const patience = this.#last > 0 ? this.#options.silenceMs : this.#seen ? CONFIRM_MS : this.#options.missingMs;
    if (this.#sure('missingSince', now, patience)) this.#end(removed(this.#jobId, this.#lastExecution, this.#last + 1));
  }

  // True when this has been so for `ms`; else it is looked at again then.
  #sure(what, now, ms) {
    const since = what === 'endSince' ? (this.#endSince ??= now) : (this.#missingSince ??= now);
    if (now - since >= ms) return true;
    this.#checkAt = Math.min(since + ms, now + Math.max(CONFIRM_MS, Math.min(1_000, ms / 4)));
    return false;
  }

  #end(message) {
    this.#queue.push(message);
  }
}
