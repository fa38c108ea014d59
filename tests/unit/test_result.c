/* Tests of the result: what is in it, and that it is small and valid whatever was gathered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/jsonx.h"
#include "common/mem.h"
#include "schema.h"
#include "worker/result.h"

#define EXECUTION "0d7c5a5e-7b1f-4a2b-9a3c-111122223333"
#define MAX       65536

/* Dumped, at most max bytes, valid JSON of the contract; parsed, for the caller to drop. */
static json_t *dumped(const struct result *r, enum outcome outcome, size_t max)
{
    size_t len = 0;
    char err[200];
    char *text = result_dump(r, outcome, max, &len);
    assert_int_equal(strlen(text), len);
    if (len > max)
        fail_msg("%zu bytes, more than %zu", len, max);
    json_t *o = jsonx_parse(text, len, err, sizeof err);
    if (o == NULL)
        fail_msg("%s: %.200s", err, text);
    if (!schema_valid("result", o))
        fail_msg("%s in %.500s", schema_error, text);
    free(text);
    return o;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void test_empty(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    json_t *o = dumped(&r, OUTCOME_OK, MAX);
    assert_string_equal(text_of(o, "state"), "completed");
    assert_string_equal(text_of(o, "reason"), "ok");
    assert_string_equal(text_of(o, "stdout"), "");
    assert_string_equal(text_of(o, "language"), "python");
    assert_string_equal(text_of(o, "executionId"), EXECUTION);
    assert_int_equal(json_integer_value(json_object_get(o, "exitCode")), 0);
    assert_true(json_is_null(json_object_get(o, "error")));
    assert_true(json_is_null(json_object_get(o, "errorDetail")));
    json_decref(o);
    result_fini(&r);
}

static void test_small_is_whole(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    capture_add(&r.out, "a\n\n\xc3\xa9\x1b[0m\n", 11);
    capture_add(&r.err, "oh", 2);
    json_t *bundle = json_pack("{s:s,s:{s:i}}", "text/plain", "42", "application/json", "a", 1);
    result_add_bundle(&r, bundle, true, NULL);
    json_decref(bundle);
    result_warn(&r, "careful with %s", "that");
    r.run_ms = 5, r.queued_ms = 1, r.sandbox_ms = 2, r.files_ms = 3, r.reused = true;
    struct driver_end end = {.kind = DRIVER_END_CODE_ERROR,
                             .exit_code = 3,
                             .error_name = "ValueError",
                             .error_value = "bad",
                             .traceback = "Traceback\nline",
                             .state_lost = "kernel_died"};
    result_take_end(&r, &end);
    json_t *o = dumped(&r, OUTCOME_CODE_ERROR, MAX);
    assert_memory_equal(text_of(o, "stdout"), "a\n\n\xc3\xa9\x1b[0m\n", 11);
    assert_string_equal(text_of(o, "stderr"), "oh");
    assert_string_equal(text_of(o, "error"), "ValueError: bad");
    assert_int_equal(json_integer_value(json_object_get(o, "exitCode")), 3);
    json_t *expected = json_pack("{s:s,s:s,s:s}", "name", "ValueError", "value", "bad", "traceback",
                                 "Traceback\nline");
    assert_true(json_equal(json_object_get(o, "errorDetail"), expected));
    json_decref(expected);
    expected = json_pack("[{s:{s:s,s:{s:i}},s:b}]", "data", "text/plain", "42", "application/json",
                         "a", 1, "main", true);
    assert_true(json_equal(json_object_get(o, "results"), expected));
    json_decref(expected);
    expected =
        json_pack("{s:b,s:b,s:s}", "reused", true, "resumed", false, "stateLost", "kernel_died");
    assert_true(json_equal(json_object_get(o, "sandbox"), expected));
    json_decref(expected);
    expected = json_pack("[s]", "careful with that");
    assert_true(json_equal(json_object_get(o, "warnings"), expected));
    json_decref(expected);
    json_decref(o);
    result_fini(&r);
}

static void test_exit_codes(void **state)
{
    (void)state;
    static const struct {
        enum outcome outcome;
        int ended, shown;
    } rows[] = {{OUTCOME_OK, 0, 0},
                {OUTCOME_CODE_ERROR, 1, 1},
                {OUTCOME_CODE_ERROR, 3, 3},
                {OUTCOME_CODE_ERROR, 0, 1},
                {OUTCOME_CODE_ERROR, OUTCOME_NO_EXIT_CODE, 1},
                {OUTCOME_TIMEOUT, 3, 124},
                {OUTCOME_CANCELLED, 0, 130},
                {OUTCOME_DRAINED, 9, 143},
                {OUTCOME_OOM, 137, 137},
                {OUTCOME_KERNEL_DIED, 139, 139},
                {OUTCOME_KERNEL_DIED, OUTCOME_NO_EXIT_CODE, 1},
                {OUTCOME_SANDBOX_LOST, 3, OUTCOME_NO_EXIT_CODE},
                {OUTCOME_OUTCOME_UNKNOWN, 3, OUTCOME_NO_EXIT_CODE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct result r;
        result_init(&r, EXECUTION, "python");
        r.exit_code = rows[i].ended;
        assert_int_equal(result_exit_code(&r, rows[i].outcome), rows[i].shown);
        result_fini(&r);
    }
}

/* Whatever ended it, an error's sentence is there. */
static void test_every_outcome_is_valid(void **state)
{
    (void)state;
    static const char *const messages[] = {NULL, "", "It broke."};
    static const char *const names[] = {NULL, "", "E"};
    for (int o = 0; o < OUTCOME_COUNT; o++) {
        for (int i = 0; i < 9 && outcome_row((enum outcome)o)->completes; i++) {
            struct result r;
            struct driver_end end = {.message = messages[i % 3], .error_name = names[i / 3]};
            result_init(&r, EXECUTION, "python");
            if (o != OUTCOME_OK)
                result_take_end(&r, &end);
            json_decref(dumped(&r, (enum outcome)o, MAX));
            result_fini(&r);
        }
    }
}

static void fill_stream(struct capture *c, const char *unit, size_t bytes)
{
    for (size_t n = 0; n < bytes; n += strlen(unit))
        capture_add(c, unit, strlen(unit));
}

static void fill_files(struct result *r, int count, size_t name_len)
{
    char *name = mem_alloc(name_len + 1);
    memset(name, '\x01', name_len);
    for (int i = 0; i < count; i++)
        result_add_file(r,
                        json_pack("{s:s,s:s,s:s,s:i,s:s}", "fileId", EXECUTION, "filename", name,
                                  "mimeType", "text/plain", "size", 5, "key", "bull:q:file:x:1"));
    free(name);
}

static void fill_results(struct result *r, int count, size_t len)
{
    char *text = mem_alloc(len + 1);
    memset(text, '"', len);
    json_t *bundle = json_pack("{s:s,s:s}", "text/plain", text, "text/html", "<b>");
    json_t *refs = json_pack("{s:{s:s,s:i}}", "image/png", "key", "bull:q:file:x:2", "size", 99);
    for (int i = 0; i < count; i++)
        result_add_bundle(r, bundle, i % 2, refs);
    json_decref(bundle);
    json_decref(refs);
    free(text);
}

static char *long_text(const char *unit, size_t bytes)
{
    char *text = mem_alloc(bytes + 8);
    size_t len = 0;
    for (; len < bytes; len += strlen(unit))
        memcpy(text + len, unit, strlen(unit));
    text[len] = '\0';
    return text;
}

/* Everything at once, in the characters that cost most. */
static void test_always_fits(void **state)
{
    (void)state;
    static const char *const units[] = {
        "x", "\n", "\x01", "\"", "\xc3\xa9", "\xf0\x9f\x98\x80", "a\xe4\xb8\xad"};
    static const size_t maxima[] = {4096, 5000, 10000, 65536, 200000, 16u << 20};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        struct result r;
        char *text = long_text(units[u], 300000);
        result_init(&r, EXECUTION, text);
        fill_stream(&r.out, units[u], 500000);
        fill_stream(&r.err, units[u], 500000);
        fill_files(&r, 100, 1000);
        fill_results(&r, 300, 4000);
        for (int i = 0; i < 100; i++)
            result_warn(&r, "%s", text);
        struct driver_end end = {.exit_code = 1,
                                 .message = text,
                                 .error_name = text,
                                 .error_value = text,
                                 .traceback = text,
                                 .state_lost = "kernel_died"};
        result_take_end(&r, &end);
        for (size_t m = 0; m < sizeof maxima / sizeof *maxima; m++) {
            json_t *o = dumped(&r, OUTCOME_CODE_ERROR, maxima[m]);
            json_t *cut = json_object_get(o, "truncated");
            assert_true(json_integer_value(json_object_get(cut, "stdout")) > 400000);
            json_decref(o);
        }
        result_fini(&r);
        free(text);
    }
}

static void test_cuts_are_told(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    fill_stream(&r.out, "0123456789", 100000);
    fill_files(&r, 200, 100);
    json_t *o = dumped(&r, OUTCOME_OK, MAX);
    const char *out = text_of(o, "stdout");
    size_t kept = strlen(out);
    long long dropped =
        json_integer_value(json_object_get(json_object_get(o, "truncated"), "stdout"));
    char note[80];
    int n = snprintf(note, sizeof note, "\n[... %lld bytes left out ...]\n", dropped);
    assert_non_null(strstr(out, note));
    assert_int_equal((long long)kept - n + dropped, 100000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "truncated"), "stderr")),
                     0);
    size_t files = json_array_size(json_object_get(o, "files"));
    assert_in_range(files, 10, 199);
    snprintf(note, sizeof note, "%zu of 200 files are only in the reply", 200 - files);
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "warnings"), 0)), note);
    json_decref(o);
    result_fini(&r);
}

