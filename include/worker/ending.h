/* Ends a run towards Redis: return value or failure, `done` or `retrying`, attempts and backoff. */
#ifndef SANDPIPER_WORKER_ENDING_H
#define SANDPIPER_WORKER_ENDING_H

#include "worker/job.h"
#include "worker/queue/turn.h"
#include "worker/reply.h"
#include "worker/result.h"

struct settings;
struct ending;

struct ending_options { /* everything outlives the ending */
    struct queue *queue;
    struct turn *turn;
    const struct claimed_job *claimed;
    const struct jobopts *opts;
    const struct job *job;
    const struct settings *settings;
    struct reply *reply;         /* settled; NULL: no reply was ever made */
    const struct result *result; /* for outcomes that complete */
    enum outcome outcome;
    const char *failed_reason; /* for outcomes that do not complete */
    bool marked;
    bool fetch_next;
};

/* What was done, as the log says it. */
enum ending_kind { ENDING_COMPLETED, ENDING_FAILED, ENDING_RETRIED };

/* Runs once, from the loop, when the job is out of our hands. */
typedef void (*ending_fn)(enum finish_result result, enum ending_kind kind,
                          const struct claim_answer *next, void *data);
struct ending *ending_start(const struct ending_options *options, ending_fn cb, void *data);
/* Forget it: no callback. What was sent may still happen. */
void ending_free(struct ending *e);

#endif
