// How Twenty's code interpreter behaves, in lines of our own: its E2B driver on the official SDK, and the tool that makes CodeExecutionData
// of a driver's callbacks. What the provider of docker/server is measured by.
import { Sandbox } from 'e2b-code-interpreter-27';

const HOME = '/home/user';
const types = {
  png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', csv: 'text/csv', pdf: 'application/pdf', json: 'application/json', txt: 'text/plain',
};
const mimeType = (name) => types[name.split('.').at(-1).toLowerCase()] ?? 'application/octet-stream';

/** One run in a sandbox of its own: files up, code, charts as they come, then the output folder, one after the other. */
export class IncumbentDriver {
  constructor(env) {
    this.options = { apiKey: env.E2B_API_KEY, apiUrl: env.E2B_API_URL, sandboxUrl: env.E2B_SANDBOX_URL };
    this.sessions = new Map();
  }

  async sandbox(sessionId) {
    const create = () => Sandbox.create({ ...this.options, timeoutMs: 300_000, metadata: { twentySessionId: sessionId ?? '' } });
    if (!sessionId) return create();
    if (!this.sessions.has(sessionId)) this.sessions.set(sessionId, await create());
    return this.sessions.get(sessionId);
  }

  async execute(code, files = [], context = {}, callbacks = {}) {
    const sandbox = await this.sandbox(context.sessionId);
    const output = `${HOME}/output`;
    if (await sandbox.files.exists(output)) await sandbox.files.remove(output);
    await sandbox.files.makeDir(output);
    for (const file of files) await sandbox.files.write(`${HOME}/${file.filename}`, new Blob([file.content]));
    const quote = (text) => text.replace(/[\\']/g, '\\$&').replace(/\n/g, '\\n').replace(/\r/g, '\\r');
    const prelude = Object.entries(context.env ?? {}).map(([name, value]) => `os.environ['${name}'] = '${quote(value)}'\n`).join('');
    const out = [];
    let chart = 0;
    const execution = await sandbox.runCode((prelude && `import os\n${prelude}\n`) + code, {
      onStdout: (message) => callbacks.onStdout?.(message.line),
      onStderr: (message) => callbacks.onStderr?.(message.line),
      onResult: async (result) => {
        if (!result.png) return;
        const file = { filename: `chart-${chart++}.png`, content: Buffer.from(result.png, 'base64'), mimeType: 'image/png' };
        out.push(file);
        await callbacks.onResult?.(file);
      },
    });
    for (const entry of await sandbox.files.list(output)) {
      if (entry.type !== 'file') continue;
      const file = { filename: entry.name, content: Buffer.from(await sandbox.files.read(entry.path, { format: 'bytes' })), mimeType: mimeType(entry.name) };
      out.push(file);
      await callbacks.onResult?.(file);
    }
    if (!context.sessionId) await sandbox.kill();
    return {
      stdout: execution.logs.stdout.join('\n'), stderr: execution.logs.stderr.join('\n'), exitCode: execution.error ? 1 : 0, files: out,
      ...(execution.error && { error: execution.error.value }),
    };
  }

  async close() {
    for (const sandbox of this.sessions.values()) await sandbox.kill();
  }
}

/** The tool on top of any driver: all snapshots that a user's page gets, the last one final. */
export async function runTool(driver, code, files, context, executionId = 'id') {
  const snapshots = [];
  const data = { executionId, state: 'pending', code, language: 'python', stdout: '', stderr: '', files: [] };
  const emit = (changes) => snapshots.push(structuredClone(Object.assign(data, changes)));
  const upload = (file) => ({ fileId: file.filename, filename: file.filename, url: `/${file.filename}`, mimeType: file.mimeType });
  emit({});
  emit({ state: 'running' });
  const begun = Date.now();
  try {
    const result = await driver.execute(code, files, context, {
      onStdout: (line) => emit({ stdout: `${data.stdout}${line}\n` }),
      onStderr: (line) => emit({ stderr: `${data.stderr}${line}\n` }),
      onResult: async (file) => emit({ files: [...data.files, upload(file)] }),
    });
    const known = new Set(data.files.map((file) => file.filename));
    emit({
      state: result.exitCode === 0 ? 'completed' : 'error', stdout: result.stdout || data.stdout, stderr: result.stderr || data.stderr,
      exitCode: result.exitCode, executionTimeMs: Date.now() - begun, ...(result.error !== undefined && { error: result.error }),
      files: [...data.files, ...result.files.filter((file) => !known.has(file.filename)).map(upload)],
    });
  } catch (error) {
    emit({ state: 'error', executionTimeMs: Date.now() - begun, error: error.message });
  }
  return snapshots;
}
