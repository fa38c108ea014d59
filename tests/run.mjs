// Runs all tests: unit tests, integration, and the integration suite against the sanitizer build. The last line is
// exactly `N passed, N failed` over all of them; a skipped test, or a suite that crashes, counts as failed.
//
//   tests/run [suite...]      suites: see `suites` below (default: all but those of `elsewhere`)
//   TEST_ONLY=clients,reply   only these files of a suite of node tests
//   REDIS_SERVER=valkey-server, REDIS_TLS=yes   on another server; all of Redis by TLS
//   UNIT_DIR, WORKER_BIN, SANITIZER_BIN   other builds than build/san/unit, build/test/sandpiper, build/san/sandpiper
import { spawn } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const only = process.env.TEST_ONLY?.split(',');
const total = { passed: 0, failed: 0 };
const children = new Set();
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    for (const child of children) child.kill(signal);
    process.exit(130);
  });
}

/** Runs a program, handing each line it prints to onLine; its exit code, or 128 + signal. */
function run(program, args, { env = {}, onLine }) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    children.add(child);
    for (const stream of [child.stdout, child.stderr]) {
      let rest = '';
      stream.setEncoding('utf8');
      stream.on('data', (text) => {
        const lines = (rest + text).split('\n');
        rest = lines.pop();
        lines.forEach(onLine);
      });
      stream.on('end', () => rest && onLine(rest));
    }
    child.on('error', (error) => onLine(`not ok: ${error.message}`));
    child.on('close', (code, signal) => {
      children.delete(child);
      resolve(code ?? 128 + (signal ? 1 : 0));
    });
  });
}

/** One cmocka program: a test that was begun and did not say OK (failed, skipped, crashed) is a failed one. */
async function runUnit(program) {
  const lines = [];
  const code = await run(program, [], { onLine: (line) => lines.push(line) });
  const begun = lines.filter((line) => /^\[ RUN {6}\]/.test(line)).length;
  const passed = lines.filter((line) => /^\[ {7}OK \]/.test(line)).length;
  const count = { passed, failed: begun - passed };
  if ((code !== 0 || passed === 0) && count.failed === 0) count.failed = 1; // crashed at its end, or leaked
  if (count.failed) console.log(lines.join('\n'));
  return count;
}

async function unit() {
  const dir = join(root, process.env.UNIT_DIR ?? 'build/san/unit');
  const count = { passed: 0, failed: 0 };
  const sources = readdirSync(join(root, 'tests/unit')).filter((name) => /^test_[a-z0-9_]+\.c$/.test(name));
  // `make build-unit` has built those that this machine can run (no test of TLS where hiredis has none).
  for (const name of sources.map((source) => source.replace('.c', '')).filter((one) => existsSync(join(dir, one))).sort()) {
    const one = await runUnit(join(dir, name));
    count.passed += one.passed;
    count.failed += one.failed;
    console.log(`  ${name}: ${one.passed} passed, ${one.failed} failed`);
  }
  if (count.passed === 0) count.failed++; // nothing was built: not a success
  return count;
}

/** node:test in TAP: counts the leaves (tests that have no subtests of their own). */
async function nodeTests(env, dir = 'tests/integration') {
  const count = { passed: 0, failed: 0 };
  const files = readdirSync(join(root, dir)).filter((name) => /\.test\.mjs$/.test(name))
    .filter((name) => !only || only.includes(name.replace('.test.mjs', ''))).sort();
  const concurrency = process.env.TEST_CONCURRENCY ?? Math.max(2, availableParallelism());
  const reported = {};
  // A test, or a file, that hangs is ended: it may cost minutes, never all of them.
  const code = await run(process.execPath, ['--test', `--test-concurrency=${concurrency}`, `--test-timeout=${20 * 60_000}`,
    '--test-reporter', join(root, 'tests/lib/reporter.mjs'), ...files.map((name) => join(dir, name))], {
    env,
    onLine: (line) => {
      const counted = /^# counted (\d+) passed, (\d+) failed$/.exec(line);
      if (counted) Object.assign(reported, { passed: Number(counted[1]), failed: Number(counted[2]) });
      else console.log(line);
    },
  });
  Object.assign(count, reported);
  if (reported.passed === undefined || (code !== 0 && count.failed === 0)) count.failed++;
  return count;
}

/** A script that judges itself: one test, passed when it ends well. */
async function script(program, env) {
  const lines = [];
  const code = await run(program, [], { env, onLine: (line) => lines.push(line) });
  console.log(code ? lines.join('\n') : `  ${lines.at(-1)}`);
  return code ? { passed: 0, failed: 1 } : { passed: 1, failed: 0 };
}

const WORKER_BIN = process.env.WORKER_BIN ?? 'build/test/sandpiper';
/** A suite of node tests in tests/<dir>, on the test build. */
const tests = (dir) => () => nodeTests({ WORKER_BIN }, `tests/${dir}`);

const suites = {
  unit,
  integration: tests('integration'),
  client: tests('client'), // docker/client
  server: tests('server'), // docker/server
  conformance: tests('conformance'),
  package: tests('package'), // install, Debian package, bill of materials
  ops: tests('ops'), // what operations see
  redis: tests('redis'), // how Redis is run
  model: () => script('tests/model/run', {}),
  escape: tests('escape'), // LOCAL's isolation
  web: tests('web'), // the page, in Chromium
  valgrind: () => script('tests/valgrind', { WORKER_BIN }),
  'e2b-fidelity': tests('e2b/fidelity'), // the emulator, by the official E2B clients
  'e2b-driver': tests('e2b/driver'),
  chaos: tests('chaos'), // a short seeded run
  tls: tests('tls'), // Redis by TLS
  sanitizers: () => nodeTests({ WORKER_BIN: process.env.SANITIZER_BIN ?? 'build/san/sandpiper' }),
};

const elsewhere = ['tls']; // needs hiredis 1.0: run by tests/debian13/run

const chosen = process.argv.slice(2);
const unknown = chosen.find((name) => !suites[name]);
if (unknown) {
  console.error(`no suite named ${unknown}; there are ${Object.keys(suites).join(', ')}`);
  process.exit(2);
}
for (const name of chosen.length ? chosen : Object.keys(suites).filter((name) => !elsewhere.includes(name))) {
  console.log(`== ${name}`);
  const begun = Date.now();
  let count;
  try {
    count = await suites[name]();
  } catch (error) {
    console.log(`  ${name} could not run: ${error.message}`);
    count = { passed: 0, failed: 1 };
  }
  total.passed += count.passed;
  total.failed += count.failed;
  console.log(`== ${name}: ${count.passed} passed, ${count.failed} failed in ${((Date.now() - begun) / 1000).toFixed(1)} s`);
}
console.log(`${total.passed} passed, ${total.failed} failed`);
process.exitCode = total.failed ? 1 : 0;
