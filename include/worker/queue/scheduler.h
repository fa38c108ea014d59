/* Job schedulers: a job that one made brings the next one, before it is worked on. */
#ifndef SANDPIPER_WORKER_QUEUE_SCHEDULER_H
#define SANDPIPER_WORKER_QUEUE_SCHEDULER_H

#include "worker/queue/claim.h"

/* Adds the next iteration of the job's scheduler, as a stock Worker does after each claim; safe to
 * be done twice. True: done(data) runs once, from the loop, whatever came of it. False: there is
 * nothing to add (no scheduler, its limit or end is reached, no pattern that we understand: logged)
 * and done is not run. */
bool scheduler_advance(struct queue *q, const struct claimed_job *job, void (*done)(void *data),
                       void *data);

/* What scheduler_advance would ask for, for tests. */
struct scheduler_next {
    json_t *opts;        /* of the next job, own */
    long long at;        /* ms; 0: BullMQ's script computes it ("every") */
    const char *nothing; /* why there is none, or NULL */
    char error[200];     /* or what is wrong with the scheduler's options */
};
void scheduler_compute(const char *id, const struct str *opts, long long now,
                       struct scheduler_next *out);

#endif
