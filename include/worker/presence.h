/* Tells in Redis that this replica is there and what it can do. */
#ifndef SANDPIPER_WORKER_PRESENCE_H
#define SANDPIPER_WORKER_PRESENCE_H

#include "worker/queue/queue.h"

struct settings;
struct presence;

/* Hash "replica:<id>" (expires) and its entry in "index:replicas", refreshed every few seconds. */
struct presence_host { /* what it asks for; data is handed back */
    long long (*running)(void *data);
    bool (*draining)(void *data);
    const char *(*intake)(void *data); /* of the stream; see intake_describe */
    long long (*client)(void *data);   /* CLIENT ID of the connection that waits for work; 0 */
    void *data;
};
struct presence *presence_new(struct queue *q, struct settings *settings,
                              const struct presence_host *host);
void presence_free(struct presence *p);
void presence_refresh(struct presence *p); /* now */
/* Takes this replica off, for good; `left` runs once from the loop when Redis has heard it, or
 * after a second. */
void presence_leave(struct presence *p, void (*left)(void *data), void *data);

#endif
