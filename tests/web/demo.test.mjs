// `make demo-web`'s script: an address that serves the page, a worker that runs code; Ctrl-C stops everything.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { isAlive, start, waitFor } from '../lib/process.mjs';

const LONG = 90_000;

/** The process and all below it. */
function family(pid) {
  const parents = new Map();
  for (const name of readdirSync('/proc').filter((one) => /^\d+$/.test(one))) {
    try {
      parents.set(Number(name), Number(readFileSync(`/proc/${name}/stat`, 'utf8').split(') ').at(-1).split(' ')[1]));
    } catch {} // gone meanwhile
  }
  const found = [pid];
  for (const one of found) for (const [child, parent] of parents) if (parent === one) found.push(child);
  return found;
}

test('demo-web serves the page, runs code, and leaves nothing running', async () => {
  const demo = start(process.execPath, ['tests/demo/web.mjs'], { env: { ...process.env, PORT: '0' }, cwd: fileURLToPath(new URL('../..', import.meta.url)) });
  const base = /http:\S+/.exec(await demo.waitLine(/the page /, { timeout: LONG }))[0];
  assert.match(await (await fetch(base)).text(), /<title>Sandpiper/);
  const ran = await fetch(`${base}/threads/t/executions`, { method: 'POST', body: JSON.stringify({ code: 'print(6 * 7)' }), headers: { 'content-type': 'application/json' } });
  assert.equal(ran.status, 201);
  const { executionId } = await ran.json();
  const ended = await waitFor(async () => {
    const one = await (await fetch(`${base}/executions/${executionId}`)).json();
    return one.state === 'completed' && one;
  }, { timeout: LONG, what: 'the cell ends' });
  assert.equal(ended.result.stdout, '42\n');
  const all = family(demo.pid);
  assert.ok(all.length >= 4, `processes: ${all}`);
  demo.kill('SIGINT');
  assert.deepEqual(await demo.exited, { code: 0, signal: null }, demo.tail());
  await waitFor(() => !all.some(isAlive), { timeout: LONG, what: 'all of its processes are gone' });
});
