/* The stalled pass: BullMQ's own, and beside it the look at threads whose holder is gone. */
#ifndef SANDPIPER_WORKER_QUEUE_STALLED_H
#define SANDPIPER_WORKER_QUEUE_STALLED_H

#include "worker/queue/queue.h"

struct stalled;

/* Runs every interval_ms while the queue is ready; the guard key lives for 0.8 of that (equal
 * values skip half of the passes). woke runs when a pass moved a job to wait. */
struct stalled *stalled_new(struct queue *q, long long interval_ms, long long max_stalled_count,
                            void (*woke)(void *data), void *data);
void stalled_free(struct stalled *s);

/* The connection is lost (told again while it is: nothing), and is back: then no pass for one lock
 * duration, so that every replica can renew its locks first. Not again and again where losses are
 * short for a lock, for a connection that keeps breaking would put off every pass. */
void stalled_lost(struct stalled *s);
void stalled_back(struct stalled *s);

#endif
