// The server's HTTP API with a real worker: runs, events, files, lists, who may see what, and what is refused.
import assert from 'node:assert/strict';
import test from 'node:test';
import { atEnd, start, waitFor, within } from '../lib/process.mjs';
import { startRedis } from '../lib/redis.mjs';
import { makeRig } from '../lib/rig.mjs';
import { fail, raise, say, script, wait } from '../lib/scripted.mjs';
import { LONG, main, startServer, tokens } from './lib.mjs';

const redis = await startRedis();
const hang = { hang: true };

/** A worker and a server for the tests that need no others; each test has threads of its own. */
const shared = await world({ after: atEnd });

async function world(t, { env, server, ...options } = {}) {
  const r = await makeRig(t, redis, { events: false, ...options, env });
  const s = await startServer(t, r, { url: redis.url, env: server });
  return { r, s };
}
const names = (events) => events.map((e) => e.event).filter((e) => e !== 'position' && e !== 'heartbeat');
const text = (events) => events.filter((e) => e.event === 'stdout').map((e) => e.data.text).join('');

test('code is run, its events come with their seq, its end is in the list', async () => {
  const { s } = shared;
  const answer = await s.call('POST', '/threads/t-1/executions', { body: { code: script(say('hello'), { stderr: 'oops' }) } });
  const { executionId, threadId, events } = answer.body;
  assert.deepEqual([answer.status, threadId, events, answer.headers.get('location')],
    [201, 't-1', `/executions/${executionId}/events`, `/executions/${executionId}`]);
  const all = await s.all(executionId);
  assert.deepEqual(names(all), ['started', 'stdout', 'stderr', 'done']);
  assert.deepEqual(all.filter((e) => e.id).map((e) => e.id), ['1', '2', '3', '4']);
  assert.equal(all.at(-1).data.result.stdout, 'hello');
  const failed = await s.run('t-1', script(raise('ValueError', 'no')));
  await s.all(failed);
  const { body: list } = await s.call('GET', '/threads/t-1/executions');
  assert.deepEqual(list.map((e) => [e.executionId, e.state, e.userId, e.ahead]),
    [[executionId, 'completed', 'ann', 0], [failed, 'error', 'ann', 0]]);
  assert.equal(list[0].result.stdout, 'hello');
  assert.equal(list[0].workspaceId, undefined);
  assert.equal((await s.call('GET', '/threads/t-1/executions?limit=1')).body[0].executionId, failed);
  assert.deepEqual((await s.call('GET', '/threads')).body.filter((one) => one.threadId === 't-1').map((one) => one.executions), [2]);
});

test('events: cut in mid-run and resumed at the last id: nothing twice, nothing missing; behind the end 204', async () => {
  const { s } = shared;
  const lines = Array.from({ length: 40 }, (_, i) => `${i}\n`);
  const id = await s.run('cut', script(...lines.flatMap((line) => [say(line), wait(40)])));
  const got = [];
  let last;
  for (let connection = 0; connection < 6; connection++) {
    let here = 0;
    for await (const event of s.events(id, { last })) {
      if (event.id === undefined) continue;
      got.push(event);
      last = event.id;
      if (connection < 5 && ++here === 4) break;
    }
  }
  assert.deepEqual(got.map((e) => Number(e.id)), got.map((_, i) => i + 1));
  assert.equal(got.at(-1).event, 'done');
  assert.equal(text(got), lines.join(''));
  assert.deepEqual(await s.all(id, { last }), []);
  assert.equal((await s.call('GET', `/executions/${id}/events`, { headers: { 'last-event-id': last } })).status, 204);
  assert.equal(text(await s.all(id)), lines.join(''), 'a second tab gets all of it');
});

