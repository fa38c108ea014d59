/* The reply of one execution: numbered messages, coalesced by time and size, written by fenced
 * calls, capped. */
#ifndef SANDPIPER_WORKER_REPLY_H
#define SANDPIPER_WORKER_REPLY_H

#include "worker/driver.h"
#include "worker/queue/claim.h"
#include "worker/queue/turn.h"

struct reply;

struct reply_options {
    struct queue *queue;
    struct turn *turn;
    const struct claimed_job *job; /* outlives the reply */
    const char *execution_id;      /* outlives the reply */
    bool enabled;                  /* false: nothing is said (marks are still made) */
    long long flush_ms;            /* output is held back that long at most */
    long long flush_bytes;         /* ... or until that much has gathered */
    long long max_bytes;           /* stored for this execution; 0 none */
    long long ttl_ms;
    long long heartbeat_ms; /* of silence, while running */
};

/* fenced runs from the loop, once: the lock is not ours any more, or the job is gone (`removed`).
 * Nothing is written after it. */
typedef void (*reply_fenced_fn)(bool removed, void *data);
struct reply *reply_new(const struct reply_options *options, reply_fenced_fn fenced, void *data);
void reply_free(struct reply *r); /* what is pending is dropped */

/* Says `started` and, with `mark`, marks the run in the same call. acked runs from the loop when
 * Redis has both; not when fenced. With nothing to say and no mark it runs all the same. */
void reply_started(struct reply *r, int attempt, const struct driver_ready *ready, bool mark,
                   void (*acked)(void *data));

/* Marks the run (again): acked runs from the loop when Redis has it; not when fenced. Not while a
 * call with an acked is under way. */
void reply_mark(struct reply *r, void (*acked)(void *data));

/* The lock cannot have expired since the mark was sent, whatever stopped this process meanwhile. */
bool reply_mark_is_fresh(const struct reply *r);

/* Output text (valid UTF-8, whole characters). */
void reply_output(struct reply *r, enum driver_stream stream, const char *text, size_t len);
/* While Redis is short of memory (queue_is_tight) only `started`, `retrying` and `done` are said;
 * was anything left out for that? */
bool reply_is_short(const struct reply *r);
/* Another message; `members` is an object with what is beside the envelope (reference stolen).
 * `always`: past the cap too. Unless `pending` it is sent soon by itself. */
void reply_message(struct reply *r, const char *type, json_t *members, bool always);
/* The same from the text of a JSON object. */
void reply_message_text(struct reply *r, const char *type, const char *members, size_t len,
                        bool always);

/* Runs done once no flush is under way any more, from the loop or at once; what is pending then
 * stays pending (for reply_take). Heartbeats end. Not run when fenced. */
void reply_settle(struct reply *r, void (*done)(void *data));
/* Hands over what is pending, as numbered messages for a finishing call. The array and its strings
 * are the caller's (reply_messages_free). *first_seq is that of the first. fresh: nothing was
 * written before. */
struct str *reply_take(struct reply *r, size_t *count, long long *first_seq, bool *fresh);
/* The messages from number next_seq on, taken before, will not be used: count on from there. */
void reply_renumber(struct reply *r, long long next_seq);
void reply_messages_free(struct str *messages, size_t count);
/* Sends what is pending now (after reply_settle, before a retry that carries no messages);
 * acked(data) when Redis has it. Not run when fenced, nor after reply_free. */
void reply_flush_for(struct reply *r, void (*acked)(void *data), void *data);

/* Says `done` for a job that was removed while it ran, if its stream still ends with our words; a
 * lock and a place in active that are left of it go too. Does nothing for a job that is still
 * there. */
void reply_say_removed(struct reply *r);

#endif
