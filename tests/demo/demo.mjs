// A tour of the main job with the stock BullMQ client: run by `make demo`, reads from top to bottom.
import { Queue, QueueEvents } from 'bullmq';
import { Redis } from 'ioredis';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fail, startRedis, startWorker, stopAll } from './parts.mjs';

const started = Date.now();
const P = 'bull:code-interpreter:';
const clock = () => `${((Date.now() - started) / 1000).toFixed(1).padStart(5)} s`;
const say = (text = '') => console.log(text);
const title = (text) => say(`\n== ${text}`);
const show = (text, mark = '|') => say(String(text).trimEnd().split('\n').map((line) => `   ${mark} ${line}`).join('\n'));
const expect = (what, ok, found) => ok || fail(`${what}; found ${JSON.stringify(found)}`);
setTimeout(() => fail('it took longer than two minutes'), 120_000).unref();

const bullmq = createRequire(import.meta.url)('bullmq/package.json').version;
say('Sandpiper, a tour: a stock BullMQ client enqueues code, a worker runs it in a warm kernel per thread.\n');
say('Starting a private Redis and one worker (NODE_ENV=development, otherwise default settings) ...');
const { port, cli } = await startRedis();
await startWorker(port);
const connection = { host: '127.0.0.1', port };
const queue = new Queue('code-interpreter', { connection });
const events = new QueueEvents('code-interpreter', { connection });
const redis = new Redis(connection);
await events.waitUntilReady();
say(`Redis is on port ${port}; the client is bullmq ${bullmq}.`);

const add = (threadId, code, more = {}) => queue.add('execute', { threadId, code, ...more });
const result = (job) => job.waitUntilFinished(events, 60_000);
/** Follows the reply stream of a job from its beginning, as a server would, until `done`. */
async function follow(jobId, onMessage) {
  const reader = redis.duplicate();
  for (let last = '0'; ;) {
    const read = await reader.xread('BLOCK', 30_000, 'STREAMS', `${P}reply:${jobId}`, last);
    if (!read) fail(`no reply of job ${jobId}`);
    for (const [id, [, text]] of read[0][1]) {
      const message = JSON.parse(text);
      last = id;
      onMessage(message);
      if (message.type === 'done') {
        reader.disconnect();
        return message;
      }
    }
  }
}

title('Two calls in one thread share their state');
const first = await result(await add('tour', 'prices = [3, 5, 8]\nprint("kept", len(prices), "prices")'));
show(first.stdout);
const second = await result(await add('tour', 'print("sum", sum(prices))\nmax(prices)'));
show(second.stdout);
show(`value of the last expression: ${second.results[0]?.data['text/plain']}; kernel reused: ${second.sandbox.reused}`);
expect('the second call sees what the first one kept', second.stdout === 'sum 16\n' && second.sandbox.reused, second);

title('Output arrives while the code runs');
const ticking = await add('tour', 'import time\nfor i in range(4):\n    print("tick", i)\n    time.sleep(0.4)');
const arrivals = [];
const done = await follow(ticking.id, (m) => {
  if (m.type === 'stdout') arrivals.push(Date.now());
  show(`${clock()}  seq ${m.seq}  ${m.type.padEnd(8)} ${m.text ? JSON.stringify(m.text) : m.reason ?? ''}`);
});
expect('output came before the end', done.reason === 'ok' && Date.now() - arrivals[0] > 1000, arrivals);

