// Files with real kernels: inputs by content, key and URL, outputs of every kind, uploads (cases.md, kind B).
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import test from 'node:test';
import { atEnd } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';

const redis = await startRedis();
const web = await startWeb();
const env = { CODE_INTERPRETER_TYPE: 'LOCAL', NODE_ENV: 'development', WORKER_CONCURRENCY: '3', URL_ALLOW: `127.0.0.1:${web.port}` };
const base64 = (bytes) => Buffer.from(bytes).toString('base64');
const sha = (bytes) => createHash('sha256').update(bytes).digest('hex');
const names = (result) => result.files.map((f) => f.filename).sort();

async function rig(t, more = {}) {
  const r = await makeRig(t, redis, { env: { ...env, ...more } });
  r.py = async (code, data = {}) => r.result(await r.add(code, { threadId: 'main', ...data }), 60_000);
  r.bytes = async (result, name) => r.redis.getBuffer(result.files.find((f) => f.filename === name).key);
  return r;
}
const ok = (result) => {
  assert.equal(result.state, 'completed', JSON.stringify(result.errorDetail ?? result.error));
  return result;
};

/** A web server with files to fetch and a place to upload to; on this machine, so only by the allow list. */
async function startWeb() {
  const self = { uploads: [], requests: [] };
  const server = createServer((request, response) => {
    self.requests.push(`${request.method} ${request.url}`);
    const pieces = [];
    request.on('data', (piece) => pieces.push(piece));
    request.on('end', () => {
      const { pathname } = new URL(request.url, 'http://x');
      if (request.method !== 'GET') {
        self.uploads.push({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(pieces) });
        return response.writeHead(pathname === '/refuse' ? 403 : 200).end();
      }
      if (pathname === '/data.csv') return response.end('city,people\nOslo,700000\nBergen,290000\n');
      if (pathname === '/big') return response.end(Buffer.alloc(3 << 20, 7));
      if (pathname === '/away') return response.writeHead(302, { location: 'http://169.254.169.254/latest' }).end();
      if (pathname === '/cut') return response.writeHead(200, { 'content-length': '1000' }).write('half', () => response.destroy());
      return response.writeHead(404).end();
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  self.port = server.address().port;
  self.url = `http://127.0.0.1:${self.port}`;
  atEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  return self;
}

test('inputs by content, by key and by URL', async (t) => {
  const r = await rig(t);
  await r.redis.set(`${r.P}file:in1`, Buffer.from([0, 255, 10, 13]), 'EX', 600);
  const result = ok(await r.py(`
import pandas as pd, os
print(pd.read_csv("data.csv").people.sum(), open("/home/user/key.bin", "rb").read(), open("sub/dir/ok.txt").read(), os.path.getsize("empty"))`, {
    files: [{ filename: 'data.csv', url: `${web.url}/data.csv`, mimeType: 'text/csv' }, { filename: 'key.bin', key: `${r.P}file:in1` },
      { filename: 'sub/dir/ok.txt', content: base64('nested') }, { filename: 'empty', content: '' }] }));
  assert.equal(result.stdout, "990000 b'\\x00\\xff\\n\\r' nested 0\n");
  assert.deepEqual(result.files, [], 'inputs are not outputs');
  const later = ok(await r.py('import os; print(sorted(f for f in os.listdir("/home/user") if f != "output"))'));
  for (const name of ['data.csv', 'key.bin', 'sub', 'empty']) assert.ok(later.stdout.includes(`'${name}'`), `${name} is still there`);
});

test('inputs that cannot be had fail the job before it runs, naming the file', async (t) => {
  const r = await rig(t, { INPUT_MAX_BYTES: String(2 << 20) });
  const cases = {
    'not found': { url: `${web.url}/nothing` }, 'too big': { url: `${web.url}/big` }, 'cut off': { url: `${web.url}/cut` },
    'redirect to metadata': { url: `${web.url}/away` }, 'private address': { url: 'http://127.0.0.1:1/x' }, 'localhost': { url: `http://localhost:${web.port}/data.csv` },
    metadata: { url: 'http://169.254.169.254/latest/meta-data' }, 'v4-mapped': { url: `http://[::ffff:127.0.0.1]:${web.port}/data.csv` },
    'file scheme': { url: 'file:///etc/passwd' }, 'no such key': { key: `${r.P}file:nothing` },
    'decimal address': { url: `http://2130706433:1/x` },
  };
  for (const [what, source] of Object.entries(cases)) {
    const job = await r.add('print("ran")', { threadId: 'main', files: [{ filename: 'wanted.csv', ...source }] });
    const reason = await r.failure(job, 40_000);
    assert.match(reason, /wanted\.csv|files\[/, what);
    assert.ok(!/root:/.test(reason));
    assert.equal((await r.reply(job)).some((m) => m.type === 'started'), false, what);
  }
  assert.equal(ok(await r.py('print("on")')).stdout, 'on\n');
});

test('input names never leave the folder', async (t) => {
  const r = await rig(t);
  const bad = ['../../tmp/sp-escape', '/tmp/sp-escape', 'a/../../sp-escape', '..\\..\\sp-escape', '.', '..', 'a/./b', '~/../sp-escape/..', 'a//b', 'x\nname'];
  for (const filename of bad) {
    const job = await r.add('print("ran")', { files: [{ filename, content: base64('x') }] });
    const outcome = await job.waitUntilFinished(r.events, 40_000).catch((error) => error.message);
    assert.ok(typeof outcome === 'string' ? /filename|file name/.test(outcome) : outcome.state === 'completed', filename);
  }
  for (const path of ['/tmp/sp-escape', '/sp-escape', '/home/sp-escape']) assert.ok(!existsSync(path), path);
  const good = ok(await r.py('import os; print(open("/home/user/ü b/a.b.csv").read(), open("/home/user/.hidden").read())',
    { files: [{ filename: 'ü b/a.b.csv', content: base64('1') }, { filename: '.hidden', content: base64('2') }] }));
  assert.equal(good.stdout, '1 2\n');
});

test('outputs are byte for byte', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py(`
import os, hashlib, zipfile
open("output/all.bin","wb").write(bytes(range(256))*1000)
open("output/empty","w").close()
z = zipfile.ZipFile("output/a.zip","w"); z.writestr("x.txt","hi"); z.close()
open("output/big.bin","wb").write(os.urandom(5 << 20))
open("output/é 日本.txt","w").write("é")
for n in sorted(os.listdir("output")): print(n, hashlib.sha256(open("output/"+n,"rb").read()).hexdigest(), os.path.getsize("output/"+n))`));
  assert.equal(result.files.length, 5);
  for (const line of result.stdout.trim().split('\n')) {
    const [, name, hash, size] = /^(.*) (\w{64}) (\d+)$/.exec(line);
    const bytes = (await r.bytes(result, name)) ?? Buffer.alloc(0);
    assert.deepEqual([sha(bytes), bytes.length], [hash, Number(size)], name);
    assert.equal(result.files.find((f) => f.filename === name).size, Number(size));
  }
});

test('links, pipes and folders that point elsewhere bring nothing out', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py(`
import os
os.symlink("/etc/passwd","output/p.txt"); os.symlink("/proc/self/environ","output/e.txt")
os.symlink("..","output/loop"); os.symlink("nowhere","output/dangling"); os.symlink("/etc","output/etc")
os.mkfifo("output/pipe")
import socket; s = socket.socket(socket.AF_UNIX); s.bind("output/sock")
open("output/fine.txt","w").write("fine")`));
  assert.deepEqual(names(result), ['fine.txt']);
  assert.ok(result.warnings.length > 0, 'what was skipped is told');
  const swapped = await r.py('import shutil; shutil.rmtree("output"); os.symlink("/etc", "output")');
  assert.deepEqual(swapped.files, []);
  const after = ok(await r.py('open("/home/user/output/again.txt","w").write("x")'));
  assert.deepEqual(names(after), ['again.txt']);
  const gone = ok(await r.py('import shutil; shutil.rmtree("/home/user/output")'));
  assert.deepEqual(gone.files, []);
  assert.deepEqual(names(ok(await r.py('open("/home/user/output/back.txt","w").write("x")'))), ['back.txt']);
});

test('nested folders, and each run\'s own files only', async (t) => {
  const r = await rig(t);
  const nested = ok(await r.py('import os\nos.makedirs("output/a/b/c")\nopen("output/a/b/c/deep.csv","w").write("x"); open("output/a/r.csv","w").write("1"); open("output/r.csv","w").write("2")'));
  assert.deepEqual(names(nested), ['a/b/c/deep.csv', 'a/r.csv', 'r.csv']);
  assert.equal((await r.bytes(nested, 'a/r.csv')).toString(), '1');
  assert.deepEqual(names(ok(await r.py('print(os.listdir("output"))'))), []);
  assert.deepEqual(names(ok(await r.py('open("output/b.txt","w").write("b")'))), ['b.txt']);
  assert.deepEqual(names(ok(await r.py('open("c.csv").read()', { files: [{ filename: 'c.csv', content: base64('c') }] }))), []);
  for (const [text, time] of [['AAAA', ''], ['BBBB', ''], ['BBBB', '; os.utime("output/r.txt", (0, 0))']]) {
    const again = ok(await r.py(`open("output/r.txt","w").write("${text}")${time}`));
    assert.deepEqual(names(again), ['r.txt']);
    assert.equal((await r.bytes(again, 'r.txt')).toString(), text);
  }
  const many = ok(await r.py('for i in range(300): open(f"output/{i}.txt","w").write("x")'));
  assert.equal(many.files.length, 100);
  assert.ok(many.warnings.some((w) => /100/.test(w)));
});

test('files written before an error, an exit or a timeout are returned', async (t) => {
  const r = await rig(t);
  const write = 'open("output/partial.csv","w").write("a,b\\n1,2\\n")\n';
  for (const [tail, reason] of [['raise SystemExit("later step failed")', 'code_error'], ['1/0', 'code_error'], ['while True: pass', 'timeout']]) {
    const result = await r.py(write + tail, { timeoutMs: 2000 });
    assert.equal(result.reason, reason);
    assert.equal((await r.bytes(result, 'partial.csv')).toString(), 'a,b\n1,2\n', tail);
  }
  const died = await r.py(`${write}import os; os._exit(1)`);
  assert.equal(died.reason, 'kernel_died');
  assert.deepEqual(names(died), ['partial.csv']);
});

test('types by name', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py('for n in ["A.PNG","data","x.tar.gz","page.html","logo.svg","t.csv","s.xlsx",".hidden"]: open("output/"+n,"w").write("<script>")'));
  const types = Object.fromEntries(result.files.map((f) => [f.filename, f.mimeType]));
  assert.equal(types['A.PNG'], 'image/png');
  assert.equal(types.data, 'application/octet-stream');
  assert.equal(types['t.csv'], 'text/csv');
  assert.equal(types['s.xlsx'], 'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet');
  assert.ok(!/html/.test(types['data']));
});

