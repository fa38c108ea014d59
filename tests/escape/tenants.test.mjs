// Nobody's state is anybody else's (case 142): 500 jobs of tenants whose thread ids look alike.
import assert from 'node:assert/strict';
import test from 'node:test';
import { startRedis } from '../lib/redis.mjs';
import { isolated, users, worker } from './world.mjs';

const redis = await startRedis();

test('no canary ever crosses, however alike the ids are', isolated(redis, users[0], async (t) => {
  const r = await worker(t, redis, users[0], { NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_SPARE_KERNELS: '2' });
  const tenants = [{ threadId: 't', workspaceId: 'a' }, { threadId: 't', workspaceId: 'b' }, { threadId: 't' },
    { threadId: 'undefined', workspaceId: 'a' }, { threadId: 'a:t' }, { threadId: 't ', workspaceId: 'a' }];
  const code = (own) => `
import os, pathlib
seen = [globals().get("canary"), *(p.read_text() for p in pathlib.Path.home().glob("canary*")), *(p.read_text() for p in pathlib.Path("/tmp").glob("canary*"))]
canary = ${JSON.stringify(own)}
for folder in (pathlib.Path.home(), pathlib.Path("/tmp")): (folder / "canary").write_text(canary)
print(*{str(one) for one in seen})`;
  const jobs = [];
  for (let i = 0; i < 494; i++) jobs.push([i % tenants.length, await r.add(code(`tenant ${i % tenants.length}`), tenants[i % tenants.length])]);
  for (const data of [{}, { threadId: '' }, {}, { threadId: '' }, { workspaceId: 'a' }, {}]) jobs.push([null, await r.add(code('nobody'), data)]);
  const firsts = new Set();
  for (const [tenant, job] of jobs) {
    const { stdout, error } = await r.result(job, 300_000);
    const expected = tenant === null || !firsts.has(tenant) ? 'None\n' : `tenant ${tenant}\n`;
    firsts.add(tenant);
    assert.equal(stdout, expected, `${tenant}: ${error}`);
  }
  assert.equal(jobs.length, 500);
}));
