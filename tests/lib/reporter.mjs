// A reporter for node:test: one line a test file, failures in full, and a count of leaves for tests/run.
import { basename } from 'node:path';
import { inspect } from 'node:util';

/** What went wrong, without the runner's wrapping. */
function describe(error) {
  const cause = error?.cause ?? error;
  if (cause?.code === 'ERR_ASSERTION' && cause.generatedMessage === false) return cause.stack ?? cause.message;
  return inspect(cause, { depth: 6, breakLength: 120 });
}

export default async function* reporter(source) {
  const total = { passed: 0, failed: 0 };
  const files = new Map();
  for await (const event of source) {
    const { data } = event;
    if (event.type === 'test:diagnostic' && data.nesting > 0) yield `    ${data.message}\n`;
    if (event.type !== 'test:pass' && event.type !== 'test:fail') continue;
    const isFile = data.nesting === 0 && data.name === data.file;
    const kind = data.details?.error?.failureType;
    if (kind === 'subtestsFailed' || (event.type === 'test:pass' && isFile)) continue;
    if (data.details?.type === 'suite' && event.type === 'test:pass') continue;
    const failed = event.type === 'test:fail' || data.skip !== undefined || data.todo !== undefined;
    const file = basename(data.file ?? data.name);
    const count = files.get(file) ?? { passed: 0, failed: 0, ms: 0 };
    files.set(file, count);
    count[failed ? 'failed' : 'passed']++;
    total[failed ? 'failed' : 'passed']++;
    count.ms += data.details?.duration_ms ?? 0;
    if (failed) {
      yield `not ok ${file}: ${data.name}${data.skip !== undefined ? ' (skipped)' : ''}\n`;
      if (data.details?.error) yield `${describe(data.details.error).replace(/^/gm, '    ')}\n`;
    }
  }
  for (const [file, count] of files) {
    yield `  ${file}: ${count.passed} passed, ${count.failed} failed, ${(count.ms / 1000).toFixed(1)} s\n`;
  }
  yield `# counted ${total.passed} passed, ${total.failed} failed\n`;
}