test('no text of the code is rewritten', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py('print("https://x.test/home/user/profile"); open("/home/user/output/a.txt","w").write("see /home/user/readme"); print(len("/home/user"))\nimport os; print(os.getcwd(), os.path.expanduser("~"))'));
  assert.equal(result.stdout, 'https://x.test/home/user/profile\n10\n/home/user /home/user\n');
  assert.equal((await r.bytes(result, 'a.txt')).toString(), 'see /home/user/readme');
  const failing = await r.py('open("/home/user/nothing.csv")');
  assert.match(failing.errorDetail.value, /'\/home\/user\/nothing\.csv'/);
});

test('upload by PUT and by POST form, to a template', async (t) => {
  const r = await rig(t);
  const write = 'open("output/ü b.txt","w").write("up"); open("output/two.bin","wb").write(b"\\0" * 200000)';
  const put = ok(await r.py(write, { output: { upload: { url: `${web.url}/put/{jobId}/{fileId}/{filename}?sig=s3cr3t`, headers: { 'X-Extra': 'yes' } } } }));
  assert.equal(put.files.length, 2);
  for (const file of put.files) {
    const upload = web.uploads.find((u) => u.url.includes(file.fileId));
    assert.equal(upload.method, 'PUT');
    assert.equal(upload.headers['x-extra'], 'yes');
    assert.equal(upload.body.length, file.size);
    assert.ok(upload.url.includes(encodeURIComponent(file.filename)), upload.url);
    assert.ok(file.url && !file.key && !file.content);
    assert.ok(!file.url.includes('s3cr3t'), 'no signature in the result');
  }
  const post = ok(await r.py(write, { output: { upload: { url: `${web.url}/form/{filename}`, method: 'POST', fields: { key: 'k/{filename}', policy: 'p' } } } }));
  const form = web.uploads.filter((u) => u.url.startsWith('/form/'));
  assert.equal(form.length, 2);
  assert.match(form[0].headers['content-type'], /^multipart\/form-data; boundary=/);
  assert.ok(form.some((u) => u.body.includes('name="policy"') && u.body.includes('up')));
  assert.equal(post.files.length, 2);
  const refused = await r.py(write, { output: { upload: { url: `${web.url}/refuse` } } });
  assert.equal(refused.state, 'completed');
  assert.ok(refused.warnings.some((w) => /403/.test(w)), refused.warnings.join());
  const inner = await r.py(write, { output: { upload: { url: 'http://169.254.169.254/{filename}' } } });
  assert.ok(inner.warnings.length > 0 && inner.files.every((f) => !f.url));
});

test('a 30 MB input and a 12 MB output, streamed', async (t) => {
  const r = await rig(t);
  const bytes = Buffer.alloc(30 << 20, 'sandpiper');
  await r.redis.set(`${r.P}file:large`, bytes, 'EX', 600);
  const result = ok(await r.py('import hashlib; d = open("large.bin","rb").read(); print(hashlib.sha256(d).hexdigest()); open("output/back.bin","wb").write(d[:12 << 20])',
    { files: [{ filename: 'large.bin', key: `${r.P}file:large` }] }));
  assert.equal(result.stdout.trim(), sha(bytes));
  assert.equal(sha(await r.bytes(result, 'back.bin')), sha(bytes.subarray(0, 12 << 20)));
});
