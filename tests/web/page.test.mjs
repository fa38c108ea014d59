// The page in headless Chromium, on the real server, a real worker and real kernels: what a user sees and does.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import test from 'node:test';
import { waitFor, within } from '../lib/process.mjs';
import { startServer } from '../server/lib.mjs';
import { hold, LONG, openPage, proxy, r, redis, s, state } from './lib.mjs';

test('output is seen before the run ends, then its end and the time it took; stderr and stdout apart', async (t) => {
  const page = await openPage(t);
  await page.locator('#workers', { hasText: '1 worker' }).waitFor();
  const cell = await page.ran(`import sys\nprint("first")\nprint("careful", file=sys.stderr)\n${hold.wait('a')}\nprint("second")`);
  await cell.locator('.stream.stdout', { hasText: 'first' }).waitFor();
  await cell.locator('.stream.stderr', { hasText: 'careful' }).waitFor();
  await state(cell, 'running');
  assert.match(await cell.locator('.state').textContent(), /^Running/);
  assert.equal(await cell.locator('.stream', { hasText: 'second' }).count(), 0);
  hold.let('a');
  await state(cell, 'completed');
  await cell.locator('.stream.stdout', { hasText: 'second' }).waitFor();
  assert.match(await cell.locator('.bar').textContent(), /Done ?in [\d.]+ s/);
  await page.locator('#said', { hasText: 'Done' }).waitFor({ state: 'attached' }); // a screen reader is told
});

test('a CSV is sent, comes back as a table and a chart, which is really painted; the file can be had', async (t) => {
  const page = await openPage(t);
  const csv = { name: 'sales.csv', mimeType: 'text/csv', buffer: Buffer.from('month,sum\nJan,10\nFeb,30\nMar,20\n') };
  const table = await page.ran('import pandas as pd\ndf = pd.read_csv("sales.csv")\ndf', [csv]);
  await state(table, 'completed');
  const inside = table.frameLocator('iframe');
  await inside.locator('td', { hasText: '30' }).waitFor();
  const chart = await page.ran('import matplotlib.pyplot as plt\nplt.bar(df.month, df["sum"], color="#d00000")\nplt.show()\ndf.to_csv("output/out.csv")');
  await state(chart, 'completed');
  const image = chart.locator('.result img').first();
  await image.waitFor();
  const colours = await image.evaluate(async (one) => {
    await one.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: one.naturalWidth, height: one.naturalHeight });
    const context = canvas.getContext('2d');
    context.drawImage(one, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let red = 0;
    let white = 0;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i] === 0xd0 && data[i + 1] === 0 && data[i + 2] === 0) red++;
      if (data[i] > 250 && data[i + 1] > 250 && data[i + 2] > 250) white++;
    }
    return { red, white, all: data.length / 4 };
  });
  assert.ok(colours.red > colours.all / 20 && colours.white > colours.all / 5, JSON.stringify(colours));
  const [download] = await Promise.all([page.waitForEvent('download'), chart.locator('.files a', { hasText: 'out.csv' }).click()]);
  assert.equal(download.suggestedFilename(), 'out.csv');
});

test('an error shows its traceback, in colour but without escapes; ANSI colours of output are colours', async (t) => {
  const page = await openPage(t);
  const cell = await page.ran('print("\\x1b[31mred\\x1b[0m plain \\x1b]0;title\\x07\\x1b[2J|")\nprint("10%\\r20%\\rdone")\n1/0');
  await state(cell, 'error');
  await cell.locator('.failure', { hasText: 'ZeroDivisionError' }).waitFor();
  await cell.locator('.stdout .ansi-red-fg', { hasText: /^red$/ }).waitFor();
  assert.equal(await cell.locator('.stdout pre').textContent(), 'red plain |\ndone\n');
  assert.ok(!(await cell.locator('.outputs').textContent()).includes('\x1b'));
});

test('a reload in mid-run goes on where it was, and a second tab shows the same', async (t) => {
  const page = await openPage(t);
  const cell = await page.ran(`for i in range(50): print("line", i)\n${hold.wait('b')}\nprint("the end")`);
  await cell.locator('.stdout', { hasText: 'line 49' }).waitFor();
  const other = await openPage(t, { context: page.context(), hash: new URL(page.url()).hash });
  await other.locator('.cell .stdout', { hasText: 'line 49' }).waitFor();
  await page.reload();
  const again = page.locator('.cell').first();
  await again.locator('.stdout', { hasText: 'line 49' }).waitFor();
  await state(again, 'running');
  hold.let('b');
  const expected = `${Array.from({ length: 50 }, (_, i) => `line ${i}`).join('\n')}\nthe end\n`;
  for (const one of [page, other]) {
    const first = one.locator('.cell').first();
    await state(first, 'completed');
    assert.equal(await first.locator('.stdout pre').textContent(), expected);
  }
  const third = await other.ran('print("from the other tab")'); // appears here without a reload
  await state(third, 'completed');
  await page.locator('.cell .stdout', { hasText: 'from the other tab' }).waitFor();
});

