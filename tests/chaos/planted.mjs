// Shows that the suite sees what it is for: three builds of the worker, each with one safeguard taken out, must each
// break the invariant that the safeguard is for. `make test-chaos-planted [SEED=n]`
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const firstSeed = Number(process.env.SEED || 1);
const seeds = [firstSeed, firstSeed + 1, firstSeed + 2]; // until it is seen: what meets what is also up to the machine

/** Each: what to take out of which script, and the invariants of which at least one must be seen broken; `none`: what is then left nowhere. */
const faults = {
  'the token check of the reply script': { file: 'reply.lua', out: [
    'if not lock and not spRevive(jobKey, KEYS[1], jobId, token, 5000) then return -2 end',
    'if lock and lock ~= token then return -6 end'],
  seen: ['at most one done for each job, and it is the last message', 'what a job ended with is what happened'] },
  'the lease check of the claim': { file: 'threads.lua', out: ['local held = holder and spHolds(leaseKey, holder)'],
    put: 'local held = false', seen: ['no two jobs of a thread overlap'] },
  'the mark of a started run': { file: 'reply.lua', out: ['rcall("HSET", jobKey, "sp:run", mark)', ', "sp:run", mark'], none: '"sp:run", mark',
    seen: ['code runs at most once, unless it is idempotent'] },
};

function build(name, { file, out, put = '', none }) {
  const dir = join(root, 'build/planted', name.replaceAll(' ', '-'));
  mkdirSync(dir, { recursive: true });
  cpSync(join(root, 'build/test'), join(dir, 'test'), { recursive: true, preserveTimestamps: true });
  cpSync(join(root, 'worker/queue/lua'), join(dir, 'lua'), { recursive: true, preserveTimestamps: true });
  let text = readFileSync(join(dir, 'lua', file), 'utf8');
  for (const part of out) {
    if (!text.includes(part)) throw new Error(`${file} has changed: it has no line "${part}" to take out`);
    text = text.replaceAll(part, () => put);
  }
  if (none && text.includes(none)) throw new Error(`${file} has changed: it still has ${none}`);
  writeFileSync(join(dir, 'lua', file), text);
  execFileSync('make', ['--no-print-directory', '-s', 'all', 'TEST_BUILD=1', `BUILD=${join(dir, 'test')}`, `LUA=${join(dir, 'lua')}`],
    { cwd: root, stdio: 'inherit' });
  return join(dir, 'test/sandpiper');
}

const run = (bin, seed) => new Promise((resolve) => {
  const child = spawn(process.execPath, [join(root, 'tests/chaos/short.mjs')],
    { cwd: root, env: { ...process.env, WORKER_BIN: bin, SEED: String(seed), SIDES: '0' }, stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (bytes) => { text += bytes; });
  child.on('close', () => resolve(JSON.parse(text.trim().split('\n').at(-1))));
});

let missed = 0;
for (const [name, fault] of Object.entries(faults)) {
  const bin = build(name, fault);
  let found = [], seed;
  for (seed of seeds) {
    const { findings } = await run(bin, seed);
    found = fault.seen.flatMap((invariant) => findings[invariant].map((text) => `${invariant}: ${text.slice(0, 200)}`));
    if (found.length) break;
  }
  if (found.length === 0) missed++;
  console.log(`${found.length ? 'seen' : 'NOT SEEN'}: without ${name} (seed ${seed}), ${found.length} findings${found.length ? `, the first:\n    ${found[0]}` : ''}`);
}
console.log(missed ? `${missed} planted faults were not seen` : `all ${Object.keys(faults).length} planted faults were seen`);
process.exitCode = missed ? 1 : 0;
