// What BullMQ's hash of a job says about its end, for jobs whose reply does not say it.

const NIL = '00000000-0000-0000-0000-000000000000';
export const FIELDS = ['timestamp', 'processedOn', 'finishedOn', 'failedReason', 'returnvalue'];

const reasons = [
  [/^WorkerLost/, 'worker_lost'],
  [/^The (job|run) was cancelled/, 'cancelled'],
  [/^The job expired/, 'expired'],
  [/^job stalled more than allowable limit/, 'stalled'],
  [/^(Code interpreter is disabled|LOCAL code interpreter driver is not allowed)/, 'disabled'],
];

/** HMGET's answer as {exists, claimed, ended, failedReason, returnvalue}. */
export function jobState(values) {
  const [timestamp, processedOn, finishedOn, failedReason, returnvalue] = values;
  return { exists: timestamp !== null, claimed: processedOn !== null, ended: finishedOn !== null, failedReason, returnvalue };
}

function base(jobId, executionId, seq) {
  return { v: 1, jobId, executionId: executionId ?? NIL, seq, type: 'done', source: 'job' };
}

/** A `done` made from the hash of a job that has ended. */
export function endOf(state, jobId, executionId, seq) {
  if (state.failedReason === null) {
    let result = null;
    try {
      result = JSON.parse(state.returnvalue);
    } catch {
      // not a result of ours: another worker's job
    }
    if (result?.executionId && result.state) {
      return {
        ...base(jobId, result.executionId, seq), state: result.state, reason: result.reason,
        ...(result.error ? { error: result.error } : {}), result,
      };
    }
  }
  const error = state.failedReason || 'The job ended without a result.';
  const reason = reasons.find(([pattern]) => pattern.test(error))?.[1] ?? 'unknown';
  return { ...base(jobId, executionId, seq), state: 'failed', reason, error };
}

/** A `done` for a job that is not there. */
export function removed(jobId, executionId, seq) {
  return {
    ...base(jobId, executionId, seq), state: 'failed', reason: 'removed',
    error: 'There is no such job: it was removed, or its reply has expired, or it was never added.',
  };
}
