/* Tests of JSON parsing, strict and tolerant, and of writing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/text.h"
#include "common/utf8.h"

#define R "\xef\xbf\xbd"

struct parse_case {
    const char *in;
    const char *tolerant; /* what the tolerant parser makes of it, dumped; NULL: refused */
    const char *strict;   /* likewise; "=": the same */
};

static const struct parse_case parse_cases[] = {
    /* any top-level value */
    {"[1,2]", "[1,2]", "="},
    {"\"s\"", "\"s\"", "="},
    {" null ", "null", "="},
    {"true", "true", "="},
    {"-0", "0", "="},
    {"{\"1\":[null]}", "{\"1\":[null]}", "="},
    {"{\"a\":1,\"a\":2}", "{\"a\":2}", "="},
    {"{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}", "="},
    {"{\"text\":null,\"json\":[1,2],\"data\":\"s\"}",
     "{\"text\":null,\"json\":[1,2],\"data\":\"s\"}", "="},
    /* lone surrogates and proper pairs */
    {"\"\\ud83d\"", "\"" R "\"", NULL},
    {"\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"", "="},
    {"\"\\uD83D\\uDE00\"", "\"\xf0\x9f\x98\x80\"", "="},
    {"\"a\\udcffb\"", "\"a" R "b\"", NULL},
    {"\"\\ud83d\\ud83d\\ude00\"", "\"" R "\xf0\x9f\x98\x80\"", NULL},
    {"\"\\ud83dx\"", "\"" R "x\"", NULL},
    {"\"\\ud83d\\n\"", "\"" R "\\n\"", NULL},
    {"\"\\ude00\\ud83d\"", "\"" R R "\"", NULL},
    {"\"\\\\ud83d\"", "\"\\\\ud83d\"", "="}, /* an escaped backslash, then plain letters */
    {"{\"\\ud800\":1}", "{\"" R "\":1}", NULL},
    {"\"\\ud83d", NULL, NULL},
    {"\"\\ud8", NULL, NULL},
    {"\"\\u12g4\"", NULL, NULL},
    /* numbers that are none */
    {"{\"a\":NaN,\"b\":-Infinity,\"c\":Infinity}", "{\"a\":null,\"b\":null,\"c\":null}", NULL},
    {"{\"x\":[NaN,1]}", "{\"x\":[null,1]}", NULL},
    {"NaN", "null", NULL},
    {"[NaN", NULL, NULL},
    {"[\"NaN\",\"-Infinity\",\"a\\\"NaN\"]", "[\"NaN\",\"-Infinity\",\"a\\\"NaN\"]", "="},
    {"[NaNa]", NULL, NULL},
    {"[aNaN]", NULL, NULL},
    {"[-NaN]", NULL, NULL},
    {"[nan]", NULL, NULL},
    {"{NaN:1}", NULL, NULL},
    /* large numbers */
    {"9223372036854775807", "9223372036854775807", "="},
    {"9223372036854775808", "\"9223372036854775808\"", NULL},
    {"-9223372036854775808", "-9223372036854775808", "="},
    {"[-9223372036854775809]", "[\"-9223372036854775809\"]", NULL},
    {"[123456789012345678901234567890,1]", "[\"123456789012345678901234567890\",1]", NULL},
    {"[1e400]", "[\"1e400\"]", NULL},
    {"[-1.5E+999]", "[\"-1.5E+999\"]", NULL},
    {"[1e-400]", "[0.0]", "="},
    {"[1e5,2.5,0.1,1e300]", "[100000.0,2.5,0.1,1e+300]", "="},
    {"[0.30000000000000004]", "[0.30000000000000004]", "="},
    {"[01]", NULL, NULL},
    {"[1.]", NULL, NULL},
    {"[1e]", NULL, NULL},
    {"[99999999999999999999x]", NULL, NULL},
    {"[-]", NULL, NULL},
    /* NUL */
    {"\"a\\u0000b\"", "\"a\\u0000b\"", "="},
    {"{\"a\\u0000b\":\"\\u0000\"}", "{\"a" R "b\":\"\\u0000\"}", NULL},
    {"{\"x\":{\"\\u0000\":[{\"k\":\"\\u0000\"}]},\"\\u0000\":0}",
     "{\"x\":{\"" R "\":[{\"k\":\"\\u0000\"}]},\"" R "\":0}", NULL},
    {"[{},\"\\u0000\"]", "[{},\"\\u0000\"]", "="},
    /* invalid UTF-8 */
    {"\"a\xff"
     "b\"",
     "\"a" R "b\"", NULL},
    {"{\"\xe4\xb8\":\"\xed\xa0\x80\"}", "{\"" R "\":\"" R R R "\"}", NULL},
    {"\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\"", "\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\"", "="},
    /* not JSON, either way */
    {"", NULL, NULL},
    {"{", NULL, NULL},
    {"undefined", NULL, NULL},
    {"[1]]", NULL, NULL},
    {"]", NULL, NULL},
    {"{\"a\":1}x", NULL, NULL},
    {"\"open", NULL, NULL},
    {"\"\\", NULL, NULL},
    {"\"a\nb\"", NULL, NULL},
    {"\xff", NULL, NULL},
    {"{1:2}", NULL, NULL},
};

typedef json_t *(*parse_fn)(const char *text, size_t len, char *err, size_t err_size);

/* From a heap copy without NUL, so that the sanitizer sees a read past the end. */
static void check_parse(parse_fn parse, const char *in, const char *expected)
{
    char err[300] = "";
    size_t len = strlen(in);
    char *exact = malloc(len ? len : 1);
    memcpy(exact, in, len);
    json_t *value = parse(exact, len, err, sizeof(err));
    free(exact);
    if (!expected) {
        if (value)
            fail_msg("%s was not refused", in);
        assert_true(strlen(err) > 0);
        assert_null(strpbrk(err, "\n\r"));
        return;
    }
    if (!value)
        fail_msg("%s: %s", in, err);
    char *text = jsonx_dump(value, &len);
    assert_string_equal(text, expected);
    assert_int_equal(len, strlen(text));
    assert_true(utf8_valid(text, len));
    free(text);
    json_decref(value);
}

static void test_tolerant(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(parse_cases) / sizeof(parse_cases[0]); i++)
        check_parse(jsonx_parse_tolerant, parse_cases[i].in, parse_cases[i].tolerant);
}

