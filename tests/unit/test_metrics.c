/* Tests of metrics: what is counted, how it is printed, and that input cannot make it grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/metrics.h"
#include "worker/metrics.h"

static char *print(const struct metric *m)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(metric_print(m, &out), 0);
    return buf_steal(&out);
}

static void expect(const struct metric *m, const char *text)
{
    char *printed = print(m);
    assert_string_equal(printed, text);
    free(printed);
}

static void test_counter(void **state)
{
    (void)state;
    struct metric plain = {.name = "a_total", .help = "What it is.", .kind = METRIC_COUNTER};
    expect(&plain, "# HELP a_total What it is.\n# TYPE a_total counter\na_total 0\n");
    metric_add(&plain, 2, NULL, NULL);
    metric_add(&plain, 9007199254740, "ignored", NULL);
    assert_true(metric_value(&plain, NULL, NULL) == 9007199254742);
    expect(&plain, "# HELP a_total What it is.\n# TYPE a_total counter\na_total 9007199254742\n");
    metric_clear(&plain);
    expect(&plain, "# HELP a_total What it is.\n# TYPE a_total counter\na_total 0\n");
}

static void test_labels(void **state)
{
    (void)state;
    struct metric m = {.name = "g", .help = "h", .kind = METRIC_GAUGE, .labels = {"x", "y"}};
    expect(&m, "# HELP g h\n# TYPE g gauge\n");
    metric_set(&m, 0.25, "b", "q\"\\\n");
    metric_set(&m, -1, "a", NULL);
    metric_set(&m, 0.5, "b", "q\"\\\n");
    expect(&m, "# HELP g h\n# TYPE g gauge\n"
               "g{x=\"b\",y=\"q\\\"\\\\\\n\"} 0.5\ng{x=\"a\",y=\"\"} -1\n");
    assert_true(metric_value(&m, "a", "") == -1);
    assert_true(metric_value(&m, "c", "") == 0);
    metric_clear(&m);
}

static void test_histogram(void **state)
{
    (void)state;
    struct metric m = {
        .name = "d_seconds", .help = "h", .kind = METRIC_HISTOGRAM, .bounds = {0.1, 1, 10}};
    const double seen[] = {0.1, 0.05, 1.5, 11, 1};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        metric_observe(&m, seen[i], NULL, NULL);
    expect(&m, "# HELP d_seconds h\n# TYPE d_seconds histogram\n"
               "d_seconds_bucket{le=\"0.1\"} 2\nd_seconds_bucket{le=\"1\"} 3\n"
               "d_seconds_bucket{le=\"10\"} 4\nd_seconds_bucket{le=\"+Inf\"} 5\n"
               "d_seconds_sum 13.65\nd_seconds_count 5\n");
    assert_true(metric_value(&m, NULL, NULL) == 5);
    metric_clear(&m);
}

/* Whatever values come: so many series, and the rest is "other". */
static void test_bounded(void **state)
{
    (void)state;
    struct metric m = {.name = "m", .help = "h", .kind = METRIC_COUNTER, .labels = {"x"}};
    for (int i = 0; i < METRIC_SERIES_MAX + 500; i++) {
        char value[16];
        snprintf(value, sizeof value, "v%d", i);
        metric_add(&m, 1, value, NULL);
    }
    assert_int_equal(m.series_count, METRIC_SERIES_MAX + 1);
    assert_true(metric_value(&m, "other", NULL) == 500);
    assert_true(metric_value(&m, "v7", NULL) == 1);
    metric_clear(&m);
}

static void test_out_of_room(void **state)
{
    (void)state;
    struct metric m = {.name = "m", .help = "h", .kind = METRIC_COUNTER};
    struct buf out;
    buf_init(&out, 10);
    assert_int_equal(metric_print(&m, &out), -1);
    buf_fini(&out);
}

/* The table: every row is filled, names are unique and end as Prometheus wants it. */
static void test_table(void **state)
{
    (void)state;
    struct buf out;
    char kind[16], name[64], seen[METRIC_ID_COUNT][64];
    int count = 0;
    buf_init(&out, 1 << 20);
    assert_int_equal(metrics_print(&out), 0);
    for (char *line = strstr(out.data, "# TYPE "); line; line = strstr(line + 1, "# TYPE ")) {
        assert_int_equal(sscanf(line, "# TYPE %63s %15s", name, kind), 2);
        size_t len = strlen(name);
        assert_int_equal(strcmp(kind, "counter") == 0,
                         len > 6 && strcmp(name + len - 6, "_total") == 0);
        assert_int_equal(strcmp(kind, "histogram") == 0 && strstr(name, "_seconds") == NULL, 0);
        for (int i = 0; i < count; i++)
            assert_string_not_equal(seen[i], name);
        assert_true(count < METRIC_ID_COUNT);
        memcpy(seen[count++], name, sizeof name);
    }
    assert_int_equal(count, METRIC_ID_COUNT);
    buf_fini(&out);
    metrics_count(METRIC_JOBS_ENDED, 1, "completed", "ok");
    metrics_observe_ms(METRIC_RUN_DURATION, 1500);
    assert_true(metrics_value(METRIC_JOBS_ENDED, "completed", "ok") == 1);
    assert_true(metrics_value(METRIC_RUN_DURATION, NULL, NULL) == 1);
    metrics_clear();
    assert_true(metrics_value(METRIC_JOBS_ENDED, "completed", "ok") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter),     cmocka_unit_test(test_labels),
        cmocka_unit_test(test_histogram),   cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_out_of_room), cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
