// LOCAL in production: only where code can be isolated; else it is DISABLED, and says why (case 139). Networks.
import assert from 'node:assert/strict';
import { existsSync, statSync } from 'node:fs';
import test from 'node:test';
import { startRedis } from '../lib/redis.mjs';
import { isolated, machineIsolates, ownAddress, refused, replica, rootMay, users, worker, world } from './world.mjs';

const redis = await startRedis();
for (const user of users) {
  test(`${user}: isolated by bubblewrap, LOCAL serves production, without network unless asked`, isolated(redis, user, async (t) => {
    const r = await worker(t, redis, user, { NODE_ENV: 'production' });
    const result = await r.py('import socket; print([name for _, name in socket.if_nameindex()])', { threadId: 't' });
    assert.equal(result.stdout, "['lo']\n", result.error);
    const seen = await replica(r, (one) => one.enabled === '1');
    assert.deepEqual([seen.driver, seen.why], ['LOCAL', '']);
  }));

  test(`${user}: where namespaces cannot be made, LOCAL is DISABLED in production`, async (t) => {
    const none = 'sh -c \'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --inh-caps=-all --ambient-caps=-all "$0"\'';
    if (!machineIsolates) return refused(await worker(t, redis, user, { NODE_ENV: 'production' }), /./);
    const before = user === 'root' ? 'unshare --user --map-root-user' : `unshare --user --map-current-user --keep-caps ${none}`;
    const r = await worker(t, redis, user, { NODE_ENV: 'production' }, { before });
    await refused(r, user === 'root' ? /no user \d+ here/ : /bwrap: .*namespace/);
  });
}

test('what does not isolate is DISABLED in production: no bubblewrap, or the machine\'s network', async (t) => {
  await refused(await worker(t, redis, users[0], { CODE_INTERPRETER_LOCAL_ISOLATION: 'none' }), /ISOLATION=none is for development only/);
  await refused(await worker(t, redis, users[0], { CODE_INTERPRETER_LOCAL_NETWORK: 'host' }), /NETWORK=host is for development only/);
  await refused(await worker(t, redis, users[0], { CODE_INTERPRETER_LOCAL_PYTHON: '/bin/false' }), /gave no answer/);
});

const tapForAll = existsSync('/dev/net/tun') && (statSync('/dev/net/tun').mode & 0o006) === 0o006;

for (const user of users) {
  test(`${user}: internet: the way out is there, the machine and private networks are not`, isolated(redis, user, async (t) => {
    const r = await worker(t, redis, user, { NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_NETWORK: 'internet' });
    if (user !== 'root' && !tapForAll || !existsSync('/dev/net/tun')) return refused(r, /net\/tun/);
    if (user === 'root' && !rootMay.enter) return refused(r, /ns\/net|setns|not permitted/);
    const what = await world(redis, user);
    const targets = [['127.0.0.1', what.redisPort], ['10.0.2.2', what.redisPort], ['10.0.2.2', what.serverPort], [ownAddress(), what.serverPort],
      ['169.254.169.254', 80], ['10.1.2.3', 80], ['172.16.0.1', 80], ['192.168.1.1', 80], ['100.64.0.1', 80], ['::1', what.serverPort],
      ['fd00::2', what.serverPort], ['fe80::1', 80], ['10.0.2.100', what.serverPort]];
    const result = await r.py(`
import socket, subprocess
for target in ${JSON.stringify(targets)}:
    try:
        socket.create_connection(target, 10).close()
        print("REACHED", target)
    except OSError as error:
        print("closed", target, error)
print(open("/etc/resolv.conf").read(), open("/proc/net/route").read(), sep="\\n")
print(subprocess.run("ip route del prohibit 10.0.0.0/8", shell=True, capture_output=True, text=True).returncode)`, { threadId: 't' });
    assert.equal(result.reason, 'ok', result.error);
    assert.doesNotMatch(result.stdout, /REACHED/);
    assert.equal(result.stdout.match(/^closed/gm).length, targets.length);
    assert.match(result.stdout, /nameserver 10\.0\.2\.3/);
    assert.match(result.stdout, /^tap0\s+00000000\s+0202000A/m, 'a default route');
    assert.doesNotMatch(result.stdout, /\n0\n$/, 'its routes are not its own');
  }));
}
