// The server's HTTP API, as the page needs it.

/** A refusal of the server: status and a sentence for people. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let onUnauthorized = () => {};
let signedIn = 0; // how often; a 401 to what was asked before the last time is old news
/** Called (with the first 401) when the server wants to know who we are. */
export const whenUnauthorized = (fn) => { onUnauthorized = fn; };

async function ask(method, path, body) {
  const asked = signedIn;
  let response;
  try {
    response = await fetch(path, {
      method, body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
      headers: body === undefined || body instanceof FormData ? {} : { 'Content-Type': 'application/json' },
    });
  } catch {
    throw new ApiError(0, 'The server cannot be reached.');
  }
  if (response.status === 401 && asked === signedIn) onUnauthorized();
  const text = await response.text();
  const value = text && (response.headers.get('Content-Type') ?? '').includes('json') ? JSON.parse(text) : null;
  if (!response.ok) throw new ApiError(response.status, [value?.message ?? `The server answered ${response.status}.`].flat().join('; '));
  return value;
}

const path = (...parts) => `/${parts.map(encodeURIComponent).join('/')}`;

export const status = () => ask('GET', '/status');
export async function signIn(token) {
  await ask('POST', '/session', { token });
  signedIn++;
}
export const threads = () => ask('GET', '/threads');
export const executions = (thread) => ask('GET', path('threads', thread, 'executions'));
export const removeThread = (thread) => ask('DELETE', path('threads', thread));
export const cancel = (execution) => ask('POST', path('executions', execution, 'cancel'));
export const eventsOf = (execution) => path('executions', execution, 'events');

export function run(thread, code, files) {
  const form = new FormData();
  form.set('code', code);
  for (const file of files) form.append('files', file, file.name);
  return ask('POST', path('threads', thread, 'executions'), form);
}

/** Text of an address of this server, at most `limit` bytes; null when it is longer or not there. */
export async function text(address, limit) {
  const response = await fetch(address);
  if (!response.ok || Number(response.headers.get('Content-Length') ?? 0) > limit) return null;
  const body = await response.text();
  return body.length > limit ? null : body;
}
