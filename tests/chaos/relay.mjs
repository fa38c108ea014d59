// A TCP relay in front of Redis: late, silent, cut or refusing, and with traps at named script calls.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { atEnd, sleep } from '../lib/process.mjs';
import { workerBin } from '../lib/rig.mjs';

/** SHA1 of the worker's scripts by name, from the file they were compiled from. */
export function scriptHashes() {
  const text = readFileSync(join(dirname(workerBin), 'gen/scripts.c'), 'utf8');
  const hashes = {};
  for (const [, name, sha] of text.matchAll(/^const struct redis_script script_(\w+) = .*"([0-9a-f]{40})"\};$/gm)) hashes[name] = sha;
  return hashes;
}

/**
 * A relay to the port that target() names, asked for each connection. freeze(): what is open now stays open, and no
 * byte passes ever again; cut(): resets all; `refuse`: new ones are closed; `delayMs`: what bytes wait. trap(): the
 * next request that matches(bytes) is met `before` it is passed on or `after` Redis has answered it, and
 * act(pair) is awaited while nothing of that connection moves.
 */
export async function startRelay(target) {
  const self = { refuse: false, delayMs: 0, traps: [] };
  const pairs = new Set();
  const server = createServer({ noDelay: true }, (client) => {
    client.on('error', () => {});
    if (self.refuse) return client.destroy();
    const upstream = createConnection({ host: '127.0.0.1', port: target(), noDelay: true });
    const pair = { frozen: false, sockets: [client, upstream], chains: [null, null], after: null };
    pair.freeze = () => { pair.frozen = true; };
    pair.cut = () => pair.sockets.forEach((socket) => socket.resetAndDestroy());
    pairs.add(pair);
    pass(pair, 0);
    pass(pair, 1);
  }).listen(0, '127.0.0.1');

  function pass(pair, from) {
    const [source, sink] = [pair.sockets[from], pair.sockets[1 - from]];
    const write = (bytes) => {
      if (!pair.frozen && !sink.destroyed) sink.write(bytes);
    };
    source.on('data', (bytes) => {
      const wait = met(pair, from, bytes);
      if (!wait && !pair.chains[from] && !self.delayMs) return write(bytes);
      const link = (pair.chains[from] ?? Promise.resolve()).then(async () => {
        if (wait) await wait();
        if (self.delayMs) await sleep(self.delayMs);
        write(bytes);
        if (pair.chains[from] === link) pair.chains[from] = null;
      });
      pair.chains[from] = link;
    });
    source.on('error', () => {});
    source.on('close', () => {
      if (pair.frozen) return;
      sink.destroy();
      pairs.delete(pair);
    });
  }

  /** What these bytes have to wait for, or undefined. */
  function met(pair, from, bytes) {
    const spring = (trap) => {
      self.traps = self.traps.filter((one) => one !== trap);
      return () => trap.act(pair);
    };
    if (from === 1) {
      if (bytes.includes('-NOSCRIPT')) return undefined; // the same call comes again, with the script's text
      const trap = pair.after;
      pair.after = null;
      return self.traps.includes(trap) ? spring(trap) : undefined;
    }
    const trap = self.traps.find((one) => one.matches(bytes));
    if (trap?.when === 'before') return spring(trap);
    if (trap) pair.after = trap;
    return undefined;
  }

  await once(server, 'listening');
  self.port = server.address().port;
  self.url = `redis://127.0.0.1:${self.port}`;
  self.freeze = () => pairs.forEach((pair) => pair.freeze());
  self.cut = () => pairs.forEach((pair) => pair.cut());
  self.trap = (matches, when, act) => {
    const trap = { matches, when, act };
    self.traps.push(trap);
    return () => { // false: it has sprung
      const waiting = self.traps.includes(trap);
      self.traps = self.traps.filter((one) => one !== trap);
      return waiting;
    };
  };
  atEnd(() => {
    self.refuse = true;
    self.cut();
    server.close();
  });
  return self;
}
