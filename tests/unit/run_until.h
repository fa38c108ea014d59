/* Runs a test's loop until something is so, else fails. Needs `loop` and cmocka before it. */
#ifndef SANDPIPER_TESTS_UNIT_RUN_UNTIL_H
#define SANDPIPER_TESTS_UNIT_RUN_UNTIL_H

#include <ev.h>
#include <stdbool.h>

static bool too_late;

static void on_guard(struct ev_loop *l, ev_timer *timer, int events)
{
    (void)timer;
    (void)events;
    too_late = true;
    ev_break(l, EVBREAK_ONE);
}

/* Said with the failure: a string; a test may define it before. */
#ifndef RUN_UNTIL_SAYS
#define RUN_UNTIL_SAYS ""
#endif

#define run_until(condition)                                                                       \
    do {                                                                                           \
        ev_timer guard;                                                                            \
        too_late = false;                                                                          \
        ev_timer_init(&guard, on_guard, 15, 0);                                                    \
        ev_now_update(loop);                                                                       \
        ev_timer_start(loop, &guard);                                                              \
        while (!(condition) && !too_late)                                                          \
            ev_run(loop, EVRUN_ONCE);                                                              \
        ev_timer_stop(loop, &guard);                                                               \
        if (too_late)                                                                              \
            fail_msg("never happened: %s\n%s", #condition, RUN_UNTIL_SAYS);                        \
    } while (0)

#endif
