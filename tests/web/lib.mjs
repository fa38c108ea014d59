// Chromium, the server, a worker and kernels: what the tests of the page run on.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { once } from 'node:events';
import { chromium } from 'playwright-core';
import { atEnd } from '../lib/process.mjs';
import { startProxy, startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { startServer } from '../server/lib.mjs';

export const LONG = 90_000;
const top = { after: atEnd };
export const redis = await startRedis();
export const r = await makeRig(top, redis, {
  events: false, checks: false, env: { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', WORKER_CONCURRENCY: '4' },
});
export const s = await startServer(top, r, { url: redis.url, env: { SERVER_TOKENS: '', NODE_ENV: 'development' } });
export const proxy = await startProxy(Number(new URL(s.base).port));

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
atEnd(() => browser.close());

/** A page of its own in a fresh browser profile; whatever goes wrong in it fails the test. */
export async function openPage(t, { base = s.base, hash = '', context, ...options } = {}) {
  const own = context ?? await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await own.newPage();
  page.setDefaultTimeout(LONG);
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.stack ?? String(error)));
  page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
  t.after(async () => {
    if (!context) await own.close();
    const bad = errors.filter((text) => !/net::ERR|Content Security Policy|Failed to load resource|sandboxed/.test(text));
    assert.deepEqual(bad, []);
  });
  await page.goto(`${base}/${hash}`);
  page.ran = async (code, files = []) => {
    const before = await page.locator('.cell').count();
    if (files.length) await page.locator('#files').setInputFiles(files);
    await page.locator('#code').fill(code);
    await page.locator('#code').press('Control+Enter');
    const cell = page.locator('.cell').nth(before);
    await cell.waitFor();
    return cell;
  };
  page.errorsSeen = errors;
  return page;
}
export async function state(cell, name) {
  try {
    await cell.and(cell.page().locator(`.${name}`)).waitFor();
  } catch (error) {
    throw new Error(`no ${name} cell (${await cell.allTextContents()}); ${r.worker.tail(20)}`, { cause: error });
  }
}

/** A page on the net that code may wait for: each GET /name is held until let('name'). */
async function holder() {
  const held = new Map();
  const free = new Set();
  const server = createServer((request, response) => {
    const name = request.url.slice(1);
    if (free.has(name)) response.end('go');
    else held.set(name, response);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  atEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address();
  return {
    wait: (name) => `import urllib.request as _u; _u.urlopen("http://127.0.0.1:${port}/${name}").read()`,
    /** Defines step(), which waits likewise. */
    quietly: (name) => `def step():\n    import urllib.request\n    urllib.request.urlopen("http://127.0.0.1:${port}/${name}").read()`,
    let: (name) => {
      free.add(name);
      held.get(name)?.end('go');
    },
  };
}
export const hold = await holder();

