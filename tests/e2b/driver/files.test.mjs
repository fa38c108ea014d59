// Input and output files (cases.md, kind B), and the address rule for URLs.
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import test from 'node:test';
import { tempDir } from '../../lib/process.mjs';
import { e2b, ok, ops, overlap, rig } from './lib.mjs';

const sha = (bytes) => createHash('sha256').update(bytes).digest('hex');
const b64 = (text) => Buffer.from(text).toString('base64');
const names = (result) => result.files.map((f) => f.filename).sort();
const bytesOf = async (r, file) => (file.content !== undefined ? Buffer.from(file.content, 'base64') : r.redis.getBuffer(file.key));

test('inputs: one wave beside each other, then the code; outputs: one more', async (t) => {
  const r = await rig(t);
  ok(await r.py('1'));
  await r.quiet();
  await e2b.set({ rtt_ms: 300 });
  await e2b.forget();
  const files = Array.from({ length: 5 }, (_, i) => ({ filename: `in/${i} é.csv`, content: b64(`row ${i}`) }));
  const code = 'import os\nfor i in range(5): open(f"output/o{i}.txt","w").write(open(f"in/{i} é.csv").read())';
  const result = ok(await r.py(code, { files }));
  const journal = await e2b.journal();
  const of = (op) => journal.filter((e) => e.op === op);
  assert.deepEqual(ops(journal).sort(), [...Array(5).fill('files.read'), ...Array(5).fill('files.write'), 'execute'].sort());
  for (const op of ['files.write', 'files.read']) assert.ok(of(op).every((e) => overlap(e, of(op)[0])), `${op} side by side`);
  assert.ok(of('files.write').every((e) => e.t + e.ms / 1000 <= of('execute')[0].t + 0.02));
  assert.equal((await bytesOf(r, result.files[3])).toString(), 'row 3');
});

test('binary files come out bit by bit', async (t) => {
  const r = await rig(t);
  const random = randomBytes(3 << 20);
  const result = ok(await r.py(`
import zipfile, shutil
open("output/all.bin","wb").write(bytes(range(256))*1000)
z = zipfile.ZipFile("output/a.zip","w"); z.writestr("x.txt","hi"); z.close()
open("output/empty","wb")
shutil.copy("in.bin", "output/A.PNG")
import hashlib
print({n: hashlib.sha256(open("output/"+n,"rb").read()).hexdigest() for n in ["all.bin","a.zip","empty","A.PNG"]})`,
  { files: [{ filename: 'in.bin', content: random.toString('base64').slice(0, 900_000) }] }));
  assert.deepEqual(names(result), ['A.PNG', 'a.zip', 'all.bin', 'empty']);
  for (const file of result.files) {
    const bytes = await bytesOf(r, file);
    assert.equal(bytes.length, file.size);
    assert.ok(result.stdout.includes(sha(bytes)), file.filename);
  }
});

test('folders, links, odd names: only regular files, each with its path', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py(`
import os
os.makedirs("output/a/b/c", exist_ok=True)
for p in ["a/b/c/deep.csv", "a/r.csv", "r.csv", "é 😀.txt", ".hidden", "output"]: open("output/"+p,"w").write(p)
os.symlink("/etc/passwd","output/p.txt"); os.symlink("..","output/loop"); os.symlink("nowhere","output/dangling")
os.mkfifo("output/fifo")
open("output/new\\nline", "w")
open(b"output/bad\\xff", "w")`));
  assert.deepEqual(names(result), ['.hidden', 'a/b/c/deep.csv', 'a/r.csv', 'output', 'r.csv', 'é 😀.txt']);
  assert.ok(result.warnings.some((w) => /p\.txt/.test(w)), JSON.stringify(result.warnings));
  const linked = await r.py('import os, shutil\nshutil.rmtree("output"); os.symlink("/etc", "output")');
  assert.deepEqual(names(ok(linked)), []);
  assert.deepEqual(names(ok(await r.py('open("output/x","w").write("1")'))), ['x']);
});

test('each run\'s files are its own', async (t) => {
  const r = await rig(t);
  const run = async (code, data) => names(ok(await r.py(code, data)));
  assert.deepEqual(await run('open("output/a.txt","w").write("A")'), ['a.txt']);
  assert.deepEqual(await run('print(1)'), []);
  assert.deepEqual(await run('open("output/b.txt","w").write("B")'), ['b.txt']);
  assert.deepEqual(await run('print(open("c.csv").read())', { files: [{ filename: 'c.csv', content: b64('c') }] }), []);
  assert.equal(ok(await r.py('print(open("c.csv").read())')).stdout, 'c\n');
});

test('files are returned after an error, one bad file hides no other', async (t) => {
  const r = await rig(t);
  const failed = await r.py('open("output/partial.csv","w").write("a,b\\n1,2\\n"); raise SystemExit("later step failed")');
  assert.deepEqual([failed.state, names(failed)], ['error', ['partial.csv']]);
  await e2b.fault({ match: { op: 'files.read', path: 'two' }, status: 404, body: { code: 404, message: 'gone' }, times: 0 },
    { match: { op: 'files.read', path: 'three' }, status: 500, times: 2 }, { match: { op: 'files.read', path: 'four' }, cut: 300, cut_by: 'reset', times: 1 });
  const result = ok(await r.py('for n in ["one","two","three","four"]: open("output/"+n,"w").write(n*500)'));
  assert.deepEqual(names(result), ['four', 'one', 'three']);
  assert.ok(result.warnings.some((w) => /two/.test(w)));
  assert.equal((await bytesOf(r, result.files.find((f) => f.filename === 'four'))).toString(), 'four'.repeat(500));
});