test('serial within a conversation: what waits says behind how many, and can be cancelled; another conversation runs beside it', async (t) => {
  const page = await openPage(t);
  const first = await page.ran(`x = 1\n${hold.wait('c')}\nx = 2`);
  await state(first, 'running');
  const second = await page.ran('print("x is", x)');
  const third = await page.ran('print("never")');
  await second.locator('.state', { hasText: 'Waiting behind 1 other' }).waitFor();
  await third.locator('.state', { hasText: 'Waiting behind 2 others' }).waitFor();
  const hash = new URL(page.url()).hash;
  await page.locator('#new').click();
  const beside = await page.ran('print("x" in globals())');
  await state(beside, 'completed');
  assert.equal(await beside.locator('.stdout pre').textContent(), 'False\n');
  await page.locator('#threads button').nth(1).click();
  assert.equal(new URL(page.url()).hash, hash);
  const cells = page.locator('.cell');
  await cells.nth(2).locator('button', { hasText: 'Cancel' }).click();
  await cells.nth(2).and(page.locator('.failed')).waitFor();
  assert.match(await cells.nth(2).locator('.state').textContent(), /Cancelled/);
  hold.let('c');
  await state(cells.nth(1), 'completed');
  assert.equal(await cells.nth(1).locator('.stdout pre').textContent(), 'x is 2\n');
});

test('cancel in mid-run: the output so far stays, and the conversation goes on', async (t) => {
  const page = await openPage(t);
  const cell = await page.ran('keep = 7\nprint("going")\nwhile True: pass');
  await cell.locator('.stdout', { hasText: 'going' }).waitFor();
  await cell.locator('button', { hasText: 'Cancel' }).click();
  await state(cell, 'error');
  assert.match(await cell.locator('.state').textContent(), /Cancelled/);
  assert.equal(await cell.locator('.stdout pre').textContent(), 'going\n');
  const next = await page.ran('print(keep)');
  await state(next, 'completed');
  assert.equal(await next.locator('.stdout pre').textContent(), '7\n');
});

test('the event stream is cut again and again: nothing is missing, nothing twice', async (t) => {
  const page = await openPage(t, { base: `http://127.0.0.1:${proxy.port}` });
  const cell = await page.ran(`for i in range(4):\n    for j in range(10): print("p", i, j, flush=True)\n    ${hold.wait('d{i}').replace('"http', 'f"http').replace('; ', '\n    ')}\nprint("end")`);
  for (let i = 0; i < 4; i++) {
    await cell.locator('.stdout', { hasText: `p ${i} 9` }).waitFor();
    proxy.cut();
    hold.let(`d${i}`);
  }
  await state(cell, 'completed');
  const expected = Array.from({ length: 40 }, (_, n) => `p ${Math.floor(n / 10)} ${n % 10}\n`).join('');
  await waitFor(async () => (await cell.locator('.stdout pre').textContent()).endsWith('end\n'), { timeout: LONG, what: 'all output' });
  assert.equal(await cell.locator('.stdout pre').textContent(), `${expected}end\n`);
});

test('hostile output harms nothing: scripts, a line of 5 MB, control characters', async (t) => {
  const page = await openPage(t);
  const hostile = '<img src=x onerror="document.title=1"><script>top.document.title="owned"<\\/script>'.replace('<\\/', '</');
  const cell = await page.ran(`h = '''${hostile}'''\nprint(h)\nprint("a\\u202eb\\x00\\x07\\x08c\\x9b31m")\nprint("x" * 5_000_000)\nraise ValueError(h)`);
  await state(cell, 'error');
  assert.equal(await cell.locator('script, .outputs img').count(), 0);
  assert.equal(await page.title(), 'Sandpiper');
  assert.ok((await cell.locator('.outputs').textContent()).length < 100_000, 'long output is folded');
  await cell.locator('button', { hasText: 'Unfold' }).click();
  assert.ok((await cell.locator('.outputs').textContent()).length < 600_000);
  const fine = await page.ran('print("still here")');
  await state(fine, 'completed');
});