test('position: who waits is told how many are ahead, and sees its run begin', async () => {
  const { s, r } = shared;
  const ids = [await s.run('place', script(say('a'), hang))];
  await s.untilOutput(ids[0]);
  for (const steps of [[say('b')], [say('c')]]) ids.push(await s.run('place', script(...steps)));
  const seen = [];
  const reader = (async () => {
    for await (const event of s.events(ids[2])) {
      seen.push(event);
      if (event.event === 'position' && event.data.ahead === 2) await s.call('POST', `/executions/${ids[0]}/cancel`);
    }
  })();
  await within(LONG, reader, 'the third');
  assert.ok(seen.some((e) => e.event === 'position' && e.data.ahead === 2), JSON.stringify(seen.map((e) => e.data)));
  assert.deepEqual(names(seen), ['started', 'stdout', 'done']);
  assert.equal((await s.get(ids[0])).result.reason, 'cancelled');
  assert.equal(await r.redis.exists(`${r.P}lease:acme:place`), 0);
});

test('cancel: a waiting one and a running one; one that has ended says so', async () => {
  const { s } = shared;
  const running = await s.run('cancel', script(say('x'), hang));
  const waiting = await s.run('cancel', script(say('never')));
  await s.untilOutput(running);
  assert.deepEqual([(await s.get(waiting)).state, (await s.get(waiting)).ahead], ['waiting', 1]);
  for (const id of [waiting, running]) {
    const { status, body } = await s.call('POST', `/executions/${id}/cancel`);
    assert.deepEqual([status, body], [202, { executionId: id, state: 'cancelling' }]);
  }
  const [a, b] = [await s.waitEnd(running), await s.waitEnd(waiting)];
  assert.deepEqual([a.state, a.result.reason, a.result.stdout, b.state], ['error', 'cancelled', 'x', 'failed']);
  assert.match(b.error, /cancelled/);
  assert.equal((await s.call('POST', `/executions/${running}/cancel`)).body.state, 'ended');
});

test('files in, by JSON and by form, with folders; files out as attachments that no browser runs', async () => {
  const { s, r } = shared;
  const html = '<script>alert(1)</script>';
  const steps = script({ file: 'page.html', content: html }, { file: 'sub/ä b.csv', content: '1,2' }, { result: { 'image/png': 'iVBORw0KGgo=' } });
  const form = new FormData();
  form.set('code', steps);
  form.set('timeoutMs', '5000');
  form.set('env', '{"A":"b"}');
  form.append('files', new Blob([Buffer.from([0, 255])]), 'in/data.bin');
  const first = await s.run('files', form);
  const second = await s.run('files', { code: steps, files: [{ filename: 'x.txt', content: 'AP8=' }], env: { A: 'b' } });
  const done = (await s.all(first)).at(-1).data;
  assert.equal(done.reason, 'ok', JSON.stringify(done));
  await s.all(second);
  assert.deepEqual((await s.call('GET', '/threads/files/executions')).body.map((e) => e.inputs), [['in/data.bin'], ['x.txt']]);
  assert.doesNotMatch(JSON.stringify(done), /bull:|"key"/);
  for (const [name, type, content] of [['page.html', 'text/html', html], ['sub/ä b.csv', 'text/csv', '1,2']]) {
    const file = done.result.files.find((f) => f.filename === name);
    for (const url of [file.url, `/executions/${first}/files/${file.fileId}`]) {
      const { status, headers, bytes } = await s.call('GET', url);
      assert.deepEqual([status, bytes.toString()], [200, content], url);
      assert.equal(headers.get('content-type').split(';')[0], type);
      assert.match(headers.get('content-disposition'), /^attachment/);
      assert.equal(headers.get('x-content-type-options'), 'nosniff');
      assert.match(headers.get('content-security-policy'), /default-src 'none'.*sandbox/);
    }
  }
  assert.ok(done.result.files.some((f) => f.filename === 'chart-0.png'));
  assert.equal((await s.call('GET', `/executions/${first}/files/nothing`)).status, 404);
  assert.equal((await s.call('GET', `/executions/${first}/files/..%2F..%2Fmeta`)).status, 404);
  await waitFor(async () => (await r.redis.keys(`${r.P}file:in-*`)).length === 0, { timeout: LONG, what: 'inputs are removed' });
  assert.deepEqual(await r.redis.keys(`${r.P}secret:*`), []);
});

