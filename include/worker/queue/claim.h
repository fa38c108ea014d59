/* Claims the next job whose thread is free, and what a claimed job is. */
#ifndef SANDPIPER_WORKER_QUEUE_CLAIM_H
#define SANDPIPER_WORKER_QUEUE_CLAIM_H

#include "common/buf.h"
#include "common/str.h"
#include "worker/queue/queue.h"

/* A job that this worker holds (locked with token). Absent hash fields are absent strings. */
struct claimed_job {
    struct str id;
    struct str token;
    struct str name, data, opts;
    struct str thread;     /* thread key T as the claim found it; its lease is held */
    struct str mark;       /* "<token>|<executionId>" of a delivered run that nobody ended */
    struct str defa;       /* deferred failure: fail with this text instead of running */
    struct str stacktrace; /* JSON array of earlier failures */
    struct str scheduler;  /* id of the job scheduler that made it */
    /* The thread's record as the claim found it; absent or "" when there is nothing. */
    struct str replica_before, sandbox, creation, actor, unsettled;
    bool cancelled;          /* its thread was cancelled after it was added */
    long long timestamp;     /* ms: when it was added */
    long long claimed_at;    /* ms: our clock at the claim */
    long long attempts_made; /* failures that counted so far */
    long long attempts_started;
    long long
        pending_children; /* that it should wait for; 0 too when a child's failure called it */
    long long last_seq;   /* of its reply; 0 when nothing was said since the last `done` */
    char **runtime;       /* runtime settings: field, value, field, value, ... */
    size_t runtime_count; /* pairs */
};
void claimed_job_free(struct claimed_job *job); /* NULL is fine */

/* What a claim (or the fetch within a finish) brought. */
struct claim_answer {
    struct claimed_job *job; /* the callback's to keep; or NULL */
    long long limited_ms;    /* rate limited for that long; 0 not */
    long long again_at;      /* ms: when there is something to claim, a delayed job for one; 0 not
                                  known. In the past: now */
};

/* From an array that claim, moveToFinished or moveToDelayed gave; other replies give no job. token
 * is what the call was made with. A job takes its strings, token too, out of
 * them. */
void claim_parse(const redisReply *reply, struct str *token, struct claim_answer *out);

/* Those that one call brought together; the first of them has the runtime settings of all. */
struct claim_batch {
    const redisReply *jobs;     /* NULL: none */
    const redisReply *settings; /* NULL: none */
    size_t taken;
    long long limited_ms, again_at; /* where a job is missing */
    long long more_at;              /* beside a job */
};
/* reply: {anything, jobs, limited, next}; NULL gives an empty one. Borrowed. */
void claim_batch_init(struct claim_batch *b, const redisReply *reply);
/* The next of them, locked with token; without one *out says what claim_answer says. */
void claim_batch_next(struct claim_batch *b, struct str *token, struct claim_answer *out);

/* Appends the options that every fetching script needs ("token", "lockDuration", "name", "sp"
 * {...}), where `sp_extra` more pairs of sp follow, written by the caller. Returns nothing; out
 * must have room. token may be NULL: then there is none. */
void claim_pack_opts(const struct queue *q, struct buf *out, const struct str *token,
                     unsigned other_pairs, unsigned sp_extra);

/* Asks for a job with a new token. Not repeated when the connection is lost: then answer is NULL,
 * and a job that was claimed without our knowing comes back through the stalled pass. -1 when not
 * ready. */
typedef void (*claim_fn)(const struct claim_answer *answer, void *data);
int claim_next(struct queue *q, claim_fn cb, void *data);

/* Takes a waiting or parked job out of its line so that it can be failed as cancelled. taken: the
 * job, the callee's; or NULL, and `found` says why. CANCEL_CLAIMED: somebody has it, for the nth
 * time. CANCEL_OVER: it has ended, waits for its children, or has failed by this cancel before.
 * said: when it was cancelled (ms of Redis's clock). */
enum cancel_found { CANCEL_TAKEN, CANCEL_CLAIMED, CANCEL_UNKNOWN, CANCEL_OVER };
typedef void (*cancel_fn)(struct claimed_job *taken, enum cancel_found found, long long nth,
                          void *data);
void claim_cancelled(struct queue *q, const char *job_id, long long said, cancel_fn cb, void *data);

#endif
