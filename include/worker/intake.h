/* The second door: entries of the Redis Stream "<prefix>:<queue>:stream:jobs" become BullMQ jobs,
 * once each. */
#ifndef SANDPIPER_WORKER_INTAKE_H
#define SANDPIPER_WORKER_INTAKE_H

#include "worker/queue/queue.h"

struct intake;

/* Consumer group "workers" (made from 0, MKSTREAM), one consumer a replica, read on a blocking
 * connection of its own. Entries that dead replicas left behind come back by XAUTOCLAIM. What
 * cannot be admitted goes to "stream:dead" with the reason. */
struct intake *intake_new(struct queue *q, const struct redis_url *url);
void intake_free(struct intake *in);

/* Stop reading (drain); what was read is still admitted. */
void intake_stop(struct intake *in);

#endif