test('a value too large for a message has an address', async () => {
  const { s } = shared;
  const value = 'v'.repeat(200_000);
  const id = await s.run('value', script({ result: { 'text/plain': 'small', 'text/html': value } }));
  const events = await s.all(id);
  const { data } = events.find((e) => e.event === 'result');
  const url = data.refs['text/html'].url;
  assert.doesNotMatch(JSON.stringify(events), /bull:/);
  assert.equal((await s.call('GET', url)).bytes.toString(), value);
  assert.equal((await s.call('GET', url, { who: 'eve' })).status, 404);
});

test('another workspace sees nothing: lists, events, files, cancels; its thread of that name is another', async () => {
  const { s, r } = shared;
  const id = await s.run('secret', script({ file: 'f.txt', content: 'secret' }, say('x'), hang));
  await s.untilOutput(id);
  const who = 'eve';
  for (const [method, path] of [['GET', ''], ['GET', '/events'], ['POST', '/cancel'], ['GET', '/files/f.txt'], ['GET', '/values/0']]) {
    assert.equal((await s.call(method, `/executions/${id}${path}`, { who })).status, 404, path);
    assert.equal((await s.call(method, `/executions/${id}${path}`, { who: null })).status, 401, path);
    assert.equal((await s.call(method, `/executions/${id}${path}`, { who: 'no-such-token-1234567' })).status, 401, path);
  }
  assert.deepEqual((await s.call('GET', '/threads', { who })).body, []);
  assert.deepEqual((await s.call('GET', '/threads/secret/executions', { who })).body, []);
  assert.equal((await s.call('DELETE', '/threads/secret', { who })).status, 204);
  const theirs = await s.run('secret', script(say('mine')), { who });
  assert.equal(text(await s.all(theirs, { who })), 'mine', 'not behind the other workspace');
  assert.equal((await s.get(id)).state, 'running');
  assert.equal(await r.redis.hget(`${r.P}${theirs}`, 'sp:t'), 'other:secret');
  // The same workspace does.
  assert.equal((await s.call('POST', `/executions/${id}/cancel`, { who: 'bob' })).status, 202);
  await s.waitEnd(id);
});

test('a thread is removed: what it has is cancelled, its sandbox ended, its list empty', async () => {
  const { s, r } = shared;
  await s.all(await s.run('gone', script({ state: 'n' })));
  const running = await s.run('gone', script(say('x'), hang));
  await s.untilOutput(running);
  assert.equal((await s.call('DELETE', '/threads/gone')).status, 204);
  assert.deepEqual((await s.call('GET', '/threads/gone/executions')).body, []);
  assert.ok(!(await s.call('GET', '/threads')).body.some((one) => one.threadId === 'gone'));
  assert.equal((await s.call('GET', `/executions/${running}`)).status, 404);
  await waitFor(async () => (await r.redis.hget(`${r.P}${running}`, 'finishedOn')) !== null, { timeout: LONG, what: 'cancelled' });
  const [again] = [await s.run('gone', script({ state: 'n' }))];
  assert.equal((await s.all(again)).at(-1).data.result.stdout.trim(), '1', 'a fresh sandbox');
});

