// The account's limits, the sweeper, and many threads at once.
import assert from 'node:assert/strict';
import test from 'node:test';
import { deployment, e2b, makeBox, ok, rig, waitFor } from './lib.mjs';

const env = { E2B_DEPLOYMENT_ID: deployment };

test('a limit of 5 and 20 threads: all jobs done, no attempt used, state kept', async (t) => {
  const r = await rig(t, { env, settings: { max_concurrent: 5, scripted: false } });
  const jobs = [];
  for (let round = 0; round < 3; round++)
    for (let i = 0; i < 20; i++)
      jobs.push(await r.add('n = globals().get("n", 0) + 1; print(n)', { threadId: `t${i}` }, { attempts: 1 }));
  const results = await Promise.all(jobs.map((job) => r.result(job, 110_000)));
  results.forEach((result, at) => assert.equal(ok(result).stdout, `${Math.floor(at / 20) + 1}\n`, `job ${at}`));
  for (const job of jobs) assert.equal((await r.hash(job)).atm, '1');
  assert.ok((await e2b.journal({ op: 'pause' })).length >= 15);
  assert.equal((await e2b.sandboxes()).length, 20);
  const refused = (await e2b.journal({ status: 429 })).length;
  assert.ok(refused < 400, `${refused} refusals`);
});

test('no capacity at all: the job says so in time, and is tried again by its attempts', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_CAPACITY_WAIT_MS: '1500' }, settings: { max_concurrent: 1 } });
  await makeBox({ sandpiperDeployment: 'someone else' });
  const reason = await r.failure(await r.add('1', { threadId: 'main' }));
  assert.match(reason, /capacity|number of E2B sandboxes/i);
  assert.equal((await e2b.journal({ op: 'pause' })).length, 0, 'another deployment\'s sandbox is not ours to pause');
});

test('creates at a limited rate: Retry-After is honoured', async (t) => {
  const r = await rig(t, { env, settings: { create_rate: 2, scripted: true } });
  const jobs = await Promise.all(Array.from({ length: 8 }, (_, i) => r.add('1', { threadId: `r${i}` }, { attempts: 3, backoff: 500 })));
  for (const job of jobs) ok(await r.result(job, 60_000));
  assert.equal((await e2b.sandboxes()).length, 8);
});

test('the sweeper deletes old paused sandboxes of this deployment, and no other', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_SWEEP_INTERVAL_MS: '600', CODE_INTERPRETER_SESSION_MAX_AGE_MS: '3600000' }, replicas: 2 });
  ok(await r.py('1', { threadId: 'old' }));
  ok(await r.py('1', { threadId: 'active' }));
  ok(await r.py('1', { threadId: 'running' }));
  await r.quiet();
  const id = async (thread) => (await r.record(`:${thread}`)).sandbox;
  const [old, active, running] = [await id('old'), await id('active'), await id('running')];
  const foreign = await makeBox({ twentySessionId: ':f', sandpiperDeployment: 'other' });
  const untagged = await makeBox({ twentySessionId: ':u', sandpiperDeployment: 'other2' });
  for (const sandbox of [old, active, foreign.sandboxID, untagged.sandboxID]) await e2b.act(sandbox, 'pause');
  await r.redis.hset(`${r.P}thread::old`, 'claim', String(Date.now() - 2 * 3600_000)); // its last use
  await waitFor(async () => !(await e2b.sandboxes()).some((s) => s.id === old), { timeout: 60_000, what: 'the old one goes' });
  await r.quiet();
  const left = (await e2b.sandboxes()).map((s) => s.id);
  for (const sandbox of [active, running, foreign.sandboxID, untagged.sandboxID]) assert.ok(left.includes(sandbox), sandbox);
  assert.equal((await e2b.journal((e) => e.op === 'execute' || e.op === 'connect')).filter((e) => e.sandbox === old).length, 2, 'never woken');
  assert.equal((await e2b.journal({ op: 'kill' })).length, 1);
  const again = ok(await r.py('print(1)', { threadId: 'old' }));
  assert.equal(again.sandbox.reused, false);
});