test('HTML results are in a closed frame: no script, no way to the page, to the server or out', async (t) => {
  const page = await openPage(t);
  const outside = []; // what really arrives at a server elsewhere; the browser tells of requests that its policy stops, too
  const server = createServer((request, response) => {
    outside.push(request.url);
    response.end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const out = `http://127.0.0.1:${server.address().port}`;
  const attacks = [
    `<script>parent.document.title="owned";top.location="${out}/"</script>`, '<img src="x" onerror="top.document.title=1">',
    '<form action="/threads" method="post"><input name="code" value="1"><button id="go">go</button></form>',
    `<a id="out" target="_top" href="${out}/top">x</a>`, '<iframe src="/threads"></iframe><iframe src="javascript:top.document.title=2"></iframe>',
    `<meta http-equiv="refresh" content="0;url=${out}/refresh">`, `<link rel="stylesheet" href="${out}/style.css">`,
    `<img src="${out}/pixel.png">`, '<svg onload="top.document.title=3"></svg>', `<base href="${out}/">`,
    '<object data="/threads"></object><embed src="/threads">', '<b id="seen">seen</b>',
  ];
  const cell = await page.ran(`from IPython.display import HTML, SVG, display\ndisplay(HTML(${JSON.stringify(attacks.join('\n'))}))\n`
    + 'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><script>top.document.title="owned"</script><rect width="10" height="10"/></svg>\')');
  await state(cell, 'completed');
  const frame = cell.frameLocator('iframe').first();
  await frame.locator('#seen').waitFor();
  await frame.locator('#go').click();
  await frame.locator('#out').click();
  await (await page.ran('print("after")')).locator('.stdout', { hasText: 'after' }).waitFor();
  assert.equal(await page.title(), 'Sandpiper');
  assert.equal(new URL(page.url()).origin, s.base);
  assert.deepEqual(outside, []);
  assert.equal(await cell.locator('iframe').first().getAttribute('sandbox'), '');
  const origin = await cell.locator('iframe').first().evaluate((one) => one.contentDocument === null);
  assert.ok(origin, 'an origin of its own');
});

test('keyboard alone, a phone, the dark: all of it can be reached and read', async (t) => {
  const page = await openPage(t, { viewport: { width: 380, height: 740 }, colorScheme: 'dark' });
  await page.locator('#code:focus').waitFor();
  await page.keyboard.type('if True:\nprint("typed")');
  await page.keyboard.press('Control+Enter');
  const cell = page.locator('.cell').first();
  await state(cell, 'completed');
  assert.equal(await cell.locator('.stdout pre').textContent(), 'typed\n'); // the editor had indented the second line
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'no scrolling sideways');
  await page.keyboard.press('Alt+n');
  assert.equal(await page.locator('.cell').count(), 0);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'code');
  await page.locator('#menu').click();
  await page.locator('#threads button').first().click();
  await page.locator('.cell .stdout', { hasText: 'typed' }).waitFor();
  const unnamed = await page.evaluate(() => [...document.querySelectorAll('button, a, textarea, input, iframe, img')]
    .filter((one) => one.checkVisibility() && !(one.textContent.trim() || one.ariaLabel || one.title || one.alt !== undefined || one.labels?.length)).map((one) => one.outerHTML));
  assert.deepEqual(unnamed, []);
  const contrast = await page.evaluate(() => {
    const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
    const light = (c) => c.map((v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const on = (selector) => {
      const one = document.querySelector(selector);
      let ground = one;
      while (ground && getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
      const [a, b] = [light(rgb(getComputedStyle(one).color)), light(rgb(getComputedStyle(ground ?? document.body).backgroundColor))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    };
    return ['body', '.cell .source', '.cell .state', '.detail', '#run', '#workers'].map((selector) => [selector, on(selector)]);
  });
  for (const [selector, ratio] of contrast) assert.ok(ratio >= 4.5, `${selector}: ${ratio}`);
});

test('a server with tokens asks for one, once', async (t) => {
  const secured = await startServer(t, r, { url: redis.url, env: { SERVER_SECURE_COOKIE: 'false' } });
  const page = await openPage(t, { base: secured.base });
  await page.locator('#login').waitFor();
  // A request from before the login, whose refusal comes after it.
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  const held = new Promise((resolve) => {
    void page.route('**/threads', async (route) => {
      const response = await route.fetch();
      resolve();
      await released;
      await route.fulfill({ response });
    }, { times: 1 });
  });
  const late = page.evaluate(() => import('/js/api.js').then((api) => api.threads()).catch((error) => error.status));
  await within(LONG, held, 'the early request');
  await page.locator('#token').fill('wrong-token-0123456789');
  await page.locator('#login button').click();
  await page.locator('#login-problem', { hasText: 'does not know' }).waitFor();
  await page.locator('#token').fill('token-of-ann-0123456789');
  await page.locator('#login button').click();
  await page.locator('#login').waitFor({ state: 'hidden' });
  release();
  assert.equal(await late, 401);
  await page.locator('#login').waitFor({ state: 'hidden' });
  await state(await page.ran('print("in")'), 'completed');
  await page.reload();
  await page.locator('.cell .stdout', { hasText: 'in' }).waitFor();
});