test('what is refused, and that the answer says why', async (t) => {
  const { s, r } = await world(t, { replicas: 0, server: { SERVER_INPUT_MAX_BYTES: '1000' } });
  const post = (body, path = '/threads/t/executions', options = {}) => s.call('POST', path, { body, ...options });
  const b64 = Buffer.from('x').toString('base64');
  const cases = [ // [body, status, what the answer names]
    [{}, 400, /code/], [{ code: 5 }, 400, /code/], [{ code: '' }, 400, /code/], [{ code: 'x'.repeat(500_001) }, 400, /code/],
    [{ code: 'x', workspaceId: 'acme' }, 400, /workspaceId/], [{ code: 'x', threadId: 'y' }, 400, /threadId/],
    [{ code: 'x', timeoutMs: 0 }, 400, /timeoutMs/], [{ code: 'x', timeoutMs: 1.5 }, 400, /timeoutMs/], [{ code: 'x', timeoutMs: 'soon' }, 400, /timeoutMs/],
    [{ code: 'x', env: [] }, 400, /env/], [{ code: 'x', env: { A: 1 } }, 400, /env/], [{ code: 'x', env: { 'a-b': 'x' } }, 400, /env/],
    [{ code: 'x', env: { A: 'x\0' } }, 400, /env/], [{ code: 'x', language: 'a b' }, 400, /language/],
    [{ code: 'x', files: {} }, 400, /files/], [{ code: 'x', files: [{ filename: 'a' }] }, 400, /content/],
    [{ code: 'x', files: [{ filename: 'a', content: '%' }] }, 400, /base64/],
    ...['../a', '/a', 'a/../b', 'a//b', 'a\\b', '', 'a\nb', './a'].map((filename) => [{ code: 'x', files: [{ filename, content: b64 }] }, 400, /filename/]),
    [{ code: 'x', files: [{ filename: 'a', content: b64 }, { filename: 'a', content: b64 }] }, 400, /same name/],
    ['{"code":', 400, /JSON/i], ['[]', 400, /./],
  ];
  for (const [body, status, pattern] of cases) {
    const answer = await post(body);
    assert.equal(answer.status, status, JSON.stringify([body, answer.body]).slice(0, 300));
    assert.match(JSON.stringify(answer.body.message), pattern, JSON.stringify(body).slice(0, 100));
  }
  assert.equal((await post({ code: 'x' }, `/threads/${'a'.repeat(129)}/executions`)).status, 400);
  assert.equal((await post({ code: 'x' }, '/threads/a%2Fb/executions')).status, 400);
  assert.equal((await post({ code: 'x', files: [{ filename: 'a', content: 'A'.repeat(1_100_000) }] })).status, 413);
  const form = new FormData();
  form.set('code', 'x');
  form.append('files', new Blob(['x'.repeat(2000)]), 'a.txt');
  assert.equal((await post(form)).status, 413);
  const escape = new FormData();
  escape.set('code', 'x');
  escape.append('files', new Blob(['x']), '../../etc/x');
  assert.equal((await post(escape)).status, 400);
  assert.equal((await post({ code: 'x', env: { A: 'y'.repeat(20_000) } }, undefined, { who: null })).status, 401, 'not even read');
  assert.equal((await post({ code: 'x' }, undefined, { headers: { origin: 'https://evil.example' } })).status, 403);
  assert.equal((await s.call('GET', '/executions/x/events', { headers: { 'last-event-id': 'a' } })).status, 404);
  assert.equal((await s.call('GET', '/threads/t/executions?limit=501')).status, 400);
  assert.equal((await s.call('GET', '/nothing')).status, 404);
  assert.deepEqual((await r.queue.getJobs()).length, 0, 'none of it came into the queue');
  assert.deepEqual(await r.redis.keys(`${r.P}file:*`), []);
});

