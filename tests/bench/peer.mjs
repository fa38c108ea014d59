// The peer: a stock BullMQ Worker. peer.mjs PORT QUEUE CONCURRENCY [hand]
// Its jobs do nothing; with `hand` the processor does what Sandpiper does beside: one job a thread, and replies.
import { setTimeout as sleep } from 'node:timers/promises';
import { DelayedError, Worker } from 'bullmq';
import { Redis } from 'ioredis';

const [port, queue, concurrency, mode] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const redis = mode === 'hand' ? new Redis(connection) : null;
const RETRY_MS = 10; // a thread is asked for again so long after it was taken
const TTL_S = 3600;

/** One message of a job's reply, stored and published in one round trip. */
function reply(job, message) {
  const key = `bull:${queue}:reply:${job.id}`;
  const text = JSON.stringify({ v: 1, jobId: job.id, ...message });
  return redis.pipeline().xadd(key, '*', 'm', text).expire(key, TTL_S).publish(key, text).exec();
}

/** The steps of the SCRIPTED driver that are used here. */
async function play(job) {
  for (const line of job.data.code.split('\n').filter(Boolean)) {
    const step = JSON.parse(line);
    if (step.stdout) for (let i = 0; i < (step.times ?? 1); i++) await reply(job, { type: 'stdout', text: step.stdout });
    if (step.sleep) await sleep(step.sleep);
  }
}

async function byHand(job, token) {
  const lock = job.data.threadId && `bull:${queue}:hand:${job.data.threadId}`;
  if (lock && await redis.set(lock, job.id, 'PX', 15_000, 'NX') === null) {
    await job.moveToDelayed(Date.now() + RETRY_MS, token);
    throw new DelayedError();
  }
  try {
    await reply(job, { type: 'started' });
    await play(job);
    await reply(job, { type: 'done', state: 'completed' });
  } finally {
    if (lock) await redis.del(lock);
  }
  return null;
}

const worker = new Worker(queue, mode === 'hand' ? byHand : async () => null, { connection, concurrency: Number(concurrency) });
worker.on('error', () => {});
process.on('SIGTERM', async () => {
  await worker.close();
  process.exit(0);
});
