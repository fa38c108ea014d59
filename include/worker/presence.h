/* Tells in Redis that this replica is there and what it can do. */
#ifndef SANDPIPER_WORKER_PRESENCE_H
#define SANDPIPER_WORKER_PRESENCE_H

#include "worker/queue/queue.h"

struct settings;
struct presence;

/* Hash "replica:<id>" (expires) and its entry in "index:replicas", refreshed every few seconds. */
struct presence *presence_new(struct queue *q, const struct settings *settings,
                              long long (*running)(void *data), bool (*draining)(void *data),
                              void *data);
void presence_free(struct presence *p);
void presence_refresh(struct presence *p); /* now */
void presence_leave(struct presence *p);   /* best effort, before the connection is closed */

#endif