test('status: no worker, a disabled one, a ready one; settings are given to the workers', async (t) => {
  const { s, r } = await world(t, {
    replicas: 0, server: { CODE_INTERPRETER_TIMEOUT_MS: '1234', CODE_INTERPRETER_TYPE: 'DISABLED', E2B_API_KEY: 'secret' },
  });
  const status = async (who = 'ann') => (await s.call('GET', '/status', { who })).body;
  assert.deepEqual(await status(), { enabled: false, why: 'No worker is running.', development: false, workspaceId: 'acme', replicas: [] });
  assert.deepEqual(await r.redis.hgetall(`${r.P}settings:runtime`), { CODE_INTERPRETER_TIMEOUT_MS: '1234', CODE_INTERPRETER_TYPE: 'DISABLED' });
  const id = await s.run('t', script(hang));
  r.startWorker();
  const end = await s.waitEnd(id);
  assert.deepEqual([end.state, /^Code interpreter is disabled\./.test(end.error)], ['failed', true], end.error);
  await r.redis.hset(`${r.P}settings:runtime`, 'CODE_INTERPRETER_TYPE', 'SCRIPTED');
  const other = await s.run('t', script(hang));
  assert.equal((await s.waitEnd(other)).result.reason, 'timeout', 'after 1234 ms');
  await waitFor(async () => (await status()).enabled, { timeout: LONG, what: 'enabled' });
  const { replicas } = await status();
  assert.deepEqual(replicas.map((one) => [one.driver, one.enabled, one.draining]), [['SCRIPTED', true, false]]);
  const anonymous = await status(null);
  assert.deepEqual([anonymous.workspaceId, anonymous.replicas], [null, []]);
});

test('a cookie does for a page what the header does; it is not for other sites', async () => {
  const { s } = shared;
  assert.equal((await s.call('POST', '/session', { body: { token: 'not a token at all' }, who: null })).status, 401);
  const login = await s.call('POST', '/session', { body: { token: tokens.ann }, who: null });
  const set = login.headers.get('set-cookie');
  assert.deepEqual([login.status, /HttpOnly/i.test(set), /SameSite=Strict/i.test(set)], [204, true, true], set);
  const cookie = set.split(';')[0];
  const post = { who: null, headers: { cookie } };
  const id = await s.run('cookie', script(say('x')), post);
  assert.equal(text(await s.all(id, { who: null, cookie })), 'x');
  assert.equal((await s.call('POST', '/threads/cookie/executions', { ...post, body: { code: 'x' }, headers: { cookie, origin: 'https://evil.example' } })).status, 403);
  assert.equal((await s.call('POST', '/threads/cookie/executions', { ...post, body: { code: script(say('y')) }, headers: { cookie, origin: s.base } })).status, 201);
  assert.match((await s.call('DELETE', '/session', { who: null })).headers.get('set-cookie'), /Expires=Thu, 01 Jan 1970/);
});

test('development mode: nobody needs a token, and only this machine is answered', async (t) => {
  const { s } = await world(t, { server: { SERVER_TOKENS: '', NODE_ENV: 'development' } });
  const id = await s.run('t', script(say('x')), { who: null });
  assert.equal(text(await s.all(id, { who: null })), 'x');
  assert.equal((await s.call('GET', '/status', { who: null })).body.development, true);
  const { request } = await import('node:http');
  const rebound = await new Promise((resolve) => {
    request(`${s.base}/threads`, { headers: { host: 'evil.example' } }, (response) => resolve(response.resume().statusCode)).end();
  });
  assert.equal(rebound, 403);
});

test('pages: the API page, the page itself, their headers; health', async () => {
  const { s, r } = shared;
  const api = (await s.call('GET', '/docs/openapi.json', { who: null })).body;
  for (const path of ['/threads/{id}/executions', '/executions/{id}/events', '/executions/{id}/cancel', '/threads/{id}', '/status', '/health']) {
    assert.ok(api.paths[path], path);
  }
  assert.equal((await s.call('GET', '/docs', { who: null })).status, 200);
  const page = await s.call('GET', '/', { who: null });
  assert.equal(page.status, 200);
  assert.match(page.headers.get('content-security-policy'), /default-src 'none'/);
  assert.doesNotMatch(page.headers.get('content-security-policy'), /script-src[^;]*unsafe/);
  assert.equal(page.headers.get('x-powered-by'), null);
  assert.deepEqual((await s.call('GET', '/health', { who: null })).body, { status: 'ok' });
  assert.equal(await r.redis.ping(), 'PONG');
});

