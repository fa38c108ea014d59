/* Tests of the settings: the table, where values come from, what is refused, what is shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/settings.h"

#define CANARY "c4nary-p4ss"

static char folder[] = "/tmp/sandpiper-test-settings-XXXXXX";
static char secret_path[100], other_path[100];

static int setup(void **state)
{
    (void)state;
    clearenv();
    log_secrets_clear();
    log_init(LOG_LEVEL_ERROR, LOG_FORMAT_JSON);
    return 0;
}

static void write_file(const char *path, const char *data, size_t len)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static struct settings *from_environment(void)
{
    char err[300] = "";
    struct settings *s = settings_from_environment(err, sizeof(err));
    if (!s)
        fail_msg("%s", err);
    return s;
}

static void assert_refused(const char *part)
{
    char err[300] = "";
    struct settings *s = settings_from_environment(err, sizeof(err));
    assert_null(s);
    if (!strstr(err, part))
        fail_msg("\"%s\" is not in: %s", part, err);
    assert_null(strstr(err, CANARY));
}

/* What a print function wrote; heap. */
static char *printed(void (*print)(FILE *), const struct settings *s)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (print)
        print(f);
    else
        settings_print(s, f);
    fclose(f);
    return text;
}

static void test_defaults(void **state)
{
    (void)state;
    struct settings *s = from_environment();
    assert_string_equal(settings_redis_url(s), "redis://127.0.0.1:6379");
    assert_string_equal(settings_str(s, SETTING_QUEUE_PREFIX), "bull");
    assert_string_equal(settings_str(s, SETTING_QUEUE_NAME), "code-interpreter");
    assert_string_equal(settings_str(s, SETTING_CODE_INTERPRETER_TYPE), "");
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 300000);
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS), 300000);
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS), 86400000);
    assert_int_equal(settings_int(s, SETTING_WORKER_CONCURRENCY), 0);
    assert_int_equal(settings_int(s, SETTING_LOCK_DURATION_MS), 15000);
    assert_true(settings_bool(s, SETTING_STREAM_INTAKE));
    assert_string_equal(settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_ISOLATION), "bwrap");
    assert_false(settings_is_development(s));
    for (int id = 0; id < SETTING_COUNT; id++)
        assert_false(settings_is_set(s, (enum setting)id));
    settings_free(s);
}

/* Each row is whole, and what is past a bound is refused. */
static void test_table(void **state)
{
    (void)state;
    char text[40];
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);
        assert_non_null(row->name);
        assert_non_null(row->fallback);
        assert_true(strlen(row->help) > 8 && !strchr(row->help, '\n'));
        for (int other = 0; other < id; other++)
            assert_string_not_equal(row->name, settings_row((enum setting)other)->name);
        if (row->type != SETTING_TYPE_INT)
            continue;
        assert_non_null(row->unit);
        assert_true(row->min <= row->max);
        for (int upper = 0; upper < 2; upper++) {
            setup(NULL);
            if (id == SETTING_LOCK_RENEW_MS)
                setenv("LOCK_DURATION_MS", "3600000", 1); /* else the two disagree */
            snprintf(text, sizeof(text), "%lld", upper ? row->max + 1 : row->min - 1);
            setenv(row->name, text, 1);
            assert_refused(row->name);
        }
    }
}

/* Who may write the hash in Redis must not own the machine. */
static void test_sources(void **state)
{
    (void)state;
    static const enum setting runtime[] = {
        SETTING_CODE_INTERPRETER_TYPE,
        SETTING_CODE_INTERPRETER_TIMEOUT_MS,
        SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS,
        SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS,
        SETTING_E2B_API_KEY,
        SETTING_FILE_MAX_BYTES,
        SETTING_CODE_INTERPRETER_LOCAL_SPARE_KERNELS,
    };
    static const enum setting environment[] = {
        SETTING_REDIS_URL,
        SETTING_REDIS_QUEUE_URL,
        SETTING_NODE_ENV,
        SETTING_QUEUE_NAME,
        SETTING_URL_ALLOW,
        SETTING_CODE_INTERPRETER_LOCAL_ISOLATION,
        SETTING_CODE_INTERPRETER_LOCAL_PYTHON,
        SETTING_CODE_INTERPRETER_LOCAL_DIR,
        SETTING_CODE_INTERPRETER_LOCAL_NETWORK,
        SETTING_LOG_LEVEL,
        SETTING_LOCK_DURATION_MS,
    };
    for (size_t i = 0; i < sizeof(runtime) / sizeof(runtime[0]); i++)
        assert_int_equal(settings_row(runtime[i])->source, SETTING_SOURCE_RUNTIME);
    for (size_t i = 0; i < sizeof(environment) / sizeof(environment[0]); i++)
        assert_int_equal(settings_row(environment[i])->source, SETTING_SOURCE_ENVIRONMENT);
}

