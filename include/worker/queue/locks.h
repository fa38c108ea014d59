/* Keeps the locks of running jobs, and tells who lost one. */
#ifndef SANDPIPER_WORKER_QUEUE_LOCKS_H
#define SANDPIPER_WORKER_QUEUE_LOCKS_H

#include "worker/queue/queue.h"

struct locks;
struct lock; /* one job's */

struct locks *locks_new(struct queue *q, long long renew_ms);
void locks_free(struct locks *l);

/* From now on the lock is renewed. lost runs from the loop, at most once, when it is another's or
 * gone for good; it may call lock_remove. id and token are borrowed until lock_remove. */
typedef void (*lock_lost_fn)(void *data);
struct lock *lock_add(struct locks *l, const struct str *id, const struct str *token,
                      lock_lost_fn lost, void *data);
void lock_remove(struct lock *lock); /* no callback after; NULL is fine */

/* Renew all at once; done (may be NULL) when Redis has answered for every one of them, or could
 * not: `ok` false. Used after a reconnect, before anything else is sent. */
void locks_renew_now(struct locks *l, void (*done)(bool ok, void *data), void *data);

#endif
