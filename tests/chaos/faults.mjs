// What is done to a run: a table of faults, and the hand that deals them until its time is over.
import { sleep } from '../lib/process.mjs';
import { scriptHashes } from './relay.mjs';

/** Places in a job's life where a worker can be met: the script call of each. `mark` is the reply's call that marks a run. */
const points = ['claim', 'mark', 'mark', 'reply', 'turn', 'moveToFinished', 'admit', 'moveToDelayed', 'retryJob', 'locks', 'wake',
  'moveStalledJobsToWait', 'file', 'cancel', 'cancelthread', 'release', 'removed', 'moveJobFromActiveToWait'];
function callOf(hashes, point) {
  const script = hashes[point === 'mark' ? 'reply' : point];
  if (!script) throw new Error(`the worker has no script ${point}`);
  return (bytes) => bytes.includes(script) && (point !== 'mark' || bytes.includes('"type":"started"'));
}

/** Long enough for a lock to expire, the job to be seen as stalled, and another worker to take it. */
const beyondLock = (world, r) => world.lockMs * (1.9 + r.next());

/** Faults of one worker; `place` is where, `r` its own random numbers. */
const ofWorkers = {
  kill: async ({ place, r }) => place.kill(r.int(0, 1500)),
  'stop beyond the lock': async ({ place, r, world }) => place.freeze(beyondLock(world, r)),
  'stop shortly': async ({ place, r, world }) => place.freeze(world.lockMs * r.next() * 0.8),
  drain: async ({ place, r }) => {
    await place.drain(r.int(0, 500));
    place.start();
  },
  'connections cut': async ({ place, r }) => {
    place.relay.cut();
    await sleep(r.int(0, 300));
  },
  'connections half open': async ({ place }) => place.relay.freeze(),
  'Redis unreachable': async ({ place, r, world }) => {
    place.relay.refuse = true;
    place.relay.cut();
    await sleep(r.int(200, world.lockMs * 2));
    place.relay.refuse = false;
  },
  'Redis far away': async ({ place, r }) => {
    place.relay.delayMs = r.int(20, 300);
    await sleep(r.int(1000, 3000));
    place.relay.delayMs = 0;
  },
};

/** What happens to a worker at a point; the pair is the connection it was met on. */
const atPoints = {
  killed: (place, pair, r) => place.kill(r.int(0, 800)),
  stopped: (place, pair, r, world) => place.freeze(beyondLock(world, r)),
  'cut off': (place, pair) => pair.cut(),
  'half open': (place, pair) => pair.freeze(),
  'held up': (place, pair, r, world) => sleep(beyondLock(world, r)),
};
/** Met in each round, for each guards something of its own; more are drawn. */
const metAlways = ['stopped before mark', 'stopped after mark', 'killed before mark', 'killed after mark', 'stopped before reply',
  'held up before reply', 'killed before turn', 'killed after turn', 'cut off after turn', 'stopped before turn', 'stopped after turn',
  'held up before turn', 'killed before moveToFinished', 'cut off after moveToFinished', 'killed after claim', 'cut off after claim', 'killed after admit', 'killed before admit'];

const drawnPoint = (r) => [r.weighed({ killed: 4, stopped: 4, 'cut off': 3, 'half open': 1, 'held up': 2 }), r.pick(['before', 'after']), r.pick(points)].join(' ');

async function meetAtPoint(described, { place, r, world, hashes }) {
  const [, how, when, name] = /^(.*) (before|after) (\w+)$/.exec(described);
  let met;
  const happened = new Promise((resolve) => { met = resolve; });
  const untrap = place.relay.trap(callOf(hashes, name), when, async (pair) => {
    world.log(`met: ${described} ${place.name}`);
    await atPoints[how](place, pair, r, world);
    met(true);
  });
  const giveUp = sleep(world.lockMs * 2).then(() => {
    if (!untrap()) return happened; // it is being met
    return false;
  });
  return Promise.race([happened, giveUp]);
}

/** Faults of the Redis that all share; one at a time. */
const ofRedis = {
  'Redis killed': ({ server, r }) => server.restart(r.int(0, 2500)),
  'Redis loading': ({ server, r }) => server.restartSlowly(r.int(500, 2500)),
  'Redis hangs': ({ server, r, world }) => server.hang(r.int(300, world.lockMs * 1.5)),
  'SCRIPT FLUSH': ({ admin }) => admin.script('FLUSH'),
  'CLIENT KILL': ({ admin }) => admin.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes'),
  'CLIENT PAUSE': async ({ admin, r, world }) => {
    const ms = r.int(200, world.lockMs * 1.5);
    await admin.client('PAUSE', ms, r.pick(['ALL', 'WRITE']));
    await sleep(ms);
  },
  OOM: async ({ admin, r }) => {
    await admin.config('SET', 'maxmemory', '1mb');
    await sleep(r.int(200, 2500));
    await admin.config('SET', 'maxmemory', '0');
  },
  failover: async ({ server, r }) => ((await server.failover(r.int(100, 1000))) ? undefined : null),
  'group destroyed': ({ admin, world }) => admin.xgroup('DESTROY', `${world.queues[0].P}stream:jobs`, 'workers'),
  'producers cut': async ({ world }) => world.producerRelays.forEach((relay) => relay.cut()),
};

