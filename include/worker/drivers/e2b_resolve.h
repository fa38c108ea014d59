/* From a thread to a sandbox: the handle held, the one the record names, discovery, or a
 * new one. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_RESOLVE_H
#define SANDPIPER_WORKER_DRIVERS_E2B_RESOLVE_H

#include "worker/drivers/e2b.h"

struct e2b_resolved {
    struct e2b_box *box; /* the callee's reference */
    bool reused, resumed;
    const char *state_lost; /* or NULL; static */
};

struct e2b_resolve_options {
    const char *thread; /* NULL: a fresh sandbox without session; all strings copied */
    const char *actor;  /* digest */
    struct driver_record record;
    long long ttl_s;
    long long give_up_ms; /* monotonic: waiting for capacity ends */
    struct settings *settings;
    const struct log_ctx *ctx;
    void (*found)(void *data, const struct e2b_resolved *found);
    void (*failed)(void *data, enum driver_end_kind kind, const char *message);
    void *data;
};

/* Callbacks from the loop, one of them once; never inside the call. */
struct e2b_resolve *e2b_resolve_start(struct e2b *e2b, const struct e2b_resolve_options *options);
/* The caller is gone: what is under way comes to a clean end (a sandbox just made without session
 * is killed). */
void e2b_resolve_detach(struct e2b_resolve *r);

/* --- waiting for capacity (capacity.c) --- */

struct e2b_wait { /* embedded in who waits */
    struct e2b_wait *next;
    long long since_ms, give_up_ms;         /* monotonic */
    void (*turn)(void *data, bool in_time); /* from the loop: try again, or it is too late */
    void *data;
    bool waiting;
};

void e2b_wait_start(struct e2b *e2b, struct e2b_wait *wait);
void e2b_wait_stop(struct e2b *e2b, struct e2b_wait *wait);
/* A sandbox has become idle or was killed: perhaps someone waits for it. */
void e2b_wait_kick(struct e2b *e2b);

#endif
