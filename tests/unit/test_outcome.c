/* Tests of the outcome table against the one of the design, row by row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "worker/outcome.h"

#define NONE OUTCOME_NO_EXIT_CODE
#define CODE OUTCOME_EXIT_FROM_CODE

static const struct {
    enum outcome outcome;
    const char *reason;
    bool completes, retried;
    int exit_code;
} rows[] = {
    {OUTCOME_OK, "ok", true, false, 0},
    {OUTCOME_CODE_ERROR, "code_error", true, false, CODE},
    {OUTCOME_TIMEOUT, "timeout", true, false, 124},
    {OUTCOME_CANCELLED, "cancelled", true, false, 130},
    {OUTCOME_DRAINED, "drained", true, false, 143},
    {OUTCOME_OOM, "oom", true, false, CODE},
    {OUTCOME_KERNEL_DIED, "kernel_died", true, false, CODE},
    {OUTCOME_SANDBOX_LOST, "sandbox_lost", true, false, NONE},
    {OUTCOME_OUTCOME_UNKNOWN, "outcome_unknown", true, false, NONE},
    {OUTCOME_CANCELLED_BEFORE, "cancelled", false, false, NONE},
    {OUTCOME_EXPIRED, "expired", false, false, NONE},
    {OUTCOME_BAD_JOB, "bad_job", false, false, NONE},
    {OUTCOME_DISABLED, "disabled", false, false, NONE},
    {OUTCOME_WORKER_LOST, "worker_lost", false, false, NONE},
    {OUTCOME_NO_SANDBOX, "no_sandbox", false, true, NONE},
    {OUTCOME_NO_CAPACITY, "no_capacity", false, true, NONE},
    {OUTCOME_DRIVER_ERROR, "driver_error", false, true, NONE},
    {OUTCOME_UNKNOWN_NAME, "unknown_name", false, true, NONE},
    {OUTCOME_STALLED, "stalled", false, false, NONE},
    {OUTCOME_DEFERRED, "deferred_failure", false, false, NONE},
};

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(sizeof rows / sizeof *rows, OUTCOME_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct outcome_row *row = outcome_row(rows[i].outcome);
        assert_int_equal(rows[i].outcome, i);
        assert_string_equal(row->reason, rows[i].reason);
        assert_int_equal(row->completes, rows[i].completes);
        assert_int_equal(row->retried, rows[i].retried);
        assert_int_equal(row->exit_code, rows[i].exit_code);
    }
}

/* A run that may have had effects is never done again by the queue. */
static void test_no_retry_after_delivery(void **state)
{
    (void)state;
    for (int o = 0; o < OUTCOME_COUNT; o++)
        assert_false(outcome_row((enum outcome)o)->completes &&
                     outcome_row((enum outcome)o)->retried);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_no_retry_after_delivery),
    };
    return cmocka_run_group_tests_name("outcome", tests, NULL, NULL);
}
