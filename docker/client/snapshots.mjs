// Twenty's CodeExecutionData from a job's messages.

/** The nth part of the reply that a reader has seen, as one object; a new one after each message that changes it. */
export class Snapshots {
  #fileUrl;
  #fixedId;
  #data;
  #stdout = '';
  #stderr = '';
  #cut = false;
  #seq = 0;

  /** `executionId`: of the snapshots (default: the run's own); `code`; `language`; `fileUrl(file, jobId)`: where a user gets it. */
  constructor({ executionId, code = '', language = 'python', fileUrl = (file) => file.url ?? '' } = {}) {
    this.#fileUrl = fileUrl;
    this.#fixedId = executionId;
    this.#data = { executionId: executionId ?? '', state: 'pending', code, language, stdout: '', stderr: '', files: [] };
  }

  get current() {
    return this.#data;
  }

  /** The snapshot after this message; the same object as before when it changes nothing. */
  push(message) {
    if (message.type === 'heartbeat') return this.#data;
    if (message.seq <= this.#seq || message.type === 'started') this.#reset(message);
    this.#seq = message.seq;
    if (message.type === 'stdout') this.#set({ stdout: (this.#stdout += message.text) });
    else if (message.type === 'stderr') this.#set({ stderr: (this.#stderr += message.text) });
    else if (message.type === 'file') this.#addFile(message);
    else if (message.type === 'truncated') this.#cut = true;
    else if (message.type === 'done') this.#finish(message);
    return this.#data;
  }

  #set(changes) {
    this.#data = { ...this.#data, ...changes };
  }

  // A run begins (again): what an earlier attempt said is void.
  #reset(message) {
    this.#stdout = '';
    this.#stderr = '';
    this.#cut = false;
    const { code, language } = this.#data;
    this.#data = {
      executionId: this.#fixedId ?? message.executionId, state: message.type === 'started' ? 'running' : 'pending',
      code, language, stdout: '', stderr: '', files: [],
    };
  }

  #file(file, jobId) {
    return { fileId: file.fileId, filename: file.filename, url: this.#fileUrl(file, jobId), mimeType: file.mimeType };
  }

  #addFile({ file, jobId }) {
    if (this.#data.files.some((one) => one.fileId === file.fileId)) return;
    this.#set({ files: [...this.#data.files, this.#file(file, jobId)] });
  }

  #finish({ state, result, error, jobId, executionId }) {
    const changes = { executionId: this.#fixedId ?? executionId, state: state === 'completed' ? 'completed' : 'error' };
    if (result) {
      // The reply has all of the text, the result head and tail of it; so the result only where the reply was cut or not there.
      changes.stdout = this.#cut ? result.stdout : this.#stdout || result.stdout;
      changes.stderr = this.#cut ? result.stderr : this.#stderr || result.stderr;
      changes.files = result.files.map((file) => this.#file(file, jobId));
      changes.executionTimeMs = result.executionTimeMs;
      if (result.exitCode !== null) changes.exitCode = result.exitCode;
    }
    const text = error ?? result?.error;
    if (text) changes.error = text;
    this.#set(changes);
  }
}
