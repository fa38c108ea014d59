// A private redis-server on an ephemeral port, and a TCP proxy in front of it that can misbehave.
import { once } from 'node:events';
import { createConnection, createServer } from 'node:net';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { atEnd, sleep, start, tempDir, waitFor } from './process.mjs';
import { everywhere } from './tls.mjs';

/** What is started as redis-server: another program that speaks its protocol, where REDIS_SERVER names one. */
export const redisServer = process.env.REDIS_SERVER ?? 'redis-server';

export async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/**
 * Starts redis-server. `args`: more of its options. `durable`: an append-only file written at once, so that
 * data survives SIGKILL. `tls`: certificates (tls.mjs) when it speaks TLS, and nothing else. The result has port, url, socket, client(), kill(), restart(moreArgs), pause(), resume().
 */
export async function startRedis({ args = [], durable = false, tls = everywhere } = {}) {
  const dir = tempDir('sandpiper-redis-');
  const self = { port: await freePort(), dir, socket: join(dir, 'redis.sock'), process: null };
  self.scheme = tls ? 'rediss' : 'redis';
  self.url = `${self.scheme}://127.0.0.1:${self.port}`;
  const secured = tls ? { tls: tls.options } : {};
  const clients = new Set();
  const launch = async (more = []) => {
    self.process = start(redisServer, [
      ...(tls ? ['--port', '0', '--tls-port', String(self.port), ...tls.args] : ['--port', String(self.port)]), '--bind', '127.0.0.1', '--unixsocket', self.socket, '--dir', dir,
      '--save', '', '--appendonly', durable ? 'yes' : 'no', '--appendfsync', 'always',
      '--maxmemory-policy', 'noeviction', ...args, ...more,
    ]);
    await self.process.waitLine(/Ready to accept connections/i, { timeout: 60_000 });
  };
  self.kill = async () => {
    self.process.kill('SIGCONT');
    self.process.kill('SIGKILL');
    await self.process.exited;
  };
  /** On the port it had; whoever was given that port meanwhile (an outgoing connection, say) is waited for. */
  self.restart = (more) => waitFor(() => launch(more).then(() => true), { interval: 200, what: 'redis-server is back' });
  self.pause = () => self.process.kill('SIGSTOP');
  self.resume = () => self.process.kill('SIGCONT');
  /** An ioredis client that is closed with the file. */
  self.client = (options = {}) => {
    const client = new Redis({ host: '127.0.0.1', port: self.port, maxRetriesPerRequest: null, ...secured, ...options });
    client.on('error', () => {});
    clients.add(client);
    return client;
  };
  self.connection = { host: '127.0.0.1', port: self.port, maxRetriesPerRequest: null, ...secured };
  atEnd(async () => {
    for (const client of clients) client.disconnect();
    await self.kill();
  });
  for (let attempt = 1; ; attempt++) {
    try {
      await launch();
      return self;
    } catch (error) {
      if (attempt === 5) throw error;
      self.port = await freePort();
      self.url = `${self.scheme}://127.0.0.1:${self.port}`;
      self.connection.port = self.port;
    }
  }
}

/**
 * A TCP proxy to `port` on this machine. freeze(): connections now open stay open, but no byte passes either way
 * ever again, like a firewall that forgot them. cut(): resets them. refuse = true: new ones are closed at once;
 * blackhole = true: new ones are accepted and never answered. delayMs: what bytes wait in either direction.
 */
export async function startProxy(port) {
  const self = { refuse: false, blackhole: false, delayMs: 0 };
  const pairs = new Set();
  const server = createServer((client) => {
    client.on('error', () => {});
    if (self.refuse) return client.destroy();
    const pair = { frozen: self.blackhole, sockets: [client, createConnection({ host: '127.0.0.1', port })] };
    pairs.add(pair);
    relay(pair, 0, 1);
    relay(pair, 1, 0);
  }).listen(0, '127.0.0.1');
  const relay = (pair, from, to) => {
    const [source, target] = [pair.sockets[from], pair.sockets[to]];
    source.on('data', async (bytes) => {
      if (self.delayMs) await sleep(self.delayMs);
      if (!pair.frozen && !target.destroyed) target.write(bytes);
    });
    source.on('error', () => {});
    source.on('close', () => {
      if (pair.frozen) return;
      target.destroy();
      pairs.delete(pair);
    });
  };
  await once(server, 'listening');
  self.port = server.address().port;
  self.url = `${everywhere ? 'rediss' : 'redis'}://127.0.0.1:${self.port}`;
  self.freeze = () => {
    for (const pair of pairs) pair.frozen = true;
  };
  self.cut = () => {
    for (const pair of pairs) for (const socket of pair.sockets) socket.resetAndDestroy();
  };
  atEnd(() => {
    self.refuse = true;
    self.cut();
    server.close();
  });
  return self;
}
