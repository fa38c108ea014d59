/* Cancels by the Redis Stream "<prefix>:<queue>:stream:control": durable, read by every replica. */
#ifndef SANDPIPER_WORKER_CONTROL_H
#define SANDPIPER_WORKER_CONTROL_H

#include "worker/queue/claim.h"

struct control;

/* Entries: XADD <key> * cancel <job id>, or cancel-thread <T>. All from the loop. */
struct control_host {
    /* Stop the job if it runs here; true when it does. */
    bool (*stop_job)(void *data, const char *job_id);
    /* Stop what runs here of the thread and was added or claimed until `before` (ms), but for the
     * job `spare` ("" none). */
    void (*stop_thread)(void *data, const char *thread, long long before, const char *spare);
    /* A waiting job was taken out of its line: fail it as cancelled. The job is the callee's. */
    void (*fail_job)(void *data, struct claimed_job *job);
    /* control_has_caught_up has become true. */
    void (*caught_up)(void *data);
    void *data;
};

/* Reads on a blocking connection of its own, from an hour ago on: a cancel that was said while this
 * replica was away, or before its job was added, still counts. */
struct control *control_new(struct queue *q, const struct redis_url *url,
                            const struct control_host *host);
void control_free(struct control *c); /* after the command connection was freed */

/* What was said before this replica was there has been read (or cannot be), and what follows from
 * it was sent: a claim that is sent now comes after it. Once true it stays true. */
bool control_has_caught_up(const struct control *c);

/* A job was just claimed, for the nth time: was it cancelled before? (Forgets it: a retry by hand
 * runs.) */
bool control_was_cancelled(struct control *c, const char *job_id, long long nth);

#endif
