/* Tests of base64 in both directions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/b64.h"

static void test_vectors(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"},
                                           {"\xfb\xff\xfe", "+//+"}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        size_t len;
        char *text = b64_encode(pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(text, pairs[i][1]);
        unsigned char *bytes = b64_decode(text, strlen(text), &len);
        assert_non_null(bytes);
        assert_int_equal(len, strlen(pairs[i][0]));
        assert_memory_equal(bytes, pairs[i][0], len);
        free(bytes);
        free(text);
    }
}

static void test_lenient(void **state)
{
    (void)state;
    static const char *const same[] = {"Zm9vYg==", "Zm9vYg", "Zm9vYg=", "Zm9v\r\nYg==\n",
                                       " Z m 9 v Y g "};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        size_t len;
        unsigned char *bytes = b64_decode(same[i], strlen(same[i]), &len);
        assert_non_null(bytes);
        assert_int_equal(len, 4);
        assert_memory_equal(bytes, "foob", 4);
        free(bytes);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "Z", "Zm9vY", "Zm9v=", "Zg=v",    "Zg==Zg==",         "Zg===",
        "=", "Zm9-",  "Zm9_",  "Zm9\x80", "data:;base64,Zg=="};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        size_t len;
        assert_null(b64_decode(wrong[i], strlen(wrong[i]), &len));
    }
    size_t len;
    assert_null(b64_decode("Zg\0=", 4, &len));
}

static void test_all_lengths(void **state)
{
    (void)state;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * 7 + 1);
    for (size_t n = 0; n <= sizeof(data); n++) {
        size_t len;
        char *text = b64_encode(data, n);
        assert_int_equal(strlen(text), (n + 2) / 3 * 4);
        unsigned char *bytes = b64_decode(text, strlen(text), &len);
        assert_int_equal(len, n);
        assert_memory_equal(bytes, data, n);
        free(bytes);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_all_lengths),
    };
    return cmocka_run_group_tests_name("b64", tests, NULL, NULL);
}
