/* Looks after what an operator should know of the Redis server: eviction, memory, stock Workers. */
#ifndef SANDPIPER_WORKER_SERVER_WATCH_H
#define SANDPIPER_WORKER_SERVER_WATCH_H

#include "worker/queue/marker.h"

struct server_watch;

/* Warns about a maxmemory-policy that evicts and about stock Workers on the queue, and keeps
 * queue_is_tight: Redis is fuller than so many percent of its maxmemory (0: never). Rights that are
 * refused only cost the warning. */
struct server_watch *server_watch_new(struct queue *q, const struct marker *m,
                                      long long watermark_percent);
void server_watch_free(struct server_watch *w); /* after the command connection */

/* In this text of CLIENT LIST: the id of the next client named `name` or `name`:w:..., from *at on,
 * which moves behind it; 0 none. For tests. */
long long server_watch_next_client(const char **at, const char *name);

#endif
