// A private authority and certificates by it: for a Redis that speaks TLS only and wants its clients to show one, too.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { tempDir } from './process.mjs';

/**
 * An authority with a certificate for `names` and one for clients. `args`: redis-server's options; `options`: what
 * ioredis takes as `tls`; `env`: a worker's settings; `files`: where they all are.
 */
export function makeCertificates({ names = 'DNS:localhost,IP:127.0.0.1' } = {}) {
  const dir = tempDir('sandpiper-tls-');
  const openssl = (...args) => execFileSync('openssl', args, { cwd: dir, stdio: 'pipe' });
  const make = (name, ...more) => openssl('req', '-newkey', 'rsa:2048', '-nodes', '-keyout', `${name}.key`, '-subj', `/CN=${name}`, ...more);
  make('ca', '-x509', '-days', '2', '-out', 'ca.pem');
  for (const [name, ...more] of [['server', '-addext', `subjectAltName=${names}`], ['client']]) {
    make(name, '-out', `${name}.csr`, ...more);
    openssl('x509', '-req', '-in', `${name}.csr`, '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-days', '2', '-out', `${name}.pem`,
      '-copy_extensions', 'copy');
  }
  const file = (name) => join(dir, name);
  const files = { ca: file('ca.pem'), cert: file('server.pem'), key: file('server.key'), clientCert: file('client.pem'), clientKey: file('client.key') };
  return {
    files,
    args: ['--tls-cert-file', files.cert, '--tls-key-file', files.key, '--tls-ca-cert-file', files.ca, '--tls-auth-clients', 'yes',
      '--tls-replication', 'yes'],
    options: { ca: readFileSync(files.ca), cert: readFileSync(files.clientCert), key: readFileSync(files.clientKey) },
    env: { REDIS_TLS_CA_FILE: files.ca, REDIS_TLS_CERT_FILE: files.clientCert, REDIS_TLS_KEY_FILE: files.clientKey },
  };
}

/** REDIS_TLS=yes: all servers of the tests speak TLS, and all their clients and workers. */
export const everywhere = process.env.REDIS_TLS === 'yes' ? makeCertificates() : null;
