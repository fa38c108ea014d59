// Counts what code did, told by the code itself: real kernels on this machine speak to it over TCP.
import { once } from 'node:events';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { atEnd } from '../lib/process.mjs';

/** `runs`: [{job, begin, end}] in ms since the epoch; `code(id, ms)`: Python that tells, sleeps, and prints its id. */
export async function startCounter() {
  const self = { runs: [] };
  const sockets = new Set();
  const server = createServer((socket) => {
    const mine = [];
    sockets.add(socket);
    socket.on('error', () => {});
    const lines = createInterface(socket);
    lines.on('error', () => {});
    lines.on('line', (line) => {
      const [what, job, seconds] = line.split(' ');
      const at = Math.floor(Number(seconds) * 1000);
      if (what === 'begin') {
        mine.push({ job, begin: at, end: null });
        self.runs.push(mine.at(-1));
        socket.write('.'); // counted: the code goes on
      } else {
        mine.at(-1).end = at;
      }
    });
    socket.on('close', () => {
      sockets.delete(socket);
      for (const run of mine) run.end ??= Date.now();
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  self.code = (id, ms) => `import socket, time
s = socket.create_connection(("127.0.0.1", ${port}))
s.sendall(f"begin ${id} {time.time():.4f}\\n".encode()); s.recv(1)
time.sleep(${ms / 1000})
print("${id}")
s.sendall(f"end ${id} {time.time():.4f}\\n".encode()); s.close()`;
  atEnd(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return self;
}
