/* Tests of the captured streams: head and tail, exact counts, whole characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "worker/capture.h"

#define NOTE "[... "

/* What capture_text gave must be whole, or a true head, a line that says what is left out, and a
 * true tail. */
static void check(const struct capture *c, const char *all, size_t total, size_t max)
{
    size_t len;
    long long dropped;
    char *text = capture_text(c, max, &len, &dropped);
    assert_true(utf8_valid(text, len));
    if (dropped == 0) {
        assert_int_equal(len, total);
        assert_memory_equal(text, all, total);
        free(text);
        return;
    }
    char note[80];
    int note_len = snprintf(note, sizeof note, "\n[... %lld bytes left out ...]\n", dropped);
    char *at = memmem(text, len, note, (size_t)note_len);
    assert_non_null(at);
    size_t head = (size_t)(at - text), tail = len - head - (size_t)note_len;
    assert_memory_equal(text, all, head);
    assert_memory_equal(text + len - tail, all + total - tail, tail);
    assert_int_equal(dropped, (long long)(total - head - tail));
    if (max >= 64)
        assert_true(len <= max);
    free(text);
}

static void test_short(void **state)
{
    (void)state;
    struct capture c;
    size_t len;
    long long dropped;
    capture_init(&c, 1000);
    char *text = capture_text(&c, 100, &len, &dropped);
    assert_string_equal(text, "");
    assert_int_equal(len, 0);
    assert_int_equal(dropped, 0);
    free(text);
    capture_add(&c, "a", 1);
    capture_add(&c, "\n\nc\nd", 5);
    text = capture_text(&c, 100, &len, &dropped);
    assert_memory_equal(text, "a\n\nc\nd", 6);
    assert_int_equal(len, 6);
    assert_int_equal(dropped, 0);
    free(text);
    capture_fini(&c);
}

static void test_exact_fit(void **state)
{
    (void)state;
    char all[300];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (char)('a' + i % 26);
    for (size_t total = 190; total < 215; total++) {
        struct capture c;
        capture_init(&c, 200);
        capture_add(&c, all, total);
        for (size_t max = 64; max < 260; max++)
            check(&c, all, total, max);
        size_t len;
        long long dropped;
        free(capture_text(&c, 200, &len, &dropped));
        assert_int_equal(dropped == 0, total <= 200);
        capture_fini(&c);
    }
}

static void test_head_and_tail(void **state)
{
    (void)state;
    struct capture c;
    size_t len;
    long long dropped;
    capture_init(&c, 20000);
    for (int i = 0; i < 100000; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "line %d\n", i);
        capture_add(&c, line, (size_t)n);
    }
    char *text = capture_text(&c, 8000, &len, &dropped);
    assert_true(len > 7800 && len <= 8000);
    assert_memory_equal(text, "line 0\nline 1\n", 14);
    assert_string_equal(text + len - 11, "line 99999\n");
    assert_int_equal(c.total, 1088890);
    free(text);
    capture_fini(&c);
}

/* The two ends never show half a character, wherever the cut falls. */
static void test_characters(void **state)
{
    (void)state;
    static const char *const units[] = {"\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                                        "a\xf0\x9f\x98\x80", "\xc3\xa9zz"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        char all[2000];
        size_t total = 0, unit = strlen(units[u]);
        for (; total + unit <= 600; total += unit)
            memcpy(all + total, units[u], unit);
        for (size_t room = 100; room < 120; room++) {
            struct capture c;
            capture_init(&c, room);
            capture_add(&c, all, total);
            for (size_t max = 64; max < 400; max++)
                check(&c, all, total, max);
            capture_fini(&c);
        }
    }
}

/* Where bytes are missing, the end of the head is followed by bytes that were not its neighbours.
 */
static void test_gap_inside_a_character(void **state)
{
    (void)state;
    char all[200];
    memset(all, 'x', sizeof all);
    memcpy(all + 49, "\xc3\xa9", 2); /* the head of 50 bytes ends in it */
    struct capture c;
    capture_init(&c, 100);
    capture_add(&c, all, sizeof all);
    for (size_t max = 64; max < 300; max++)
        check(&c, all, sizeof all, max);
    capture_fini(&c);
}

static void test_random(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a", "\n", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80"};
    unsigned seed = 4711;
    for (int round = 0; round < 300; round++) {
        size_t room = 40 + (size_t)rand_r(&seed) % 400, total = 0;
        size_t goal = (size_t)rand_r(&seed) % 3000;
        char *all = malloc(goal + 4000);
        struct capture c;
        capture_init(&c, room);
        while (total < goal) {
            size_t before = total;
            for (int n = rand_r(&seed) % (round % 3 ? 9 : 300); n >= 0; n--) {
                const char *p = pieces[rand_r(&seed) % 5];
                memcpy(all + total, p, strlen(p));
                total += strlen(p);
            }
            capture_add(&c, all + before, total - before);
        }
        assert_int_equal(c.total, (long long)total);
        for (int k = 0; k < 20; k++)
            check(&c, all, total, (size_t)rand_r(&seed) % 600);
        capture_fini(&c);
        free(all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_exact_fit),
        cmocka_unit_test(test_head_and_tail),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_gap_inside_a_character),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests_name("capture", tests, NULL, NULL);
}
