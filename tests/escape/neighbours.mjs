// Hostile code, and beside it a neighbour who must not feel it; with limits that are soon reached.
import assert from 'node:assert/strict';
import { worker } from './world.mjs';

const production = { NODE_ENV: 'production', CODE_INTERPRETER_LOCAL_MEMORY_MB: '300', CODE_INTERPRETER_LOCAL_DISK_MB: '32',
  CODE_INTERPRETER_LOCAL_FILE_MB: '16', CODE_INTERPRETER_LOCAL_MAX_PROCESSES: '48' };

/** A rig in which `hostile(code)` runs code, then sees that a neighbour is unhurt; and the next run's stateLost. */
export async function neighbours(t, redis, user, env = {}) {
  const r = await worker(t, redis, user, { ...production, ...env });
  await r.py('mine = 42; open("mine.txt", "w").write("mine")', { threadId: 'neighbour' });
  r.hostile = async (code, data = {}) => {
    const result = await r.py(code, { threadId: 'hostile', ...data });
    const next = await r.py('print(mine, open("mine.txt").read())', { threadId: 'neighbour' });
    assert.deepEqual([next.stdout, next.sandbox.reused], ['42 mine\n', true], JSON.stringify(next));
    return result;
  };
  r.again = async (code = 'print("on")') => r.py(code, { threadId: 'hostile' });
  return r;
}
