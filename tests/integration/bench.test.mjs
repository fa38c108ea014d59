// The bench's own parts: verdicts, critical paths, runs of jobs through both kinds of worker, the incumbent's calls.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Through, timed } from '../bench/e2b.mjs';
import { Incumbent } from '../bench/incumbent.mjs';
import { criticalPath, judge, median, quantile, Rows } from '../bench/measure.mjs';
import { bare, drain, inThreads, launch, sizes } from '../bench/workers.mjs';
import { startE2b } from '../lib/e2b.mjs';
import { startRedis } from '../lib/redis.mjs';

test('medians, verdicts, rows', () => {
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(quantile(Array.from({ length: 100 }, (_, i) => i), 0.99), 99);
  assert.equal(judge('ratio >= 1.1', { ours: 1, ratio: 1.1 }), true);
  assert.equal(judge('ratio <= 1/8', { ours: 1, ratio: 0.126 }), false);
  assert.equal(judge('ours <= 12, ratio <= 1/6', { ours: 13, ratio: 0.1 }), false);
  assert.equal(judge('ratio <= 1', { ours: 1, ratio: null }), false);
  assert.equal(judge(null, { ours: 1, ratio: 1 }), null);
  assert.throws(() => judge('better', { ours: 1, ratio: 1 }));
  const row = new Rows().add('jobs', '1/s', 3, 2, 'ratio >= 1.6');
  assert.deepEqual(row, { figure: 'jobs', unit: '1/s', ours: 3, peer: 2, ratio: 1.5, target: 'ratio >= 1.6', met: false });
});

test('the critical path: what overlaps counts once, what is not answered does not count', () => {
  const entry = (op, t, ms) => ({ op, t, ms });
  assert.deepEqual(criticalPath([entry('execute', 1, 90), entry('timeout', 1.001, 80), entry('connect', 1.095, null)]).length, 1);
  assert.deepEqual(criticalPath([entry('list', 0, 80), entry('create', 0.0805, 80), entry('execute', 0.17, null)]), ['list', 'create', 'execute']);
  assert.deepEqual(criticalPath([entry('a', 0, 80), entry('b', 0.01, 80), entry('execute', 0.1, 90), entry('c', 0.2, 80), entry('d', 0.2, 85)]).length, 3);
});

test('jobs through a worker of each kind', async () => {
  const redis = await startRedis();
  for (const [kind, data] of [['ours', bare], ['ours', inThreads(10)], ['peer', bare], ['hand', inThreads(10)]]) {
    const w = await launch(kind, redis, { concurrency: 5 });
    const run = await drain(w, 50, data);
    for (const [name, value] of Object.entries(run)) assert.ok(Number.isFinite(value) && value >= 0, `${kind}: ${name} is ${value}`);
    assert.ok(run.rate > 0 && run.script > 0, `${kind}: ${JSON.stringify(run)}`);
    assert.equal((await sizes(w)).all, 0);
    await w.stop();
  }
});

test('the incumbent does the calls that it is measured by, ours fewer', async () => {
  const redis = await startRedis();
  const e2b = await startE2b({ settings: { scripted: true } });
  const w = await launch('ours', redis, { env: { CODE_INTERPRETER_TYPE: 'E2B', ...e2b.env } });
  const ours = new Through(w, redis);
  const theirs = new Incumbent(e2b.env);
  const calls = async (one, files) => (await timed(e2b, one, '', files, 's')).path;
  const file = { filename: 'in.txt', content: Buffer.from('x') };
  assert.equal((await calls(theirs)).length, 17, 'a new sandbox with 13 scripts');
  assert.equal((await calls(theirs)).length, 7, 'warm, without a folder for output yet');
  assert.deepEqual(await calls(theirs), ['list', 'connect', 'timeout', 'fs.Stat', 'fs.Remove', 'fs.MakeDir', 'execute', 'fs.ListDir']);
  assert.equal((await calls(theirs, [file])).length, 9, 'one input');
  await calls(ours);
  // Lifetimes are set beside a run; on a slow machine one may be answered before this looks.
  assert.deepEqual((await calls(ours)).filter((op) => op !== 'timeout'), ['execute']);
  ours.close();
  await w.stop();
  await e2b.stop();
});
