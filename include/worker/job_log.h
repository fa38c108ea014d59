/* What dashboards show of a running job beside its reply: its log and its progress. */
#ifndef SANDPIPER_WORKER_JOB_LOG_H
#define SANDPIPER_WORKER_JOB_LOG_H

#include "worker/queue/claim.h"

struct job_log;

/* A job's BullMQ log. keep_rows: older rows go; negative: all are kept. max_bytes: of all rows that
 * this run adds; what is beyond is left out, and said so. */
struct job_log *job_log_new(struct queue *q, const struct claimed_job *job, double keep_rows,
                            long long max_bytes);
/* Forgets what was not sent. NULL is fine. */
void job_log_free(struct job_log *log);

/* Output text, kept back until a line is whole and for a second; a row holds all lines of that
 * time. */
void job_log_output(struct job_log *log, const char *text, size_t len);
/* Sends the rest, before the call that ends the job. NULL is fine. */
void job_log_flush(struct job_log *log);

/* Sets the job's progress to {"state":...}; listeners get an event. */
void job_progress(struct queue *q, const struct claimed_job *job, const char *state);

#endif
