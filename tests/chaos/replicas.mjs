// The worker processes of a run: each place has a relay of its own and always gets a new process after a death.
import { sleep } from '../lib/process.mjs';
import { startWorker } from '../lib/rig.mjs';

/**
 * One place for a worker of `queue`. `deaths` of all places are {pid, at}; `broken` is what no worker may do.
 * Verbs of faults resolve when they are over, a new process running.
 */
export async function makePlace(world, queue, index) {
  const self = { queue, name: `${queue.name}-${index}`, relay: await world.server.relay(), worker: null, busy: false };
  let generation = 0;

  self.start = () => {
    const worker = startWorker({
      REDIS_URL: self.relay.url, QUEUE_NAME: queue.name, WORKER_NAME: `${self.name}.${generation++}`,
      LOG_LEVEL: 'debug', ...world.workerEnv, ...queue.env,
    });
    self.worker = worker;
    world.workers.push({ name: `${self.name}.${generation - 1}`, worker });
    worker.exited.then((exit) => {
      world.deaths.set(worker.pid, [...(world.deaths.get(worker.pid) ?? []), Date.now()]); // its id may come again
      if (!worker.ending) world.broken.push(`worker ${self.name} ended by itself: ${JSON.stringify(exit)}\n${worker.tail(12)}`);
    });
  };
  self.kill = async (downMs) => {
    await self.worker.kill9();
    await sleep(downMs);
    self.start();
  };
  self.freeze = async (ms) => {
    self.worker.kill('SIGSTOP');
    await sleep(ms);
    self.worker.kill('SIGCONT');
  };
  /** SIGTERM: it ends within its drain time with exit code 0, whatever else goes on. */
  self.drain = async (downMs = 0) => {
    try {
      await self.worker.done({ graceMs: 60_000 });
    } catch (error) {
      world.broken.push(`SIGTERM of ${self.name}: ${error.message}`);
    }
    await sleep(downMs);
  };
  self.start();
  return self;
}
