/* Tests of log lines: their form, their bounds, and that no secret is in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/jsonx.h"
#include "common/log_impl.h"
#include "common/text.h"
#include "common/utf8.h"

#define CANARY "s3cr/t+k\"y\\ \xc3\xa9\xf0\x9f\x98\x80%41"

/* stderr goes to a datagram socket meanwhile: each write(2) is one message. */
static int saved_stderr = -1, sink = -1;

static void capture_start(void)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    saved_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    sink = pair[0];
}

/* The next line written, or "" when there is none. */
static const char *captured(void)
{
    static char line[20000];
    ssize_t n = recv(sink, line, sizeof(line) - 1, MSG_DONTWAIT);
    line[n > 0 ? n : 0] = '\0';
    return line;
}

static void capture_stop(void)
{
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(sink);
}

static int setup(void **state)
{
    (void)state;
    log_init(LOG_LEVEL_DEBUG, LOG_FORMAT_JSON);
    capture_start();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    capture_stop();
    log_secrets_clear();
    return 0;
}

static json_t *captured_json(void)
{
    char err[200];
    const char *line = captured();
    size_t len = strlen(line);
    assert_true(len > 0);
    assert_int_equal(line[len - 1], '\n');
    json_t *value = jsonx_parse(line, len - 1, err, sizeof(err));
    if (!value)
        fail_msg("%s: %s", err, line);
    return value;
}

static void test_json_line(void **state)
{
    (void)state;
    struct log_ctx ctx = {.job = "42", .thread = "w:t"};
    log_write(LOG_LEVEL_WARN, &ctx, "took %d ms", 7);
    json_t *line = captured_json();
    assert_string_equal(jsonx_get_str(line, "level", ""), "warn");
    assert_string_equal(jsonx_get_str(line, "msg", ""), "took 7 ms");
    assert_string_equal(jsonx_get_str(line, "job", ""), "42");
    assert_string_equal(jsonx_get_str(line, "thread", ""), "w:t");
    const char *when = jsonx_get_str(line, "time", "");
    assert_int_equal(strlen(when), strlen("2026-01-02T03:04:05.678Z"));
    assert_int_equal(when[10], 'T');
    assert_int_equal(when[19], '.');
    assert_int_equal(when[23], 'Z');
    json_decref(line);
    log_info("no context");
    line = captured_json();
    assert_null(json_object_get(line, "job"));
    assert_null(json_object_get(line, "thread"));
    json_decref(line);
}

static void test_escapes(void **state)
{
    (void)state;
    log_error("a\"b\\c\nd\te\x1b[31m\xff \xc2\x9b \xe4\xb8\xad \x7f");
    json_t *line = captured_json();
    assert_string_equal(jsonx_get_str(line, "msg", ""),
                        "a\"b\\c\nd\te\x1b[31m\\xff \xc2\x9b \xe4\xb8\xad \x7f");
    json_decref(line);
    log_error("one\nline");
    const char *text = captured();
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void test_pretty(void **state)
{
    (void)state;
    struct log_ctx ctx = {.job = "4\n2", .thread = NULL};
    log_init(LOG_LEVEL_INFO, LOG_FORMAT_PRETTY);
    log_write(LOG_LEVEL_ERROR, &ctx, "bad \x1b[2J\xff \"quoted\"\r\n\xc2\x9b");
    const char *line = captured();
    assert_non_null(strstr(line, " error "));
    assert_non_null(strstr(line, "[job 4\\n2] "));
    assert_non_null(strstr(line, "bad \\u001b[2J\\xff \"quoted\"\\r\\n\\u009b\n"));
    assert_null(strchr(line, '\x1b')); /* no terminal, no colour */
}

static void test_levels(void **state)
{
    (void)state;
    enum log_level level = LOG_LEVEL_ERROR;
    enum log_format format = LOG_FORMAT_JSON;
    log_init(LOG_LEVEL_WARN, LOG_FORMAT_AUTO);
    assert_false(log_enabled(LOG_LEVEL_INFO));
    assert_true(log_enabled(LOG_LEVEL_WARN));
    log_debug("no");
    log_info("no");
    assert_string_equal(captured(), "");
    log_warn("yes");
    assert_int_equal(captured()[0], '{'); /* AUTO: a socket is no terminal */
    assert_true(log_level_parse("DEBUG", &level) && level == LOG_LEVEL_DEBUG);
    assert_true(log_level_parse("warn", &level) && level == LOG_LEVEL_WARN);
    assert_false(log_level_parse("verbose", &level) || log_level_parse("", &level));
    assert_int_equal(level, LOG_LEVEL_WARN);
    assert_true(log_format_parse("Pretty", &format) && format == LOG_FORMAT_PRETTY);
    assert_false(log_format_parse("xml", &format));
    assert_int_equal(format, LOG_FORMAT_PRETTY);
}

/* Whatever the text: one write, at most 8 KiB, valid JSON, valid UTF-8, the cut is visible. */
static void test_bounds(void **state)
{
    (void)state;
    static const char *const units[] = {"x", "\"", "\xf0\x9f\x98\x80", "\xff", "\x01", "\xc2\x85"};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        static char text[50001];
        size_t len = 0, unit = strlen(units[i]);
        for (; len + unit < sizeof(text); len += unit)
            memcpy(text + len, units[i], unit);
        text[len] = '\0';
        struct log_ctx ctx = {.job = text, .thread = text};
        log_write(LOG_LEVEL_INFO, &ctx, "%s", text);
        json_t *line = captured_json();
        const char *msg = jsonx_get_str(line, "msg", "");
        assert_true(strlen(msg) > 1000);
        assert_string_equal(msg + strlen(msg) - 3, "\xe2\x80\xa6");
        assert_true(strlen(jsonx_get_str(line, "job", "")) <= 512);
        json_decref(line);
        assert_string_equal(captured(), "");
    }
}

