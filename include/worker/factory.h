/* Hands out the driver that the settings ask for; made on first use, and again when what identifies
 * it changes. */
#ifndef SANDPIPER_WORKER_FACTORY_H
#define SANDPIPER_WORKER_FACTORY_H

#include "worker/driver.h"

struct factory;

struct factory *factory_new(const struct driver_host *host);

/* The driver for these settings. NULL with one sentence in err when it cannot be made: the job
 * fails, the next tries again. The driver stays alive until factory_give_back: one call for each
 * take. */
struct driver *factory_take(struct factory *f, const struct settings *settings, char *err,
                            size_t err_size);
void factory_give_back(struct factory *f, struct driver *d);

/* Makes at once what takes time or works by itself: LOCAL with its spare kernels, after the check
 * of its isolation, and E2B with its sweeper. Others are made when the first job wants them. */
void factory_prepare(struct factory *f, const struct settings *settings);

bool factory_is_local(const struct settings *settings);

/* The name of the driver that these settings give now ("LOCAL", "DISABLED", ...), and why if it is
 * not the one they name; for ops. Static or borrowed until the next call. */
const char *factory_describe(const struct settings *settings, const char **why);

/* Dispose of everything; done runs from the loop when the last driver is gone. No take after it. */
void factory_dispose(struct factory *f, driver_done_fn done, void *data);

#endif
