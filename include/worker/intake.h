/* The second door: entries of the Redis Stream "<prefix>:<queue>:stream:jobs" become BullMQ jobs,
 * once each and in the stream's order. */
#ifndef SANDPIPER_WORKER_INTAKE_H
#define SANDPIPER_WORKER_INTAKE_H

#include "worker/queue/queue.h"

struct intake;

/* Consumer group "workers" (made from 0, MKSTREAM), one consumer a replica, read on a blocking
 * connection of its own. What cannot be admitted goes to "stream:dead" with the reason. While
 * backlog_max jobs or more wait in the queue (0: no limit) entries stay in the stream, but for one
 * in two jobs that this replica ends. `changed` runs when intake_describe has something new to say.
 */
struct intake *intake_new(struct queue *q, const struct redis_url *url, long long backlog_max,
                          void (*changed)(void *data), void *data);
void intake_free(struct intake *in);

/* One of this replica's jobs has ended. */
void intake_job_ended(struct intake *in);

/* "open", or one sentence that says why entries stay in the stream. Valid until the loop turns. */
const char *intake_describe(const struct intake *in);

/* Drain: read no more, and take this replica's consumer off the group. `left` runs once from the
 * loop when that is done, or after a second if Redis does not answer. A second call does nothing.
 */
void intake_stop(struct intake *in, void (*left)(void *data), void *data);

#endif
