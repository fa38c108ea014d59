/* May LOCAL serve production on this machine? A check of the isolation, made once. */
#ifndef SANDPIPER_WORKER_DRIVERS_LOCAL_PROBE_H
#define SANDPIPER_WORKER_DRIVERS_LOCAL_PROBE_H

#include "worker/driver.h"

/* What users are told where LOCAL may not run; with the reason. */
#define DRIVER_LOCAL_REFUSED                                                                       \
    "LOCAL code interpreter driver is not allowed in production. Use E2B driver instead by "       \
    "setting CODE_INTERPRETER_TYPE=E2B and providing E2B_API_KEY. (Why: %s.)"

struct local_verdict {
    bool allowed;    /* code may run: isolated, or in development */
    bool pending;    /* not yet: the check is under way or has not begun; why says so */
    const char *why; /* when not allowed; borrowed until the loop turns */
};

/* What is known now. In development everything is allowed. */
struct local_verdict local_verdict(const struct settings *s);

/* Starts the check where one is due: LOCAL in production that is not checked yet, or failed it a
 * minute ago (an administrator may have mended the machine). Its process is killed after a
 * while. */
void local_probe_start(struct ev_loop *loop, const struct settings *s);

/* Calls cb from the loop at each verdict of a check, until local_probe_unwatch with the same
 * values. cb may unwatch. */
void local_probe_watch(driver_done_fn cb, void *data);
void local_probe_unwatch(driver_done_fn cb, void *data);

/* Kills a check that is under way, frees everything. */
void local_probe_end(void);

/* "none", "host" or "internet": what CODE_INTERPRETER_LOCAL_NETWORK means here. */
const char *local_network(const struct settings *s);

#endif
