// Rich results and files: pictures, tables and text in place; whatever could carry a script only in a closed frame.
import { text as fetchText } from './api.js';
import { coloured, settle, sizeOf, StreamView } from './stream.js';

const HTML_MOST = 4_000_000;
// Beside the page's own policy, which a frame of this kind inherits: no script, no request to anywhere.
const FRAME_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:";

function element(tag, props = {}, ...children) {
  const one = Object.assign(document.createElement(tag), props);
  one.append(...children);
  return one;
}

/** Untrusted HTML. `sandbox` without a word: an origin of its own, no script, no form, no way out. */
function frame(html, title) {
  const rows = (html.match(/<tr[\s>]/gi) ?? []).length;
  const one = element('iframe', { title, referrerPolicy: 'no-referrer' });
  one.setAttribute('sandbox', '');
  one.style.height = `${rows > 0 ? Math.min(60 + rows * 28, 520) : 320}px`;
  one.srcdoc = `<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${FRAME_POLICY}">`
    + '<style>body{font:14px/1.45 system-ui,sans-serif;margin:8px;color:#1b2024;background:#fff}'
    + 'table{border-collapse:collapse}th,td{padding:3px 9px;border-bottom:1px solid #ddd;text-align:right}thead th{border-bottom:2px solid #999}</style>'
    + html;
  return one;
}

function image(type, value, alt) {
  const one = element('img', { alt });
  one.src = type === 'image/svg+xml' ? `data:image/svg+xml,${encodeURIComponent(value)}` : `data:${type};base64,${value.replace(/\s/g, '')}`;
  return one;
}

function plain(value) {
  const view = new StreamView('value');
  view.append(value);
  view.draw();
  view.element.className = 'value';
  return view.element;
}

const textOf = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2));

// In this order the richest that can be shown is taken.
const SHOWN = {
  'image/png': (value, alt) => image('image/png', value, alt),
  'image/jpeg': (value, alt) => image('image/jpeg', value, alt),
  'image/gif': (value, alt) => image('image/gif', value, alt),
  'image/webp': (value, alt) => image('image/webp', value, alt),
  'image/svg+xml': (value, alt) => image('image/svg+xml', value, alt),
  'text/html': (value) => frame(value, 'Result'),
  'text/markdown': plain,
  'application/json': (value) => plain(textOf(value)),
  'text/latex': plain,
  'text/plain': plain,
};

const BINARY = /^image\/(png|jpeg|gif|webp)$/;

async function bring(box, type, ref, alt) {
  const address = ref.url;
  if (BINARY.test(type)) {
    box.append(element('img', { src: address, alt }));
    return;
  }
  const value = ref.size <= HTML_MOST ? await fetchText(address, HTML_MOST).catch(() => null) : null;
  if (value !== null && SHOWN[type]) box.append(SHOWN[type](value, alt));
  else box.append(element('a', { href: address, download: '', textContent: `${type} (${sizeOf(ref.size)})` }));
}

export function resultView({ data = {}, refs = {}, omitted = {}, main }) {
  const box = element('div', { className: 'result' });
  const alt = typeof data['text/plain'] === 'string' ? settle(data['text/plain']).slice(0, 200) : 'Picture made by the code';
  const type = Object.keys(SHOWN).find((one) => one in data || one in refs);
  if (type && type in data) box.append(SHOWN[type](textOf(data[type]), alt));
  else if (type) void bring(box, type, refs[type], alt);
  const others = [...Object.keys(data), ...Object.keys(refs)].filter((one) => !(one in SHOWN));
  const left = Object.entries(omitted).map(([one, size]) => `${one} (${sizeOf(size)}, too large)`);
  if (!type || left.length) {
    box.append(element('p', { className: 'note', textContent: `Not shown here: ${[...(type ? [] : others), ...left].join(', ') || 'an empty result'}` }));
  }
  box.dataset.main = String(Boolean(main));
  return box;
}

export function filesView(files) {
  const list = element('ul', { className: 'files' });
  list.setAttribute('aria-label', 'Files');
  for (const { filename, size, url } of files) {
    list.append(element('li', {}, element('a', { href: url, download: filename.split('/').pop(), textContent: `${filename} (${sizeOf(size)})` })));
  }
  return list;
}

/** An exception, or whatever else went wrong. */
export function failureView(sentence, traceback) {
  const box = element('div', { className: 'failure' }, element('p', { textContent: settle(sentence) }));
  if (traceback) box.append(element('pre', {}, coloured(traceback)));
  return box;
}
