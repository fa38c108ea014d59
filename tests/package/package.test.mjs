// What is installed, packaged and written down for others: install and uninstall, the Debian package, the bill of materials, docker/.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { tempDir, waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const sh = (program, ...args) => execFileSync(program, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
const files = (dir) => readdirSync(dir, { recursive: true, withFileTypes: true })
  .filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath ?? entry.path, entry.name)).sort();
const version = /^SANDPIPER := (.*)$/m.exec(readFileSync(join(root, 'Makefile'), 'utf8'))[1];

test('make install puts all below DESTDIR and PREFIX, make uninstall takes all away', () => {
  const dest = tempDir();
  sh('make', '-s', 'install', `DESTDIR=${dest}`, 'PREFIX=/opt/sp');
  const names = files(dest).map((name) => name.slice(dest.length));
  for (const name of ['/opt/sp/bin/sandpiper', '/opt/sp/share/man/man1/sandpiper.1', '/opt/sp/lib/systemd/system/sandpiper.service',
     '/opt/sp/share/doc/sandpiper/THIRD_PARTY_NOTICES', '/opt/sp/share/doc/sandpiper/LICENSE', '/opt/sp/share/doc/sandpiper/prometheus-rules.yml']) assert.ok(names.includes(name), `${name} in ${names}`);
  assert.ok(names.every((name) => name.startsWith('/opt/sp/')), String(names));
  assert.equal(sh(join(dest, 'opt/sp/bin/sandpiper'), '--version').trim(), `sandpiper ${version}`);
  assert.match(readFileSync(join(dest, 'opt/sp/lib/systemd/system/sandpiper.service'), 'utf8'), /^ExecStart=\/opt\/sp\/bin\/sandpiper/m);
  sh('make', '-s', 'uninstall', `DESTDIR=${dest}`, 'PREFIX=/opt/sp');
  assert.deepEqual(files(dest), []);
});

test('make deb: a package with its dependencies, whose worker runs', () => {
  sh('make', '-s', 'deb');
  const deb = files(join(root, 'build/deb')).find((name) => name.endsWith('.deb'));
  const field = (name) => sh('dpkg-deb', '-f', deb, name).trim();
  assert.deepEqual([field('Package'), field('Version')], ['sandpiper', version]);
  for (const library of ['libc6', 'libcurl4', 'libev4', 'libhiredis', 'libjansson4']) assert.ok(field('Depends').includes(library), field('Depends'));
  const dir = tempDir();
  sh('dpkg-deb', '-x', deb, dir);
  assert.equal(sh(join(dir, 'usr/bin/sandpiper'), '--version').trim(), `sandpiper ${version}`);
  assert.match(sh('dpkg-deb', '-c', deb), /-rwxr-xr-x root\/root .*\.\/usr\/bin\/sandpiper/);
  assert.ok(statSync(deb).size < 2 << 20);
});

test('make sbom names each library of the binary, and BullMQ with the hash that the build checks', () => {
  sh('make', '-s', 'sbom');
  const bom = JSON.parse(readFileSync(join(root, 'build/sbom.json'), 'utf8'));
  assert.deepEqual([bom.bomFormat, bom.metadata.component.version], ['CycloneDX', version]);
  const needed = [...sh('objdump', '-p', 'build/release/sandpiper').matchAll(/NEEDED\s+(\S+)/g)].map((match) => match[1]);
  const listed = bom.components.flatMap((one) => (one.properties ?? []).filter((p) => p.name === 'soname').map((p) => p.value));
  assert.deepEqual(listed.sort(), needed.sort());
  assert.equal(new Set(bom.components.map((one) => one.purl)).size, bom.components.length);
  const lock = JSON.parse(readFileSync(join(root, 'worker/queue/lua/bullmq.lock'), 'utf8'));
  const [bullmq] = bom.components.filter((one) => one.name === 'bullmq');
  assert.equal(bullmq.version, lock.version);
  assert.equal(Buffer.from(bullmq.hashes[0].content, 'hex').toString('base64'), lock.integrity.replace('sha512-', ''));
});

test('docker/: each setting named there exists, and the images get the libraries that the binary needs', () => {
  const settings = new Set([...sh('build/release/sandpiper', '--help').matchAll(/^ *([A-Z][A-Z0-9_]+)\b/gm)].map((match) => match[1]));
  const known = (name) => settings.has(name) || (name.endsWith('_FILE') && settings.has(name.slice(0, -5)));
  let seen = 0;
  for (const name of ['docker/compose.yml', ...readdirSync(join(root, 'docker/k8s')).map((one) => `docker/k8s/${one}`), 'docker/Dockerfile']) {
    const text = readFileSync(join(root, name), 'utf8');
    const worker = name.endsWith('compose.yml') ? text.slice(text.indexOf('x-worker:'), text.indexOf('\n  server:')) : text;
    for (const [, setting] of worker.matchAll(/(?:name: |^ +|ENV )([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:: |,|=|$)/gm)) {
      assert.ok(known(setting), `${name}: ${setting} is no setting`);
      seen++;
    }
  }
  assert.ok(seen > 15, `${seen} settings seen`);
  // Compose copies such secrets into the container, which fails where it is read-only.
  const compose = readFileSync(join(root, 'docker/compose.yml'), 'utf8');
  assert.ok(!/^ +read_only: true/m.test(compose) || !/^secrets:\n(?:  .*\n)*.*\benvironment:/m.test(compose), 'a secret of the environment in a read-only service');
});

test('--health asks a running worker; /stats is the stats hash as JSON', async (t) => {
  const r = await makeRig(t, await startRedis(), { env: { STATUS_PORT: '-1', LOG_FORMAT: 'json' } });
  const line = await r.worker.waitLine(/status port: listening/, { timeout: 60_000 });
  const port = /port (\d+)/.exec(line)[1];
  const health = (env) => spawnSync(join(root, 'build/release/sandpiper'), ['--health'], { env: { ...process.env, ...env }, encoding: 'utf8' });
  await waitFor(async () => (await fetch(`http://127.0.0.1:${port}/healthz`)).ok, { timeout: 60_000, what: 'healthy' });
  const fine = health({ STATUS_PORT: port, STATUS_HOST: '0.0.0.0', http_proxy: 'http://127.0.0.1:1' });
  assert.deepEqual([fine.status, fine.stdout], [0, ''], fine.stderr);
  assert.match(health({ STATUS_PORT: '0' }).stderr, /STATUS_PORT/);
  assert.equal(health({ STATUS_PORT: '0' }).status, 1);
  await r.queue.pause();
  await r.queue.add('execute', {});
  const stats = await waitFor(async () => {
    const now = await (await fetch(`http://127.0.0.1:${port}/stats`)).json();
    return now.waiting === 1 && now;
  }, { timeout: 60_000, what: 'a job is counted' });
  assert.deepEqual([stats.paused, stats.runnable, stats.running], [1, 0, 0]);
  await r.queue.drain();
  r.worker.kill('SIGSTOP');
  try {
    assert.equal(health({ STATUS_PORT: port }).status, 1);
  } finally {
    r.worker.kill('SIGCONT');
  }
});
