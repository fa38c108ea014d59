/* What jobs want of Redis in one turn of the loop, in one script call: completed ones are ended and
 * the next brought, and messages of running ones written. */
#ifndef SANDPIPER_WORKER_QUEUE_TURN_H
#define SANDPIPER_WORKER_QUEUE_TURN_H

#include "worker/queue/finish.h"

struct turn;
struct turn *turn_new(struct queue *q);
/* Forgets what waits, without callbacks. After the queue's connection, before the queue. */
void turn_free(struct turn *t);

/* Ends a job as completed (f->kind), in a call that leaves before the loop next waits. The result
 * is FINISH_RESULT_UNCOMMON when the job is left as it was, for finish_send to end it: it has a
 * parent, children or a deduplication id, or it may not be ours any more. cb as finish_send's. */
void turn_complete(struct turn *t, const struct finish *f, finish_fn cb, void *data);

struct turn_words { /* borrowed for the call */
    const struct claimed_job *job;
    const char *mark;    /* of the run, or "" */
    long long first_seq; /* 0: the messages are published only */
    long long ttl_ms;    /* of the reply */
    const struct str *messages;
    size_t count;
};

/* Runs once, from the loop: taken, or not because the job is gone (`removed`) or not ours. */
typedef void (*turn_said_fn)(bool taken, bool removed, void *data);
/* Writes reply messages in a call that leaves before the loop next waits. The result is valid until
 * the callback. */
struct turn_part *turn_say(struct turn *t, const struct turn_words *w, turn_said_fn cb, void *data);
/* No callback any more; what was said may still reach Redis. */
void turn_say_cancel(struct turn_part *part);

#endif
