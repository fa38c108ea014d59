/* Tests of a job's BullMQ options: the values that clients write, and BullMQ 6.7.0's decisions on
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/str.h"
#include "worker/queue/jobopts.h"

static struct jobopts parse(const char *json)
{
    struct jobopts o;
    struct str text = {(char *)json, json != NULL ? strlen(json) : 0};
    jobopts_init(&o, &text);
    return o;
}

/* -1: no retry; else the delay. */
static long long retry(const char *json, long long made, double random01)
{
    struct jobopts o = parse(json);
    long long delay = -2;
    bool again = jobopts_retry(&o, made, random01, &delay);
    jobopts_fini(&o);
    assert_true(delay >= 0);
    return again ? delay : -1;
}

static void test_nothing_given(void **state)
{
    (void)state;
    static const char *const texts[] = {NULL, "", "{", "null", "[]", "3", "\"x\"", "{}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct jobopts o = parse(texts[i]);
        assert_true(isnan(o.attempts));
        assert_false(o.lifo);
        assert_int_equal(o.backoff, JOBOPTS_BACKOFF_NONE);
        assert_true(o.stack_trace_limit == -1);
        assert_true(o.on_complete.has_count && o.on_complete.count == -1);
        assert_true(o.on_fail.has_count && o.on_fail.count == -1);
        assert_null(o.group);
        jobopts_fini(&o);
        assert_int_equal(retry(texts[i], 0, 0), -1);
    }
}