static void test_strict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(parse_cases) / sizeof(parse_cases[0]); i++) {
        const struct parse_case *c = &parse_cases[i];
        const char *expected = c->strict && !strcmp(c->strict, "=") ? c->tolerant : c->strict;
        check_parse(jsonx_parse, c->in, expected);
    }
}

static char *nested(size_t depth, const char *open, const char *middle, const char *close)
{
    struct buf b;
    buf_init(&b, 10000000);
    for (size_t i = 0; i < depth; i++)
        assert_int_equal(buf_append_str(&b, open), 0);
    assert_int_equal(buf_append_str(&b, middle), 0);
    for (size_t i = 0; i < depth; i++)
        assert_int_equal(buf_append_str(&b, close), 0);
    return buf_steal(&b);
}

static void check_depth(parse_fn parse, const char *open, const char *close)
{
    char err[100];
    char *text = nested(JSONX_MAX_DEPTH, open, "1", close);
    json_t *value = parse(text, strlen(text), err, sizeof(err));
    assert_non_null(value);
    assert_int_equal(jsonx_depth(value), JSONX_MAX_DEPTH);
    char *dumped = jsonx_dump(value, NULL);
    assert_string_equal(dumped, text);
    free(dumped);
    free(text);
    json_decref(value);
    for (size_t depth = JSONX_MAX_DEPTH + 1; depth < 1000000; depth *= 7) {
        text = nested(depth, open, "1", close);
        assert_null(parse(text, strlen(text), err, sizeof(err)));
        assert_non_null(strstr(err, "too deep"));
        free(text);
    }
}

static void test_depth(void **state)
{
    (void)state;
    check_depth(jsonx_parse, "[", "]");
    check_depth(jsonx_parse, "{\"a\":", "}");
    check_depth(jsonx_parse_tolerant, "[", "]");
    check_depth(jsonx_parse_tolerant, "{\"a\":", "}");
    /* brackets in strings are no depth */
    char err[100];
    char *text = nested(1000, "[", "", "");
    struct buf quoted;
    buf_init(&quoted, 10000);
    assert_int_equal(jsonx_quote(&quoted, text, strlen(text)), 0);
    json_t *value = jsonx_parse(quoted.data, quoted.len, err, sizeof(err));
    assert_int_equal(jsonx_depth(value), 0);
    json_decref(value);
    buf_fini(&quoted);
    free(text);
}

static void test_dump_refuses_deep(void **state)
{
    (void)state;
    json_t *value = json_array();
    for (size_t i = 0; i < 5000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, value);
        value = outer;
        if (i == JSONX_MAX_DEPTH)
            assert_null(jsonx_dump(value, NULL));
    }
    assert_null(jsonx_dump(value, NULL));
    assert_true(jsonx_depth(value) > JSONX_MAX_DEPTH);
    json_decref(value);
}

