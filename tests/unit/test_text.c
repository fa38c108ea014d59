/* Tests of percent-encoding, ANSI stripping, ids, clocks and integers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/text.h"

static void test_percent(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""},
        {"AZaz09-._~", "AZaz09-._~"},
        {"a b/c?d&e=f+g", "a%20b%2Fc%3Fd%26e%3Df%2Bg"},
        {"\xc3\xa9%", "%C3%A9%25"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        char *encoded = text_percent_encode(pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(encoded, pairs[i][1]);
        char *decoded = text_percent_decode(encoded, strlen(encoded));
        assert_string_equal(decoded, pairs[i][0]);
        free(decoded);
        free(encoded);
    }
    char *key = text_percent_encode_set("a:b%\0c", 6, "%:");
    assert_string_equal(key, "a%3Ab%25");
    assert_memory_equal(key, "a%3Ab%25\0c", 11);
    free(key);
}

static void test_percent_decode(void **state)
{
    (void)state;
    static const char *const wrong[] = {"%",   "%4",  "a%4",   "%zz", "%4g",
                                        "%g4", "%00", "a%00b", "%%41"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_null(text_percent_decode(wrong[i], strlen(wrong[i])));
    char *text = text_percent_decode("p%40ss%3a+%7E", 13);
    assert_string_equal(text, "p@ss:+~");
    free(text);
}

struct ansi_case {
    const char *in, *out;
};

static const struct ansi_case ansi_cases[] = {
    {"", ""},
    {"plain \xc3\xa9 text\n", "plain \xc3\xa9 text\n"},
    {"\033[0;31mZeroDivisionError\033[0m: x", "ZeroDivisionError: x"},
    {"a\033[2J\033]0;title\007b", "ab"},
    {"\033]8;;http://x\033\\link\033]8;;\033\\", "link"},
    {"\033[38;2;1;2;3mrgb\033[m", "rgb"},
    {"\033[?25l\033[1;2Hx\033[!p", "x"},
    {"\033(B\033)0x\033=\033>\0337\0338y\033c", "xy"},
    {"\033Pq#0\033\\after", "after"},
    {"\xc2\x9b"
     "31mred",
     "red"},
    {"\xc2\x9d"
     "0;t\xc2\x9cz",
     "z"},
    {"\xc2\x85 \xc2\xa9 \xc3\x9b", "\xc2\x85 \xc2\xa9 \xc3\x9b"},
    {"cut\033", "cut"},
    {"cut\033[31", "cut"},
    {"cut\033]0;tit", "cut"},
    {"\033]never ended\nnext", "\nnext"},
    {"\033[3\xc3\xa9", "\xc3\xa9"},
    {"\033\033[1mx", "x"},
    {"[31m not an escape", "[31m not an escape"},
};

static void test_strip_ansi(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ansi_cases) / sizeof(ansi_cases[0]); i++) {
        struct buf out;
        buf_init(&out, 1000);
        assert_int_equal(text_strip_ansi(ansi_cases[i].in, strlen(ansi_cases[i].in), &out), 0);
        assert_string_equal(out.data, ansi_cases[i].out);
        buf_fini(&out);
    }
    struct buf small;
    buf_init(&small, 3);
    assert_int_equal(text_strip_ansi("ab\033[mcd", 7, &small), -1);
    buf_fini(&small);
}

static void test_uuid(void **state)
{
    (void)state;
    char a[37], b[37];
    text_uuid(a);
    text_uuid(b);
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), 36);
    assert_int_equal(strspn(a, "0123456789abcdef-"), 36);
    assert_int_equal(a[8], '-');
    assert_int_equal(a[14], '4');
    assert_non_null(strchr("89ab", a[19]));
}

static void test_clocks(void **state)
{
    (void)state;
    long long wall = text_now_ms(), start = text_monotonic_ms();
    assert_true(wall > 1500000000000LL);
    assert_true(text_monotonic_ms() >= start);
    assert_true(text_monotonic_ms() - start < 60000);
}

static void test_from_int(void **state)
{
    (void)state;
    static const long long values[] = {0, 7, -1, 10, 1234567890123, LLONG_MAX, LLONG_MIN};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char want[32], got[24];
        snprintf(want, sizeof(want), "%lld", values[i]);
        assert_int_equal(text_from_int(got, values[i]), strlen(want));
        assert_string_equal(got, want);
    }
}

static void test_parse_int(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",   " 1", "1 ", "+1", "0x10", "1.0", "1e3", "--1", "-", "abc", "9223372036854775808",
        "1\n"};
    long long n = 77;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(text_parse_int(wrong[i], &n));
        assert_int_equal(n, 77);
    }
    assert_true(text_parse_int("9223372036854775807", &n));
    assert_true(n == INT64_MAX);
    assert_true(text_parse_int("-9223372036854775808", &n));
    assert_true(n == INT64_MIN);
    assert_true(text_parse_int("007", &n));
    assert_int_equal(n, 7);
    assert_int_equal(text_hex_digit('f'), 15);
    assert_int_equal(text_hex_digit('F'), 15);
    assert_int_equal(text_hex_digit('g'), -1);
    assert_int_equal(text_hex_digit('\0'), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percent),    cmocka_unit_test(test_percent_decode),
        cmocka_unit_test(test_strip_ansi), cmocka_unit_test(test_uuid),
        cmocka_unit_test(test_clocks),     cmocka_unit_test(test_parse_int),
        cmocka_unit_test(test_from_int),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
