/* A run's own insides, shared by the files that make it up: run.c (life and end), run_begin.c,
 * run_code.c. */
#ifndef SANDPIPER_WORKER_RUN_IMPL_H
#define SANDPIPER_WORKER_RUN_IMPL_H

#include "common/log.h"
#include "worker/ending.h"
#include "worker/inputs.h"
#include "worker/job.h"
#include "worker/job_log.h"
#include "worker/outputs.h"
#include "worker/reply.h"
#include "worker/result.h"
#include "worker/run.h"

#include <ev.h>

/* States in their order (RUN_...); run_enter is the one place that changes them.
 *   STAGING    inputs and secrets are brought here
 *   PREPARING  the driver gets the sandbox ready
 *   MARKING    `started` and the mark are on their way to Redis
 *   RUNNING    the code was delivered
 *   COLLECTING files are taken
 *   SETTLING   the last flush of the reply is awaited
 *   ENDING     the finishing call is under way
 *   OVER       waits to be freed */
enum run_state {
    RUN_NEW,
    RUN_STAGING,
    RUN_PREPARING,
    RUN_MARKING,
    RUN_RUNNING,
    RUN_COLLECTING,
    RUN_SETTLING,
    RUN_ENDING,
    RUN_OVER
};

struct run {
    const struct run_host *host;
    struct claimed_job *claimed;
    struct jobopts opts;
    struct job job;
    struct settings *settings;
    char execution_id[37];
    enum run_state state;
    enum run_stop stop;
    enum outcome outcome;
    char *failed_reason;
    bool marked, fenced;
    struct lock *lock;
    struct reply *reply;
    struct inputs *inputs;
    struct outputs *outputs;
    struct job_log *log; /* of BullMQ, where it is wanted; or NULL */
    struct driver *driver;
    struct driver_run *driver_run;
    struct ending *ending;
    struct result result;
    struct ev_timer timer; /* the time limit, then the limit of an interrupt */
    long long began_ms, delivered_ms, ended_ms, ending_ms; /* monotonic */
    bool has_output;
    size_t holds;            /* callbacks that cannot be called off and still know us */
    struct run *prev, *next; /* the worker's list */
};

struct log_ctx run_log_ctx(const struct run *run);

/* The one place that changes a run's state. */
void run_enter(struct run *run, enum run_state state);
/* Lets go of everything that could call back, tells the worker, and frees the run when nobody knows
 * it any more. answer: what the finish brought, or NULL. */
void run_over(struct run *run, const struct claim_answer *answer);
/* A callback that cannot be called off has come (run->holds); false when the run is over and it is
 * all the same. */
bool run_unhold(struct run *run);

/* Ends a run whose code was not delivered; text is one sentence (stolen). */
void run_fail(struct run *run, enum outcome outcome, char *text);
/* The same for a run that was stopped before. */
void run_fail_stopped(struct run *run);
/* Everything is gathered: the last flush, then the finishing call. */
void run_settle_and_finish(struct run *run);
/* outputs_options.done and .fenced, reply_fenced_fn; data is the run. */
void run_on_collected(void *data);
void run_on_fenced(bool removed, void *data);
/* Nothing of it has run: another worker takes it, with no attempt used. */
void run_give_back(struct run *run);

/* run_code.c: asks the driver for the sandbox, once inputs are there; from then on the driver's
 * events lead. */
void run_prepare(struct run *run);
/* Stops code that was delivered. */
void run_interrupt(struct run *run, enum run_stop why);
/* The run's timer, not yet set. */
void run_timer_init(struct run *run);

/* The job was made to wait for its children: it is not ours any more. */
void run_leave(struct run *run);

/* run_begin.c: the next job of its scheduler, then decides what becomes of the job; data is the
 * run. From the reaper. */
void run_begin(void *data);

#endif
