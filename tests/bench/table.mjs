// The table of rows: on the terminal, in build/bench.json, and in README between its markers.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';
import { execFileSync } from 'node:child_process';

const path = (name) => fileURLToPath(new URL(`../../${name}`, import.meta.url));
const number = (n) => (n === null ? '' : n >= 1000 ? Math.round(n).toLocaleString('en') : String(Number(n.toPrecision(3))));
const ratio = (n) => (n === null ? '' : n >= 10 ? n.toFixed(0) : n.toPrecision(2));
const verdict = (met) => (met === null ? '' : met ? 'yes' : 'NO');
const cells = (row) => [`${row.figure} (${row.unit})`, number(row.ours), number(row.peer), ratio(row.ratio), row.target ?? '', verdict(row.met)];
const widths = [86, 11, 11, 7, 26, 3];

export const header = ['figure', 'ours', 'peer', 'ratio', 'target', 'met'];
export const line = (texts) => texts.map((text, i) => (i % 4 ? text.padStart(widths[i]) : text.padEnd(widths[i]))).join(' ').trimEnd();
export const rowLine = (row) => line(cells(row));

export function save(rows, name) {
  mkdirSync(path('build'), { recursive: true });
  writeFileSync(path(`build/${name}`), `${JSON.stringify(rows, null, 1)}\n`);
}

/** What the figures were measured on, in words. */
function machine() {
  const first = (program, args, pattern) => pattern.exec(execFileSync(program, args, { encoding: 'utf8' }))?.[1] ?? '?';
  const redis = first('redis-server', ['--version'], /v=([\d.]+)/);
  const linux = first('uname', ['-r'], /^([\d.]+)/);
  return `${cpus().length} cores (${cpus()[0].model.trim()}), ${Math.round(totalmem() / 2 ** 30)} GiB, Linux ${linux}, Node.js ${process.versions.node}, Redis ${redis}`;
}

/** Writes build/bench.json as a table into README; `remark`: what else is to be known of the run. */
export function writeReadme(remark) {
  if (!existsSync(path('build/bench.json'))) throw new Error('no build/bench.json: run make bench first');
  const rows = JSON.parse(readFileSync(path('build/bench.json'), 'utf8'));
  const markdown = (texts) => `| ${texts.join(' | ')} |`;
  const table = [
    `On ${machine()}${remark ? `; ${remark}` : ''}:`, '', markdown(header), '|---|--:|--:|--:|---|---|',
    ...rows.map((row) => markdown(cells(row))),
  ].join('\n');
  const text = readFileSync(path('README.md'), 'utf8');
  const changed = text.replace(/(<!-- bench -->\n)[^]*(<!-- \/bench -->)/, (_, open, close) => `${open}${table}\n${close}`);
  if (changed === text && !text.includes('<!-- bench -->')) throw new Error('README.md has no <!-- bench --> markers');
  writeFileSync(path('README.md'), changed);
}

/** Whether another run's rows (a file) have the same verdicts; prints those that differ. */
export function compareVerdicts(file) {
  const other = new Map(JSON.parse(readFileSync(file, 'utf8')).map((row) => [row.figure, row]));
  const rows = JSON.parse(readFileSync(path('build/bench.json'), 'utf8'));
  const differ = rows.filter((row) => other.get(row.figure)?.met !== row.met);
  for (const row of differ) console.log(`${rowLine(row)}   (${other.has(row.figure) ? verdict(other.get(row.figure).met) || 'no target' : 'not there'} in ${file})`);
  console.log(`${rows.length - differ.length} verdicts agree, ${differ.length} differ`);
  return differ.length === 0;
}