test('a start with wrong settings says which, and no secret', async () => {
  const { loadConfig } = await import('../../docker/server/dist/config.js');
  const SERVER_TOKENS = `${tokens.ann}=w`;
  const wrong = [
    [{ SERVER_TOKENS: 'short=w' }, /16 characters/], [{ SERVER_TOKENS: 'long-enough-token-1=a b' }, /SERVER_TOKENS/],
    [{ SERVER_TOKENS, PORT: 'x' }, /PORT/], [{ SERVER_TOKENS, SERVER_HISTORY_TTL_MS: '-1' }, /SERVER_HISTORY_TTL_MS/], [{ NODE_ENV: 'production' }, /SERVER_TOKENS/],
  ];
  for (const [env, pattern] of wrong) {
    assert.throws(() => loadConfig(env), (error) => pattern.test(error.message) && !/short|long-enough|of-ann/.test(error.message), JSON.stringify(env));
  }
  assert.deepEqual(loadConfig({ SERVER_TOKENS: `${tokens.ann}=w:u` }).tokens.get(tokens.ann), { workspaceId: 'w', userId: 'u' });
  const child = start(process.execPath, [main], { env: { PATH: process.env.PATH, REDIS_URL: redis.url } });
  assert.equal((await within(LONG, child.exited, 'the exit')).code, 3, child.tail());
  assert.match(child.tail(), /SERVER_TOKENS is empty/);
});

test('Redis goes away: 503 in time, then all goes on, a run in progress too', async (t) => {
  const own = await startRedis({ durable: true });
  const r = await makeRig(t, own, { events: false, checks: false });
  const s = await startServer(t, r, { url: own.url });
  const lines = Array.from({ length: 50 }, (_, i) => `${i}\n`);
  const id = await s.run('t', script(...lines.flatMap((line) => [say(line), wait(40)])));
  let killed = null;
  const all = [];
  for await (const event of s.events(id)) {
    all.push(event);
    if (killed || event.event !== 'stdout') continue;
    await own.kill();
    killed = Promise.all([s.call('GET', '/health'), s.call('POST', '/threads/u/executions', { body: { code: 'x' } })])
      .finally(() => own.restart());
  }
  assert.deepEqual((await killed).map((answer) => answer.status), [503, 503]);
  assert.equal(text(all), lines.join(''));
  assert.equal(all.at(-1).event, 'done');
  await waitFor(async () => (await s.call('GET', '/health')).status === 200, { timeout: LONG, what: 'health' });
  const again = await s.run('v', script(say('again')));
  assert.equal(text(await s.all(again)), 'again');
});

test('the server stops while events are open: the client goes on at the next one', async (t) => {
  const { s, r } = await world(t);
  const id = await s.run('t', script(say('a'), wait(500), say('b'), hang));
  const first = [];
  for await (const event of s.events(id)) {
    first.push(event);
    if (event.event === 'stdout' && first.length < 4) s.child.kill('SIGTERM');
  }
  await within(LONG, s.child.exited, 'the exit');
  const next = await startServer(t, r, { url: redis.url });
  const last = first.filter((e) => e.id).at(-1).id;
  const rest = [];
  for await (const event of next.events(id, { last })) {
    rest.push(event);
    if (text([...first, ...rest]) === 'ab') await next.call('POST', `/executions/${id}/cancel`);
  }
  assert.equal(text([...first, ...rest]), 'ab');
  assert.equal(rest.at(-1).data.reason, 'cancelled');
});

test('a job that fails before its start, and one that is tried again', async () => {
  const { s } = shared;
  const id = await s.run('fail', script(fail('no_sandbox', 1), say('at last')));
  assert.deepEqual(names(await s.all(id)), ['retrying', 'started', 'stdout', 'done']);
  const never = await s.run('fail', script(fail('no_sandbox', 9)));
  const end = (await s.all(never)).at(-1).data;
  assert.deepEqual([end.state, end.reason], ['failed', 'no_sandbox']);
  assert.equal((await s.get(never)).state, 'failed');
});
