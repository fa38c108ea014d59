// The worker with its E2B driver against the emulator: what every test here needs.
import assert from 'node:assert/strict';
import { startE2b } from '../../lib/e2b.mjs';
import { waitFor } from '../../lib/process.mjs';
import { startRedis } from '../../lib/redis.mjs';
import { makeRig, slow } from '../../lib/rig.mjs';

export { slow, waitFor };
export { scriptLine } from '../../lib/e2b.mjs';
export const redis = await startRedis();
export const e2b = await startE2b({ settings: { warm: 1 } });

export const ok = (result) => {
  assert.equal(result.state, 'completed', JSON.stringify([result.reason, result.errorDetail ?? result.error]));
  return result;
};

/** A rig on the emulator as just started; `py(code, data)` runs code in thread `main` and gives the result. */
export async function rig(t, { env = {}, settings = {}, keep = false, ...options } = {}) {
  if (!keep) await e2b.reset();
  if (Object.keys(settings).length) await e2b.set(settings);
  const r = await makeRig(t, redis, {
    env: { CODE_INTERPRETER_TYPE: 'E2B', WORKER_CONCURRENCY: '30', ...e2b.env, ...env }, ...options,
  });
  r.py = async (code, data = {}, ms = 60_000) => r.result(await r.add(code, { threadId: 'main', ...data }), ms);
  r.once = async (code, data = {}, ms = 60_000) => r.result(await r.add(code, data), ms);
  r.quiet = async () => { // nothing under way at the emulator any more
    await waitFor(async () => (await e2b.journal()).every((entry) => entry.ms !== null), { what: 'requests have ended' });
  };
  r.record = (thread = ':main') => r.redis.hgetall(`${r.P}thread:${thread}`);
  r.live = async () => (await e2b.sandboxes()).filter((s) => s.state !== 'killing');
  return r;
}

export const ops = (entries) => entries.map((entry) => entry.op);

export const deployment = 'dep-1';
/** Asks the control plane as another client of the account would. */
export async function api(method, path, body, key = e2b.env.E2B_API_KEY) {
  const response = await fetch(e2b.apiUrl + path, {
    method, headers: { 'X-API-KEY': key, 'Content-Type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}
/** A sandbox made behind the worker's back; the metadata of `thread` unless said otherwise. */
export const makeBox = (metadata = {}, more = {}) => api('POST', '/sandboxes', {
  templateID: 'code-interpreter-v1', timeout: 300, secure: true, autoPause: true, autoResume: { enabled: true },
  metadata: { twentySessionId: ':main', sandpiperDeployment: deployment, ...metadata }, ...more,
});
/** Do these journal entries overlap in time? */
export const overlap = (a, b) => a.t < b.t + b.ms / 1000 && b.t < a.t + a.ms / 1000;
