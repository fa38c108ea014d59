// Measures the worker beside what users would pick instead: same run, same Redis, in turns, medians. Prints a table and
// writes build/bench.json: rows {figure, unit, ours, peer, ratio, target, met}; ratio is ours / peer, null without a peer.
// run.mjs [SECTION ...] | --readme (writes the table of build/bench.json into README)
process.env.WORKER_BIN ??= 'build/test/sandpiper';
const { header, line, rowLine, save, writeReadme } = await import('./table.mjs');

if (process.argv[2] === '--readme') {
  writeReadme();
  process.exit();
}

const { cleanUp } = await import('../lib/process.mjs');
const { startRedis } = await import('../lib/redis.mjs');
const { Rows } = await import('./measure.mjs');
const queue = await import('./queue.mjs');
const e2b = await import('./e2b.mjs');
const { local } = await import('./local.mjs');
const { growth } = await import('./growth.mjs');

const sections = {
  throughput: queue.throughput, memory: queue.memory, starts: queue.starts, pickup: queue.pickup, replicas: queue.replicas,
  runs: e2b.runs, thousand: e2b.thousand, bytes: e2b.bytes, local, growth,
};
const wanted = process.argv.slice(2).length ? process.argv.slice(2) : Object.keys(sections);
const rows = new Rows();
rows.onRow = (row) => console.log(rowLine(row));
try {
  const redis = await startRedis();
  console.log(line(header));
  for (const name of wanted) {
    if (!sections[name]) throw new Error(`no section ${name}: ${Object.keys(sections).join(' ')}`);
    const begun = Date.now();
    await sections[name](rows, redis);
    if (process.env.VERBOSE) console.log(`# ${name}: ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  }
  save(rows.list);
  const missed = rows.list.filter((row) => row.met === false);
  console.log(`${rows.list.length} figures, ${rows.list.filter((row) => row.met).length} targets met, ${missed.length} not met`);
} catch (error) {
  console.log(error.stack);
  process.exitCode = 1;
} finally {
  await cleanUp();
  process.exit();
}
