// Starts the server; the address is printed once it listens.
import 'reflect-metadata';
import { type Config, loadConfig } from './config.js';

function settings(): Config {
  try {
    return loadConfig();
  } catch (error) {
    console.error((error as Error).message);
    process.exit(3);
  }
}

const config = settings();
const { createApp } = await import('./app.js');
const app = await createApp(config);
await app.listen(config.port, config.host);
console.log(`listening on ${(await app.getUrl()).replace('[::1]', 'localhost')}`);
