// The server with real kernels in bubblewrap: what a user of the page does.
import assert from 'node:assert/strict';
import test from 'node:test';
import { atEnd, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { LONG, startServer } from './lib.mjs';

const redis = await startRedis();
const top = { after: atEnd };
const r = await makeRig(top, redis, { events: false, env: { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', WORKER_CONCURRENCY: '3' } });
const s = await startServer(top, r, { url: redis.url });
const end = async (id) => (await within(2 * LONG, s.all(id), 'the end')).at(-1).data;

test('a CSV goes in, a table and a chart come out; state stays in the thread and only there', async () => {
  const form = new FormData();
  form.set('code', 'import pandas as pd\ndf = pd.read_csv("sales.csv")\ndf');
  form.append('files', new Blob(['month,sum\n1,10\n2,30\n']), 'sales.csv');
  const table = await end(await s.run('main', form));
  assert.equal(table.reason, 'ok', JSON.stringify(table).slice(0, 1000));
  assert.match(table.result.results[0].data['text/html'], /<td>30<\/td>/);
  const chart = await s.run('main', 'import matplotlib.pyplot as plt\nplt.plot(df.month, df["sum"])\nplt.show()\ndf.to_csv("output/out.csv")');
  const { result } = await end(chart);
  assert.deepEqual(result.files.map((f) => f.filename).sort(), ['chart-0.png', 'out.csv'], JSON.stringify(result).slice(0, 1000));
  const png = await s.call('GET', result.files.find((f) => f.filename === 'chart-0.png').url);
  assert.equal(png.headers.get('content-type'), 'image/png');
  assert.equal(png.bytes.subarray(1, 4).toString(), 'PNG');
  assert.equal((await end(await s.run('other', 'print("df" in globals())'))).result.stdout, 'False\n');
  const theirs = await s.run('main', 'print("df" in globals())', { who: 'eve' });
  assert.equal((await s.all(theirs, { who: 'eve' })).at(-1).data.result.stdout, 'False\n', "another workspace's thread of that name");
});

test('an error has its traceback; an endless cell is cancelled and its thread goes on', async () => {
  const broken = await end(await s.run('err', 'def f():\n    return 1 / 0\nf()'));
  assert.deepEqual([broken.state, broken.result.errorDetail.name], ['error', 'ZeroDivisionError']);
  assert.match(broken.result.errorDetail.traceback, /line 2/);
  const id = await s.run('err', 'keep = 1\nprint("going", flush=True)\nwhile True: pass');
  for await (const event of s.events(id)) {
    if (event.event === 'stdout') await s.call('POST', `/executions/${id}/cancel`);
    if (event.event === 'done') assert.equal(event.data.reason, 'cancelled');
  }
  assert.equal((await end(await s.run('err', 'print(keep)'))).result.stdout, '1\n');
});
