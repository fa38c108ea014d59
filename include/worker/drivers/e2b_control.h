/* Calls of E2B's control API: retried until there is a definitive answer, within bounds. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_CONTROL_H
#define SANDPIPER_WORKER_DRIVERS_E2B_CONTROL_H

#include "worker/drivers/e2b.h"

enum e2b_verdict {
    E2B_OK,        /* 2xx */
    E2B_GONE,      /* 404 or 410: there is no such sandbox */
    E2B_CONFLICT,  /* 409, still so after retries */
    E2B_REFUSED,   /* another definitive 4xx */
    E2B_DENIED,    /* 401, 402, 403: the key, not the sandbox */
    E2B_FULL,      /* 429 for the number of sandboxes */
    E2B_TRANSIENT, /* no definitive answer within the bounds; of a call made once: unknown */
};

struct e2b_answer { /* borrowed for the call */
    enum e2b_verdict verdict;
    int status;           /* 0: none */
    const json_t *body;   /* parsed, or NULL */
    const char *next;     /* X-Next-Token, or NULL */
    const char *message;  /* one sentence without secrets, when not OK */
    long long elapsed_ms; /* of the last try */
};

struct e2b_call_options {
    const char *method;
    const char *path; /* with query; copied */
    json_t *body;     /* reference stolen; NULL: none */
    bool once;        /* only repeated where nothing can have come of it (create) */
    bool conflict_is_final;
    void (*done)(void *data,
                 const struct e2b_answer *answer); /* from the loop; once unless cancelled */
    void *data;
};

struct e2b_call *e2b_call_start(struct e2b *e2b, const struct e2b_call_options *options);
void e2b_call_cancel(struct e2b_call *call); /* not inside its done */

/* Milliseconds before try number `tries` (1, 2, ...) is repeated; retry_after_ms -1: not told. */
long long e2b_backoff_ms(int tries, long long retry_after_ms);
/* Is this 429 one for the number of sandboxes, and not for the rate of requests? */
bool e2b_is_full(int status, long long retry_after_ms, const char *message);

/* All sandboxes with this metadata (pairs "key", "value", ..., NULL) in these states
 * ("running,paused"); every page. done(data, list, why): list NULL with a sentence when it cannot
 * be had; borrowed. */
struct e2b_list;
typedef void (*e2b_list_fn)(void *data, const json_t *list, const struct e2b_answer *failed);
struct e2b_list *e2b_list_start(struct e2b *e2b, const char *const *metadata, const char *states,
                                e2b_list_fn done, void *data);

/* Metadata of a list entry: its value, or NULL. */
const char *e2b_meta(const json_t *entry, const char *key);

#endif
