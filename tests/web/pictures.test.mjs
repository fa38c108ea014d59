// The two pictures of README: a running cell, a finished one with chart and table. `make screenshots` keeps them.
import assert from 'node:assert/strict';
import { mkdirSync, statSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { hold, openPage, state } from './lib.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const dir = `${root}${process.env.SCREENSHOTS ?? 'build/screenshots'}`;
mkdirSync(dir, { recursive: true });
const view = { viewport: { width: 1100, height: 760 }, colorScheme: 'light' };
const csv = { name: 'sales.csv', mimeType: 'text/csv', buffer: Buffer.from('month,sum\nJan,10\nFeb,30\nMar,20\nApr,26\n') };

test('picture of a running cell, and of one that waits', async (t) => {
  const page = await openPage(t, view);
  await page.locator('#workers', { hasText: '1 worker' }).waitFor();
  await state(await page.ran(hold.quietly('run')), 'completed');
  const cell = await page.ran('import sys, time\nfor epoch in range(1, 100):\n    print(f"epoch {epoch}: loss {1 / epoch:.3f}")\n    if epoch == 8: print("the loss hardly falls", file=sys.stderr)\n    if epoch > 9: step()');
  await cell.locator('.stdout', { hasText: 'epoch 10' }).waitFor();
  await cell.locator('.stderr', { hasText: 'hardly' }).waitFor();
  const next = await page.ran('print("after it, with its variables:", epoch)');
  await next.locator('.state', { hasText: 'Waiting behind 1 other' }).waitFor();
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${dir}/running.png`, fullPage: true });
  hold.let('run');
  await state(cell, 'completed');
  await state(next, 'completed');
});

test('picture of a finished cell with its table and chart', async (t) => {
  const page = await openPage(t, view);
  const table = await page.ran('import pandas as pd\nsales = pd.read_csv("sales.csv")\nsales', [csv]);
  await state(table, 'completed');
  await table.frameLocator('iframe').locator('td', { hasText: '26' }).waitFor();
  const chart = await page.ran('import matplotlib.pyplot as plt\nplt.figure(figsize=(6, 2.6))\nplt.bar(sales.month, sales["sum"], color="#0b6e6e")\nplt.title("Sales")\nplt.show()\nsales.describe().to_csv("output/summary.csv")');
  await state(chart, 'completed');
  await chart.locator('.files a', { hasText: 'summary.csv' }).waitFor();
  await chart.locator('.result img').evaluate((one) => one.decode());
  await page.screenshot({ path: `${dir}/finished.png`, fullPage: true });
  for (const name of ['running', 'finished']) assert.ok(statSync(`${dir}/${name}.png`).size > 20_000);
});
