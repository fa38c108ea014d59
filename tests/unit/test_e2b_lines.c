/* Pieces of the E2B driver that need no server: the line splitter and the digest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "worker/drivers/e2b_exec.h"

struct seen {
    char text[256];
    size_t lines, lost, stop_after;
};

static bool on_line(void *data, const char *line, size_t len, size_t lost)
{
    struct seen *seen = data;
    seen->lines++;
    seen->lost += lost;
    if (line != NULL && strlen(seen->text) + len + 2 < sizeof seen->text) {
        strncat(seen->text, line, len);
        strcat(seen->text, "|");
    }
    return seen->stop_after == 0 || seen->lines < seen->stop_after;
}

static void test_any_cut(void **state)
{
    static const char stream[] = "one\n\ntwo\r\nthree\nrest";
    (void)state;
    for (size_t size = 1; size < sizeof stream; size++) {
        struct e2b_lines *lines = e2b_lines_new(100);
        struct seen seen = {0};
        for (size_t at = 0; at < sizeof stream - 1; at += size) {
            size_t n = sizeof stream - 1 - at < size ? sizeof stream - 1 - at : size;
            assert_true(e2b_lines_feed(lines, stream + at, n, on_line, &seen));
        }
        assert_string_equal(seen.text, "one|two\r|three|");
        assert_true(e2b_lines_end(lines, on_line, &seen));
        assert_string_equal(seen.text, "one|two\r|three|rest|");
        e2b_lines_free(lines);
    }
}

static void test_too_long(void **state)
{
    (void)state;
    for (size_t size = 1; size < 30; size++) {
        struct e2b_lines *lines = e2b_lines_new(8);
        struct seen seen = {0};
        static const char stream[] = "12345678\n123456789\nok\n";
        for (size_t at = 0; at < sizeof stream - 1; at += size) {
            size_t n = sizeof stream - 1 - at < size ? sizeof stream - 1 - at : size;
            assert_true(e2b_lines_feed(lines, stream + at, n, on_line, &seen));
        }
        assert_string_equal(seen.text, "12345678|ok|");
        assert_int_equal(seen.lost, 9);
        e2b_lines_free(lines);
    }
}

static void test_stop(void **state)
{
    struct e2b_lines *lines = e2b_lines_new(100);
    struct seen seen = {.stop_after = 1};
    (void)state;
    assert_false(e2b_lines_feed(lines, "a\nb\n", 4, on_line, &seen));
    assert_int_equal(seen.lines, 1);
    e2b_lines_free(lines);
}

static void test_linear(void **state)
{
    struct e2b_lines *lines = e2b_lines_new((size_t)64 << 20);
    struct seen seen = {0};
    static char piece[1024];
    (void)state;
    memset(piece, 'x', sizeof piece);
    long long begun = text_monotonic_ms();
    for (size_t i = 0; i < 60 * 1024; i++)
        assert_true(e2b_lines_feed(lines, piece, sizeof piece, on_line, &seen));
    assert_true(e2b_lines_feed(lines, "\n", 1, on_line, &seen));
    assert_int_equal(seen.lines, 1);
    assert_true(text_monotonic_ms() - begun < 10000); /* rescanning would take hours */
    e2b_lines_free(lines);
}

static void test_digest(void **state)
{
    char hex[65];
    (void)state;
    e2b_digest("", hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    e2b_digest("abc", hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    e2b_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char million[100] = {0};
    memset(million, 'a', 64); /* a whole block, then the padding alone */
    e2b_digest(million, hex);
    assert_string_equal(hex, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_cut), cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_stop),    cmocka_unit_test(test_linear),
        cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests_name("e2b_lines", tests, NULL, NULL);
}
