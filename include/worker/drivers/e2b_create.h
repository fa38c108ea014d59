/* Makes a sandbox exactly once, also where the answer is lost. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_CREATE_H
#define SANDPIPER_WORKER_DRIVERS_E2B_CREATE_H

#include "worker/drivers/e2b_resolve.h"

struct e2b_create;

struct e2b_created {     /* borrowed, but for the box */
    struct e2b_box *box; /* the callee's reference; NULL: none could be made */
    enum driver_end_kind kind;
    const char *message;
};

struct e2b_create_options {
    const char *thread, *actor; /* borrowed until done; thread NULL: without session */
    long long ttl_s;
    long long since_ms, give_up_ms; /* monotonic: place in the queue for capacity, and its end */
    const struct settings *settings;
    void (*done)(void *data, const struct e2b_created *created);
    void *data;
};

struct e2b_create *e2b_create_start(struct e2b *e2b, const struct e2b_create_options *options);
/* Nobody wants it any more: if nothing is under way at E2B done comes soon, without a box. */
void e2b_create_stop_waiting(struct e2b_create *c);

#endif
