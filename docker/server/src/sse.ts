// Server-sent events of one execution: the reply's messages with their seq as id, its place in the line while it waits.
import { once } from 'node:events';
import { Logger } from '@nestjs/common';
import type { Response } from 'express';
import type { HeartbeatMessage, Message, Position } from 'sandpiper-client';

const LOOK_MS = 1_000; // at the place in the line
const SIGN_MS = 15_000; // of life, for proxies that close what is silent
const logger = new Logger('events');

export interface Source {
  messages(signal: AbortSignal): AsyncGenerator<Message | HeartbeatMessage>;
  position(): Promise<Position>;
}

/** Sends all until the end, or until the client goes away. Answers 204 (come no more) when there is nothing left. */
export async function sendEvents(response: Response, source: Source): Promise<void> {
  const stop = new AbortController();
  response.on('close', () => stop.abort());
  const stream = new EventStream(response);
  const timers = [setInterval(() => stream.comment('alive'), SIGN_MS)];
  let heard = false;
  let shown = '';
  const look = async () => {
    if (heard || stop.signal.aborted) return;
    const { state, ahead, exact } = await source.position();
    const text = JSON.stringify({ type: 'position', state, ahead, exact });
    if (heard || text === shown || state === 'ended' || state === 'unknown') return;
    shown = text;
    stream.event('position', text);
  };
  const start = setTimeout(() => {
    void look().catch(() => {}); // the reader tells what is wrong with Redis
    timers.push(setInterval(() => void look().catch(() => {}), LOOK_MS));
  }, 50); // most jobs have begun by then
  try {
    for await (const message of source.messages(stop.signal)) {
      heard = true;
      const id = message.type === 'heartbeat' ? undefined : 'source' in message ? 'end' : String(message.seq);
      await stream.event(message.type, JSON.stringify(message), id);
    }
    if (!stream.begun) response.status(204);
  } catch (error) {
    if (!stop.signal.aborted) logger.warn((error as Error).message);
  } finally {
    clearTimeout(start);
    timers.forEach(clearInterval);
    response.end();
  }
}

class EventStream {
  begun = false;

  constructor(private readonly response: Response) {}

  comment(text: string): void {
    if (this.begun) this.response.write(`: ${text}\n\n`);
  }

  /** Resolves when the client can take more. JSON has no line ends of its own. */
  async event(type: string, json: string, id?: string): Promise<void> {
    if (!this.begun) this.begin();
    const text = `${id === undefined ? '' : `id: ${id}\n`}event: ${type}\ndata: ${json}\n\n`;
    if (this.response.closed || this.response.write(text)) return;
    await Promise.race([once(this.response, 'drain'), once(this.response, 'close')]);
  }

  private begin(): void {
    this.begun = true;
    this.response.status(200).set({
      'Content-Type': 'text/event-stream; charset=utf-8', 'Cache-Control': 'no-store', 'X-Accel-Buffering': 'no',
    });
    this.response.flushHeaders();
    this.response.write('retry: 1000\n\n');
  }
}