static void test_line_length(void **state)
{
    (void)state;
    static char text[30001];
    memset(text, 'y', sizeof(text) - 1);
    for (int pretty = 0; pretty < 2; pretty++) {
        log_init(LOG_LEVEL_DEBUG, pretty ? LOG_FORMAT_PRETTY : LOG_FORMAT_JSON);
        log_info("%s", text);
        const char *line = captured();
        assert_true(strlen(line) > 8000);
        assert_true(strlen(line) <= 8192);
        assert_int_equal(line[strlen(line) - 1], '\n');
    }
}

struct redact_case {
    const char *in, *out;
};

/* The secret CANARY in the spellings that URLs, forms, JSON and Python make of it. */
static const struct redact_case redact_cases[] = {
    {"plain", "plain"},
    {"", ""},
    {CANARY, "***"},
    {"a" CANARY CANARY "b", "a******b"},
    {"u=s3cr%2Ft%2Bk%22y%5C%20%C3%A9%F0%9F%98%80%2541&", "u=***&"},
    {"u=s3cr%2ft%2bk%22y%5c+%c3%a9%f0%9f%98%80%2541&", "u=***&"},
    {"u=%733cr/t%2Bk\"y\\ \xc3\xa9\xf0\x9f\x98\x80%2541", "u=***"},
    {"{\"k\":\"s3cr/t+k\\\"y\\\\ \xc3\xa9\xf0\x9f\x98\x80%41\"}", "{\"k\":\"***\"}"},
    {"{\"k\":\"s3cr\\/t+k\\\"y\\\\ \\u00e9\\ud83d\\ude00%41\"}", "{\"k\":\"***\"}"},
    {"\\u0073\\u0033cr/t+k\\u0022y\\u005c\\u0020\\u00E9\\uD83D\\uDE00%41", "***"},
    {"s3cr/t+k\"y\\", "***"}, /* cut by a buffer */
    {"s3cr/t", "s3cr/t"},     /* too short a piece to tell */
    {"s3cr/t+k\"y\\ \xc3\xa9 no", "s3cr/t+k\"y\\ \xc3\xa9 no"},
    {"canary-one", "***"},
    {"canary-one-long!", "***!"}, /* the longer of two secrets */
    {"%63anary-one", "***"},
    {"first-canary-one.", "***."}, /* two that overlap */
    {"s3cr%", "s3cr%"},
    {"\\", "\\"},
    {"\\u00", "\\u00"},
};

static void add_secrets(void)
{
    log_secret_add(NULL);
    log_secret_add("");
    log_secret_add("abc"); /* too short: would make lines unreadable */
    log_secret_add(CANARY);
    log_secret_add(CANARY);
    log_secret_add("canary-one");
    log_secret_add("canary-one-long");
    log_secret_add("canary-o");
    log_secret_add("first-can");
}

static void test_redact(void **state)
{
    (void)state;
    add_secrets();
    for (size_t i = 0; i < sizeof(redact_cases) / sizeof(redact_cases[0]); i++) {
        char *text = log_redact(redact_cases[i].in);
        assert_string_equal(text, redact_cases[i].out);
        free(text);
    }
    log_secrets_clear();
    char *text = log_redact("canary-one abc");
    assert_string_equal(text, "canary-one abc");
    free(text);
}

static void test_no_secret_in_lines(void **state)
{
    (void)state;
    static char text[20000];
    struct log_ctx ctx = {.job = "x-canary-one", .thread = "canary-one-long:t"};
    add_secrets();
    for (int pretty = 0; pretty < 2; pretty++) {
        log_init(LOG_LEVEL_DEBUG, pretty ? LOG_FORMAT_PRETTY : LOG_FORMAT_JSON);
        for (size_t i = 0; i < sizeof(redact_cases) / sizeof(redact_cases[0]); i++) {
            log_write(LOG_LEVEL_DEBUG, &ctx, "%s", redact_cases[i].in);
            const char *line = captured();
            assert_null(strstr(line, "anary-one"));
            if (strstr(redact_cases[i].out, "***"))
                assert_null(strstr(line, "cr/t+k"));
        }
        /* at every place around the cut */
        for (size_t at = 7900; at < 8200; at++) {
            memset(text, 'z', at);
            strcpy(text + at, "canary-one-long");
            log_info("%s and more", text);
            assert_null(strstr(captured(), "can"));
        }
    }
}

