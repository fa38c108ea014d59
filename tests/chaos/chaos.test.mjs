// A short run with faults dealt from a seed (SEED=n; by default another one each time would make failures hard to
// tell from flakes, so it is fixed): each invariant is a test.
import assert from 'node:assert/strict';
import test from 'node:test';
import { allInvariants, describe } from './chaos.mjs';
import { shortRun } from './short.mjs';

let report;
test('a short run comes to its end', async () => {
  report = await shortRun(process.env.SEED || '1');
});
for (const name of allInvariants) {
  test(name, (t) => {
    const found = report.findings[name];
    if (name.startsWith('every accepted job')) describe(report).split('\n').forEach((line) => t.diagnostic(line));
    const ids = [...new Set(found.join('\n').match(/\b(mass|emulated|kernels|local)-(last-t)?\d+\b/g) ?? [])].slice(0, 3);
    assert.equal(found.length, 0, [`${found.length} findings (again with SEED=${report.seed}):`, ...found.slice(0, 10),
      ...ids.map((id) => `-- ${id}:\n${report.logsOf(id).slice(-40).join('\n')}`)].join('\n'));
  });
}
test('all findings are looked at', () => assert.deepEqual(Object.keys(report.findings).sort(), [...allInvariants].sort()));
test('jobs came to their end in number, and faults were dealt', () => {
  assert.ok(report.counts.jobs > 400, describe(report));
  assert.ok(Object.keys(report.counts.faults).length > 15, describe(report));
});
