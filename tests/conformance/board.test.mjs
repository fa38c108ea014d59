// bull-board's page in headless Chromium: lists, a job's detail, and retry and removal by click.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { browse, serveBoard } from './apps/board.mjs';
import { waitFor } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig, shortLocks, slow } from '../lib/rig.mjs';
import { fail, say, wait } from '../lib/scripted.mjs';

const redis = await startRedis();
const pictures = fileURLToPath(new URL('../../build/bull-board', import.meta.url));
const until = (r, job, state) => waitFor(async () => (await r.state(job)) === state, { what: `${job.id} ${state}`, timeout: 10_000 * slow });

/** Clicks one of a job's buttons (they have pictures only): 'retry' is the first, 'remove' the last; then confirms. */
async function click(page, jobId, which) {
  await page.waitForFunction((id) => [...document.querySelectorAll('a')].some((a) => a.innerText.startsWith(`#${id}`)), {}, jobId);
  const handle = await page.evaluateHandle((id, first) => {
    const title = [...document.querySelectorAll('a')].find((a) => a.innerText.startsWith(`#${id}`)).getBoundingClientRect();
    const inRow = [...document.querySelectorAll('button')].filter((b) => !b.innerText.trim()
      && Math.abs(b.getBoundingClientRect().top - title.top) < 30 && b.getBoundingClientRect().left > title.right)
      .sort((a, b) => a.getBoundingClientRect().left - b.getBoundingClientRect().left);
    return first ? inRow[0] : inRow.at(-1);
  }, jobId, which === 'retry');
  await handle.click();
  await page.waitForFunction(() => [...document.querySelectorAll('button')].some((b) => /^confirm$/i.test(b.innerText.trim())), { timeout: 5000 });
  await (await page.evaluateHandle(() => [...document.querySelectorAll('button')].find((b) => /^confirm$/i.test(b.innerText.trim())))).click();
}

test('bull-board: what it shows of jobs of every state, and what its buttons do', async (t) => {
  mkdirSync(pictures, { recursive: true });
  const r = await makeRig(t, redis, { version: '5.81.5', env: { ...shortLocks, WORKER_CONCURRENCY: '2', JOB_LOG: 'true', JOB_PROGRESS: 'true' } });
  const failed = await r.add([fail('no_sandbox', 1), say('again')]);
  await r.failure(failed);
  const done = await r.add([say('hello from the code\n')]);
  await r.result(done);
  const held = await r.add([wait(30_000)], { threadId: 't' });
  await until(r, held, 'active');
  const parked = await r.add([say('parked')], { threadId: 't' });
  await until(r, parked, 'delayed');
  const board = await serveBoard([r.queue]);
  t.after(() => board.close());
  const browser = await browse();
  t.after(() => browser.close());
  const page = await browser.newPage();
  await page.setViewport({ width: 1300, height: 900 });
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  const look = async (name, path) => {
    await page.goto(`${board.url}/queue/${r.name}${path}`, { waitUntil: 'networkidle0' });
    await page.screenshot({ path: `${pictures}/${name}.png` });
    return page.evaluate(() => document.body.innerText.replace(/\s+/g, ' '));
  };
  let text = await look('failed', '?status=failed');
  assert.match(text, /ACTIVE 1 .*COMPLETED 1 FAILED 1 DELAYED 1/);
  assert.match(text, /#1 execute .*Failed at .*Error: The script says that no sandbox can be had\. at sandpiper \(no_sandbox\)/);
  assert.match(await look('active', '?status=active'), new RegExp(`#${held.id} execute`));
  assert.match(await look('parked', '?status=delayed'), new RegExp(`#${parked.id} execute .*Will run at`));
  assert.match(await look('completed', '?status=completed'), /returnValue:? ?\{.*state:"completed".*hello from the code/);
  text = await look('detail', `/${done.id}?status=completed`);
  assert.match(text, /hello from the code/);

  await look('before-retry', '?status=failed');
  await click(page, failed.id, 'retry');
  await until(r, failed, 'completed');
  await look('before-removal', '?status=delayed');
  await click(page, parked.id, 'remove');
  await until(r, parked, 'unknown');
  assert.deepEqual(errors, []);

  await r.queue.add('execute', { v: 1, code: '{"stdout":"waits"}' }, { jobId: 'waiting' });
  await r.queue.pause();
  await look('last', '?status=latest');
  await r.queue.resume();
});
