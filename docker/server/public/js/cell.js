// One cell: its code, its place in the line, its output as it comes, its end. The one place that changes a cell's state.
import * as api from './api.js';
import { failureView, filesView, resultView } from './result.js';
import { StreamView } from './stream.js';

const LOST = {
  other_replica: 'another worker took the conversation over', actor_changed: 'another user runs it now', idle: 'it was not used for long',
  kernel_died: 'the interpreter died', killed_after_timeout: 'the interpreter had to be restarted', sandbox_gone: 'the sandbox is gone',
};
const WORDS = {
  ok: 'Done', code_error: 'Error', timeout: 'Timed out', cancelled: 'Cancelled', drained: 'Interrupted: the worker was shut down',
  oom: 'Out of memory', kernel_died: 'The interpreter died', sandbox_lost: 'The sandbox was lost', outcome_unknown: 'The outcome is unknown',
  expired: 'Not started in time', disabled: 'No code is run here', worker_lost: 'The worker died', removed: 'Removed',
};
const seconds = (ms) => (ms < 10_000 ? `${(ms / 1000).toFixed(ms < 1000 ? 2 : 1)} s` : `${Math.round(ms / 1000)} s`);
const span = (className, textContent = '') => Object.assign(document.createElement('span'), { className, textContent });

export class Cell {
  #source = null;
  #last = null; // the stream view that output goes to
  #files = [];
  #startedAt = 0;
  #timer = 0;

  constructor(execution, { onEnd, again }) {
    this.id = execution.executionId;
    this.onEnd = onEnd;
    this.element = document.createElement('li');
    this.element.id = `cell-${this.id}`;
    this.code = execution.code;
    const source = Object.assign(document.createElement('pre'), { className: 'source', textContent: execution.code, tabIndex: 0 });
    source.setAttribute('aria-label', 'Code');
    this.stateWord = span('state');
    this.detail = span('detail');
    this.button = Object.assign(document.createElement('button'), { type: 'button' });
    this.button.addEventListener('click', () => (this.ended ? again(this.code) : this.cancel()));
    const bar = document.createElement('div');
    bar.className = 'bar';
    bar.append(this.stateWord, this.detail, this.button);
    this.outputs = Object.assign(document.createElement('div'), { className: 'outputs' });
    this.element.append(source, bar, this.outputs);
    if (execution.inputs?.length) this.detail.textContent = `with ${execution.inputs.join(', ')}`;
    this.#become('waiting', execution.state === 'running' ? 'Starting' : 'Waiting', '');
  }

  get ended() {
    return !['waiting', 'running'].includes(this.state);
  }

  get following() {
    return this.#source !== null;
  }

  #become(state, word, detail) {
    this.state = state;
    this.element.className = `cell ${state}`;
    this.stateWord.textContent = word;
    if (detail !== undefined && (detail || state !== 'waiting')) this.detail.textContent = detail;
    this.button.textContent = this.ended ? 'Use again' : 'Cancel';
    this.button.setAttribute('aria-label', `${this.button.textContent}: ${this.code.split('\n')[0].slice(0, 60)}`);
    if (this.ended) this.button.disabled = false;
    clearInterval(this.#timer);
    if (state === 'running') this.#timer = setInterval(() => this.#tick(), 200);
  }

  #tick() {
    const ms = Date.now() - this.#startedAt;
    if (this.state === 'running') this.stateWord.textContent = `Running ${seconds(ms)}`;
  }

  /** How many of the conversation are before it. */
  position(ahead) {
    if (this.state !== 'waiting') return;
    this.stateWord.textContent = ahead > 0 ? `Waiting behind ${ahead} other${ahead === 1 ? '' : 's'}` : 'Starting';
  }

  async cancel() {
    this.button.disabled = true;
    this.button.textContent = 'Cancelling';
    try {
      await api.cancel(this.id);
    } catch (error) {
      this.button.disabled = false;
      this.button.textContent = 'Cancel';
      this.note(error.message);
    }
  }

  note(text) {
    this.#last = null;
    this.outputs.append(Object.assign(document.createElement('p'), { className: 'note', textContent: text }));
  }

  /** Follows the run from where this page left it; EventSource comes back by itself, with the last id it had. */
  follow() {
    if (this.#source) return;
    const source = new EventSource(api.eventsOf(this.id));
    this.#source = source;
    const on = (type, fn) => source.addEventListener(type, (event) => fn(JSON.parse(event.data)));
    on('position', ({ ahead }) => this.position(ahead));
    on('started', (message) => this.#started(message));
    for (const kind of ['stdout', 'stderr']) on(kind, ({ text }) => this.#text(kind, text));
    on('result', (message) => this.#add(resultView(message)));
    on('file', ({ file }) => this.#files.push(file));
    on('truncated', () => this.note('There was more output than is kept.'));
    on('retrying', ({ error, delayMs }) => {
      this.#become('waiting', `Tried in vain, again in ${seconds(delayMs)}`, '');
      this.note(error);
    });
    on('done', (message) => this.#done(message));
    source.addEventListener('error', () => {
      if (source.readyState === EventSource.CLOSED) this.leave(); // the list says what became of it
    });
  }

  leave() {
    this.#source?.close();
    this.#source = null;
    clearInterval(this.#timer);
  }

  #started({ sandbox }) {
    this.outputs.replaceChildren();
    this.#last = null;
    this.#files = [];
    this.#startedAt = Date.now();
    const detail = sandbox.stateLost ? `a fresh start, variables are gone: ${LOST[sandbox.stateLost] ?? sandbox.stateLost}`
      : sandbox.resumed ? 'resumed a paused sandbox' : '';
    this.#become('running', 'Running', detail);
  }

  #text(kind, text) {
    if (this.#last?.kind !== kind) {
      this.#last?.draw();
      this.#last = new StreamView(kind);
      this.outputs.append(this.#last.element);
    }
    this.#last.append(text);
  }

  #add(view) {
    this.#last?.draw();
    this.#last = null;
    this.outputs.append(view);
  }

  #done({ state, reason, error, result }) {
    this.leave();
    this.#last?.draw();
    const lost = this.detail.textContent;
    const time = result ? `in ${seconds(result.executionTimeMs)}` : '';
    if (error || result?.errorDetail) {
      this.#add(failureView(error ?? result.error ?? '', result?.errorDetail?.traceback));
    }
    const files = result?.files ?? this.#files;
    // A chart is shown in its place already.
    if (files.length) this.#add(filesView(files));
    for (const warning of result?.warnings ?? []) this.note(warning);
    this.#become(state, WORDS[reason] ?? 'Failed', [time, lost].filter(Boolean).join(', '));
    this.onEnd(this);
  }

  /** An execution whose messages are not kept any more, from the list. */
  show({ state, result, error }) {
    if (this.ended) return;
    this.leave();
    if (state === 'gone') {
      this.#become('gone', 'No longer kept', '');
      return;
    }
    this.outputs.replaceChildren();
    for (const kind of ['stdout', 'stderr']) if (result?.[kind]) this.#text(kind, result[kind]);
    for (const one of result?.results ?? []) this.#add(resultView(one));
    this.#done({ state, reason: result?.reason ?? state, error, result });
  }
}