title('A CSV goes in, a chart comes out');
const csv = 'month,sales\nJan,12\nFeb,19\nMar,7\nApr,23\nMay,31\nJun,28\n';
const chart = await result(await add('tour', `
import pandas as pd
import matplotlib.pyplot as plt
table = pd.read_csv("sales.csv")
table.plot.bar(x="month", y="sales", color="#2a7f9e", title="Sales by month", legend=False)
plt.tight_layout()
plt.savefig("output/chart.png")
plt.close()
print(table.describe().loc[["mean", "max"]])`, { files: [{ filename: 'sales.csv', content: Buffer.from(csv).toString('base64') }] }));
show(chart.stdout || chart.error);
const file = chart.files.find((f) => f.filename === 'chart.png');
expect('the chart is one of the job\'s files', file, chart);
const png = await redis.getBuffer(file.key);
expect('it is a PNG of the size the result names', png?.length === file.size && png.subarray(1, 4).toString() === 'PNG', file);
mkdirSync('build/demo', { recursive: true });
writeFileSync('build/demo/chart.png', png);
show(`${file.filename}, ${file.size} bytes, was in Redis key ${file.key}`);
show('the picture is now in build/demo/chart.png');

title('An exception is a completed job that says error; the thread goes on');
const broken = await result(await add('tour', 'def ratio(a, b):\n    return a / b\n\nratio(1, 0)'));
show(broken.errorDetail?.traceback ?? broken.error);
show(`state ${broken.state}, reason ${broken.reason}, exitCode ${broken.exitCode}`);
expect('the error is told', broken.errorDetail?.name === 'ZeroDivisionError' && broken.exitCode === 1, broken);

title('Two threads run in parallel, one thread stays serial; what redis-cli shows meanwhile');
const code = (name) => `import time\nprint("${name} from", time.time())\ntime.sleep(1)\nprint("${name} to", time.time())`;
const jobs = [await add('alpha', code('a1')), await add('alpha', code('a2')), await add('beta', code('b1'))];
for (const end = Date.now() + 20_000; (await queue.getActiveCount()) < 2 && Date.now() < end;) await new Promise((r) => setTimeout(r, 20));
for (const args of [['LRANGE', `${P}active`, '0', '-1'], ['GET', `${P}lease::alpha`], ['ZRANGE', `${P}parked::alpha`, '0', '-1']]) {
  show(`redis-cli ${args.join(' ')}`, '$');
  show((await cli(...args)) || '(nothing)');
}
const times = {};
for (const line of (await Promise.all(jobs.map(result))).flatMap((r) => r.stdout.trim().split('\n'))) {
  const [name, edge, at] = line.split(' ');
  times[`${name} ${edge}`] = Number(at);
}
const base = Math.min(...Object.values(times));
for (const name of ['a1', 'a2', 'b1']) {
  const [from, to] = [times[`${name} from`] - base, times[`${name} to`] - base];
  show(`${name}  ${' '.repeat(Math.round(from * 12))}${'#'.repeat(Math.max(1, Math.round((to - from) * 12)))}  ${from.toFixed(2)} to ${to.toFixed(2)} s`);
}
expect('a2 began after a1 had ended', times['a2 from'] >= times['a1 to'], times);
expect('b1 ran beside one of them', times['b1 from'] < times['a2 to'] && times['b1 to'] > times['a1 from'], times);

title('Without BullMQ: one XADD is a job, too');
const data = JSON.stringify({ threadId: 'tour', code: 'print("from a stream; still", len(prices), "prices")' });
show(`redis-cli XADD ${P}stream:jobs '*' id by-xadd data '${data}'`, '$');
show(await cli('XADD', `${P}stream:jobs`, '*', 'id', 'by-xadd', 'data', data));
const streamed = await follow('by-xadd', () => {});
show(streamed.result?.stdout ?? streamed.error);
expect('it ran in the same kernel', streamed.result?.stdout === 'from a stream; still 3 prices\n', streamed);
show(`redis-cli XRANGE ${P}reply:by-xadd - +`, '$');
show((await cli('XRANGE', `${P}reply:by-xadd`, '-', '+')).split('\n').map((l) => (l.length > 150 ? `${l.slice(0, 150)}...` : l)).join('\n'));

await queue.close();
await events.close();
redis.disconnect();
await stopAll();
say(`\nThe picture is in build/demo/chart.png. Nothing is left running. (${clock().trim()})`);
say('demo: ok');
