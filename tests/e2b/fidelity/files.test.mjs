// files and commands of the official clients.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { both, raw, useE2b } from './clients.mjs';

const e2b = await useE2b();
const create = (Sandbox) => Sandbox.create('base', { timeoutMs: 120_000 });
const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, i) => (i * 7 + (i >> 8)) & 255));
const sha = (data) => createHash('sha256').update(data).digest('hex');

both(e2b, 'binary content, both encodings, all read formats', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  for (const [name, opts] of [['a.bin', {}], ['b.bin', { useOctetStream: true }], ['c.bin', { gzip: true }]]) {
    const info = await sandbox.files.write(name, new Blob([bytes]), opts);
    assert.deepEqual([info.path, info.name, info.type], [`/home/user/${name}`, name, 'file']);
    assert.equal(sha(await sandbox.files.read(name, { format: 'bytes' })), sha(bytes), name);
    assert.equal((await sandbox.files.getInfo(name)).size, bytes.length);
  }
  const types = (await e2b.journal({ op: 'files.write' })).map((entry) => entry.headers['content-type'].split(';')[0]);
  assert.deepEqual(types, ['multipart/form-data', 'application/octet-stream', 'application/octet-stream']);
  const blob = await sandbox.files.read('a.bin', { format: 'blob' });
  assert.equal(sha(Buffer.from(await blob.arrayBuffer())), sha(bytes));
  const pieces = [];
  for await (const piece of await sandbox.files.read('a.bin', { format: 'stream' })) pieces.push(piece);
  assert.equal(sha(Buffer.concat(pieces)), sha(bytes));
  assert.equal(sha(await sandbox.files.read('a.bin', { format: 'bytes', gzip: true })), sha(bytes));
  await sandbox.files.write('empty', '');
  assert.equal(await sandbox.files.read('empty'), '');
  assert.equal((await sandbox.files.read('empty', { format: 'bytes' })).length, 0);
  await sandbox.files.write('a.bin', 'shorter');
  assert.equal(await sandbox.files.read('a.bin'), 'shorter', 'overwritten');
});

both(e2b, 'names: unicode, blanks, quotes, folders made on the way', async ({ Sandbox }) => {
  const sandbox = await create(Sandbox);
  const names = ['é 日本 😀.txt', 'a"b.txt', "it's & 100%.txt", 'new/deep/er/f.txt', '/opt/x/y.txt', '~/home.txt', 'a+b;c=d.txt', 'b\\c.txt'];
  for (const name of names) {
    for (const opts of [{}, { useOctetStream: true }]) {
      await sandbox.files.write(name, name, opts);
      assert.equal(await sandbox.files.read(name), name);
      assert.equal(await sandbox.files.exists(name), true, name);
    }
  }
  const listed = (await sandbox.files.list('/home/user')).map((entry) => entry.name).sort();
  assert.deepEqual(listed, ['a"b.txt', 'a+b;c=d.txt', 'b\\c.txt', 'home.txt', "it's & 100%.txt", 'new', 'é 日本 😀.txt'].sort());
  const many = await sandbox.files.write([{ path: 'm/1', data: 'one' }, { path: '/tmp/2', data: 'two' }]);
  assert.deepEqual(many.map((info) => info.path), ['/home/user/m/1', '/tmp/2']);
  assert.equal(await sandbox.files.read('/tmp/2'), 'two');
});

both(e2b, 'list with depth, kinds of entries, links', async ({ Sandbox, InvalidArgumentError, NotFoundError }) => {
  const sandbox = await create(Sandbox);
  assert.equal(await sandbox.files.makeDir('o/a/b'), true);
  assert.equal(await sandbox.files.makeDir('o/a/b'), false);
  await sandbox.files.write('o/a/f.csv', 'x');
  await sandbox.commands.run('ln -s a/f.csv o/link; ln -s /etc/passwd o/out; ln -s a o/dir; ln -s nowhere o/gone; mkfifo o/pipe; chmod 600 o/a/f.csv');
  const at = async (depth) => (await sandbox.files.list('o', { depth })).map((entry) => [entry.path.slice(13), entry.type]);
  const one = [['a', 'dir'], ['dir', 'dir'], ['link', 'file'], ['out', 'file']];
  assert.deepEqual(await at(1), one, 'without what has no type');
  const two = [['a', 'dir'], ['a/b', 'dir'], ['a/f.csv', 'file'], ...one.slice(1)];
  await sandbox.files.write('o/a/b/deep', '');
  assert.deepEqual(await at(2), two);
  assert.deepEqual(await at(3), [...two.slice(0, 2), ['a/b/deep', 'file'], ...two.slice(2)]);
  const info = await sandbox.files.getInfo('o/link');
  assert.deepEqual([info.type, info.symlinkTarget, info.permissions[0]], ['file', '/home/user/o/a/f.csv', 'L']);
  const file = await sandbox.files.getInfo('o/a/f.csv');
  assert.deepEqual([file.size, file.mode, file.permissions, file.owner, file.symlinkTarget], [1, 0o600, '-rw-------', 'user', undefined]);
  assert.ok(Math.abs(file.modifiedTime - Date.now()) < 60_000);
  assert.match(await sandbox.files.read('o/out'), /^root:x:0:0:root:\/root:\/bin\/bash\nuser:/, 'the sandbox\'s own');
  await assert.rejects(sandbox.files.read('o/gone'), NotFoundError);
  await assert.rejects(sandbox.files.list('o/a/f.csv'), InvalidArgumentError);
  await assert.rejects(sandbox.files.list('none'), NotFoundError);
  await assert.rejects(sandbox.files.makeDir('o/a/f.csv'), InvalidArgumentError);
});

