/* Tests of the Redis URL reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/redis.h"

struct good {
    const char *text, *host, *path, *user, *password;
    int port, db;
};

static void same(const char *got, const char *want)
{
    if (want)
        assert_string_equal(got, want);
    else
        assert_null(got);
}

static void test_good(void **state)
{
    static const struct good cases[] = {
        {"redis://localhost", "localhost", NULL, NULL, NULL, 6379, 0},
        {"redis://localhost/", "localhost", NULL, NULL, NULL, 6379, 0},
        {"REDIS://10.0.0.1:7000/12", "10.0.0.1", NULL, NULL, NULL, 7000, 12},
        {"redis://:secret@h:1", "h", NULL, NULL, "secret", 1, 0},
        {"redis://bob:s%40c%2Fr%3at%25@h", "h", NULL, "bob", "s@c/r:t%", 6379, 0},
        {"redis://bob:p@ss:w@rd@h/3", "h", NULL, "bob", "p@ss:w@rd", 6379, 3},
        {"redis://default:@h", "h", NULL, "default", NULL, 6379, 0},
        {"redis://bob@h", "h", NULL, "bob", NULL, 6379, 0},
        {"redis://[::1]:6380/2", "::1", NULL, NULL, NULL, 6380, 2},
        {"redis://u:p@[2001:db8::5]", "2001:db8::5", NULL, "u", "p", 6379, 0},
        {"redis://h:6379?db=4&family=6", "h", NULL, NULL, NULL, 6379, 4},
        {"redis://h/1#fragment", "h", NULL, NULL, NULL, 6379, 1},
        {"unix:///run/redis.sock", NULL, "/run/redis.sock", NULL, NULL, 6379, 0},
        {"unix:///a%20b/r.sock?x=1&db=7", NULL, "/a b/r.sock", NULL, NULL, 6379, 7},
        {"redis+unix://u:p%23@/s?db=1", NULL, "/s", "u", "p#", 6379, 1},
        {"unix:///s?password=a%26b&username=me", NULL, "/s", "me", "a&b", 6379, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct redis_url url;
        char err[200] = "";
        if (redis_url_parse(cases[i].text, &url, err, sizeof(err)))
            fail_msg("%s: %s", cases[i].text, err);
        same(url.host, cases[i].host);
        same(url.unix_path, cases[i].path);
        same(url.user, cases[i].user);
        same(url.password, cases[i].password);
        assert_int_equal(url.port, cases[i].port);
        assert_int_equal(url.db, cases[i].db);
        assert_false(url.tls);
        redis_url_fini(&url);
    }
}

static void test_bad(void **state)
{
    static const struct {
        const char *text, *names;
    } cases[] = {
        {NULL, "empty"},
        {"", "empty"},
        {"localhost:6379", "scheme"},
        {"http://canary@h", "scheme"},
        {"redis://", "host"},
        {"redis://:canary@", "host"},
        {"redis://:canary@/0", "host"},
        {"redis://:can/ary@h", "percent-encoded"}, /* an unencoded slash ends the host */
        {"redis://user:canary#1@h", "port"},
        {"redis://h:canary", "port"},
        {"redis://h:0", "port"},
        {"redis://h:65536", "port"},
        {"redis://h:99999999999", "port"},
        {"redis://h/canary", "database"},
        {"redis://h/-1", "database"},
        {"redis://h?db=canary", "database"},
        {"redis://u:canary%zz@h", "password"},
        {"redis://u:canary%4@h", "password"},
        {"redis://u:canary%00@h", "password"},
        {"redis://u%zz:canary@h", "user"},
        {"redis://[::1", "IPv6"},
        {"redis://[::1]x", "IPv6"},
        {"redis://[canary]", "brackets"},
        {"redis://a b", "host"},
        {"redis://h%00", "host"},
        {"unix://run/redis.sock", "slash"},
        {"unix://", "path"},
        {"unix:///"
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678901"
         "23456789012345678901234567890",
         "longer"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct redis_url url;
        char err[200] = "";
        if (!redis_url_parse(cases[i].text, &url, err, sizeof(err)))
            fail_msg("accepted: %s", cases[i].text);
        if (!strstr(err, cases[i].names))
            fail_msg("%s: %s", cases[i].text, err);
        assert_null(strstr(err, "canary"));
        assert_null(strchr(err, '\n'));
        redis_url_fini(&url); /* harmless after a failure */
    }
}

static void test_tls(void **state)
{
    struct redis_url url;
    char err[200] = "";
    (void)state;
#ifdef SANDPIPER_REDIS_TLS
    assert_int_equal(redis_url_parse("rediss://h", &url, err, sizeof(err)), 0);
    assert_true(url.tls);
    redis_url_fini(&url);
#else
    assert_int_equal(redis_url_parse("rediss://h", &url, err, sizeof(err)), -1);
    assert_non_null(strstr(err, "TLS"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_tls),
    };
    return cmocka_run_group_tests_name("redis_url", tests, NULL, NULL);
}
