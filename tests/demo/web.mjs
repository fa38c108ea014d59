// The page in a browser: a private Redis, a worker and the NestJS server, until Ctrl-C. Run by `make demo-web`; PORT=3000.
import { runUntilStopped, startRedis, startServer, startWorker } from './parts.mjs';

console.log('Starting a private Redis, a worker (local kernels) and the server ...');
runUntilStopped('demo-web: everything is stopped');
const { port } = await startRedis();
await startWorker(port);
const address = await startServer(port, Number(process.env.PORT ?? 3000));
console.log(`
  the page          ${address}
  its HTTP API      ${address}/docs
  Redis             redis-cli -p ${port}

Ctrl-C stops everything.`);
