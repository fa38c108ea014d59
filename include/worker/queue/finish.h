/* Ends a job, or sends it to its next attempt, as a stock Worker would, in one script call with our
 * reply and lease. */
#ifndef SANDPIPER_WORKER_QUEUE_FINISH_H
#define SANDPIPER_WORKER_QUEUE_FINISH_H

#include "worker/queue/claim.h"
#include "worker/queue/jobopts.h"

enum finish_kind {
    FINISH_COMPLETED,
    FINISH_FAILED,      /* for good: lease released, `done` said */
    FINISH_RETRY_NOW,   /* to the back of wait, as BullMQ does with no backoff; keeps the lease */
    FINISH_RETRY_LATER, /* delayed by delay_ms; keeps the lease */
};

enum finish_result {
    FINISH_RESULT_OK,
    FINISH_RESULT_LOST,     /* the job is not ours any more (or was ended by an earlier try of this
                               call) */
    FINISH_RESULT_CHILDREN, /* completed is refused: it has pending children */
    FINISH_RESULT_FAILED_CHILDREN, /* completed is refused: it has failed children */
    FINISH_RESULT_ERROR,           /* the script failed; logged */
    FINISH_RESULT_UNCOMMON,        /* of turn_complete only */
};

struct finish { /* borrowed for the call */
    enum finish_kind kind;
    const struct claimed_job *job;
    const struct jobopts *opts;
    const char *value; /* JSON of the return value, or failedReason as raw text */
    size_t value_len;
    const char *stacktrace; /* JSON array; FAILED and RETRY */
    long long delay_ms;     /* RETRY_LATER */
    bool marked;            /* this or an earlier claim marked a run: the mark goes */
    bool fetch_next;        /* bring another job in the same call (never with RETRY_NOW) */
    /* Reply messages that go with it, in order; for an end the last one is `done`. */
    const struct str *messages;
    size_t message_count;
    long long first_seq;
    bool fresh_reply; /* nothing of this reply was written before: an older stream is dropped */
    long long reply_ttl_ms;
};

/* `next` is what fetch_next brought. Runs once, from the loop. */
typedef void (*finish_fn)(enum finish_result result, const struct claim_answer *next, void *data);
void finish_send(struct queue *q, const struct finish *f, finish_fn cb, void *data);

/* What of a finished job is kept: what it says itself, else the worker's setting, else BullMQ's. */
const struct jobopts_keep *finish_keep_of(const struct queue *q, const struct finish *f);
/* Appends it as BullMQ's keepJobs, a msgpack map. */
void finish_pack_keep(struct buf *out, const struct jobopts_keep *keep);

/* Gives a job back that was claimed but never delivered: to the front of wait, no attempt used, its
 * thread kept. cb as above, with nothing fetched. */
void finish_give_back(struct queue *q, const struct claimed_job *job, finish_fn cb, void *data);

#endif
