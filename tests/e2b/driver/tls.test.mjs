// E2B as it is on the net: https, and a host name for each sandbox instead of headers.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import test from 'node:test';
import { createServer } from 'node:tls';
import { tempDir } from '../../lib/process.mjs';
import { e2b, ok, rig } from './lib.mjs';

/** A private authority, and a certificate by it for all names below e2b.localhost. */
function certificates() {
  const dir = tempDir();
  const openssl = (...args) => execFileSync('openssl', args, { cwd: dir, stdio: 'pipe' });
  openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'ca.key', '-out', 'ca.pem', '-days', '2', '-subj', '/CN=private authority');
  openssl('req', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'key.pem', '-out', 'csr.pem', '-subj', '/CN=e2b.localhost',
    '-addext', 'subjectAltName=DNS:*.e2b.localhost');
  openssl('x509', '-req', '-in', 'csr.pem', '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-out', 'cert.pem', '-days', '2', '-copy_extensions', 'copy');
  return { ca: join(dir, 'ca.pem'), key: readFileSync(join(dir, 'key.pem')), cert: readFileSync(join(dir, 'cert.pem')) };
}

/** TLS in front of the emulator; the names that clients asked for. */
async function front(t, { key, cert }) {
  const names = new Set();
  const open = new Set();
  const server = createServer({ key, cert, ALPNProtocols: ['h2', 'http/1.1'] }, (socket) => {
    names.add(socket.servername);
    assert.notEqual(socket.alpnProtocol, 'h2'); // case 26: there closing a request would not interrupt the code
    const plain = connect(Number(new URL(e2b.url).port), '127.0.0.1');
    for (const [one, other] of [[socket, plain], [plain, socket]]) {
      open.add(one);
      one.on('error', () => other.destroy());
      one.on('close', () => { open.delete(one); other.destroy(); });
      one.pipe(other);
    }
  });
  server.on('tlsClientError', () => {});
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const socket of open) socket.destroy();
    server.close();
  });
  return { names, domain: `e2b.localhost:${server.address().port}` };
}

test('over TLS with a private authority, by the host name of each sandbox', async (t) => {
  const tls = certificates();
  const { names, domain } = await front(t, tls);
  const env = { E2B_API_URL: '', E2B_SANDBOX_URL: '', E2B_DOMAIN: domain };
  const r = await rig(t, { env: { ...env, SSL_CERT_FILE: tls.ca } });
  ok(await r.py('x = 1'));
  const files = [{ filename: 'in.txt', content: Buffer.from('in').toString('base64') }];
  const result = ok(await r.py('print(x, open("in.txt").read()); open("output/o", "w").write("1")', { files }));
  assert.deepEqual([result.stdout, result.files.length, result.sandbox.reused], ['1 in\n', 1, true]);
  const stopped = await r.py('import time; time.sleep(300)', { timeoutMs: 700 });
  assert.deepEqual([stopped.reason, stopped.sandbox.stateLost], ['timeout', null]);
  assert.equal(ok(await r.py('print(x)')).stdout, '1\n');
  const { sandbox } = await r.record();
  assert.deepEqual([...names].sort(), ['api.e2b.localhost', `49983-${sandbox}.e2b.localhost`, `49999-${sandbox}.e2b.localhost`].sort());
});

test('without the authority nothing is sent, and the job says why', async (t) => {
  const { domain } = await front(t, certificates());
  const r = await rig(t, { env: { E2B_API_URL: '', E2B_SANDBOX_URL: '', E2B_DOMAIN: domain, E2B_REQUEST_TIMEOUT_MS: '300' } });
  assert.match(await r.failure(await r.add('1', { threadId: 'main' }), 60_000), /certificate/i);
  assert.deepEqual(await e2b.ops(), []);
});
