/* Lets a claimed job wait for its children. */
#ifndef SANDPIPER_WORKER_QUEUE_CHILDREN_H
#define SANDPIPER_WORKER_QUEUE_CHILDREN_H

#include "worker/queue/claim.h"

enum children_result {
    CHILDREN_WAITING, /* moved to waiting-children, its thread given back: not ours any more */
    CHILDREN_DONE,    /* none is pending any more: go on with the job */
    CHILDREN_FAILED,  /* one failed: the job cannot be completed */
    CHILDREN_LOST,    /* the job is not ours */
};

/* What a stock processor does with job.moveToWaitingChildren(). cb runs once, from the loop. */
typedef void (*children_fn)(enum children_result result, void *data);
void children_wait(struct queue *q, const struct claimed_job *job, children_fn cb, void *data);

#endif
