/* Tests of the bounded byte buffer and of the allocators. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/mem.h"

static void test_append_and_grow(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1000);
    assert_null(b.data);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_append(&b, "x", 1), 0);
    assert_int_equal(b.len, 1000);
    assert_true(b.cap <= 1001);
    assert_int_equal(strlen(b.data), 1000);
    assert_int_equal(buf_append(&b, "y", 1), -1);
    assert_int_equal(b.len, 1000);
    assert_int_equal(b.data[999], 'x');
    buf_fini(&b);
    assert_null(b.data);
    assert_int_equal(buf_append_str(&b, "again"), 0);
    assert_string_equal(b.data, "again");
    buf_fini(&b);
}

static void test_limits(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 4);
    assert_int_equal(buf_append_str(&b, "12345"), -1);
    assert_null(b.data);
    assert_int_equal(buf_append(&b, NULL, 0), 0);
    assert_string_equal(b.data, "");
    volatile size_t huge = SIZE_MAX; /* volatile: the compiler would warn of it */
    assert_int_equal(buf_append(&b, "1", huge), -1);
    assert_int_equal(buf_append_str(&b, "1234"), 0);
    assert_int_equal(buf_append(&b, "1", huge - 2), -1);
    buf_fini(&b);

    buf_init(&b, SIZE_MAX); /* "no limit" must not overflow inside */
    assert_int_equal(buf_append_str(&b, "abc"), 0);
    assert_int_equal(buf_append(&b, "1", huge - 3), -1);
    assert_string_equal(b.data, "abc");
    buf_fini(&b);

    buf_init(&b, 0);
    assert_int_equal(buf_append(&b, "a", 1), -1);
    buf_fini(&b);
}

static void test_printf(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_printf(&b, "%s-%d", "ab", 7), 0);
    assert_string_equal(b.data, "ab-7");
    assert_int_equal(buf_printf(&b, "%s", "1234567"), -1);
    assert_string_equal(b.data, "ab-7");
    assert_int_equal(buf_printf(&b, "%s", "123456"), 0);
    assert_string_equal(b.data, "ab-7123456");
    buf_fini(&b);
}

static void test_consume_clear_steal(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 100);
    buf_consume(&b, 5);
    assert_int_equal(b.len, 0);
    assert_int_equal(buf_append(&b, "a\0bcd", 5), 0);
    buf_consume(&b, 2);
    assert_string_equal(b.data, "bcd");
    buf_consume(&b, 99);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    assert_int_equal(buf_append_str(&b, "end"), 0);
    char *text = buf_steal(&b);
    assert_string_equal(text, "end");
    free(text);
    assert_null(b.data);
    text = buf_steal(&b);
    assert_string_equal(text, "");
    free(text);
    buf_clear(&b);
    assert_int_equal(buf_append(&b, "z", 1), 0);
    buf_clear(&b);
    assert_string_equal(b.data, "");
    buf_fini(&b);
}

static void test_mem(void **state)
{
    (void)state;
    assert_null(mem_strdup(NULL));
    char *a = mem_strndup("hello", 3);
    char *b = mem_dup("a\0b", 3);
    char *c = mem_printf("%d%%", 5);
    char *d = mem_alloc(0);
    assert_string_equal(a, "hel");
    assert_memory_equal(b, "a\0b", 4);
    assert_string_equal(c, "5%");
    assert_non_null(d);
    free(a);
    free(b);
    free(c);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_grow),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_printf),
        cmocka_unit_test(test_consume_clear_steal),
        cmocka_unit_test(test_mem),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