static void test_big_values_are_listed(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    char *big = long_text("x", 5000);
    json_t *bundle =
        json_pack("{s:s,s:s,s:s}", "text/html", big, "text/plain", "p", "image/png", big);
    json_t *refs = json_pack("{s:{s:s,s:i}}", "image/png", "key", "k", "size", 3750);
    result_add_bundle(&r, bundle, false, refs);
    json_t *o = dumped(&r, OUTCOME_OK, MAX);
    json_t *entry = json_array_get(json_object_get(o, "results"), 0);
    json_t *expected = json_pack("{s:{s:s},s:b,s:{s:i},s:O}", "data", "text/plain", "p", "main",
                                 false, "omitted", "text/html", 5002, "refs", refs);
    assert_true(json_equal(entry, expected));
    json_decref(expected);
    json_decref(o);
    json_decref(bundle);
    json_decref(refs);
    result_fini(&r);
    free(big);
}

static void test_too_many_results_is_said_once(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    fill_results(&r, 1000, 1);
    result_warn(&r, "another matter");
    assert_int_equal(json_array_size(r.warnings), 2);
    json_decref(dumped(&r, OUTCOME_OK, MAX));
    result_fini(&r);
}

/* A value nested as deep as a driver's line may be must not make the whole too deep to be written.
 */
