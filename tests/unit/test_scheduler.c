/* What a job scheduler's next job is: its time and options, its limit and end. */
#include "common/jsonx.h"
#include "common/str.h"
#include "worker/queue/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NOW 1761436800000LL /* 2025-10-26T00:00:00Z */

static struct scheduler_next compute(const char *opts, long long now)
{
    struct str text = {(char *)opts, strlen(opts)};
    struct scheduler_next next;
    scheduler_compute("s", &text, now, &next);
    return next;
}

static long long at_of(const char *opts)
{
    struct scheduler_next next = compute(opts, NOW);
    assert_null(next.nothing);
    assert_string_equal(next.error, "");
    long long at = next.at;
    json_decref(next.opts);
    return at;
}

static void test_pattern(void **state)
{
    (void)state;
    assert_int_equal(at_of("{\"repeat\":{\"pattern\":\"0 0 2 * * *\",\"tz\":\"UTC\"}}"),
                     NOW + 7200000);
    /* 02:00 comes twice on this day in Berlin; the first is at 00:00Z, which is now: the next. */
    assert_int_equal(at_of("{\"repeat\":{\"pattern\":\"30 2 * * *\",\"tz\":\"Europe/Berlin\"}}"),
                     NOW + 1800000);
    /* What was missed is not made up for; what is planned already is not planned again. */
    assert_int_equal(at_of("{\"prevMillis\":1000,\"repeat\":{\"pattern\":\"* * * * *\"}}"),
                     NOW + 60000);
    assert_int_equal(at_of("{\"prevMillis\":1761436920000,\"repeat\":{\"pattern\":\"* * * * *\"}}"),
                     NOW + 180000);
    assert_int_equal(at_of("{\"repeat\":{\"pattern\":\"0 0 1 1 *\",\"immediately\":true}}"), NOW);
}

static void test_dates(void **state)
{
    (void)state;
    static const char *const starts[] = {
        "1761440400000", "\"2025-10-26T01:00:00Z\"", "\"2025-10-26T01:00:00.000Z\"",
        "\"2025-10-26T02:00:00+01:00\"", "\"2025-10-25T20:30:00-04:30\""};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "{\"repeat\":{\"pattern\":\"*/10 * * * *\",\"tz\":\"UTC\",\"startDate\":%s}}",
                 starts[i]);
        assert_int_equal(at_of(text), NOW + 3600000 + 600000);
    }
    struct scheduler_next next = compute(
        "{\"repeat\":{\"pattern\":\"0 0 5 * * *\",\"tz\":\"UTC\",\"endDate\":1761440400000}}", NOW);
    assert_string_equal(next.nothing, "its pattern names no more times");
    json_decref(next.opts);
    next = compute("{\"repeat\":{\"every\":5,\"endDate\":\"2025-10-25\"}}", NOW);
    assert_string_equal(next.nothing, "its end is reached");
    json_decref(next.opts);
}

static void test_limit(void **state)
{
    (void)state;
    struct scheduler_next next = compute("{\"repeat\":{\"every\":5,\"limit\":3,\"count\":3}}", NOW);
    assert_string_equal(next.nothing, "its limit is reached");
    json_decref(next.opts);
    next = compute("{\"repeat\":{\"every\":5,\"limit\":3,\"count\":2}}", NOW);
    assert_null(next.nothing);
    assert_int_equal(jsonx_get_int(json_object_get(next.opts, "repeat"), "count", 0), 3);
    json_decref(next.opts);
}

static void test_options(void **state)
{
    (void)state;
    struct scheduler_next next =
        compute("{\"backoff\":7,\"priority\":3,\"de\":{\"id\":\"x\"},\"tm\":\"t\",\"repeat\":"
                "{\"pattern\":\"0 0 2 * * *\",\"tz\":\"UTC\",\"offset\":5,\"immediately\":false}}",
                NOW);
    char *text = json_dumps(next.opts, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text,
                        "{\"attempts\":0,\"backoff\":{\"delay\":7,\"type\":\"fixed\"},"
                        "\"de\":{\"id\":\"x\"},\"delay\":7200000,\"jobId\":"
                        "\"repeat:s:1761444000000\",\"prevMillis\":1761444000000,\"priority\":3,"
                        "\"repeat\":{\"count\":1,\"pattern\":\"0 0 2 * * *\",\"tz\":\"UTC\"},"
                        "\"repeatJobKey\":\"s\",\"timestamp\":1761436800000,\"tm\":\"t\"}");
    free(text);
    json_decref(next.opts);
    next =
        compute("{\"prevMillis\":5,\"attempts\":2,\"repeat\":{\"every\":5000,\"offset\":9}}", NOW);
    assert_int_equal(next.at, 0);
    text = json_dumps(next.opts, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"attempts\":2,\"delay\":0,\"jobId\":\"repeat:s:undefined\","
                              "\"repeat\":{\"count\":1,\"every\":5000,\"offset\":9},"
                              "\"repeatJobKey\":\"s\",\"timestamp\":1761436800000}");
    free(text);
    json_decref(next.opts);
}

static void test_wrong(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"repeat\":3}",
        "{\"repeat\":{}}",
        "{\"repeat\":{\"every\":\"5\"}}",
        "{\"repeat\":{\"every\":-5}}",
        "{\"repeat\":{\"every\":5,\"pattern\":\"* * * * *\"}}",
        "{\"repeat\":{\"pattern\":\"61 * * * *\"}}",
        "{\"repeat\":{\"pattern\":\"* * * * *\",\"tz\":\"Mars/Olympus\"}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct scheduler_next next = compute(texts[i], NOW);
        assert_true(strlen(next.error) > 0);
        json_decref(next.opts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pattern), cmocka_unit_test(test_dates), cmocka_unit_test(test_limit),
        cmocka_unit_test(test_options), cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
