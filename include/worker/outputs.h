/* Takes what a run left behind to where the job wants it: files and charts into Redis keys, uploads
 * or the result. */
#ifndef SANDPIPER_WORKER_OUTPUTS_H
#define SANDPIPER_WORKER_OUTPUTS_H

#include "worker/driver.h"
#include "worker/job.h"
#include "worker/reply.h"
#include "worker/result.h"

struct http;
struct outputs;

struct outputs_options { /* everything outlives the outputs */
    struct queue *queue;
    struct http *http;
    const struct claimed_job *claimed;
    const struct job *job;
    const struct settings *settings;
    struct result *result;
    struct reply *reply;
    void (*fenced)(bool removed, void *data); /* the lock is not ours: nothing more is written */
    void (*done)(void *data);                 /* after outputs_collect; from the loop */
    void *data;
};

struct outputs *outputs_new(const struct outputs_options *options);
void outputs_free(struct outputs *o);

/* A result of the code while it runs: kept for the job's result, said in the reply; a PNG becomes a
 * file "chart-<n>.png" at the end; MIME values too big for a message go into a key of their own at
 * once. */
void outputs_add_result(struct outputs *o, const json_t *bundle, bool is_main);

/* After the run's end: every file, one after the other, within the caps; one bad file hides no
 * other. */
void outputs_collect(struct outputs *o, struct driver_run *run, const struct driver_file *files,
                     size_t count);

#endif
