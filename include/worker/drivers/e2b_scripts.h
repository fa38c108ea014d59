/* The scripts folder of the settings, read for a new sandbox. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_SCRIPTS_H
#define SANDPIPER_WORKER_DRIVERS_E2B_SCRIPTS_H

#include "worker/drivers/e2b_files.h"

struct e2b_scripts {
    struct e2b_part *parts; /* paths and bytes are heap */
    size_t count;
};

/* Regular files below folder, a few levels deep and 16 MiB together at most; what cannot be read is
 * logged. Never NULL. */
struct e2b_scripts *e2b_scripts_read(const char *folder);
void e2b_scripts_free(struct e2b_scripts *scripts);

#endif
