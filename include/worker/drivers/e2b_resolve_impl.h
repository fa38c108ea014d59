/* What the files of the resolver share; nobody else includes this. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_RESOLVE_IMPL_H
#define SANDPIPER_WORKER_DRIVERS_E2B_RESOLVE_IMPL_H

#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_create.h"

struct candidate {
    char *id;
    long long rank; /* lower first */
    char *started;
};

struct e2b_resolve {
    struct e2b *e2b;
    struct e2b_resolve_options o;
    struct e2b_resolve *next_waiter; /* for the deployment id */
    size_t pending;                  /* answers to come, whatever happens */
    bool detached, ended;
    const char *lost; /* why earlier state is gone */
    ev_timer timer;
    void (*step)(struct e2b_resolve *r);
    struct e2b_wait wait;
    void (*after_wait)(struct e2b_resolve *r);
    /* named: */
    struct e2b_box *box; /* a cached handle that is connected again */
    json_t *connected, *looked;
    enum e2b_verdict connect_verdict, look_verdict;
    int connect_status;
    char *why;
    /* discovery: */
    struct candidate *candidates;
    size_t count, at;
    int lookups;
    struct e2b_create *create;
};

/* resolve.c */
/* Frees it when nobody calls back any more; true when the caller has to return. */
bool e2b_resolve_over(struct e2b_resolve *r);
void e2b_resolve_found(struct e2b_resolve *r, struct e2b_box *box, bool reused, bool resumed);
void e2b_resolve_fail_by(struct e2b_resolve *r, const char *what, enum e2b_verdict verdict,
                         const char *why);
void e2b_resolve_later(struct e2b_resolve *r, long long ms, void (*step)(struct e2b_resolve *r));
void e2b_resolve_wait(struct e2b_resolve *r, void (*after)(struct e2b_resolve *r));
void e2b_resolve_remember(struct e2b_resolve *r, const char *id);
void e2b_resolve_connect(struct e2b_resolve *r, const char *id,
                         void (*done)(void *data, const struct e2b_answer *a));
void e2b_resolve_create(struct e2b_resolve *r);

/* discover.c */
/* Is this sandbox the thread's, and this deployment's? The filter of the list is not trusted. */
bool e2b_resolve_is_ours(const struct e2b_resolve *r, const json_t *entry);
void e2b_resolve_discover(struct e2b_resolve *r);

#endif
