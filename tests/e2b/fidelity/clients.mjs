// The official clients, unmodified, in both generations, pointed at an emulator.
import assert from 'node:assert/strict';
import test from 'node:test';
import * as newest from '@e2b/code-interpreter';
import * as older from 'e2b-code-interpreter-27';
import { apiKey, startE2b } from '../../lib/e2b.mjs';
import { atEnd } from '../../lib/process.mjs';

export const generations = { '2.51.0': newest, '2.45.0': older };

/** One emulator for a file; its addresses are in the environment, as its users give them. */
export async function useE2b(options) {
  const e2b = await startE2b(options);
  Object.assign(process.env, e2b.env);
  atEnd(() => {
    setTimeout(() => process.exit(), 500).unref(); // the clients' timers would hold the process for a minute
    assert.deepEqual(e2b.log, [], 'the emulator itself must not fail');
  });
  return e2b;
}

/** The same test with each generation: fn(client, t). A sandbox that it leaves is killed. */
export function both(e2b, name, fn) {
  for (const [version, client] of Object.entries(generations)) {
    test(`${name} (${version})`, { timeout: 300_000 }, async (t) => {
      await e2b.forget();
      t.after(async () => {
        await e2b.clearFaults();
        for (const { id } of await e2b.sandboxes()) await e2b.act(id, 'kill');
      });
      await fn(client, t, version);
    });
  }
}

/** A request of the data plane without a client's help. */
export function raw(e2b, sandbox, port, path, { method = 'GET', headers = {}, body, token = true, signal } = {}) {
  const own = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) };
  if (token && sandbox.envdAccessToken) own['X-Access-Token'] = sandbox.envdAccessToken;
  return fetch(e2b.url + path, { method, headers: { ...own, ...headers }, body, signal });
}

export function execute(e2b, sandbox, code, { headers = {}, signal, ...more } = {}) {
  return raw(e2b, sandbox, 49999, '/execute', {
    method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, signal,
    body: JSON.stringify({ code, ...more.body }), ...more.options,
  });
}

export async function lines(response) {
  return (await response.text()).split('\n').filter(Boolean).map((line) => JSON.parse(line));
}

/** A request of the control plane without a client's help. */
export async function api(e2b, method, path, body, headers = {}) {
  const response = await fetch(e2b.url + path, {
    method, headers: { 'X-API-KEY': apiKey, 'Content-Type': 'application/json', ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, body: text ? JSON.parse(text) : null };
}