static void test_attempts(void **state)
{
    (void)state;
    /* value, how many runs there are in all: attemptsMade + 1 < attempts decides, as in JavaScript
     */
    static const struct {
        const char *attempts;
        int runs;
    } rows[] = {{"3", 3},  {"\"3\"", 3},     {"2.5", 3},    {"1", 1},        {"0", 1},
                {"-4", 1}, {"\"2.5\"", 3},   {"true", 1},   {"\"\"", 1},     {"null", 1},
                {"[]", 1}, {"{\"a\":3}", 1}, {"\"3x\"", 1}, {"\"junk\"", 1}, {"1e3", 1000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[64];
        snprintf(json, sizeof json, "{\"attempts\":%s}", rows[i].attempts);
        int runs = 1;
        while (runs < 2000 && retry(json, runs - 1, 0) == 0)
            runs++;
        if (runs != rows[i].runs)
            fail_msg("attempts %s: %d runs, not %d", rows[i].attempts, runs, rows[i].runs);
    }
}

static void test_backoff_forms(void **state)
{
    (void)state;
    static const struct {
        const char *backoff;
        enum jobopts_backoff kind;
        long long delay; /* after the first failure; -1 none */
    } rows[] = {
        {"1000", JOBOPTS_BACKOFF_FIXED, 1000},
        {"0", JOBOPTS_BACKOFF_FIXED, 0},
        {"-1", JOBOPTS_BACKOFF_FIXED, -1},
        {"-7", JOBOPTS_BACKOFF_FIXED, 0},
        {"1.5", JOBOPTS_BACKOFF_FIXED, 1},
        {"1e300", JOBOPTS_BACKOFF_FIXED, 315360000000},
        {"null", JOBOPTS_BACKOFF_NONE, 0},
        {"false", JOBOPTS_BACKOFF_NONE, 0},
        {"\"\"", JOBOPTS_BACKOFF_NONE, 0},
        {"{\"type\":\"fixed\",\"delay\":250}", JOBOPTS_BACKOFF_FIXED, 250},
        {"{\"type\":\"fixed\",\"delay\":\"250\"}", JOBOPTS_BACKOFF_FIXED, 250},
        {"{\"type\":\"fixed\"}", JOBOPTS_BACKOFF_FIXED, 0},
        {"{\"type\":\"fixed\",\"delay\":-1}", JOBOPTS_BACKOFF_FIXED, -1},
        {"{\"type\":\"fixed\",\"delay\":0}", JOBOPTS_BACKOFF_FIXED, 0},
        {"{\"type\":\"exponential\",\"delay\":250}", JOBOPTS_BACKOFF_EXPONENTIAL, 250},
        {"{\"type\":\"exponential\"}", JOBOPTS_BACKOFF_EXPONENTIAL, 0},
        {"{\"type\":\"mine\",\"delay\":99}", JOBOPTS_BACKOFF_UNKNOWN, 99},
        {"{\"type\":7,\"delay\":99}", JOBOPTS_BACKOFF_UNKNOWN, 99},
        {"{}", JOBOPTS_BACKOFF_UNKNOWN, 0},
        {"\"mine\"", JOBOPTS_BACKOFF_UNKNOWN, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"attempts\":5,\"backoff\":%s}", rows[i].backoff);
        struct jobopts o = parse(json);
        long long delay = retry(json, 0, 0.5);
        if (o.backoff != rows[i].kind || delay != rows[i].delay)
            fail_msg("backoff %s: kind %d, delay %lld", rows[i].backoff, o.backoff, delay);
        jobopts_fini(&o);
    }
}

static void test_exponential_doubles(void **state)
{
    (void)state;
    const char *json = "{\"attempts\":99,\"backoff\":{\"type\":\"exponential\",\"delay\":300}}";
    for (int made = 0; made < 12; made++)
        assert_int_equal(retry(json, made, 0.9), 300LL << made);
    assert_int_equal(retry(json, 97, 0.9), 315360000000);
    assert_int_equal(retry(json, 98, 0.9), -1);
    /* Math.round of halves */
    assert_int_equal(
        retry("{\"attempts\":9,\"backoff\":{\"type\":\"exponential\",\"delay\":0.5}}", 0, 0), 1);
}

/* Backoffs.builtinStrategies: floor(random * full * jitter + full * (1 - jitter)). */
static void test_jitter(void **state)
{
    (void)state;
    static const double jitters[] = {0.1, 0.25, 0.5, 1};
    for (size_t j = 0; j < sizeof jitters / sizeof *jitters; j++) {
        for (int made = 0; made < 6; made++) {
            for (int exponential = 0; exponential < 2; exponential++) {
                char json[160];
                snprintf(
                    json, sizeof json,
                    "{\"attempts\":9,\"backoff\":{\"type\":\"%s\",\"delay\":777,\"jitter\":%g}}",
                    exponential ? "exponential" : "fixed", jitters[j]);
                double full = exponential ? round(pow(2, made) * 777) : 777;
                double low = full * (1 - jitters[j]);
                assert_int_equal(retry(json, made, 0), (long long)floor(low));
                assert_int_equal(retry(json, made, 0.5),
                                 (long long)floor(0.5 * full * jitters[j] + low));
                long long most = retry(json, made, 0.999999999);
                assert_true((double)most >= low - 1 && (double)most < full);
            }
        }
    }
    assert_int_equal(
        retry("{\"attempts\":9,\"backoff\":{\"type\":\"fixed\",\"delay\":-1,\"jitter\":0.5}}", 0,
              0),
        -1);
}

static void check_keep(const char *value, const char *expected)
{
    char json[128], got[128];
    snprintf(json, sizeof json, "{\"removeOnComplete\":%s,\"removeOnFail\":%s}", value, value);
    struct jobopts o = parse(json);
    const struct jobopts_keep *both[] = {&o.on_complete, &o.on_fail};
    for (int i = 0; i < 2; i++) {
        got[0] = '\0';
        if (both[i]->has_count)
            snprintf(got + strlen(got), 40, "count %g ", both[i]->count);
        if (both[i]->has_age)
            snprintf(got + strlen(got), 40, "age %g ", both[i]->age);
        if (both[i]->has_limit)
            snprintf(got + strlen(got), 40, "limit %g ", both[i]->limit);
        if (strcmp(got, expected) != 0)
            fail_msg("%s means \"%s\", not \"%s\"", value, got, expected);
    }
    jobopts_fini(&o);
}

/* Scripts.getKeepJobs */
static void test_keep(void **state)
{
    (void)state;
    check_keep("true", "count 0 ");
    check_keep("false", "count -1 ");
    check_keep("0", "count 0 ");
    check_keep("100", "count 100 ");
    check_keep("-1", "count -1 ");
    check_keep("{\"count\":5}", "count 5 ");
    check_keep("{\"age\":3600}", "age 3600 ");
    check_keep("{\"age\":3600,\"count\":7}", "count 7 age 3600 ");
    check_keep("{\"age\":3600,\"limit\":10}", "age 3600 limit 10 ");
    check_keep("{\"age\":1.5,\"count\":0,\"limit\":3}", "count 0 age 1.5 limit 3 ");
    check_keep("{}", "");
    check_keep("{\"count\":\"5\"}", "");
    check_keep("\"yes\"", "count 0 "); /* true for JavaScript */
    check_keep("\"\"", "count -1 ");
    check_keep("null", "count -1 ");
}

static void test_others(void **state)
{
    (void)state;
    struct jobopts o =
        parse("{\"lifo\":true,\"stackTraceLimit\":3,\"group\":{\"id\":\"g\"},\"x\":1}");
    assert_true(o.lifo);
    assert_true(o.stack_trace_limit == 3);
    assert_string_equal(json_string_value(json_object_get(o.group, "id")), "g");
    jobopts_fini(&o);
    o = parse("{\"lifo\":\"yes\",\"stackTraceLimit\":null}");
    assert_false(o.lifo);
    assert_true(o.stack_trace_limit == -1);
    jobopts_fini(&o);
}

static void test_keep_setting(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool given, has_count;
        double count;
    } rows[] = {{"", false, true, -1},
                {"true", true, true, 0},
                {"false", true, true, -1},
                {"100", true, true, 100},
                {"0", true, true, 0},
                {"{\"age\":5}", true, false, 0},
                {"{\"count\":3,\"limit\":2}", true, true, 3}};
    struct jobopts_keep keep;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(jobopts_keep_parse(rows[i].text, &keep), 0);
        assert_true(keep.given == rows[i].given && keep.has_count == rows[i].has_count);
        assert_true(!keep.has_count || keep.count == rows[i].count);
    }
    static const char *const wrong[] = {"yes", "\"5\"", "[1]", "null", "{", "5 6"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(jobopts_keep_parse(wrong[i], &keep), -1);
    struct jobopts o = parse("{\"removeOnComplete\":false,\"kl\":4}");
    assert_true(o.on_complete.given && !o.on_fail.given && o.keep_logs == 4);
    jobopts_fini(&o);
}

