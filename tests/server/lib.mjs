// The server as a process, and what speaks to it: HTTP, and server-sent events as EventSource reads them.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { request } from 'node:http';
import { fileURLToPath } from 'node:url';
import { start, waitFor } from '../lib/process.mjs';

export const LONG = 60_000;
export const main = fileURLToPath(new URL('../../docker/server/dist/main.js', import.meta.url));
export const tokens = { ann: 'token-of-ann-0123456789', bob: 'token-of-bob-0123456789', eve: 'token-of-eve-0123456789' };
const SERVER_TOKENS = `${tokens.ann}=acme:ann,${tokens.bob}=acme:bob,${tokens.eve}=other:eve`;

/** Starts the server on rig `r`; it is stopped with the test, and must end well. */
export async function startServer(t, r, { env = {}, url } = {}) {
  if (!existsSync(main)) throw new Error('docker/server is not built: make server');
  const child = start(process.execPath, [main], {
    env: { PATH: process.env.PATH, REDIS_URL: url, QUEUE_NAME: r.name, HOST: '127.0.0.1', PORT: '0', NO_COLOR: '1', SERVER_TOKENS, ...env },
  });
  const self = { child };
  self.stop = async () => {
    const exit = await child.stop(LONG);
    assert.ok(exit.code === 0 || exit.signal === 'SIGTERM' || exit.code === 143, `server: ${JSON.stringify(exit)}\n${child.tail()}`);
  };
  t.after(self.stop);
  self.base = (await child.waitLine(/^listening on /, { timeout: LONG })).split(' ').at(-1);

  /** `call('POST', '/path', {body})`: {status, headers, body}; body is parsed when it is JSON. As `who` (a name of tokens, null: nobody). */
  self.call = async (method, path, { body, who = 'ann', headers = {} } = {}) => {
    const isForm = body instanceof FormData;
    const response = await fetch(self.base + path, {
      method, redirect: 'manual',
      body: isForm || typeof body === 'string' ? body : body && JSON.stringify(body),
      headers: { ...(who && { authorization: `Bearer ${tokens[who] ?? who}` }), ...(body && !isForm && { 'content-type': 'application/json' }), ...headers },
    });
    const bytes = Buffer.from(await response.arrayBuffer());
    const isJson = response.headers.get('content-type')?.includes('json');
    return { status: response.status, headers: response.headers, bytes, body: isJson ? JSON.parse(bytes) : bytes.toString() };
  };
  self.run = async (thread, body, options = {}) => {
    const answer = await self.call('POST', `/threads/${thread}/executions`, { body: typeof body === 'string' ? { code: body } : body, ...options });
    assert.equal(answer.status, 201, JSON.stringify(answer.body));
    return answer.body.executionId;
  };
  self.events = (id, options) => events(self.base, id, options);
  self.all = async (id, options) => {
    const all = [];
    for await (const event of self.events(id, options)) all.push(event);
    return all;
  };
  /** Until this execution has printed something. */
  self.untilOutput = async (id) => {
    for await (const event of self.events(id)) if (event.event === 'stdout') return;
    throw new Error(`${id} ended without output`);
  };
  self.get = async (id, who) => (await self.call('GET', `/executions/${id}`, { who })).body;
  self.waitEnd = (id) => waitFor(async () => {
    const one = await self.get(id);
    return ['completed', 'error', 'failed'].includes(one.state) && one;
  }, { timeout: LONG, what: `${id} ends` });
  return self;
}

/** The events of one connection: {id, event, data}. `cut()` of an event closes the connection under it. */
export async function* events(base, id, { last, who = 'ann', cookie } = {}) {
  const { response, socket } = await open(`${base}/executions/${id}/events`, {
    accept: 'text/event-stream', ...(who && { authorization: `Bearer ${tokens[who]}` }), ...(last !== undefined && { 'last-event-id': last }),
    ...(cookie && { cookie }),
  });
  if (response.statusCode === 204) return void socket.destroy();
  assert.equal(response.statusCode, 200);
  assert.match(response.headers['content-type'], /^text\/event-stream/);
  let rest = '';
  response.setEncoding('utf8');
  try {
    for await (const text of response) {
      const blocks = (rest + text).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (error.code !== 'ECONNRESET') throw error;
  } finally {
    socket.destroy();
  }
}

function open(url, headers) {
  return new Promise((resolve, reject) => {
    const req = request(url, { headers, agent: false }, (response) => resolve({ response, socket: req.socket }));
    req.on('error', reject);
    req.end();
  });
}

function parse(block) {
  const event = {};
  for (const line of block.split('\n')) {
    const [, name, value] = /^(\w*): ?(.*)$/.exec(line) ?? [];
    if (name === 'id' || name === 'event') event[name] = value;
    if (name === 'data') event.data = JSON.parse(value);
  }
  return event.data && event;
}