test('paused sandboxes beyond the cap go, the longest unused first', async (t) => {
  const r = await rig(t, { env: { ...env, E2B_SWEEP_INTERVAL_MS: '600', E2B_MAX_PAUSED: '2' } });
  const ids = [];
  for (let i = 0; i < 4; i++) {
    ok(await r.py('1', { threadId: `c${i}` }));
    ids.push((await r.record(`:c${i}`)).sandbox);
  }
  await r.quiet();
  for (const sandbox of ids) await e2b.act(sandbox, 'pause');
  await waitFor(async () => (await e2b.sandboxes()).length === 2, { timeout: 60_000, what: 'two are left' });
  assert.deepEqual((await e2b.sandboxes()).map((s) => s.id).sort(), ids.slice(2).sort());
});

test('two replicas, 20 threads, 200 jobs, 50 ms round trips, 3 % faults', { timeout: 170_000 }, async (t) => {
  const r = await rig(t, { env: { ...env, E2B_REQUEST_TIMEOUT_MS: '3000', E2B_STALL_TIMEOUT_MS: '8000', WORKER_CONCURRENCY: '12' }, replicas: 2, settings: { rtt_ms: 50 } });
  await e2b.fault(
    { match: { plane: 'control' }, status: 503, probability: 0.03, times: 0 },
    { match: { op: ['create'] }, lose: true, probability: 0.1, times: 0 },
    { match: { plane: 'envd' }, reset: true, probability: 0.03, times: 0 },
    { match: { op: 'execute' }, status: 502, body: 'Failed to route request to sandbox', probability: 0.02, times: 0 },
    { match: { op: 'execute' }, cut: 200, cut_by: 'reset', probability: 0.01, times: 0 });
  const jobs = [];
  for (let i = 0; i < 200; i++) {
    const mark = `run-${i}`;
    jobs.push(await r.add(`# ${mark}\nruns = globals().setdefault("runs", []); runs.append("${mark}"); print(runs.count("${mark}"))`,
      { threadId: `t${i % 20}` }, { attempts: 3, backoff: 300 }));
  }
  const ends = await Promise.all(jobs.map((job) => r.result(job, 160_000).catch((error) => ({ failed: error.message }))));
  let unknown = 0;
  for (const [at, end] of ends.entries()) {
    if (end.failed) assert.match(end.failed, /sandbox|E2B/i, `job ${at}`);
    else if (end.reason === 'ok') assert.equal(end.stdout, '1\n');
    else {
      assert.match(end.reason, /^(outcome_unknown|sandbox_lost)$/, `job ${at}: ${JSON.stringify(end.error)}`);
      unknown++;
    }
  }
  assert.ok(unknown < 20, `${unknown} with unknown outcome`);
  await e2b.clearFaults();
  // In each thread: every mark once, in order, in one sandbox.
  for (let i = 0; i < 20; i++) {
    const seen = ok(await r.py('print(",".join(globals().get("runs", [])))', { threadId: `t${i}` })).stdout.trim().split(',').filter(Boolean);
    assert.equal(new Set(seen).size, seen.length, `thread ${i}: ${seen}`);
    assert.deepEqual([...seen].sort((a, b) => Number(a.slice(4)) - Number(b.slice(4))), seen);
  }
  await r.quiet();
  const perThread = new Map();
  for (const s of await e2b.sandboxes()) perThread.set(s.metadata.twentySessionId, (perThread.get(s.metadata.twentySessionId) ?? 0) + 1);
  assert.equal(perThread.size, 20);
  assert.deepEqual([...perThread.values()].filter((n) => n !== 1), [], 'one sandbox a thread');
  for (const job of jobs) assert.equal((await r.replyNow(job)).filter((m) => m.type === 'done').length, 1);
});
