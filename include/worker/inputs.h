/* Brings a job's input files and secrets to this worker before its sandbox is asked for. */
#ifndef SANDPIPER_WORKER_INPUTS_H
#define SANDPIPER_WORKER_INPUTS_H

#include "worker/driver.h"
#include "worker/job.h"

struct http;
struct inputs;

/* Runs once, from the loop. error NULL: all are there (and the secrets are in job->env). Else one
 * sentence; `permanent`: another attempt would fail alike. */
typedef void (*inputs_done_fn)(const char *error, bool permanent, void *data);

/* Content is decoded, keys are read from Redis, URLs are fetched (address rule: settings
 * URL_ALLOW), each into a spool file. job, settings: outlive the inputs. */
struct inputs *inputs_start(struct queue *q, struct http *http, struct job *job,
                            const struct settings *settings, inputs_done_fn done, void *data);
void inputs_free(struct inputs *in); /* also while under way: no callback after */

const struct driver_input *inputs_list(const struct inputs *in, size_t *count);

#endif
