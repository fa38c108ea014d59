// The same jobs by a stock BullMQ 6.7.0 Worker and by Sandpiper leave the same keys and events behind.
//   CONFORMANCE_ONLY=flow      only scenarios whose name has it
//   CONFORMANCE_PRODUCERS=6.7.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { inspect } from 'node:util';
import { startRedis } from '../lib/redis.mjs';
import { clients } from '../lib/rig.mjs';
import { scenarios } from './scenarios.mjs';
import { difference, snapshot } from './snapshot.mjs';
import { World } from './world.mjs';

const server = await startRedis({ args: ['--databases', '1024'] });
const only = process.env.CONFORMANCE_ONLY;
const producers = Object.keys(clients).filter((v) => (process.env.CONFORMANCE_PRODUCERS ?? v).split(',').includes(v)).reverse();
const parallel = Number(process.env.CONFORMANCE_PARALLEL ?? 12);
const table = new Map(); // scenario -> {producer: cell}

const older = (a, b) => a.localeCompare(b, undefined, { numeric: true }) < 0;

/** Plays a scenario on one side; what is left, and what it noted. */
async function play(kind, version, { play: steps, world: options }, threads) {
  const world = new World(server, kind, version, { ...options, threads });
  try {
    await steps(world);
    return { ...(await snapshot(world.redis, kind)), notes: world.notes };
  } catch (error) {
    throw new Error(`${kind}: ${error.message}${world.workers[0]?.log ? `\n${world.workers[0].log.tail(12)}` : ''}`, { cause: error });
  } finally {
    await world.close();
  }
}

/** Both sides of a scenario; the differences. */
async function compare(version, scenario, threads) {
  const [stock, ours] = await Promise.all([play('stock', version, scenario, threads), play('ours', version, scenario, threads)]);
  assert.ok(Object.keys(stock).length > 2, 'the stock side left nothing');
  return difference(stock, ours);
}

const rows = scenarios.filter(({ name }) => !only || name.includes(only)).flatMap((scenario) =>
  [{ scenario, threads: false, name: scenario.name }, ...(scenario.threads ? [{ scenario, threads: true, name: `${scenario.name} (one thread)` }] : [])]);

test('conformance', { concurrency: parallel }, async (t) => {
  const all = [];
  for (const { scenario, threads, name } of rows) {
    table.set(name, {});
    for (const version of producers) {
      const skip = (scenario.since && older(version, scenario.since)) || (scenario.only && scenario.only !== version);
      table.get(name)[version] = skip ? 'n/a' : '?';
      if (skip) continue;
      all.push(t.test(`${name}, added by ${version}`, async () => {
        table.get(name)[version] = 'FAILED';
        const found = await compare(version, scenario, threads);
        table.get(name)[version] = found.length ? `${found.length} differ` : '=';
        assert.ok(found.length === 0, `\n${inspect(found, { depth: 8, breakLength: 140 })}`);
      }));
    }
  }
  await Promise.all(all);
  const line = (name, cells) => `${name.padEnd(66)} ${cells.map((c) => c.padEnd(9)).join(' ')}`;
  await t.test('table', (tt) => {
    tt.diagnostic(line('scenario x producer (= no difference)', producers));
    for (const [name, cells] of table) tt.diagnostic(line(name, producers.map((v) => cells[v])));
  });
});