static void test_errno_kept(void **state)
{
    (void)state;
    errno = EXDEV;
    log_info("x");
    assert_int_equal(errno, EXDEV);
}

/* Keys that rotate do not grow the list for ever, and the newest is known. */
static void test_many_secrets(void **state)
{
    (void)state;
    char secret[40];
    for (int i = 0; i < 500; i++) {
        snprintf(secret, sizeof(secret), "rotating-key-%04d", i);
        log_secret_add(secret);
    }
    char *text = log_redact("rotating-key-0499.");
    assert_string_equal(text, "***.");
    free(text);
}

/* The same warning again and again: ten lines, then a count. Lines about jobs are all there. */
static void test_repeats(void **state)
{
    (void)state;
    unsigned long long before = log_lines_suppressed();
    struct log_ctx job = {.job = "j"};
    for (int i = 0; i < 1000; i++)
        log_warn("Redis said %d", i);
    for (int i = 0; i < 10; i++) {
        char wanted[40];
        snprintf(wanted, sizeof(wanted), "Redis said %d\"", i);
        assert_non_null(strstr(captured(), wanted));
    }
    assert_string_equal(captured(), "");
    assert_int_equal(log_lines_suppressed() - before, 990);
    for (int i = 0; i < 100; i++)
        log_write(LOG_LEVEL_ERROR, &job, "job %d", i);
    for (int i = 0; i < 100; i++)
        assert_non_null(strstr(captured(), "\"msg\":\"job "));
    for (int i = 0; i < 100; i++)
        log_info("info %d", i);
    for (int i = 0; i < 100; i++)
        assert_non_null(strstr(captured(), "\"msg\":\"info "));
    log_error("%s", "another one"); /* a text is a kind of its own */
    assert_non_null(strstr(captured(), "another one"));
    log_flush();
    assert_non_null(
        strstr(captured(), "990 more lines were left out in 0 s, all like: Redis said"));
    assert_string_equal(captured(), "");
    log_warn("Redis said %d", 5);
    assert_non_null(strstr(captured(), "Redis said 5"));
}

/* Windows that are over are reported, each kind once; more kinds than there is room for pass. */
static void said(enum log_level level, unsigned long long count, long long seconds,
                 const char *kind)
{
    assert_int_equal(level, LOG_LEVEL_WARN);
    assert_int_equal(seconds, 60);
    assert_string_equal(kind, "old");
    assert_int_equal(count, 2);
}

static void test_windows(void **state)
{
    (void)state;
    long long now = 1000000;
    for (int i = 0; i < LOG_LIMIT_LINES; i++)
        assert_true(log_limit_pass(LOG_LEVEL_WARN, "old", now));
    assert_false(log_limit_pass(LOG_LEVEL_WARN, "old", now + 1));
    assert_false(log_limit_pass(LOG_LEVEL_WARN, "old", now + LOG_LIMIT_WINDOW_MS - 1));
    log_limit_report(false, now + LOG_LIMIT_WINDOW_MS - 1, NULL); /* nothing is due */
    log_limit_report(false, now + LOG_LIMIT_WINDOW_MS, said);
    log_limit_report(true, now + LOG_LIMIT_WINDOW_MS, NULL); /* said already */
    assert_true(log_limit_pass(LOG_LEVEL_WARN, "old", now + LOG_LIMIT_WINDOW_MS + 1));
    for (int i = 0; i < 2000; i++) {
        char kind[24];
        snprintf(kind, sizeof(kind), "kind %d", i);
        assert_true(log_limit_pass(LOG_LEVEL_WARN, kind, now + 3 * LOG_LIMIT_WINDOW_MS));
    }
}

static void test_trace(void **state)
{
    (void)state;
    struct log_ctx ctx = {.job = "j",
                          .trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"};
    log_write(LOG_LEVEL_INFO, &ctx, "hello");
    const char *line = captured();
    assert_non_null(strstr(line, "\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\","
                                 "\"span_id\":\"b7ad6b7169203331\",\"msg\":\"hello\"}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_json_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_escapes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pretty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_levels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_line_length, setup, teardown),
        cmocka_unit_test_setup_teardown(test_redact, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_secret_in_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errno_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_secrets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_repeats, setup, teardown),
        cmocka_unit_test(test_windows),
        cmocka_unit_test_setup_teardown(test_trace, setup, teardown),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
