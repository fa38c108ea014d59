/* What the whole queue holds: the hash "<prefix>:<queue>:stats:queue", kept current by one replica
 * at a time. */
#ifndef SANDPIPER_WORKER_QUEUE_STATS_H
#define SANDPIPER_WORKER_QUEUE_STATS_H

#include "worker/queue/queue.h"

struct stats;

struct stats_figures {
    long long counted_at; /* ms since the epoch, by Redis's clock; 0: never had an answer */
    long long heard_at;   /* monotonic ms: when we had them */
    long long waiting, prioritized, due, delayed, parked, running;
    long long runnable;       /* waiting + prioritized + due; 0 while the queue is paused */
    long long oldest_ms;      /* how long the first of these can have been runnable */
    long long paused;         /* 0 or 1 */
    long long stream_entries; /* of stream:jobs */
};

/* One script call each interval_ms, of which one replica's counts. */
struct stats *stats_new(struct queue *q, long long interval_ms);
void stats_free(struct stats *s);

const struct stats_figures *stats_figures(const struct stats *s);

#endif
