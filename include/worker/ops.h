/* What operations see of a replica: the status port's pages, the service manager's notices. */
#ifndef SANDPIPER_WORKER_OPS_H
#define SANDPIPER_WORKER_OPS_H

#include "worker/queue/stats.h"

#include <stdbool.h>

struct ev_loop;
struct ops;
struct settings;

struct ops_view {     /* the worker as it is now; borrowed */
    bool redis_ready; /* commands can be sent, locks were renewed */
    bool draining;
    long long running, slots;
    /* How long the claim loop has been overdue (ms): whatever it waited for should have come, or
     * have been given up, by then. 0: it turns. */
    long long overdue_ms;
    long long reconnects;
    const char *driver, *why_not; /* of the environment's settings; why it is DISABLED, or "" */
    const struct stats_figures *queue;
};

/* look fills the view, at any time until ops_free. Starts the status port (STATUS_HOST,
 * STATUS_PORT) and tells the service manager that we are up. */
struct ops *ops_new(struct ev_loop *loop, const struct settings *settings,
                    void (*look)(struct ops_view *view, void *data), void *data);
/* Something changed that the service manager should know at once (draining). */
void ops_refresh(struct ops *ops);
void ops_free(struct ops *ops);

#endif