/** Faults of emulated sandboxes: rules for requests, and things done behind the worker's back. */
const ofSandboxes = {
  'requests reset': (e2b, r) => rule(e2b, r, { match: { plane: r.pick(['control', 'interpreter', 'envd']) }, probability: 0.3, times: 0, reset: true }),
  'requests slow': (e2b, r) => rule(e2b, r, { match: {}, probability: 0.3, times: 0, delay_ms: r.int(50, 800) }),
  'control plane 500': (e2b, r) => rule(e2b, r, { match: { plane: 'control' }, probability: 0.5, times: 0, status: 500, body: 'oops' }),
  'control plane 429': (e2b, r) => rule(e2b, r, { match: { plane: 'control' }, probability: 0.5, times: 0, status: 429, body: 'slow down' }),
  'answers lost': (e2b, r) => rule(e2b, r, { match: { op: r.pick([['create'], ['connect', 'get'], ['execute'], ['kill']]) }, probability: 0.5, times: 0, lose: true }),
  'code cut': (e2b, r) => rule(e2b, r, { match: { op: 'execute' }, probability: 0.4, times: 0, cut: r.int(0, 900), cut_by: r.pick(['close', 'reset']) }),
  'sandbox dies': (e2b, r) => act(e2b, r, 'kill'),
  'sandbox paused': (e2b, r) => act(e2b, r, 'pause'),
};
async function rule(e2b, r, fault) {
  const remove = await e2b.fault(fault);
  await sleep(r.int(500, 2500));
  await remove();
}
async function act(e2b, r, action) {
  const live = (await e2b.sandboxes()).filter((s) => s.state === 'running');
  if (live.length === 0) return null;
  await e2b.act(r.pick(live).id, action).catch(() => {}); // it may just have gone
  return undefined;
}

/** What hits workers is dealt only to one that nothing hits, what hits Redis only when nothing does. */
async function deal(table, { kind, name }, count) {
  const { world, admin, hashes } = table;
  const r = world.random(`fault ${world.dealt++}`);
  if (kind === 'redis') {
    world.log(`fault: ${name}`);
    table.redisBusy = true;
    const said = await ofRedis[name]({ server: world.server, admin, world, r }).finally(() => { table.redisBusy = false; });
    if (said !== null) count(name);
  } else if (kind === 'sandbox') {
    const { e2b } = r.pick(world.queues.filter((queue) => queue.e2b));
    world.log(`fault: E2B: ${name}`);
    if ((await ofSandboxes[name](e2b, r)) !== null) count(`E2B: ${name}`);
  } else {
    const place = r.pick(world.places.filter((one) => !one.busy));
    place.busy = true;
    world.log(`fault: ${name} ${place.name} (pid ${place.worker.pid})`);
    try {
      if (kind === 'worker') await ofWorkers[name]({ place, r, world });
      if (kind === 'worker' || await meetAtPoint(name, { place, r, world, hashes })) count(name);
    } finally {
      place.busy = false;
    }
  }
}

function shuffledDeck(world, r) {
  const cards = (kind, names) => names.map((name) => ({ kind, name }));
  return r.shuffle([
    ...cards('worker', [...Object.keys(ofWorkers), 'kill', 'stop beyond the lock']),
    ...cards('point', [...metAlways, ...Array.from({ length: 6 }, () => drawnPoint(r))]),
    ...cards('redis', Object.keys(ofRedis)),
    ...(world.queues.some((queue) => queue.e2b) ? cards('sandbox', Object.keys(ofSandboxes)) : []),
  ]);
}

/**
 * Deals faults until `until` (ms): one of each kind before any comes again. world.faults counts by name those that
 * happened. Resolves when all of them are over.
 */
export async function dealFaults(world, { until, everyMs }) {
  const r = world.random('faults');
  const table = { world, admin: world.server.client(), hashes: scriptHashes(), redisBusy: false };
  const under = new Set();
  const count = (name) => world.faults.set(name, (world.faults.get(name) ?? 0) + 1);
  let deck = [];
  while (Date.now() < until) {
    if (deck.length === 0) deck = shuffledDeck(world, r);
    const placeFree = world.places.some((place) => !place.busy);
    const at = deck.findLastIndex(({ kind }) => (kind === 'redis' ? !table.redisBusy : kind === 'sandbox' || placeFree));
    if (at >= 0) {
      const [card] = deck.splice(at, 1);
      const fault = deal(table, card, count).catch((error) => world.broken.push(`the fault ${card.name} could not be dealt: ${error.stack}`));
      under.add(fault);
      fault.finally(() => under.delete(fault));
    }
    await sleep(everyMs * (0.5 + r.next()));
  }
  await Promise.all(under);
  for (const place of world.places) place.relay.cut(); // nothing half-open is left
  table.admin.disconnect();
}
