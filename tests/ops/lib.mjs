// The status port and the log of a worker, as operations see them.
import assert from 'node:assert/strict';
import { request } from 'node:http';

/** Long: it costs nothing where it passes. */
export const patient = 60_000;

/** The status port of a worker started with STATUS_PORT=-1. */
export async function portOf(worker) {
  const line = await worker.waitLine(/status port: listening on/, { timeout: patient });
  return Number(/port (\d+)/.exec(JSON.parse(line).msg)[1]);
}

/** {status, headers, body} of a page; rejects when there is no answer within `timeout`. */
export function get(port, path, { method = 'GET', timeout = patient, host = '127.0.0.1' } = {}) {
  return new Promise((resolve, reject) => {
    const call = request({ host, port, path, method, timeout, agent: false }, (response) => {
      let body = '';
      response.setEncoding('utf8');
      response.on('data', (text) => {
        body += text;
      });
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body }));
    });
    call.on('timeout', () => call.destroy(new Error(`no answer to ${path} within ${timeout} ms`)));
    call.on('error', reject);
    call.end();
  });
}

const sampleLine = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?[0-9]+)?)$/;
const labelPart = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)/y;

function parseLabels(text) {
  const labels = {};
  labelPart.lastIndex = 0;
  while (labelPart.lastIndex < text.length) {
    const part = labelPart.exec(text);
    assert.ok(part, `labels: ${text}`);
    assert.ok(!(part[1] in labels), `label twice: ${text}`);
    labels[part[1]] = part[2];
  }
  return labels;
}

/**
 * Prometheus' text format 0.0.4, strictly, and its naming rules as promtool checks them: {name: {type, help, samples}}.
 * Throws with the line that breaks them.
 */
export function parseMetrics(text) {
  const families = {};
  let current;
  assert.ok(text.endsWith('\n'), 'the last line ends');
  for (const line of text.slice(0, -1).split('\n')) {
    const help = /^# HELP (\S+) (.+)$/.exec(line), type = /^# TYPE (\S+) (counter|gauge|histogram)$/.exec(line);
    if (help) {
      assert.ok(!families[help[1]], `two families ${help[1]}`);
      current = families[help[1]] = { help: help[2], samples: [] };
    } else if (type) {
      assert.equal(families[type[1]], current, line);
      current.type = type[2];
      assert.equal(/_total$/.test(type[1]), type[2] === 'counter', `counters, and only they, end in _total: ${line}`);
      assert.doesNotMatch(type[1], /_(ms|milliseconds|minutes|kb|mb)(_|$)/, `base units: ${line}`);
      assert.doesNotMatch(type[1], /_(count|sum|bucket)$/, line);
    } else {
      const sample = sampleLine.exec(line);
      assert.ok(sample, `not a sample: ${line}`);
      const base = current.type === 'histogram' ? sample[1].replace(/_(bucket|sum|count)$/, '') : sample[1];
      assert.equal(families[base], current, `out of its family: ${line}`);
      current.samples.push({ name: sample[1], labels: parseLabels(sample[2] ?? ''), value: Number(sample[3]) });
    }
  }
  for (const [name, family] of Object.entries(families)) checkFamily(name, family);
  return families;
}

function checkFamily(name, { type, samples }) {
  const keys = samples.map((s) => JSON.stringify([s.name, Object.entries(s.labels).sort()]));
  assert.equal(new Set(keys).size, keys.length, `a sample twice: ${name}`);
  if (type !== 'histogram') return;
  const buckets = samples.filter((s) => s.name === `${name}_bucket`);
  const bounds = buckets.map((b) => (b.labels.le === '+Inf' ? Infinity : Number(b.labels.le)));
  assert.deepEqual(bounds, [...bounds].sort((a, b) => a - b), name);
  assert.equal(bounds.at(-1), Infinity, name);
  buckets.reduce((before, b) => {
    assert.ok(b.value >= before, `${name}: buckets are cumulative`);
    return b.value;
  }, 0);
  assert.equal(samples.find((s) => s.name === `${name}_count`).value, buckets.at(-1).value, name);
}

/** The metrics of a worker; `value(name, labels)` is a sample's value, 0 when it is not there. */
export async function metricsOf(port) {
  const page = await get(port, '/metrics');
  assert.equal(page.status, 200);
  const families = parseMetrics(page.body);
  const value = (name, labels = {}) => {
    const family = families[name] ?? families[name.replace(/_(bucket|sum|count)$/, '')];
    assert.ok(family, `no metric ${name}`);
    const wanted = Object.entries(labels);
    const found = family.samples.filter((s) => s.name === name && wanted.every(([k, v]) => s.labels[k] === v));
    return found.reduce((sum, s) => sum + s.value, 0);
  };
  return { families, value, text: page.body };
}

/** The worker's log lines as objects; throws when one is none. */
export const logOf = (worker) => worker.lines.map((line) => JSON.parse(line));
/** Its warnings and errors. */
export const troubles = (worker) => logOf(worker).filter(({ level }) => level === 'warn' || level === 'error');
