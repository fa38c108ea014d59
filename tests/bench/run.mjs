// Measures the worker beside what users would pick instead: same run, same Redis, in turns, medians. Prints a table and
// writes build/bench.json: rows {figure, unit, ours, peer, ratio, target, met}; ratio is ours / peer, null without a peer.
// run.mjs [SECTION ...] | --readme [REMARK] (writes build/bench.json into README) | --compare FILE (another run's bench.json)
process.env.WORKER_BIN ??= 'build/test/sandpiper';
const { compareVerdicts, header, line, rowLine, save, writeReadme } = await import('./table.mjs');

if (process.argv[2] === '--readme') {
  writeReadme(process.argv.slice(3).join(' '));
  process.exit();
}
if (process.argv[2] === '--compare') process.exit(compareVerdicts(process.argv[3]) ? 0 : 1);

const { cleanUp } = await import('../lib/process.mjs');
const { startRedis } = await import('../lib/redis.mjs');
const { Rows } = await import('./measure.mjs');
const { killLaunched } = await import('./workers.mjs');
const queue = await import('./queue.mjs');
const e2b = await import('./e2b.mjs');
const { local } = await import('./local.mjs');
const { growth } = await import('./growth.mjs');

const sections = {
  throughput: queue.throughput, memory: queue.memory, starts: queue.starts, pickup: queue.pickup, replicas: queue.replicas,
  runs: e2b.runs, thousand: e2b.thousand, bytes: e2b.bytes, local, growth,
};
const chosen = process.argv.slice(2);
const unknown = chosen.find((name) => !sections[name]);
if (unknown) throw new Error(`no section ${unknown}: ${Object.keys(sections).join(' ')}`);
const rows = new Rows();
rows.onRow = (row) => console.log(rowLine(row));
try {
  const redis = await startRedis();
  console.log(line(header));
  for (const name of chosen.length ? chosen : Object.keys(sections)) {
    const begun = Date.now();
    try {
      await sections[name](rows, redis);
    } catch (error) { // the others' rows are still worth something
      console.log(`${name}: ${error.stack}`);
      process.exitCode = 1;
      killLaunched();
    }
    if (process.env.VERBOSE) console.log(`# ${name}: ${((Date.now() - begun) / 1000).toFixed(1)} s`);
    save(rows.list, chosen.length ? 'bench-part.json' : 'bench.json');
  }
  const missed = rows.list.filter((row) => row.met === false);
  console.log(`${rows.list.length} figures, ${rows.list.filter((row) => row.met).length} targets met, ${missed.length} not met`);
} catch (error) {
  console.log(error.stack);
  process.exitCode = 1;
} finally {
  await cleanUp();
  process.exit();
}