/* No text of the input in the reason: it may be a secret. */
static void test_error_quotes_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"a\": s3cr3t}", "[1 s3cr3t", "{\"s3cr3t\" 1}",
                                        "\"s3cr3t\" \"s3cr3t\""};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char err[300];
        assert_null(jsonx_parse(texts[i], strlen(texts[i]), err, sizeof(err)));
        assert_null(strstr(err, "s3cr3t"));
        assert_non_null(strstr(err, "at byte"));
    }
}

/* Texts that would be quadratic if anything were looked at twice: 8 MB well below the deadline. */
static void test_linear(void **state)
{
    (void)state;
    static const char *const units[] = {"\\ud800", "\\u0000", "\xff", "\xf0\x9f\x98\x80"};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        char err[100];
        struct buf b;
        buf_init(&b, 20000000);
        assert_int_equal(buf_append_str(&b, "[NaN,\""), 0);
        while (b.len < 8000000)
            assert_int_equal(buf_append_str(&b, units[i]), 0);
        assert_int_equal(buf_append_str(&b, "\",99999999999999999999]"), 0);
        long long start = text_monotonic_ms();
        json_t *value = jsonx_parse_tolerant(b.data, b.len, err, sizeof(err));
        assert_true(text_monotonic_ms() - start < 10000);
        assert_non_null(value);
        assert_int_equal(json_array_size(value), 3);
        json_decref(value);
        buf_fini(&b);
    }
}

static void test_string(void **state)
{
    (void)state;
    json_t *s = jsonx_string("bad-\xff-\xe4\xb8", 8);
    assert_string_equal(json_string_value(s), "bad-" R "-" R);
    json_decref(s);
    s = jsonx_string("a\0b", 3);
    assert_int_equal(json_string_length(s), 3);
    json_decref(s);
    s = jsonx_string("", 0);
    assert_string_equal(json_string_value(s), "");
    json_decref(s);
}

/* Values of env: quotes, backslashes, newlines, code, other scripts come back exactly. */
static void test_quote_round_trip(void **state)
{
    (void)state;
    static const char *const values[] = {"it's",
                                         "a\"b",
                                         "x\\ny",
                                         "trailing\\",
                                         "line1\nimport os; os.system(\"touch x\")",
                                         "'; import os; x='",
                                         "$(id) `id`",
                                         "\xe6\x97\xa5\xe6\x9c\xac\xf0\x9f\x98\x80",
                                         "",
                                         "\"\"\"",
                                         "\b\f\r\t\x01\x1f\x7f/"};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char err[100];
        struct buf b;
        buf_init(&b, 1000);
        assert_int_equal(jsonx_quote(&b, values[i], strlen(values[i])), 0);
        for (size_t k = 0; k < b.len; k++)
            assert_true((unsigned char)b.data[k] >= 0x20);
        json_t *value = jsonx_parse(b.data, b.len, err, sizeof(err));
        assert_string_equal(json_string_value(value), values[i]);
        json_decref(value);
        buf_fini(&b);
    }
    struct buf small;
    buf_init(&small, 4);
    assert_int_equal(jsonx_quote(&small, "abc", 3), -1);
    buf_fini(&small);
}

static void test_members(void **state)
{
    (void)state;
    char err[100];
    const char *text = "{\"s\":\"x\",\"i\":5,\"b\":true,\"n\":null,\"r\":1.5}";
    json_t *o = jsonx_parse(text, strlen(text), err, sizeof(err));
    assert_string_equal(jsonx_get_str(o, "s", "d"), "x");
    assert_string_equal(jsonx_get_str(o, "i", "d"), "d");
    assert_null(jsonx_get_str(o, "n", NULL));
    assert_int_equal(jsonx_get_int(o, "i", 9), 5);
    assert_int_equal(jsonx_get_int(o, "r", 9), 9);
    assert_int_equal(jsonx_get_int(o, "absent", 9), 9);
    assert_true(jsonx_get_bool(o, "b", false));
    assert_true(jsonx_get_bool(o, "i", true));
    assert_false(jsonx_get_bool(NULL, "b", false));
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_dump_refuses_deep),
        cmocka_unit_test(test_error_quotes_nothing),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_quote_round_trip),
        cmocka_unit_test(test_members),
    };
    return cmocka_run_group_tests_name("jsonx", tests, NULL, NULL);
}
