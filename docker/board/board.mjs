// bull-board, the BullMQ dashboard, for one queue: REDIS_URL, QUEUE_NAME, QUEUE_PREFIX, PORT, and BOARD_READ_ONLY=false for its buttons.
import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import { Queue } from 'bullmq'; // 5.x: the dashboard's page of a job does not work with a Queue of BullMQ 6 yet
import express from 'express';

const { REDIS_URL = 'redis://127.0.0.1:6379', QUEUE_NAME = 'code-interpreter', QUEUE_PREFIX = 'bull', PORT = '3030' } = process.env;
const queue = new Queue(QUEUE_NAME, { prefix: QUEUE_PREFIX, connection: { url: REDIS_URL } });
queue.on('error', (error) => console.error(`Redis: ${error.message}`));

const serverAdapter = new ExpressAdapter();
createBullBoard({ queues: [new BullMQAdapter(queue, { readOnlyMode: process.env.BOARD_READ_ONLY !== 'false' })], serverAdapter });
const app = express();
app.use('/', serverAdapter.getRouter());
const server = app.listen(Number(PORT), process.env.HOST ?? '0.0.0.0', (error) => {
  if (error) throw error;
  console.log(`bull-board of ${QUEUE_NAME}: http://127.0.0.1:${server.address().port}/`);
});
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    server.close();
    server.closeAllConnections();
    queue.close().finally(() => process.exit(0));
  });
}
