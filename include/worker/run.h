/* One claimed job from its claim to its end: the state machine of the pipeline. */
#ifndef SANDPIPER_WORKER_RUN_H
#define SANDPIPER_WORKER_RUN_H

#include "worker/factory.h"
#include "worker/queue/claim.h"
#include "worker/queue/locks.h"

struct http;
struct run;
struct turn;

struct run_host { /* what the worker gives every run; outlives them */
    struct ev_loop *loop;
    struct queue *queue;
    struct turn *turn;
    struct redis *redis;
    struct locks *locks;
    struct factory *factory;
    struct http *http;
    struct settings *settings; /* of the environment */
    /* May the finish of this run bring another job? */
    bool (*may_fetch)(void *data);
    /* The run is over; answer (NULL when nothing was asked) is what its finish brought: its job is
     * the callee's. The run frees itself. From the loop. */
    void (*ended)(struct run *run, const struct claim_answer *answer, void *data);
    void *data;
};

enum run_stop { RUN_STOP_NONE, RUN_STOP_TIMEOUT, RUN_STOP_CANCELLED, RUN_STOP_DRAINED };

/* Takes the job over. Nothing is called back inside. */
struct run *run_start(const struct run_host *host, struct claimed_job *job);

/* Cancel or drain: before the code was delivered the job is not run (cancelled) or runs no more
 * (drained: it is left to another worker by its lock's end... see run.c); after it the code is
 * interrupted. */
void run_stop(struct run *run, enum run_stop why);

/* Forget it without ending the job (the process is about to exit): its lock expires. */
void run_abandon(struct run *run, const char *why);

const char *run_job_id(const struct run *run);
const char *run_thread(const struct run *run); /* T, or NULL */
const struct claimed_job *run_claimed(const struct run *run);
struct run **run_link(struct run *run); /* the next in the worker's list */
struct run **run_back(struct run *run); /* and the one before */

#endif
