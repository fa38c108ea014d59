// The incumbent's way of running code, in lines of our own: the official SDK doing the calls that Twenty's E2B driver does
// for each execution, one after the other, nothing kept between two, and its way of publishing output.
import { randomUUID } from 'node:crypto';
import { Sandbox } from '@e2b/code-interpreter';

const HOME = '/home/user';
const ALIVE_MS = 300_000;
const TTL_S = 3600;
const SCRIPTS = Array.from({ length: 13 }, (_, i) => [`script_${i}.py`, `# helper ${i}\n${'x = 1\n'.repeat(500)}`]);

export class Incumbent {
  /** `env`: what an official client needs. `scripts`: helper scripts go into each new sandbox. */
  constructor(env, { scripts = true } = {}) {
    this.options = { apiKey: env.E2B_API_KEY, apiUrl: env.E2B_API_URL, sandboxUrl: env.E2B_SANDBOX_URL };
    this.scripts = scripts ? SCRIPTS : [];
  }

  async find(sessionId) {
    const metadata = { twentySessionId: sessionId };
    const pages = Sandbox.list({ ...this.options, query: { state: ['running', 'paused'], metadata } });
    const found = [];
    while (pages.hasNext) found.push(...await pages.nextItems());
    for (const { sandboxId } of found.filter((one) => one.metadata.twentySessionId === sessionId)) {
      try {
        const sandbox = await Sandbox.connect(sandboxId, this.options);
        await sandbox.setTimeout(ALIVE_MS);
        return { sandbox, reused: true };
      } catch {
        await Sandbox.kill(sandboxId, this.options).catch(() => {});
      }
    }
    const lifecycle = { onTimeout: 'pause', autoResume: true };
    return { sandbox: await Sandbox.create({ ...this.options, timeoutMs: ALIVE_MS, lifecycle, metadata }), reused: false };
  }

  async tidy(files) {
    if (await files.exists(`${HOME}/output`)) await files.remove(`${HOME}/output`);
    await files.makeDir(`${HOME}/output`);
  }

  /** One execution of a session: files [{filename, content}] up, the code, what is in the output folder down. */
  async execute(code, files = [], { sessionId, onStdout } = {}) {
    const { sandbox, reused } = await this.find(sessionId);
    if (reused) await this.tidy(sandbox.files);
    else for (const [name, text] of this.scripts) await sandbox.files.write(`${HOME}/scripts/${name}`, text);
    for (const file of files) await sandbox.files.write(`${HOME}/${file.filename}`, new Blob([file.content]));
    const execution = await sandbox.runCode(code, { onStdout: (message) => onStdout?.(message.line) });
    const output = [];
    try {
      for (const entry of await sandbox.files.list(`${HOME}/output`)) {
        if (entry.type === 'file') output.push({ filename: entry.name, content: await sandbox.files.read(entry.path, { format: 'bytes' }) });
      }
    } catch {
      // as the incumbent does: what cannot be read is not there
    }
    return { stdout: execution.logs.stdout.join('\n'), error: execution.error?.value, files: output };
  }
}

/** Publishes a run's output as the incumbent does: all of it so far with each chunk, in three round trips. */
export class Snapshots {
  constructor(redis, code) {
    this.redis = redis;
    this.key = `agent-chat-stream-chunks:${randomUUID()}`;
    this.channel = `agent-chat:workspace:${this.key}`;
    this.data = { executionId: randomUUID(), state: 'running', code, language: 'python', stdout: '', stderr: '', files: [] };
    this.chunks = 0;
    this.last = Promise.resolve();
  }

  /** Takes a chunk; snapshots go out in their order. */
  stdout(text) {
    this.data.stdout += `${text}\n`;
    this.emit();
  }

  emit() {
    this.chunks++;
    const chunk = { type: 'data-code-execution', id: `code-execution-${this.data.executionId}`, data: { ...this.data } };
    this.last = this.last.then(async () => {
      const seq = await this.redis.rpush(this.key, JSON.stringify(chunk));
      await this.redis.expire(this.key, TTL_S);
      const event = { type: 'stream-chunk', chunk, seq };
      await this.redis.publish(this.channel, JSON.stringify({ onAgentChatEvent: { threadId: this.key, event } }));
    });
  }

  /** The last snapshot, and the end of the list, which is deleted when its message is stored. */
  async end() {
    Object.assign(this.data, { state: 'completed', exitCode: 0 });
    this.emit();
    await this.last;
    await this.redis.del(this.key);
  }
}