/* The producer's trace context: taken where it is well-formed, and where it may be. */
static void test_trace(void **state)
{
    (void)state;
#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    const struct {
        const char *json, *parent, *trace_state;
    } cases[] = {
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"" PARENT "\\\"}\"}", PARENT, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"" PARENT "\\\",\\\"tracestate\\\":\\\"a=1,b=2\\\"}\"}",
         PARENT, "a=1,b=2"},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"" PARENT "\\\"}\",\"omc\":true}", NULL, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"" PARENT "0\\\"}\"}", NULL, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"00-00000000000000000000000000000000-"
         "b7ad6b7169203331-01\\\"}\"}",
         NULL, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"00-0AF7651916cd43dd8448eb211c80319c-"
         "b7ad6b7169203331-01\\\"}\"}",
         NULL, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":7}\"}", NULL, NULL},
        {"{\"tm\":\"{\"}", NULL, NULL},
        {"{\"tm\":{\"traceparent\":\"" PARENT "\"}}", NULL, NULL},
        {"{\"tm\":\"{\\\"traceparent\\\":\\\"" PARENT
         "\\\",\\\"tracestate\\\":\\\"a=\\\\n1\\\"}\"}",
         PARENT, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jobopts o = parse(cases[i].json);
        if (cases[i].parent != NULL)
            assert_string_equal(o.traceparent, cases[i].parent);
        else
            assert_null(o.traceparent);
        if (cases[i].trace_state != NULL)
            assert_string_equal(o.tracestate, cases[i].trace_state);
        else
            assert_null(o.tracestate);
        jobopts_fini(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_setting),  cmocka_unit_test(test_trace),
        cmocka_unit_test(test_nothing_given), cmocka_unit_test(test_attempts),
        cmocka_unit_test(test_backoff_forms), cmocka_unit_test(test_exponential_doubles),
        cmocka_unit_test(test_jitter),        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests_name("jobopts", tests, NULL, NULL);
}
