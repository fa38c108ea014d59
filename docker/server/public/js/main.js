// The page: which conversation is open, its cells, the editor. What other tabs do is seen by looking at the lists.
import * as api from './api.js';
import { Cell } from './cell.js';

const LOOK_MS = 1_500;
const $ = (id) => document.getElementById(id);
let thread = null; // the open conversation
let cells = new Map(); // by execution id, in order
let inputs = []; // files for the next run
let threadsShown = '';

const say = (text) => { $('said').textContent = text; };
function problem(text) {
  $('problem').textContent = text;
  $('problem').hidden = !text;
}

// ---- conversations

const newId = () => `t-${Array.from(crypto.getRandomValues(new Uint8Array(10)), (b) => b.toString(16).padStart(2, '0')).join('')}`;

function open(id, { push = true } = {}) {
  for (const cell of cells.values()) cell.leave();
  cells = new Map();
  $('cells').replaceChildren();
  thread = id;
  if (push) history.pushState(null, '', `#${encodeURIComponent(id)}`);
  $('title').textContent = 'New conversation';
  $('remove').hidden = true;
  $('empty').hidden = false;
  $('side').classList.remove('open');
  $('menu').setAttribute('aria-expanded', 'false');
  problem('');
  threadsShown = '';
  return look();
}

function begin() {
  void open(newId());
  $('code').focus();
}

function fromAddress() {
  const id = decodeURIComponent(location.hash.slice(1));
  return /^[\w.-]{1,128}$/.test(id) ? id : null;
}

async function lookAtThreads() {
  const list = await api.threads();
  const text = JSON.stringify([list, thread]);
  if (text === threadsShown) return;
  threadsShown = text;
  const focused = document.activeElement?.dataset?.thread;
  $('threads').replaceChildren(...list.map(({ threadId, title }) => {
    const button = Object.assign(document.createElement('button'), { type: 'button', textContent: title || threadId, title });
    button.dataset.thread = threadId;
    if (threadId === thread) button.setAttribute('aria-current', 'page');
    button.addEventListener('click', () => void open(threadId).then(() => $('main').focus()));
    const item = document.createElement('li');
    item.append(button);
    return item;
  }));
  if (focused) document.querySelector(`[data-thread="${CSS.escape(focused)}"]`)?.focus();
  const mine = list.find(({ threadId }) => threadId === thread);
  if (mine) $('title').textContent = mine.title || mine.threadId;
  $('remove').hidden = !mine;
}

// ---- cells

function cellOf(execution) {
  const cell = new Cell(execution, {
    onEnd: (one) => {
      say(`${one.stateWord.textContent}: ${one.code.split('\n')[0].slice(0, 60)}`);
      void look();
    },
    again: (code) => {
      $('code').value = code;
      $('code').focus();
    },
  });
  cells.set(cell.id, cell);
  $('cells').append(cell.element);
  $('empty').hidden = true;
  return cell;
}

const ENDED = ['completed', 'error', 'failed', 'gone'];

/** Brings the cells in step with the list: new ones of other tabs, places in the line; follows few at a time (a browser opens six connections). */
async function lookAtCells() {
  const opened = thread;
  const list = await api.executions(opened);
  if (opened !== thread) return;
  let following = [...cells.values()].filter((cell) => cell.following).length;
  for (const execution of list) {
    const cell = cells.get(execution.executionId) ?? cellOf(execution);
    if (cell.ended || cell.following) continue;
    if (execution.state === 'gone' || (ENDED.includes(execution.state) && cell.looked)) {
      cell.show(execution); // it was followed once, and there was nothing (more)
    } else if (following < (ENDED.includes(execution.state) ? 4 : 2)) {
      cell.follow();
      cell.looked = ENDED.includes(execution.state);
      following++;
    } else {
      cell.position(execution.ahead);
    }
  }
}

let looking = null;
/** One look at a time; who asks meanwhile gets a fresh one after it. */
function look() {
  looking = (looking ?? Promise.resolve()).then(async () => {
    try {
      await Promise.all([lookAtThreads(), thread && lookAtCells()]);
      if ($('problem').dataset.from === 'look') problem('');
    } catch (error) {
      if (error.status === 401) return;
      problem(error.message);
      $('problem').dataset.from = 'look';
    }
  });
  return looking;
}

