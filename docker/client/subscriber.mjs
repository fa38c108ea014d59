// One Pub/Sub connection for all replies that a process reads.

const CHUNK = 500; // channels in one SUBSCRIBE

/** @typedef {{message(text: string): void, subscribed(): void}} Listener */

export class Subscriber {
  #make;
  #timeoutMs;
  #onError;
  #connection = null;
  #channels = new Map(); // channel -> {listeners, live}
  #flushing = false;
  #ping = null;
  #closed = false;

  /** `make()` gives the connection when the first channel is wanted; one that does not answer a ping in time is replaced. */
  constructor(make, timeoutMs, onError) {
    this.#make = make;
    this.#timeoutMs = timeoutMs;
    this.#onError = onError;
  }

  /** How many channels are listened to. */
  get size() {
    return this.#channels.size;
  }

  /** The listener hears the channel from now on; `subscribed` is called each time that the subscription is (again) sure. */
  add(channel, listener) {
    if (this.#closed) throw new Error('the client is closed');
    const entry = this.#channels.get(channel);
    if (entry) {
      entry.listeners.add(listener);
      if (entry.live) queueMicrotask(() => entry.listeners.has(listener) && listener.subscribed());
      return;
    }
    this.#channels.set(channel, { listeners: new Set([listener]), live: false });
    this.#connect();
    this.#flush();
  }

  remove(channel, listener) {
    const entry = this.#channels.get(channel);
    if (!entry?.listeners.delete(listener) || entry.listeners.size > 0) return;
    this.#channels.delete(channel);
    if (this.#connection?.status === 'ready') this.#connection.unsubscribe(channel).catch(() => {});
  }

  /** Somebody should have heard something: a connection that does not answer is replaced. */
  doubt() {
    const connection = this.#connection;
    if (this.#ping || connection?.status !== 'ready') return;
    const clear = () => {
      clearTimeout(this.#ping);
      this.#ping = null;
    };
    this.#ping = setTimeout(() => {
      this.#ping = null;
      connection.disconnect(true);
    }, this.#timeoutMs);
    this.#ping.unref?.();
    connection.ping().then(clear, clear);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#ping);
    this.#channels.clear();
    this.#connection?.disconnect();
  }

  #connect() {
    if (this.#connection) return;
    this.#connection = this.#make();
    this.#connection.on('error', this.#onError);
    this.#connection.on('message', (channel, text) => {
      for (const listener of this.#channels.get(channel)?.listeners ?? []) listener.message(text);
    });
    this.#connection.on('ready', () => {
      for (const entry of this.#channels.values()) entry.live = false;
      this.#flush();
    });
    // A lazy connection (`lazyConnect`) waits for its first command, and that waits here for `ready`.
    if (this.#connection.status === 'wait') this.#connection.connect().catch(() => {});
  }

  // What is wanted in one turn of the loop goes out in one command.
  #flush() {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => {
      this.#flushing = false;
      if (this.#closed || this.#connection.status !== 'ready') return; // the next `ready` does it
      const wanted = [...this.#channels].filter(([, entry]) => !entry.live && !entry.asked);
      for (let i = 0; i < wanted.length; i += CHUNK) this.#subscribe(wanted.slice(i, i + CHUNK));
    });
  }

  async #subscribe(wanted) {
    for (const [, entry] of wanted) entry.asked = true;
    let done = false;
    try {
      await this.#connection.subscribe(...wanted.map(([channel]) => channel));
      done = true;
    } catch (error) {
      if (!this.#closed) this.#onError(error); // readers go on by looking at the stream now and then
    }
    for (const [channel, entry] of wanted) {
      entry.asked = false;
      if (!done || this.#channels.get(channel) !== entry) continue;
      entry.live = true;
      for (const listener of entry.listeners) listener.subscribed();
    }
  }
}
