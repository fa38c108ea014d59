// The man page and the systemd unit: as `make install` puts them there, and without a warning of the tools that read them.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { tempDir } from '../lib/process.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const make = (...args) => execFileSync('make', ['--no-print-directory', '-s', ...args], { cwd: root, encoding: 'utf8' });
const prefix = tempDir('sandpiper-installed-');
// The build that `make test` has made: only its man page and unit are looked at.
make('install', 'TEST_BUILD=1', `PREFIX=${prefix}`);
const page = join(prefix, 'share/man/man1/sandpiper.1');
const unit = join(prefix, 'lib/systemd/system/sandpiper.service');
const run = (program, ...args) => {
  const { status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, LC_ALL: 'C.UTF-8' } });
  return { status, out: stdout + stderr };
};

test('the man page reads without a warning, and has each setting', () => {
  assert.deepEqual(run('mandoc', '-Tlint', '-Wwarning', page), { status: 0, out: '' });
  const text = run('mandoc', '-Tascii', page).out.replace(/.\x08/g, '');
  const names = [...readFileSync(join(root, 'common/settings_table.c'), 'utf8').matchAll(/^ *\[SETTING_([A-Z0-9_]+)\] =/gm)];
  assert.ok(names.length > 50);
  for (const [, name] of names) assert.match(text, new RegExp(`^ +${name} \\(`, 'm'));
  for (const option of ['--check-config', '--health', '--help', '--version']) assert.ok(text.includes(option), option);
});

test('the systemd unit: verified, hardened, for the program that is installed', () => {
  const text = readFileSync(unit, 'utf8');
  assert.match(text, new RegExp(`^ExecStart=${prefix}/bin/sandpiper$`, 'm'));
  assert.deepEqual(run('systemd-analyze', 'verify', '--man=no', unit), { status: 0, out: '' });
  const exposure = (name) => Number(/exposure level for \S+: ([0-9.]+)/.exec(run('systemd-analyze', 'security', '--offline=true', name).out)[1]);
  assert.ok(exposure(unit) <= 2, `exposure ${exposure(unit)}`);
  // With the drop-in for LOCAL it is still a unit, and a less strict one.
  const dir = tempDir('sandpiper-unit-');
  const local = join(dir, 'sandpiper.service');
  writeFileSync(local, text);
  mkdirSync(`${local}.d`);
  writeFileSync(join(`${local}.d`, 'local.conf'), readFileSync(join(prefix, 'share/doc/sandpiper/systemd-local.conf')));
  assert.deepEqual(run('systemd-analyze', 'verify', '--man=no', local), { status: 0, out: '' });
  assert.ok(exposure(local) > exposure(unit));
  for (const line of ['RestrictNamespaces=no', 'ProtectKernelTunables=no', 'Delegate=yes', 'ProtectControlGroups=no']) assert.match(readFileSync(join(`${local}.d`, 'local.conf'), 'utf8'), new RegExp(`^${line}$`, 'm'));
});

test('the unit gives runs the time that the worker gives them, and starts it again for what may heal', () => {
  const field = (name) => new RegExp(`^${name}=(.*)$`, 'm').exec(readFileSync(unit, 'utf8'))[1];
  const drain = /\| `DRAIN_TIMEOUT_MS` \| [^|]*\| `(\d+)`/.exec(readFileSync(join(root, 'README.md'), 'utf8'))[1];
  assert.ok(Number(field('TimeoutStopSec')) * 1000 > Number(drain) + 10_000);
  assert.equal(field('Type'), 'notify');
  assert.equal(field('Restart'), 'on-failure');
  assert.equal(field('RestartPreventExitStatus'), '2 3');
});
