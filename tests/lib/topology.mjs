// Redis as it is run in production: a master with replicas and sentinels, and a cluster; on loopback.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Cluster, Redis } from 'ioredis';
import { atEnd, start, tempDir, waitFor } from './process.mjs';
import { freePort, redisServer, startRedis } from './redis.mjs';
import { everywhere } from './tls.mjs';

const secured = everywhere ? { tls: everywhere.options } : {};

const patience = { timeout: 60_000 };

/** Clients that are closed with the file. */
function keeper() {
  const clients = new Set();
  atEnd(() => {
    for (const client of clients) client.disconnect();
  });
  return (client) => {
    client.on('error', () => {});
    clients.add(client);
    return client;
  };
}

/** Options of the command line as lines of a configuration file. */
const configOf = (args) => args.flatMap((word, i) => (i % 2 ? [] : [`${word.slice(2)} ${args[i + 1]}`]));

async function startSentinel(master, { name, auth }) {
  const dir = tempDir('sandpiper-sentinel-');
  for (let attempt = 1; ; attempt++) {
    const port = await freePort();
    const config = join(dir, `sentinel-${port}.conf`);
    writeFileSync(config, [
      ...(everywhere ? ['port 0', `tls-port ${port}`, ...configOf(everywhere.args)] : [`port ${port}`]), 'bind 127.0.0.1', `dir ${dir}`, 'protected-mode no',
      `sentinel monitor ${name} 127.0.0.1 ${master.port} 2`,
      `sentinel down-after-milliseconds ${name} 1000`,
      `sentinel failover-timeout ${name} 6000`,
      ...(auth ? [`requirepass ${auth}`, `sentinel sentinel-pass ${auth}`] : []), '',
    ].join('\n'));
    const process = start(redisServer, [config, '--sentinel']);
    atEnd(async () => {
      process.kill('SIGKILL');
      await process.exited;
    });
    try {
      await process.waitLine(/Sentinel ID is|\+monitor master/i, patience);
      return { port, process };
    } catch (error) {
      if (attempt === 5) throw error;
    }
  }
}

/**
 * A master, a replica and three sentinels that agree about them. `connection` is what BullMQ takes, `env` what a
 * worker does. master() asks a sentinel for the port; `servers` are the two redis-servers.
 */
export async function startSentinels({ name = 'mymaster', auth = '' } = {}) {
  const first = await startRedis();
  const second = await startRedis({ args: ['--replicaof', '127.0.0.1', String(first.port)] });
  const sentinels = [];
  for (let i = 0; i < 3; i++) sentinels.push(await startSentinel(first, { name, auth }));
  const keep = keeper();
  const addresses = sentinels.map(({ port }) => ({ host: '127.0.0.1', port }));
  const asked = addresses.map(({ host, port }) => keep(new Redis({ host, port, password: auth || undefined, ...secured })));
  await waitFor(async () => {
    for (const one of asked) {
      const flat = (await one.call('SENTINEL', 'MASTERS'))[0];
      const known = Object.fromEntries(flat.flatMap((v, i) => (i % 2 ? [] : [[v, flat[i + 1]]])));
      if (known['num-other-sentinels'] !== '2' || known['num-slaves'] !== '1') return false;
    }
    return true;
  }, { ...patience, what: 'the sentinels know each other and the replica' });
  await waitFor(async () => /master_link_status:up/.test(await second.client().info('replication')), { ...patience, what: 'the replica is in step' });
  const connection = {
    sentinels: addresses, name, sentinelPassword: auth || undefined, maxRetriesPerRequest: null, sentinelRetryStrategy: () => 100, retryStrategy: () => 100,
    ...(everywhere ? { ...secured, sentinelTLS: everywhere.options, enableTLSForSentinelMode: true } : {}),
  };
  return {
    servers: [first, second], sentinels, asked, connection, url: `${first.scheme}://127.0.0.1:1`, scheme: first.scheme,
    env: {
      REDIS_SENTINELS: addresses.map(({ host, port }) => `${host}:${port}`).join(','), REDIS_SENTINEL_MASTER: name,
      ...(auth ? { REDIS_SENTINEL_PASSWORD: auth } : {}), ...(everywhere ? { REDIS_SENTINEL_TLS: 'true' } : {}),
    },
    client: () => keep(new Redis(connection)),
    master: async (from = 0) => Number((await asked[from].call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', name))[1]),
  };
}

async function startNode(args) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await startRedis({ args: ['--cluster-enabled', 'yes', '--cluster-config-file', 'nodes.conf', '--cluster-node-timeout', '2000',
        '--cluster-port', String(await freePort()), '--cluster-require-full-coverage', 'no', ...(everywhere ? ['--tls-cluster', 'yes'] : []), ...args] });
    } catch (error) {
      if (attempt === 5) throw error;
    }
  }
}

