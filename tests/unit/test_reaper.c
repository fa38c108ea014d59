/* Tests of the deferred-free list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ev.h>

#include "common/reaper.h"

static char order[16];
static int count;
static bool in_callback;

static void note(void *arg)
{
    assert_false(in_callback);
    order[count++] = *(const char *)arg;
}

static void note_and_defer(void *arg)
{
    note(arg);
    reaper_defer(note, "z");
}

static void on_timer(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)events;
    in_callback = true;
    reaper_defer(note_and_defer, "a");
    reaper_defer(note, "b");
    in_callback = false;
    ev_timer_stop(loop, watcher);
}

static struct ev_loop *start(void)
{
    count = 0;
    struct ev_loop *loop = ev_loop_new(EVFLAG_NOENV);
    assert_non_null(loop);
    reaper_init(loop);
    return loop;
}

/* What is deferred runs before the loop ends, in order, though no other watcher keeps it alive. */
static void test_runs_in_order(void **state)
{
    (void)state;
    struct ev_loop *loop = start();
    ev_timer timer;
    ev_timer_init(&timer, on_timer, 0.001, 0);
    ev_timer_start(loop, &timer);
    ev_run(loop, 0);
    assert_int_equal(count, 3);
    assert_memory_equal(order, "abz", 3);
    ev_run(loop, 0); /* nothing left: ends at once */
    assert_int_equal(count, 3);
    reaper_fini();
    ev_loop_destroy(loop);
}

static void on_other_prepare(struct ev_loop *loop, ev_prepare *watcher, int events)
{
    (void)events;
    reaper_defer(note, "p");
    ev_prepare_stop(loop, watcher);
}

static void on_guard(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)watcher;
    (void)events;
    ev_break(loop, EVBREAK_ALL);
}

/* Deferred from another prepare watcher, it still runs before the loop sleeps. */
static void test_not_slept_over(void **state)
{
    (void)state;
    struct ev_loop *loop = start();
    ev_prepare other;
    ev_prepare_init(&other, on_other_prepare);
    ev_prepare_start(loop, &other);
    ev_timer guard;
    ev_timer_init(&guard, on_guard, 0.05, 0);
    ev_timer_start(loop, &guard);
    ev_run(loop, EVRUN_ONCE);
    assert_int_equal(count, 1);
    ev_timer_stop(loop, &guard);
    reaper_fini();
    ev_loop_destroy(loop);
}

static void test_fini_runs_pending(void **state)
{
    (void)state;
    struct ev_loop *loop = start();
    reaper_defer(note_and_defer, "a");
    reaper_fini();
    assert_int_equal(count, 2);
    reaper_fini(); /* harmless twice */
    ev_loop_destroy(loop);
    loop = start();
    ev_run(loop, 0);
    assert_int_equal(count, 0);
    reaper_fini();
    ev_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_in_order),
        cmocka_unit_test(test_not_slept_over),
        cmocka_unit_test(test_fini_runs_pending),
    };
    return cmocka_run_group_tests_name("reaper", tests, NULL, NULL);
}
