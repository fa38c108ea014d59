/* The outcome table: what each reason of an end means for BullMQ, the reply and the result. */
#include "worker/outcome.h"

static const struct outcome_row rows[OUTCOME_COUNT] = {
    /*                          reason             completes retried exit code */
    [OUTCOME_OK] = {"ok", true, false, 0},
    [OUTCOME_CODE_ERROR] = {"code_error", true, false, OUTCOME_EXIT_FROM_CODE},
    [OUTCOME_TIMEOUT] = {"timeout", true, false, 124},
    [OUTCOME_CANCELLED] = {"cancelled", true, false, 130},
    [OUTCOME_DRAINED] = {"drained", true, false, 143},
    [OUTCOME_OOM] = {"oom", true, false, OUTCOME_EXIT_FROM_CODE},
    [OUTCOME_KERNEL_DIED] = {"kernel_died", true, false, OUTCOME_EXIT_FROM_CODE},
    [OUTCOME_SANDBOX_LOST] = {"sandbox_lost", true, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_OUTCOME_UNKNOWN] = {"outcome_unknown", true, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_CANCELLED_BEFORE] = {"cancelled", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_EXPIRED] = {"expired", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_BAD_JOB] = {"bad_job", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_DISABLED] = {"disabled", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_WORKER_LOST] = {"worker_lost", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_NO_SANDBOX] = {"no_sandbox", false, true, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_NO_CAPACITY] = {"no_capacity", false, true, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_DRIVER_ERROR] = {"driver_error", false, true, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_UNKNOWN_NAME] = {"unknown_name", false, true, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_STALLED] = {"stalled", false, false, OUTCOME_NO_EXIT_CODE},
    [OUTCOME_DEFERRED] = {"deferred_failure", false, false, OUTCOME_NO_EXIT_CODE},
};

const struct outcome_row *outcome_row(enum outcome o)
{
    return &rows[o];
}