async function lookAtWorkers() {
  const { enabled, why, replicas } = await api.status().catch((error) => ({ enabled: false, why: error.message }));
  const n = replicas?.length;
  $('workers').className = enabled ? '' : 'off';
  $('workers').textContent = enabled ? (n ? `${n} worker${n === 1 ? '' : 's'}` : 'ready') : `Code is not run: ${why ?? 'there is no worker'}`;
}

// ---- the editor

function showInputs() {
  $('inputs').hidden = inputs.length === 0;
  $('inputs').replaceChildren(...inputs.map((file) => {
    const button = Object.assign(document.createElement('button'), { type: 'button', textContent: `${file.name} ×` });
    button.setAttribute('aria-label', `Do not send ${file.name}`);
    button.addEventListener('click', () => {
      inputs = inputs.filter((one) => one !== file);
      showInputs();
      $('files').focus();
    });
    const item = document.createElement('li');
    item.append(button);
    return item;
  }));
}

function attach(files) {
  const names = new Set([...files].map((file) => file.name));
  inputs = [...inputs.filter((file) => !names.has(file.name)), ...files];
  showInputs();
}

async function run() {
  const code = $('code').value;
  if (!code.trim()) return;
  problem('');
  $('run').disabled = true;
  try {
    if (!thread) await open(newId());
    await api.run(thread, code, inputs);
    $('code').value = '';
    inputs = [];
    $('files').value = '';
    showInputs();
    say('Sent');
    await look();
    [...cells.values()].at(-1)?.element.scrollIntoView({ block: 'nearest' });
  } catch (error) {
    problem(error.message);
  } finally {
    $('run').disabled = false;
    $('code').focus();
  }
}

function keys(event) {
  const { key, target } = event;
  if ((event.ctrlKey || event.metaKey) && key === 'Enter') {
    event.preventDefault();
    void run();
  } else if (event.ctrlKey && key === 'ArrowUp' && !target.value) {
    event.preventDefault();
    target.value = [...cells.values()].at(-1)?.code ?? '';
  } else if (key === 'Enter' && !event.shiftKey) { // keeps the indent of the line
    const before = target.value.slice(0, target.selectionStart);
    const line = before.slice(before.lastIndexOf('\n') + 1);
    const indent = /^\s*/.exec(line)[0] + (/:\s*$/.test(line) ? '    ' : '');
    if (!indent) return;
    event.preventDefault();
    target.setRangeText(`\n${indent}`, target.selectionStart, target.selectionEnd, 'end');
  }
}

// ---- who

api.whenUnauthorized(() => {
  if (!$('login').open) $('login').showModal();
});
$('login').addEventListener('cancel', (event) => event.preventDefault());
$('login-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  try {
    await api.signIn($('token').value);
    $('token').value = '';
    $('login').close();
    void look();
  } catch (error) {
    $('login-problem').textContent = error.status === 401 ? 'The server does not know this token.' : error.message;
    $('login-problem').hidden = false;
  }
});

// ---- all together

$('editor').addEventListener('submit', (event) => {
  event.preventDefault();
  void run();
});
$('code').addEventListener('keydown', keys);
$('files').addEventListener('change', () => attach($('files').files));
for (const type of ['dragenter', 'dragover']) {
  $('editor').addEventListener(type, (event) => {
    event.preventDefault();
    $('editor').classList.add('over');
  });
}
$('editor').addEventListener('dragleave', () => $('editor').classList.remove('over'));
$('editor').addEventListener('drop', (event) => {
  event.preventDefault();
  $('editor').classList.remove('over');
  attach(event.dataTransfer.files);
});
$('new').addEventListener('click', begin);
$('menu').addEventListener('click', () => {
  $('menu').setAttribute('aria-expanded', String($('side').classList.toggle('open')));
});
$('remove').addEventListener('click', async () => {
  if (!confirm('End this conversation? What runs is cancelled, its variables and files are gone.')) return;
  try {
    await api.removeThread(thread);
    begin();
  } catch (error) {
    problem(error.message);
  }
});
document.addEventListener('keydown', (event) => {
  if (event.altKey && event.key.toLowerCase() === 'n') {
    event.preventDefault();
    begin();
  }
});
addEventListener('popstate', () => {
  const id = fromAddress();
  if (id && id !== thread) void open(id, { push: false });
});
const first = fromAddress();
if (first) void open(first, { push: false });
else begin();
setInterval(() => document.visibilityState === 'visible' && void look(), LOOK_MS);
void lookAtWorkers();
setInterval(() => document.visibilityState === 'visible' && void lookAtWorkers(), 10_000);