/** A server of ours on loopback; its host:port. */
async function serve(t, handler) {
  const server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  return `127.0.0.1:${server.address().port}`;
}

test('a large file streams through', async (t) => {
  const size = 200 << 20;
  const allowed = await serve(t, (_request, response) => {
    response.writeHead(200, { 'Content-Length': size });
    const piece = Buffer.alloc(1 << 20, 'x');
    let left = size;
    const go = () => {
      while (left > 0) {
        left -= piece.length;
        if (!response.write(piece)) return response.once('drain', go);
      }
      return response.end();
    };
    go();
  });
  const r = await rig(t, { env: { URL_ALLOW: allowed, FILE_MAX_BYTES: String(64 << 20), INPUT_MAX_BYTES: String(300 << 20), FILES_MAX_BYTES: String(64 << 20) } });
  const { worker } = r;
  const rss = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${worker.pid}/status`, 'utf8'))[1]) / 1024;
  ok(await r.py('1'));
  const before = rss();
  const result = ok(await r.py('import os; print(os.path.getsize("big.bin")); open("output/big","wb").write(b"y"*(48<<20))',
    { files: [{ filename: 'big.bin', url: `http://${allowed}/big` }] }, 120_000));
  assert.equal(result.stdout, `${size}\n`);
  assert.equal(result.files[0].size, 48 << 20);
  if (!/san/.test(process.env.WORKER_BIN ?? '')) assert.ok(rss() - before < 40, `grew by ${rss() - before} MiB`);
});

test('URLs obey the address rule', async (t) => {
  const redirect = await serve(t, (_q, s) => s.writeHead(302, { Location: 'http://127.0.0.1:1/' }).end());
  const r = await rig(t, { env: { URL_ALLOW: redirect } });
  for (const url of ['http://169.254.169.254/latest/meta-data/', 'gopher://127.0.0.1/x', `http://${redirect}/`, 'http://localhost/x', 'http://[::1]/']) {
    const reason = await r.failure(await r.add('1', { threadId: 'main', files: [{ filename: 'x', url }] }));
    assert.match(reason, /public|http|URL/i, url);
  }
  assert.equal((await e2b.journal({ op: 'execute' })).length, 0);
});

test('hostile input names are refused before anything is sent', async (t) => {
  const r = await rig(t);
  for (const filename of ['../../etc/cron.d/x', '/tmp/abs.txt', 'a/../../b', '..\\..\\w.txt', '.', '..', '']) {
    await r.failure(await r.add('1', { threadId: 'main', files: [{ filename, content: b64('x') }] }));
  }
  assert.deepEqual(await e2b.ops(), []);
  ok(await r.py('print(open("sub/dir/ok \\"q\\".csv").read())', { files: [{ filename: 'sub/dir/ok "q".csv', content: b64('x') }] }));
});

test('the scripts folder is put into a new sandbox in one request', async (t) => {
  const dir = tempDir();
  mkdirSync(join(dir, 'pdf'));
  writeFileSync(join(dir, 'a.py'), 'print("a")');
  writeFileSync(join(dir, 'pdf', 'b.py'), 'print("b")');
  const r = await rig(t, { env: { E2B_SCRIPTS_DIR: dir } });
  assert.equal(ok(await r.py('print(open("scripts/pdf/b.py").read(), open("scripts/a.py").read())')).stdout, 'print("b") print("a")\n');
  assert.equal((await e2b.journal({ op: 'files.write' })).length, 1);
  ok(await r.py('1'));
  assert.equal((await e2b.journal({ op: 'files.write' })).length, 1);
});

test('an upload that fails for a while is tried again; a lost sandbox is replaced, inputs and all', async (t) => {
  const r = await rig(t);
  ok(await r.py('1'));
  await r.quiet();
  const files = [{ filename: '1.csv', content: b64('one') }, { filename: '2.csv', content: b64('two') }];
  await e2b.fault({ match: { op: 'files.write' }, status: 503, times: 1 }, { match: { op: 'files.write' }, reset: true, times: 1 });
  assert.equal(ok(await r.py('print(open("1.csv").read()+open("2.csv").read())', { files })).stdout, 'onetwo\n');
  await r.quiet();
  await e2b.act((await r.record()).sandbox, 'kill');
  const result = ok(await r.py('print(open("1.csv").read()+open("2.csv").read())', { files }));
  assert.equal(result.stdout, 'onetwo\n');
  assert.equal(result.sandbox.stateLost, 'sandbox_gone');
});

test('listed through envd where the hooks are silent', async (t) => {
  const r = await rig(t);
  const result = ok(await r.py('open("output/x.txt","w").write("1"); get_ipython().events.callbacks["post_run_cell"].clear()'));
  assert.deepEqual(names(result), ['x.txt']);
  assert.equal((await e2b.journal({ op: 'fs.ListDir' })).length, 1);
  await r.quiet();
  await e2b.forget();
  assert.deepEqual(names(ok(await r.py('open("output/y.txt","w").write("1")'))), ['y.txt']); // prepared again
  assert.equal((await e2b.journal({ op: 'fs.ListDir' })).length, 0);
});
