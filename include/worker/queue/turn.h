/* Ends completed jobs and brings the next ones, those of one turn of the loop in one script call. */
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

#endif
