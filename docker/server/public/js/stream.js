// A run's stdout or stderr: colours, carriage returns, and long output folded so that no page is ever too heavy.
import { AnsiUp } from '../vendor/ansi_up.js';

const HEAD = 8_000; // characters shown of a long output's beginning
const TAIL = 16_000; // and of its end
const MOST = 200_000; // shown when unfolded; all of it can be downloaded
const DRAW_MS = 40; // output of so long is drawn at once
const LINES = 60; // shown folded

/** What a terminal would show of a line that was written over ("\r", "\b"); other control characters are dropped. */
export function settle(text) {
  // Titles, links and other strings to the terminal, then line ends of other systems.
  let out = text.replace(/\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)/g, '').replace(/\r+\n/g, '\n');
  if (/[\r\b]/.test(out)) {
    out = out.split('\n').map((line) => {
      let shown = line.includes('\r') ? line.slice(line.lastIndexOf('\r', line.length - 2) + 1).replace(/\r$/, '') : line;
      while (/[^\x08]\x08/.test(shown)) shown = shown.replace(/[^\x08]\x08/g, '');
      return shown;
    }).join('\n');
  }
  return out.replace(/[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '');
}

/** Nodes of text with ANSI colours. The library escapes the text and writes only spans with classes. */
export function coloured(text) {
  const ansi = new AnsiUp();
  ansi.use_classes = true;
  ansi.url_allowlist = {};
  const template = document.createElement('template');
  template.innerHTML = ansi.ansi_to_html(settle(text).replace(/\x1b$/, ''));
  return template.content;
}

const lineCount = (text) => text.split('\n').length - (text.endsWith('\n') ? 1 : 0);
export const sizeOf = (n) => (n < 1_000 ? `${n} B` : n < 1_000_000 ? `${(n / 1_000).toFixed(0)} kB` : `${(n / 1_000_000).toFixed(1)} MB`);

export class StreamView {
  #parts = [];
  #length = 0;
  #open = false;
  #timer = 0;
  #pre = document.createElement('pre');
  #controls = document.createElement('div');

  constructor(kind) {
    this.kind = kind;
    this.element = document.createElement('div');
    this.element.className = `stream ${kind}`;
    this.element.append(this.#pre, this.#controls);
  }

  get text() {
    this.#parts = [this.#parts.join('')];
    return this.#parts[0];
  }

  append(text) {
    this.#parts.push(text);
    this.#length += text.length;
    this.#timer ||= setTimeout(() => this.draw(), DRAW_MS); // in a hidden tab, too
  }

  draw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const { text } = this;
    const lines = lineCount(text);
    const long = this.#length > HEAD + TAIL || lines > LINES;
    this.#pre.classList.toggle('tall', long);
    if (!long || (this.#open && this.#length <= MOST)) this.#pre.replaceChildren(coloured(text));
    else this.#drawCut(text);
    const atEnd = long && !this.#open;
    if (atEnd) this.#pre.scrollTop = this.#pre.scrollHeight;
    this.#drawControls(long, lines);
  }

  #drawCut(text) {
    const [head, tail] = this.#open ? [MOST / 2, MOST / 2] : [HEAD, TAIL];
    let from = text.slice(0, head);
    let to = text.slice(-tail);
    if (!this.#open) {
      from = from.split('\n').slice(0, LINES / 3).join('\n');
      to = to.split('\n').slice(-LINES * 2 / 3).join('\n');
    }
    const note = document.createElement('span');
    note.className = 'note';
    note.textContent = `\n… ${sizeOf(text.length - from.length - to.length)} not shown …\n`;
    this.#pre.replaceChildren(coloured(from), note, coloured(to));
  }

  #drawControls(long, lines) {
    if (!long) {
      this.#controls.replaceChildren();
      return;
    }
    const [toggle, all] = this.#controls.children.length ? this.#controls.children : this.#makeControls();
    toggle.textContent = this.#open ? 'Fold' : `Unfold ${lines.toLocaleString('en')} lines`;
    toggle.setAttribute('aria-expanded', String(this.#open));
    all.textContent = `Save all (${sizeOf(this.#length)})`;
  }

  #makeControls() {
    const toggle = document.createElement('button');
    const all = document.createElement('button');
    for (const button of [toggle, all]) {
      button.type = 'button';
      button.className = 'fold';
    }
    toggle.addEventListener('click', () => {
      this.#open = !this.#open;
      this.draw();
    });
    all.addEventListener('click', () => save(this.text, `${this.kind}.txt`));
    this.#controls.append(toggle, all);
    return [toggle, all];
  }
}

function save(text, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/plain;charset=utf-8' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
