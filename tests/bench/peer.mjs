// The peer: a stock BullMQ Worker whose jobs do nothing. peer.mjs PORT QUEUE CONCURRENCY
import { Worker } from 'bullmq';

const [port, queue, concurrency] = process.argv.slice(2);
const worker = new Worker(queue, async () => null, {
  connection: { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null },
  concurrency: Number(concurrency),
});
worker.on('error', () => {});
process.on('SIGTERM', async () => {
  await worker.close();
  process.exit(0);
});
