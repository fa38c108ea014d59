// The Redis of a run: one server at a time behind relays, that can be killed, restarted, stopped and replaced.
import { Redis } from 'ioredis';
import { atEnd, sleep, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { startRelay } from './relay.mjs';

const info = async (client, name) => new RegExp(`^${name}:(.*)\r?$`, 'm').exec(await client.info())?.[1]?.trim();

/** `relay()` makes a relay that follows a failover; `client()` a client that no fault of a relay meets. */
export async function startServer() {
  const self = { current: await startRedis({ durable: true }), relays: [], busy: false };
  const target = () => self.current.port;
  self.relay = async () => {
    const relay = await startRelay(target);
    self.relays.push(relay);
    return relay;
  };
  const observers = await startRelay(target);
  const clients = new Set();
  self.client = (options = {}) => {
    const client = new Redis({ host: '127.0.0.1', port: observers.port, maxRetriesPerRequest: null,
      retryStrategy: () => 100, ...options });
    client.on('error', () => {});
    clients.add(client);
    return client;
  };
  atEnd(() => clients.forEach((client) => client.disconnect()));

  self.restart = async (downMs, args = []) => {
    await self.current.kill();
    await sleep(downMs);
    await self.current.restart(args);
  };
  /** Killed, and for about `ms` it only answers LOADING. */
  self.restartSlowly = async (ms) => {
    const client = self.current.client();
    const commands = Number(await info(client, 'aof_current_size')) / 60; // a guess at how many
    client.disconnect();
    const naps = ms * 15; // a nap of 1 us takes about 65
    await self.restart(0, ['--key-load-delay', String(-Math.max(1, Math.round(commands / naps)))]); // a nap for so many
  };
  self.hang = async (ms) => {
    self.current.pause();
    await sleep(ms);
    self.current.resume();
  };
  /**
   * Another server takes over when it has every write (FAILOVER waits for that); for `readonlyMs` clients still
   * talk to the old one, which refuses writes. False: the new one did not catch up in time and was given up.
   */
  self.failover = async (readonlyMs) => {
    const [old, next] = [self.current, await startRedis({ durable: true })];
    const [from, to] = [old.client(), next.client()];
    try {
      await to.replicaof('127.0.0.1', old.port);
      await waitFor(async () => (await info(to, 'master_link_status')) === 'up', { timeout: 60_000, what: 'the replica has synced' });
      await from.call('FAILOVER', 'TO', '127.0.0.1', next.port, 'TIMEOUT', 20_000);
      await waitFor(async () => (await info(from, 'master_failover_state')) === 'no-failover', { timeout: 60_000, what: 'the failover is over' });
      if ((await info(to, 'role')) !== 'master') {
        await next.kill();
        return false;
      }
      await sleep(readonlyMs);
      self.current = next;
      await sleep(readonlyMs);
      for (const relay of [observers, ...self.relays]) relay.cut();
      await old.kill();
      return true;
    } catch (error) {
      await next.kill();
      throw error;
    } finally {
      from.disconnect();
      to.disconnect();
    }
  };
  return self;
}