static void test_environment(void **state)
{
    (void)state;
    setenv("WORKER_CONCURRENCY", " 12\n", 1);
    setenv("STREAM_INTAKE", "No", 1);
    setenv("LOG_LEVEL", "DEBUG", 1);
    setenv("NODE_ENV", "development", 1);
    setenv("QUEUE_NAME", "", 1); /* empty is unset */
    setenv("WORKER_NAME", "  ", 1);
    setenv("CODE_INTERPRETER_TYPE", "NOT_A_TYPE", 1); /* the factory's to refuse */
    setenv("URL_ALLOW", "minio:9000", 1);
    setenv("QUEUE_PREFIX", "{bull}", 1);
    setenv("REDIS_QUEUE_URL", "redis://queue", 1);
    struct settings *s = from_environment();
    assert_int_equal(settings_int(s, SETTING_WORKER_CONCURRENCY), 12);
    assert_false(settings_bool(s, SETTING_STREAM_INTAKE));
    assert_string_equal(settings_str(s, SETTING_LOG_LEVEL), "debug");
    assert_string_equal(settings_str(s, SETTING_QUEUE_NAME), "code-interpreter");
    assert_string_equal(settings_str(s, SETTING_CODE_INTERPRETER_TYPE), "NOT_A_TYPE");
    assert_string_equal(settings_redis_url(s), "redis://queue");
    assert_true(settings_is_development(s));
    assert_true(settings_is_set(s, SETTING_WORKER_CONCURRENCY));
    assert_false(settings_is_set(s, SETTING_QUEUE_NAME));
    assert_false(settings_is_set(s, SETTING_WORKER_NAME));
    settings_free(s);
    setenv("NODE_ENV", "Development!", 1);
    s = from_environment();
    assert_false(settings_is_development(s));
    settings_free(s);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"WORKER_CONCURRENCY", "many"},
        {"WORKER_CONCURRENCY", "-1"},
        {"WORKER_CONCURRENCY", "1.5"},
        {"CODE_INTERPRETER_TIMEOUT_MS", "0"},
        {"CODE_INTERPRETER_TIMEOUT_MS", "5m"},
        {"CODE_INTERPRETER_TIMEOUT_MS", "99999999999999999999"},
        {"STREAM_INTAKE", "maybe"},
        {"LOG_LEVEL", "loud"},
        {"LOG_LEVEL", "debug info"},
        {"CODE_INTERPRETER_LOCAL_ISOLATION", "docker"},
        {"QUEUE_NAME", "a:b"},
        {"QUEUE_PREFIX", "{bull"},
        {"URL_ALLOW", "no port here"},
        {"LOCK_RENEW_MS", "8000"}, /* more than half of the lock */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setup(NULL);
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_refused(wrong[i][0]);
    }
}

static void test_secret_files(void **state)
{
    (void)state;
    write_file(secret_path, CANARY "\n", strlen(CANARY) + 1);
    setenv("E2B_API_KEY", "from-the-environment", 1);
    setenv("E2B_API_KEY_FILE", secret_path, 1);
    setenv("LOG_LEVEL_FILE", "/nowhere", 1); /* no secret: no such variable */
    struct settings *s = from_environment();
    assert_string_equal(settings_str(s, SETTING_E2B_API_KEY), CANARY);
    settings_free(s);
    write_file(secret_path, "nul\0inside", 10);
    assert_refused("E2B_API_KEY_FILE");
    static char large[100000];
    memset(large, 'x', sizeof(large));
    write_file(secret_path, large, sizeof(large));
    assert_refused("E2B_API_KEY_FILE");
    setenv("E2B_API_KEY_FILE", folder, 1);
    assert_refused("E2B_API_KEY_FILE");
    setenv("E2B_API_KEY_FILE", "/nowhere/" CANARY, 1); /* the key itself, in the wrong variable */
    assert_refused("E2B_API_KEY_FILE");
    mkfifo(other_path, 0600);
    setenv("E2B_API_KEY_FILE", other_path, 1); /* must not hang */
    s = from_environment();
    assert_string_equal(settings_str(s, SETTING_E2B_API_KEY), "from-the-environment");
    settings_free(s);
    unlink(other_path);
}

