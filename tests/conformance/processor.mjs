// A stock Worker's processor that does what Sandpiper does with a job of the SCRIPTED driver: the same outcomes.
import { UnrecoverableError, WaitingChildrenError } from 'bullmq';
import { sleep } from '../lib/process.mjs';

const noSandbox = 'The script says that no sandbox can be had.';

/** A job waits for children that are pending, unless a child's failure called it (continueParentOnFailure). */
async function waitForChildren(redis, job, token) {
  const key = `${job.queueQualifiedName}:${job.id}`;
  if ((await redis.scard(`${key}:dependencies`)) === 0 || (await redis.exists(`${key}:failed`))) return;
  if (await job.moveToWaitingChildren(token)) throw new WaitingChildrenError();
}

export function processor({ jobLog, jobProgress, redis }) {
  const progress = (job, state) => (jobProgress ? job.updateProgress({ state }) : undefined);
  return async (job, token) => {
    const steps = job.data.code.split('\n').map((line) => JSON.parse(line));
    if (job.name !== 'execute') throw new Error(`The job's name is ${job.name}; this worker knows execute and release.`);
    if (job.data.unrecoverable) throw new UnrecoverableError(job.data.unrecoverable);
    await waitForChildren(redis, job, token);
    await progress(job, 'preparing');
    for (const { fail, times = Infinity } of steps) {
      if (fail && job.attemptsMade + 1 <= times) throw new Error(noSandbox);
    }
    await progress(job, 'running');
    let rows = '';
    const log = async () => {
      if (jobLog && rows) await job.log(rows.replace(/\n$/, ''));
      rows = '';
    };
    for (const step of steps) {
      if (step.stdout) rows += step.stdout;
      if (step.sleep) {
        await sleep(step.sleep);
        if (step.sleep >= 1000) await log(); // Sandpiper holds rows back for a second
      }
    }
    await progress(job, 'collecting');
    await log();
    return { state: 'completed' };
  };
}