static void test_deep_values(void **state)
{
    (void)state;
    for (size_t depth = 1; depth <= JSONX_MAX_DEPTH + 50; depth++) {
        struct result r;
        json_t *value = json_string("core");
        for (size_t i = 0; i < depth; i++)
            value = json_pack("[o]", value);
        json_t *bundle = json_pack("{s:o}", "application/json", value);
        result_init(&r, EXECUTION, "python");
        result_add_bundle(&r, bundle, true, NULL);
        json_t *o = dumped(&r, OUTCOME_OK, MAX);
        /* `done` holds it in two more levels */
        assert_true(jsonx_depth(o) + 2 <= JSONX_MAX_DEPTH);
        json_t *entry = json_array_get(json_object_get(o, "results"), 0);
        bool kept = json_object_get(json_object_get(entry, "data"), "application/json") != NULL;
        bool told = json_object_get(json_object_get(entry, "omitted"), "application/json") != NULL;
        assert_true(kept != told);
        assert_true(kept || depth > 50);
        json_decref(o);
        json_decref(bundle);
        result_fini(&r);
    }
}

static void test_warnings_end_whole(void **state)
{
    (void)state;
    struct result r;
    result_init(&r, EXECUTION, "python");
    char *text = long_text("\xc3\xa9", 2000);
    result_warn(&r, "%s", text);
    result_warn(&r, "x%s", text);
    for (size_t i = 0; i < 2; i++)
        assert_null(strstr(json_string_value(json_array_get(r.warnings, i)), "\xef\xbf\xbd"));
    free(text);
    result_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_small_is_whole),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_every_outcome_is_valid),
        cmocka_unit_test(test_always_fits),
        cmocka_unit_test(test_cuts_are_told),
        cmocka_unit_test(test_big_values_are_listed),
        cmocka_unit_test(test_too_many_results_is_said_once),
        cmocka_unit_test(test_deep_values),
        cmocka_unit_test(test_warnings_end_whole),
    };
    int failed = cmocka_run_group_tests_name("result", tests, NULL, NULL);
    json_decref(schema_root);
    return failed;
}