static struct settings *overlay(struct settings *base, const char *name, const char *value,
                                char *err, size_t err_size)
{
    const char *const fields[] = {"NOT_KNOWN", "1", name, value};
    return settings_overlay(base, fields, 2, err, err_size);
}

static void test_overlay(void **state)
{
    (void)state;
    char err[300] = "";
    setenv("CODE_INTERPRETER_TIMEOUT_MS", "1000", 1);
    struct settings *base = from_environment();
    struct settings *s = overlay(base, "CODE_INTERPRETER_TIMEOUT_MS", "2000", err, sizeof(err));
    assert_non_null(s);
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 2000);
    assert_int_equal(settings_int(base, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 1000);
    settings_free(s);
    s = overlay(base, "CODE_INTERPRETER_TIMEOUT_MS", "", err, sizeof(err));
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 1000);
    settings_free(s);
    /* What has not changed is the same set; what has is not, back again too. */
    static const char *const values[] = {"3000", "3000", "4000", "3000"};
    struct settings *before = NULL;
    for (size_t i = 0; i < 4; i++) {
        s = overlay(base, "CODE_INTERPRETER_TIMEOUT_MS", values[i], err, sizeof(err));
        assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_TIMEOUT_MS), atoi(values[i]));
        assert_true((s == before) == (i == 1));
        settings_free(before);
        before = s;
    }
    settings_free(before);
    assert_null(overlay(base, "CODE_INTERPRETER_TIMEOUT_MS", "soon", err, sizeof(err)));
    assert_non_null(strstr(err, "CODE_INTERPRETER_TIMEOUT_MS"));
    s = settings_overlay(base, NULL, 0, err, sizeof(err));
    assert_int_equal(settings_int(s, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 1000);
    struct settings *same = settings_ref(s);
    settings_free(s);
    assert_int_equal(settings_int(same, SETTING_CODE_INTERPRETER_TIMEOUT_MS), 1000);
    settings_free(same);
    settings_free(base);
    settings_free(NULL);
}

/* No environment-only row moves, whatever the hash says, not even to a value that would not parse.
 */
static void test_overlay_environment_only(void **state)
{
    (void)state;
    char err[300] = "";
    struct settings *base = from_environment();
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);
        if (row->source == SETTING_SOURCE_RUNTIME)
            continue;
        struct settings *s = overlay(base, row->name, "none", err, sizeof(err));
        assert_non_null(s);
        assert_false(settings_is_set(s, (enum setting)id));
        settings_free(s);
    }
    struct settings *s = overlay(base, "E2B_API_KEY_FILE", "/etc/passwd", err, sizeof(err));
    assert_string_equal(settings_str(s, SETTING_E2B_API_KEY), "");
    settings_free(s);
    settings_free(base);
}

/* The file has the last word over the hash, and its new content counts without a restart. */
static void test_overlay_file(void **state)
{
    (void)state;
    char err[300] = "";
    write_file(secret_path, "first-key", 9);
    setenv("E2B_API_KEY_FILE", secret_path, 1);
    struct settings *base = from_environment();
    write_file(secret_path, "second-key", 10);
    struct settings *s = overlay(base, "E2B_API_KEY", "from-the-hash", err, sizeof(err));
    assert_string_equal(settings_str(s, SETTING_E2B_API_KEY), "second-key");
    settings_free(s);
    unlink(secret_path);
    assert_null(overlay(base, "E2B_API_KEY", "from-the-hash", err, sizeof(err)));
    assert_non_null(strstr(err, "E2B_API_KEY_FILE"));
    settings_free(base);
}

static const char *const url_cases[][2] = {
    {"redis://127.0.0.1:6379", "redis://127.0.0.1:6379"},
    {"redis://user@host/3", "redis://user@host/3"},
    {"redis://:" CANARY "@host:1/2", "redis://:***@host:1/2"},
    {"redis://user:" CANARY "@host", "redis://user:***@host"},
    {"rediss://u:x" CANARY "%40%2f@host", "rediss://u:***@host"},
    {"redis://u:a@b" CANARY "@host", "redis://u:***@host"},
    {"redis://u:a/" CANARY "@host", "redis://u:***@host"},
    {"u:" CANARY "@host:6379", "u:***@host:6379"},
    {"unix:///run/redis.sock?db=1&password=" CANARY "&x=1",
     "unix:///run/redis.sock?db=1&password=***&x=1"},
    {"redis://:first-" CANARY "@h/0?password=second-" CANARY, "redis://:***@h/0?password=***"},
    {"redis://:pw-" CANARY "@h/0?x=a@b", "redis://:***@b"},
    {"unix:///s?password=&password=" CANARY, "unix:///s?password=&password=***"},
    {"unix:///s?password=a-" CANARY "&password=b-" CANARY, "unix:///s?password=***&password=***"},
    {"unix:///s;password=?password=" CANARY, "unix:///s;password=***"},
    {"unix:///s?x=:1&password=s@" CANARY, "unix:///s?x=:***"},
};

