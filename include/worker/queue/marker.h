/* Waits on BullMQ's marker for work, on a blocking connection of its own. */
#ifndef SANDPIPER_WORKER_QUEUE_MARKER_H
#define SANDPIPER_WORKER_QUEUE_MARKER_H

#include "worker/queue/queue.h"

struct marker;

/* Opens the connection that getWorkers() counts: CLIENT SETNAME
 * "<prefix>:<base64(queue)>[:w:<name>]". */
struct marker *marker_new(struct queue *q, const struct redis_url *url);
void marker_free(struct marker *m);

/* Wait once, at most `ms` (0: do not wait at all); woke runs once from the loop: something is
 * there, time is up, or the connection was lost: in each case a claim should be tried, unless
 * next_delayed_at (ms since the epoch, 0 unknown) says that the popped marker speaks of a time to
 * come. One wait at a time. */
typedef void (*marker_fn)(long long next_delayed_at, void *data);
void marker_wait(struct marker *m, long long ms, marker_fn woke, void *data);
bool marker_waiting(const struct marker *m);

/* CLIENT ID of the connection (0: not known now), and its name without ":w:<worker>". */
long long marker_client(const struct marker *m);
const char *marker_name(const struct marker *m);

#endif