/**
 * A cluster of three masters, and `replicas` more nodes that follow the one which has `tag`'s slot. owner() is the node
 * that has it now; `password`: what it asks for; move(to, first, between) migrates it: keys that
 * match `first`, then the others once between() is done.
 */
export async function startCluster({ tag = 'bull', replicas = 0, password } = {}) {
  const nodes = [];
  const args = password ? ['--requirepass', password, '--masterauth', password] : [];
  for (let i = 0; i < 3 + replicas; i++) nodes.push(await startNode(args));
  const admin = nodes.map((node) => node.client({ password }));
  const busOf = async (i) => Number((await admin[i].config('GET', 'cluster-port'))[1]);
  const bounds = [0, 5461, 10923, 16384];
  for (let i = 0; i < 3; i++) await admin[i].call('CLUSTER', 'ADDSLOTSRANGE', bounds[i], bounds[i + 1] - 1);
  for (let i = 0; i < nodes.length; i++) await admin[i].call('CLUSTER', 'SET-CONFIG-EPOCH', i + 1);
  for (let i = 1; i < nodes.length; i++) await admin[0].call('CLUSTER', 'MEET', '127.0.0.1', nodes[i].port, await busOf(i));
  const agreed = async () => {
    for (const one of admin) {
      const info = await one.call('CLUSTER', 'INFO');
      if (!/cluster_state:ok/.test(info) || !info.includes(`cluster_known_nodes:${nodes.length}`)) return false;
    }
    return true;
  };
  await waitFor(agreed, { ...patience, what: 'the nodes of the cluster agree' });
  const slot = await admin[0].call('CLUSTER', 'KEYSLOT', tag);
  const ids = await Promise.all(admin.map((one) => one.call('CLUSTER', 'MYID')));
  const ownerIndex = (from = 0) => admin[from].call('CLUSTER', 'SLOTS')
    .then((ranges) => ids.indexOf(ranges.find(([a, b]) => a <= slot && slot <= b)?.[2][2]));
  const home = await ownerIndex();
  for (let i = 3; i < nodes.length; i++) {
    await waitFor(() => admin[i].call('CLUSTER', 'REPLICATE', ids[home]), { ...patience, what: 'a node becomes a replica' });
    await waitFor(async () => /master_link_status:up/.test(await admin[i].info('replication')), { ...patience, what: 'it is in step' });
  }
  const keep = keeper();
  const options = { redisOptions: { maxRetriesPerRequest: null, password, ...secured }, clusterRetryStrategy: () => 100, retryDelayOnTryAgain: 50, maxRedirections: 1000 };
  const seeds = nodes.map(({ port }) => ({ host: '127.0.0.1', port }));
  const client = () => {
    const one = keep(new Cluster(seeds, options));
    const ofAll = async (pattern) => (await Promise.all(one.nodes('master').map((node) => node.keys(pattern)))).flat();
    one.keys = ofAll;
    return one;
  };
  const self = { nodes, admin, ids, slot, ownerIndex, client, prefix: `{${tag}}`, home };
  self.url = nodes[(home + 1) % 3].url.replace('://', password ? `://:${password}@` : '://');
  Object.defineProperty(self, 'connection', { get: client });
  const migrate = async (from, to, first) => {
    for (;;) {
      const keys = (await admin[from].call('CLUSTER', 'GETKEYSINSLOT', slot, 10_000)).filter((key) => first.test(key)).slice(0, 100);
      if (keys.length === 0) return;
      await admin[from].call('MIGRATE', '127.0.0.1', nodes[to].port, '', 0, 5000, 'KEYS', ...keys);
    }
  };
  self.move = async (to, first, between) => {
    const from = await ownerIndex();
    await admin[to].call('CLUSTER', 'SETSLOT', slot, 'IMPORTING', ids[from]);
    await admin[from].call('CLUSTER', 'SETSLOT', slot, 'MIGRATING', ids[to]);
    await migrate(from, to, first);
    await between();
    await migrate(from, to, /^/);
    for (const i of [to, from, ...[0, 1, 2].filter((n) => n !== to && n !== from)]) {
      await admin[i].call('CLUSTER', 'SETSLOT', slot, 'NODE', ids[to]);
    }
  };
  return self;
}