static void test_secrets_masked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(url_cases) / sizeof(url_cases[0]); i++) {
        char expected[200];
        setup(NULL);
        setenv("REDIS_URL", url_cases[i][0], 1);
        setenv("REDIS_QUEUE_URL", url_cases[i][0], 1);
        setenv("E2B_API_KEY", "e2b_" CANARY, 1);
        struct settings *s = from_environment();
        char *text = printed(NULL, s);
        assert_null(strstr(text, CANARY));
        snprintf(expected, sizeof(expected), "REDIS_URL=%s (environment)\n", url_cases[i][1]);
        assert_non_null(strstr(text, expected));
        assert_non_null(strstr(text, "E2B_API_KEY=*** (environment)\n"));
        assert_non_null(strstr(text, "LOG_LEVEL=info (default)\n"));
        free(text);
        settings_free(s);
    }
}

/* Whatever was given, no log line or error text shows it again. */
static void test_secrets_told_to_log(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(url_cases) / sizeof(url_cases[0]); i++) {
        setup(NULL);
        setenv("REDIS_URL", url_cases[i][0], 1);
        struct settings *s = from_environment();
        char *text = log_redact(url_cases[i][0]);
        assert_null(strstr(text, CANARY));
        free(text);
        settings_free(s);
    }
    setup(NULL);
    setenv("REDIS_URL", "redis://:p%40ss%2Fword-" CANARY "@host", 1);
    struct settings *s = from_environment();
    char *text = log_redact("AUTH p@ss/word-" CANARY " failed");
    assert_string_equal(text, "AUTH *** failed");
    free(text);
    char err[300];
    struct settings *over = overlay(s, "E2B_API_KEY", "e2b_0123456789", err, sizeof(err));
    text = log_redact("X-API-Key: e2b_0123456789");
    assert_string_equal(text, "X-API-Key: ***");
    free(text);
    settings_free(over);
    settings_free(s);
}

static void test_papers(void **state)
{
    (void)state;
    char *help = printed(settings_print_help, NULL);
    char *markdown = printed(settings_print_markdown, NULL);
    size_t lines = 0;
    for (int id = 0; id < SETTING_COUNT; id++) {
        char cell[100];
        const struct setting_row *row = settings_row((enum setting)id);
        assert_non_null(strstr(help, row->name));
        assert_non_null(strstr(help, row->help));
        snprintf(cell, sizeof(cell), "\n| `%s` | ", row->name);
        assert_non_null(strstr(markdown, cell));
    }
    for (const char *c = markdown; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, SETTING_COUNT + 2);
    assert_non_null(
        strstr(markdown, "| `LOCK_DURATION_MS` | integer, ms | `15000` | environment | "));
    assert_non_null(strstr(markdown, "| `LOG_FORMAT` | auto, json or pretty | `auto` | "));
    free(help);
    free(markdown);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(secret_path, sizeof(secret_path), "%s/secret", folder);
    snprintf(other_path, sizeof(other_path), "%s/other", folder);
    return 0;
}

static int remove_folder(void **state)
{
    setup(state);
    unlink(secret_path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, setup),
        cmocka_unit_test_setup(test_table, setup),
        cmocka_unit_test_setup(test_sources, setup),
        cmocka_unit_test_setup(test_environment, setup),
        cmocka_unit_test_setup(test_refused, setup),
        cmocka_unit_test_setup(test_secret_files, setup),
        cmocka_unit_test_setup(test_overlay, setup),
        cmocka_unit_test_setup(test_overlay_environment_only, setup),
        cmocka_unit_test_setup(test_overlay_file, setup),
        cmocka_unit_test_setup(test_secrets_masked, setup),
        cmocka_unit_test_setup(test_secrets_told_to_log, setup),
        cmocka_unit_test_setup(test_papers, setup),
    };
    return cmocka_run_group_tests_name("settings", tests, make_folder, remove_folder);
}
