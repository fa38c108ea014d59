/* Tests of what the stream takes in: defaults, reserved ids, options that BullMQ could have
 * written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/intake_check.h"

#define LIMIT 1000

/* fields: "name", "value", ..., NULL. The reason (heap) or NULL. */
static char *judge(const char *const *fields, struct intake_entry *out, struct str *id)
{
    struct str pairs[32];
    size_t n = 0;
    for (; fields[n] != NULL; n++)
        pairs[n] = (struct str){(char *)fields[n], strlen(fields[n])};
    *id = (struct str){NULL, 0};
    return intake_check(pairs, n / 2, "17-3", LIMIT, out, id);
}

static void check_dead(const char *why, const char *const *fields)
{
    struct intake_entry e;
    struct str id;
    char *got = judge(fields, &e, &id);
    if (got == NULL || strstr(got, why) == NULL)
        fail_msg("\"%s\" is not in: %s", why, got != NULL ? got : "(admitted)");
    free(got);
    str_fini(&id);
}

#define assert_dead(why, ...) check_dead(why, (const char *const[]){__VA_ARGS__, NULL})

static void test_defaults(void **state)
{
    (void)state;
    const char *fields[] = {"data", "{\"code\":\"1\"}", "other", "x", NULL};
    struct intake_entry e;
    struct str id;
    assert_null(judge(fields, &e, &id));
    assert_string_equal(e.data.data, "{\"code\":\"1\"}");
    assert_string_equal(e.name.data, "execute");
    assert_string_equal(e.id.data, "s-17-3");
    assert_string_equal(e.opts.data, "{}");
    str_fini(&id);
}

static void test_all_given(void **state)
{
    (void)state;
    const char *fields[] = {"id",
                            "my id \xe6\x9d\xb1",
                            "name",
                            "release",
                            "data",
                            "null",
                            "opts",
                            "{\"attempts\":3,\"priority\":2097151,\"lifo\":false,"
                            "\"backoff\":{\"type\":\"fixed\",\"delay\":1},"
                            "\"delay\":0,\"removeOnComplete\":true,\"x\":1}",
                            NULL};
    struct intake_entry e;
    struct str id;
    assert_null(judge(fields, &e, &id));
    assert_string_equal(e.id.data, "my id \xe6\x9d\xb1");
    assert_string_equal(e.name.data, "release");
    assert_string_equal(e.data.data, "null");
    assert_null(id.data);
    const char *no_id[] = {"id", "", "data", "1", NULL};
    assert_null(judge(no_id, &e, &id));
    assert_string_equal(e.id.data, "s-17-3");
    str_fini(&id);
}

static void test_texts(void **state)
{
    (void)state;
    char big[LIMIT + 3];
    memset(big, '1', sizeof big);
    big[LIMIT] = '\0';
    assert_dead("no field data", NULL);
    assert_dead("no field data", "code", "1");
    assert_dead("not JSON", "data", "");
    assert_dead("not JSON", "data", "{");
    assert_dead("not JSON", "data", "undefined");
    assert_dead("not JSON", "data", "\"\\ud800\"");
    assert_dead("not JSON", "data", "\"\xff\"");
    big[0] = '"', big[LIMIT - 1] = '"';
    struct intake_entry e;
    struct str id;
    const char *fits[] = {"data", big, NULL};
    assert_null(judge(fits, &e, &id));
    str_fini(&id);
    big[LIMIT - 1] = '1', big[LIMIT] = '"', big[LIMIT + 1] = '\0';
    assert_dead("1001 bytes", "data", big);
    assert_dead("opts is not JSON", "data", "1", "opts", "{");
    assert_dead("opts is not JSON", "data", "1", "opts", "");
    assert_dead("not a JSON object", "data", "1", "opts", "[]");
    assert_dead("name is not", "data", "1", "name", "");
    assert_dead("name is not", "data", "1", "name", "\xff");
}

static void test_options(void **state)
{
    (void)state;
    static const struct {
        const char *opts, *why;
    } rows[] = {{"{\"attempts\":\"3\"}", "opts.attempts"},
                {"{\"attempts\":-1}", "opts.attempts"},
                {"{\"attempts\":null}", "opts.attempts"},
                {"{\"delay\":-5}", "opts.delay"},
                {"{\"delay\":\"5\"}", "opts.delay"},
                {"{\"priority\":2097152}", "opts.priority"},
                {"{\"priority\":1.5}", "opts.priority"},
                {"{\"priority\":\"1\"}", "opts.priority"},
                {"{\"timestamp\":\"x\"}", "opts.timestamp"},
                {"{\"keepLogs\":true}", "opts.keepLogs"},
                {"{\"stackTraceLimit\":{}}", "opts.stackTraceLimit"},
                {"{\"lifo\":1}", "opts.lifo"},
                {"{\"repeat\":{\"every\":1}}", "opts.repeat"},
                {"{\"parent\":{\"id\":\"1\",\"queue\":\"q\"}}", "opts.parent"},
                {"{\"deduplication\":{\"id\":\"x\"}}", "opts.deduplication"},
                {"{\"de\":{\"id\":\"x\"}}", "opts.de "},
                {"{\"fpof\":true}", "opts.fpof"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_dead(rows[i].why, "data", "1", "opts", rows[i].opts);
}

static void test_ids(void **state)
{
    (void)state;
    /* BullMQ's QueueKeys and the endings of a job's own keys */
    static const char *const taken[] = {"active",
                                        "wait",
                                        "waiting-children",
                                        "paused",
                                        "id",
                                        "delayed",
                                        "prioritized",
                                        "stalled-check",
                                        "completed",
                                        "failed",
                                        "stalled",
                                        "repeat",
                                        "limiter",
                                        "meta",
                                        "events",
                                        "pc",
                                        "marker",
                                        "de",
                                        "lock",
                                        "logs",
                                        "dependencies",
                                        "processed",
                                        "unsuccessful",
                                        "metrics",
                                        "",
                                        "1",
                                        "0",
                                        "42",
                                        "a:b",
                                        ":",
                                        "lease:x",
                                        "stream:jobs"};
    static const char *const fine[] = {"s-1-0", "a",     "1a", "-1", "1.5",
                                       "Wait",  "waits", "sp", "x y"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        if (!intake_id_reserved(taken[i]))
            fail_msg("\"%s\" would be taken as a job's id", taken[i]);
        if (taken[i][0] != '\0')
            assert_dead("id is the name of a key", "data", "1", "id", taken[i]);
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        assert_false(intake_id_reserved(fine[i]));

    char long_id[600];
    memset(long_id, 'a', sizeof long_id);
    long_id[513] = '\0';
    assert_dead("id is not UTF-8 text of at most", "data", "1", "id", long_id);
    assert_dead("id is not UTF-8", "data", "1", "id", "\xff");
    struct str with_nul[] = {
        {(char *)"data", 4}, {(char *)"1", 1}, {(char *)"id", 2}, {(char *)"a\0b", 3}};
    struct intake_entry e;
    struct str id = {NULL, 0};
    char *why = intake_check(with_nul, 2, "1-1", LIMIT, &e, &id);
    assert_non_null(why);
    free(why);
    str_fini(&id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_all_given),
        cmocka_unit_test(test_texts),    cmocka_unit_test(test_options),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests_name("intake_check", tests, NULL, NULL);
}
