/* Cron patterns against npm's cron-parser's own answers (cron_fixture.inc), jumping clocks too. */
#include "worker/queue/cron.h"
#include "worker/queue/zone.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cron_fixture.inc"

enum { NO_PATTERN = -2 };

static long long answer_of(const struct answer *a, struct zone *zone)
{
    char err[200] = "";
    struct cron cron;
    if (cron_parse(&cron, a->pattern, a->seed, err, sizeof err) != 0) {
        assert_int_not_equal(strlen(err), 0);
        return NO_PATTERN;
    }
    return cron_next(&cron, zone, a->after);
}

static void test_as_cron_parser(void **state)
{
    (void)state;
    char err[200] = "";
    struct zone *zone = NULL;
    const char *tz = NULL;
    size_t wrong = 0, count = sizeof answers / sizeof *answers;
    for (size_t i = 0; i < count; i++) {
        const struct answer *a = &answers[i];
        if (tz == NULL || strcmp(tz, a->tz) != 0) {
            zone_free(zone);
            zone = zone_load(a->tz, err, sizeof err);
            assert_non_null(zone);
            tz = a->tz;
        }
        long long got = answer_of(a, zone);
        if (got == a->next)
            continue;
        wrong++;
        if (wrong <= 20)
            print_error("\"%s\" in %s after %lld: %lld, cron-parser says %lld\n", a->pattern, a->tz,
                        a->after, got, a->next);
    }
    zone_free(zone);
    if (wrong > 0)
        fail_msg("%zu of %zu answers differ", wrong, count);
}

static void test_unknown_zones(void **state)
{
    (void)state;
    static const char *const names[] = {
        "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "utc+x", "Europe/Berlin\n"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char err[200] = "";
        assert_null(zone_load(names[i], err, sizeof err));
        assert_non_null(strstr(err, "time zone"));
    }
    struct zone *system = zone_load(NULL, NULL, 0);
    assert_non_null(system);
    zone_free(system);
}

static void test_long_pattern(void **state)
{
    (void)state;
    char text[3000], err[200];
    struct cron cron;
    memset(text, '1', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(cron_parse(&cron, text, NULL, err, sizeof err), -1);
    memset(text, 'H', 900);
    text[900] = '\0';
    assert_int_equal(cron_parse(&cron, text, NULL, err, sizeof err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_cron_parser),
        cmocka_unit_test(test_unknown_zones),
        cmocka_unit_test(test_long_pattern),
    };
    return cmocka_run_group_tests_name("cron", tests, NULL, NULL);
}