both(e2b, 'rename, remove, what is absent, a folder read', async ({ Sandbox, FileNotFoundError, NotFoundError, InvalidArgumentError }) => {
  const sandbox = await create(Sandbox);
  const Absent = FileNotFoundError ?? NotFoundError;
  await sandbox.files.write('a/b', '1');
  const moved = await sandbox.files.rename('a/b', 'c/d');
  assert.equal(moved.path, '/home/user/c/d');
  assert.equal(await sandbox.files.exists('a/b'), false);
  await sandbox.files.remove('c');
  await sandbox.files.remove('c');
  assert.equal(await sandbox.files.exists('c/d'), false);
  await assert.rejects(sandbox.files.read('c/d'), Absent);
  await assert.rejects(sandbox.files.getInfo('c/d'), Absent);
  await assert.rejects(sandbox.files.rename('x', 'y'), Absent);
  await assert.rejects(sandbox.files.read('a'), InvalidArgumentError);
  await assert.rejects(sandbox.files.write('a', '1'), InvalidArgumentError);
});

both(e2b, 'metadata of files, Range, signed addresses', async ({ Sandbox, getSignature }) => {
  const sandbox = await create(Sandbox);
  const info = await sandbox.files.write('m', '0123456789', { metadata: { owner: 'me' } });
  assert.deepEqual(info.metadata, { owner: 'me' });
  const token = (await e2b.sandbox(sandbox.sandboxId)).envdAccessToken;
  const made = { sandboxId: sandbox.sandboxId, envdAccessToken: token };
  const part = await raw(e2b, made, 49983, '/files?path=m', { headers: { Range: 'bytes=2-4' } });
  assert.deepEqual([part.status, part.headers.get('content-range'), await part.text()], [206, 'bytes 2-4/10', '234']);
  const whole = await raw(e2b, made, 49983, '/files?path=m');
  assert.equal(whole.headers.get('content-length'), '10');
  const url = new URL(await sandbox.downloadUrl('m', { useSignatureExpiration: 60_000 }));
  const signed = await raw(e2b, made, 49983, url.pathname + url.search, { token: false });
  assert.deepEqual([signed.status, await signed.text()], [200, '0123456789']);
  url.searchParams.set('path', 'other');
  const forged = await raw(e2b, made, 49983, url.pathname + url.search, { token: false });
  assert.equal(forged.status, 401);
  assert.equal(typeof getSignature, 'function');
});

both(e2b, 'commands: output, exit code, folder, environment, input, signals, time', async ({ Sandbox, CommandExitError, TimeoutError }) => {
  const sandbox = await create(Sandbox);
  const seen = [];
  const run = await sandbox.commands.run('echo out; sleep .2; echo é >&2; pwd; echo $V', {
    cwd: '/tmp', envs: { V: "it's" }, onStdout: (text) => seen.push(text), onStderr: (text) => seen.push(text),
  });
  assert.deepEqual([run.exitCode, run.stdout, run.stderr], [0, "out\n/tmp\nit's\n", 'é\n']);
  assert.equal(seen[0], 'out\n');
  await assert.rejects(sandbox.commands.run('echo a; exit 3'), (error) => {
    assert.ok(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout], [3, 'a\n']);
    return true;
  });
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true });
  await sandbox.commands.sendStdin(cat.pid, 'typed');
  assert.deepEqual((await sandbox.commands.list()).map((process) => process.pid), [cat.pid]);
  await sandbox.commands.closeStdin(cat.pid);
  assert.equal((await cat.wait()).stdout, 'typed');
  const sleeper = await sandbox.commands.run('sleep 100', { background: true });
  assert.equal(await sandbox.commands.kill(sleeper.pid), true);
  await assert.rejects(sleeper.wait(), CommandExitError);
  assert.equal(await sandbox.commands.kill(9999), false);
  const begun = Date.now();
  await assert.rejects(sandbox.commands.run('sleep 100', { timeoutMs: 500 }), TimeoutError);
  assert.ok(Date.now() - begun < 60_000);
  await assert.rejects(sandbox.commands.run('true', { cwd: '/none' }));
  const big = await sandbox.commands.run('head -c 3000000 /dev/zero | tr "\\0" x');
  assert.equal(big.stdout.length, 3_000_000);
});
