/* Tests of UTF-8 checks, cuts and repair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/utf8.h"

#define R "\xef\xbf\xbd"

struct repair_case {
    const char *in, *out; /* out NULL: in was valid */
};

static const struct repair_case repair_cases[] = {
    {"", NULL},
    {"plain", NULL},
    {"\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80", NULL},
    {"\xf4\x8f\xbf\xbf \xee\x80\x80 \xed\x9f\xbf", NULL},
    {"a\xff"
     "b",
     "a" R "b"},
    {"\x80\x80", R R},
    {"\xc0\xaf", R R},             /* overlong */
    {"\xe0\x80\xaf", R R R},       /* overlong */
    {"\xed\xa0\x80", R R R},       /* surrogate */
    {"\xf4\x90\x80\x80", R R R R}, /* above U+10FFFF */
    {"\xf5", R},                   /* no lead byte */
    {"\xe4\xb8", R},               /* cut: one maximal part */
    {"\xf0\x9f\x98", R},           /* cut */
    {"\xf0\x9f\x98x", R "x"},      /* interrupted */
    {"x\xe4\xb8\xe4\xb8\xad", "x" R "\xe4\xb8\xad"},
    {"bad-\xff-name", "bad-" R "-name"},
};

static void test_repair(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(repair_cases) / sizeof(repair_cases[0]); i++) {
        const struct repair_case *c = &repair_cases[i];
        struct buf out;
        buf_init(&out, 1000);
        assert_int_equal(utf8_valid(c->in, strlen(c->in)), c->out == NULL);
        assert_int_equal(utf8_repair(c->in, strlen(c->in), &out), 0);
        assert_string_equal(out.data, c->out ? c->out : c->in);
        assert_true(utf8_valid(out.data, out.len));
        buf_fini(&out);
    }
}

static void test_repair_nul_and_full(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, 5);
    assert_true(utf8_valid("a\0b", 3));
    assert_int_equal(utf8_repair("a\0b", 3, &out), 0);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "a\0b", 3);
    assert_int_equal(utf8_repair("\xff", 1, &out), -1);
    buf_fini(&out);
}

static void test_cut(void **state)
{
    (void)state;
    const char *text = "a\xc3\xa9\xf0\x9f\x98\x80z"; /* boundaries at 0 1 3 7 8 */
    static const size_t cuts[] = {0, 1, 1, 3, 3, 3, 3, 7, 8, 8};
    static const size_t tails[] = {0, 1, 3, 3, 7, 7, 7, 7, 8, 8};
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(utf8_cut(text, 8, i), cuts[i]);
        assert_int_equal(utf8_cut_tail(text, 8, i), tails[i]);
    }
    assert_int_equal(utf8_cut("", 0, 5), 0);
    assert_int_equal(utf8_cut_tail("", 0, 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repair),
        cmocka_unit_test(test_repair_nul_and_full),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
