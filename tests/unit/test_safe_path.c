/* Tests of the rule for file names from outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "worker/safe_path.h"

static void test_good(void **state)
{
    (void)state;
    static const char *const names[] = {"data.csv",
                                        "sub/dir/ok.csv",
                                        ".bashrc",
                                        "..x",
                                        "a..b/c",
                                        "...",
                                        "a b",
                                        "-rf",
                                        "$(id)",
                                        "\xe6\x9d\xb1\xe4\xba\xac.txt",
                                        "outputs",
                                        "output.txt",
                                        "a/output/b",
                                        "Output",
                                        "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16",
                                        "it's \"x\"",
                                        "a:b",
                                        "~",
                                        "*?"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *why = safe_path_check(names[i]);
        if (why != NULL)
            fail_msg("%s %s", names[i], why);
    }
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *name, *why;
    } rows[] = {{"", "empty"},
                {".", ". or .."},
                {"..", ". or .."},
                {"../../etc/cron.d/x", ". or .."},
                {"a/../../b", ". or .."},
                {"a/..", ". or .."},
                {"a/./b", ". or .."},
                {"./a", ". or .."},
                {"/tmp/abs.txt", "absolute"},
                {"/", "absolute"},
                {"/home/user/.bashrc", "absolute"},
                {"//x", "absolute"},
                {"a//b", "empty part"},
                {"a/", "empty part"},
                {"..\\..\\w.txt", "backslash"},
                {"C:\\x", "backslash"},
                {"a\nb", "control"},
                {"a\x1b[2J", "control"},
                {"a\x7f", "control"},
                {"a\x01", "control"},
                {"\xff", "UTF-8"},
                {"a\xc3", "UTF-8"},
                {"\xed\xa0\x80", "UTF-8"},
                {"\xc0\xae\xc0\xae/x", "UTF-8"},
                {"output", "output folder"},
                {"output/x", "output folder"},
                {"1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17", "16 parts"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *why = safe_path_check(rows[i].name);
        if (why == NULL || strstr(why, rows[i].why) == NULL)
            fail_msg("\"%s\": %s", rows[i].name, why != NULL ? why : "taken");
    }
}

static void test_lengths(void **state)
{
    (void)state;
    char name[1100];
    memset(name, 'a', sizeof name);
    name[255] = '\0';
    assert_null(safe_path_check(name));
    name[255] = 'a', name[256] = '\0';
    assert_non_null(strstr(safe_path_check(name), "255"));
    memset(name, 'a', sizeof name);
    for (size_t i = 200; i < sizeof name; i += 200)
        name[i] = '/';
    name[1024] = '\0';
    assert_null(safe_path_check(name));
    name[1024] = 'a', name[1025] = '\0';
    assert_non_null(strstr(safe_path_check(name), "1024"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests_name("safe_path", tests, NULL, NULL);
}
