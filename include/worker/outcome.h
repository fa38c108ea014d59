/* The outcome table: what each reason of an end means for BullMQ, the reply and the result (design:
 * README "Outcomes"). */
#ifndef SANDPIPER_WORKER_OUTCOME_H
#define SANDPIPER_WORKER_OUTCOME_H

#include <stdbool.h>

enum outcome {
    OUTCOME_OK,
    OUTCOME_CODE_ERROR,
    OUTCOME_TIMEOUT,
    OUTCOME_CANCELLED, /* after the code was delivered */
    OUTCOME_DRAINED,
    OUTCOME_OOM,
    OUTCOME_KERNEL_DIED,
    OUTCOME_SANDBOX_LOST,
    OUTCOME_OUTCOME_UNKNOWN,
    OUTCOME_CANCELLED_BEFORE, /* before it was */
    OUTCOME_EXPIRED,
    OUTCOME_BAD_JOB,
    OUTCOME_DISABLED,
    OUTCOME_WORKER_LOST,
    OUTCOME_NO_SANDBOX,
    OUTCOME_NO_CAPACITY,
    OUTCOME_DRIVER_ERROR,
    OUTCOME_UNKNOWN_NAME,
    OUTCOME_STALLED,
    OUTCOME_DEFERRED, /* BullMQ wants it failed with the text of `defa` */
    OUTCOME_COUNT
};

#define OUTCOME_NO_EXIT_CODE   (-1) /* the result's exitCode is null */
#define OUTCOME_EXIT_FROM_CODE (-2) /* it comes from the code's own end */

struct outcome_row {
    const char *reason; /* in `done`, the result and the logs */
    bool completes;     /* BullMQ "completed" (else "failed") */
    bool retried;       /* by the job's attempts */
    int exit_code;
};

const struct outcome_row *outcome_row(enum outcome o);

#endif
