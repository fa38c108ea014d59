/* One BullMQ queue as this worker sees it: its keys, its connection, and calls that outlive a lost
 * connection. */
#ifndef SANDPIPER_WORKER_QUEUE_QUEUE_H
#define SANDPIPER_WORKER_QUEUE_QUEUE_H

#include "common/redis.h"
#include "common/str.h"
#include "worker/queue/jobopts.h"

#include <stdbool.h>
#include <stddef.h>

struct ev_loop;
struct queue;
struct queue_call;

struct queue_options {
    struct ev_loop *loop;
    struct redis *redis;     /* the command connection; not owned */
    const char *prefix;      /* "bull" */
    const char *name;        /* "code-interpreter" */
    const char *replica_id;  /* of this process, unique */
    const char *worker_name; /* shown by getWorkers() and kept as processedBy; "" none */
    long long lock_duration_ms;
    long long park_horizon_ms; /* how far in `delayed` a parked job is put */
    long long data_max_bytes;  /* job data above it is never decoded */
    /* What a stock Worker takes as options; zeroed: none of it. */
    long long limiter_max, limiter_duration_ms; /* starts at most in that time; max 0: no limiter */
    long long metrics_points;                   /* minutes counted for getMetrics */
    struct jobopts_keep keep_completed, keep_failed; /* for jobs that do not say (where given) */
};

struct queue *queue_new(const struct queue_options *options); /* strings are copied */
/* Drops waiting calls without their callbacks. The connection must have been freed before. */
void queue_free(struct queue *q);

const struct queue_options *queue_options(const struct queue *q);
const char *queue_prefix(const struct queue *q); /* "<prefix>:<queue>:" */
/* "<prefix>:<queue>:" + suffix; heap, caller frees. len of the suffix may include NULs. */
struct str queue_key(const struct queue *q, const char *suffix, size_t len);

/* The command connection is usable and locks were renewed: calls that wait are sent. False stops
 * sending. */
void queue_set_ready(struct queue *q, bool ready);
bool queue_is_ready(const struct queue *q);

/* Redis is short of memory (REDIS_MEMORY_WATERMARK_PERCENT): files are not put into it, and replies
 * begun from now on are only `started` and `done`. */
void queue_set_tight(struct queue *q, bool tight);
bool queue_is_tight(const struct queue *q);
/* Logs that Redis refused something for now; repeats within 10 s as debug lines. */
void queue_say_refused(struct queue *q, const char *what, const redisReply *reply);

/* A script call that is kept until Redis has answered it: lost connections, LOADING, BUSY, OOM,
 * READONLY and the like make it be sent again, in the order in which calls were made. So every
 * script called here must be safe to be made twice. */
struct queue_call *queue_call_new(struct queue *q, const struct redis_script *script, int nkeys);
void queue_call_key(struct queue_call *call, const char *suffix); /* "<prefix>:<queue>:" + suffix */
void queue_call_job_key(struct queue_call *call, const struct str *id, const char *ending);
void queue_call_bytes(struct queue_call *call, const void *data, size_t len); /* copied */
void queue_call_str(struct queue_call *call, const char *text);
void queue_call_int(struct queue_call *call, long long value);

/* Runs once, from the loop. reply is never NULL; an error reply is one that repeating will not
 * change (logged already). Borrowed. May make calls; must not queue_free. */
typedef void (*queue_reply_fn)(redisReply *reply, void *data);
void queue_call_send(struct queue_call *call, queue_reply_fn cb, void *data);
void queue_call_discard(struct queue_call *call); /* one that was not sent */
/* Give up waiting: no callback. The call may still reach Redis. */
void queue_call_cancel(struct queue_call *call);

/* A plain command on "<prefix>:<queue>:" keys, once (no repeat); cb as redis_command. argv[1] is
 * the key's suffix. -1 when not ready. */
int queue_command(struct queue *q, int argc, const char *const *argv, const size_t *lens,
                  redis_reply_fn cb, void *data);

#endif
