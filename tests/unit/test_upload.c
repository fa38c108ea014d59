/* Tests of uploads: the URL template, and the bytes that a server gets by PUT and by form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "worker/spool.h"
#include "worker/upload.h"

static struct ev_loop *loop;
#include "http_server.h" /* runs on it */
static struct http *client;
static struct settings *settings;
#include "run_until.h"

static int set_up(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    char err[200];
    clearenv();
    setenv("URL_ALLOW", "127.0.0.1:*", 1);
    log_init(LOG_LEVEL_ERROR, LOG_FORMAT_JSON);
    settings = settings_from_environment(err, sizeof err);
    loop = ev_loop_new(EVFLAG_NOENV);
    reaper_init(loop);
    memset(&server, 0, sizeof server);
    server.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (settings == NULL || bind(server.fd, (struct sockaddr *)&a, size) || listen(server.fd, 64) ||
        getsockname(server.fd, (struct sockaddr *)&a, &size))
        return -1;
    server.port = ntohs(a.sin_port);
    ev_io_init(&server.io, on_accept, server.fd, EV_READ);
    ev_io_start(loop, &server.io);
    client = http_new(loop);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    http_free(client);
    while (server.conns)
        conn_close(server.conns);
    ev_io_stop(loop, &server.io);
    close(server.fd);
    reaper_fini();
    ev_loop_destroy(loop);
    settings_free(settings);
    return 0;
}

static struct {
    int calls;
    char *url, *why;
} done;

static void on_uploaded(const char *url, const char *why, void *data)
{
    (void)data;
    done.calls++;
    ev_break(loop, EVBREAK_ONE); /* from the reaper: nothing else would end this turn */
    done.url = url != NULL ? mem_strdup(url) : NULL;
    done.why = why != NULL ? mem_strdup(why) : NULL;
}

static void done_reset(void)
{
    free(done.url);
    free(done.why);
    memset(&done, 0, sizeof done);
}

static struct upload_file make_file(const void *bytes, size_t len)
{
    struct upload_file f = {.fd = spool_open(),
                            .size = (long long)len,
                            .job_id = "job/1",
                            .file_id = "f-1",
                            .filename = "a b/\"c\"\n\xc3\xa9.txt",
                            .mime = "text/x"};
    assert_true(f.fd >= 0);
    assert_int_equal(spool_write(f.fd, bytes, len), 0);
    return f;
}

/* Uploads bytes to the server's path and waits for the end. */
static void upload(const char *path, struct job_upload target, const void *bytes, size_t len)
{
    char url[300];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", server.port, path);
    target.url = url;
    struct upload_file f = make_file(bytes, len);
    done_reset();
    server.last[0] = '\0';
    upload_start(client, &target, &f, settings, on_uploaded, NULL);
    assert_int_equal(done.calls, 0);
    run_until(done.calls > 0);
    assert_int_equal(done.calls, 1);
    close(f.fd);
}

static const char *body(void)
{
    char *end = strstr(server.last, "\r\n\r\n");
    assert_non_null(end);
    return end + 4;
}

/* The number of header lines of that name, the last one's value in `value`. */
static int header(const char *name, char *value, size_t size)
{
    int n = 0;
    value[0] = '\0';
    for (const char *at = strstr(server.last, "\r\n"); at != NULL && at + 2 < body() - 2;
         at = strstr(at + 2, "\r\n")) {
        size_t len = strlen(name);
        if (strncasecmp(at + 2, name, len) != 0 || at[2 + len] != ':')
            continue;
        n++;
        const char *from = at + 3 + len + strspn(at + 3 + len, " ");
        snprintf(value, size, "%.*s", (int)strcspn(from, "\r"), from);
    }
    return n;
}

static void test_expand(void **state)
{
    (void)state;
    struct upload_file f = {
        .job_id = "j:1/2", .file_id = "id", .filename = "a/b c%&?#\xc3\xa9{jobId}"};
    static const struct {
        const char *template, *url;
    } rows[] = {{"", ""},
                {"http://h/x", "http://h/x"},
                {"http://h/{jobId}/{fileId}", "http://h/j%3A1%2F2/id"},
                {"{filename}", "a%2Fb%20c%25%26%3F%23%C3%A9%7BjobId%7D"},
                {"{fileId}{fileId}", "idid"},
                {"{}{job}{jobid}{fileId", "{}{job}{jobid}{fileId"},
                {"{{fileId}}", "{id}"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *url = upload_expand(rows[i].template, &f);
        assert_string_equal(url, rows[i].url);
        free(url);
    }
}

static void test_put(void **state)
{
    (void)state;
    char value[200];
    json_t *headers = json_pack("{s:s,s:s}", "X-Sig", "a b", "Authorization", "Bearer t");
    upload("/ok?sig=secret&n={filename}&i={fileId}&j={jobId}",
           (struct job_upload){.method = "PUT", .headers = headers}, "ab\0\xff\r\n--x", 9);
    assert_null(done.why);
    char url[60];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/ok", server.port);
    assert_string_equal(done.url, url);
    static const char line[] =
        "PUT /ok?sig=secret&n=a%20b%2F%22c%22%0A%C3%A9.txt&i=f-1&j=job%2F1 HTTP/1.1\r\n";
    assert_memory_equal(server.last, line, sizeof line - 1);
    assert_int_equal(server.last_body, 9);
    assert_memory_equal(body(), "ab\0\xff\r\n--x", 9);
    assert_int_equal(header("Content-Length", value, sizeof value), 1);
    assert_string_equal(value, "9");
    assert_int_equal(header("Content-Type", value, sizeof value), 1);
    assert_string_equal(value, "text/x");
    assert_int_equal(header("X-Sig", value, sizeof value), 1);
    assert_string_equal(value, "a b");
    assert_int_equal(header("Authorization", value, sizeof value), 1);
    assert_int_equal(header("Expect", value, sizeof value), 0);
    assert_int_equal(header("Transfer-Encoding", value, sizeof value), 0);
    json_decref(headers);
}

static void test_put_own_type(void **state)
{
    (void)state;
    char value[200];
    json_t *headers = json_pack("{s:s}", "content-type", "application/octet-stream");
    upload("/ok", (struct job_upload){.method = "PUT", .headers = headers}, "x", 1);
    assert_null(done.why);
    assert_int_equal(header("Content-Type", value, sizeof value), 1);
    assert_string_equal(value, "application/octet-stream");
    json_decref(headers);
}

static void test_put_empty(void **state)
{
    (void)state;
    char value[20];
    upload("/ok", (struct job_upload){.method = "PUT"}, "", 0);
    assert_null(done.why);
    assert_int_equal(server.last_body, 0);
    assert_int_equal(header("Content-Length", value, sizeof value), 1);
    assert_string_equal(value, "0");
}

static void test_form(void **state)
{
    (void)state;
    char value[200];
    json_t *fields = json_pack("{s:s,s:s}", "key", "up/${filename}", "a\"b\r\n", "v\xc3\xa9");
    json_t *headers = json_pack("{s:s,s:s}", "Content-Type", "text/plain", "X-A", "1");
    upload("/ok", (struct job_upload){.method = "POST", .headers = headers, .fields = fields},
           "by\0tes\r\n--", 10);
    assert_null(done.why);
    assert_memory_equal(server.last, "POST /ok HTTP/1.1\r\n", 19);
    assert_int_equal(header("X-A", value, sizeof value), 1);
    assert_int_equal(header("Content-Type", value, sizeof value), 1);
    static const char form[] = "multipart/form-data; boundary=";
    assert_memory_equal(value, form, sizeof form - 1);
    const char *boundary = value + sizeof form - 1;
    assert_true(strlen(boundary) >= 16);
    struct buf expected;
    buf_init(&expected, 4096);
    int rc = buf_printf(
        &expected,
        "--%s\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nup/${filename}\r\n"
        "--%s\r\nContent-Disposition: form-data; name=\"a%%22b%%0D%%0A\"\r\n\r\nv\xc3\xa9\r\n"
        "--%s\r\nContent-Disposition: form-data; name=\"file\"; "
        "filename=\"a b/%%22c%%22%%0A\xc3\xa9.txt\"\r\nContent-Type: text/x\r\n\r\n",
        boundary, boundary, boundary);
    rc |= buf_append(&expected, "by\0tes\r\n--", 10);
    rc |= buf_printf(&expected, "\r\n--%s--\r\n", boundary);
    assert_int_equal(rc, 0);
    assert_int_equal(server.last_body, expected.len);
    assert_memory_equal(body(), expected.data, expected.len);
    buf_fini(&expected);
    json_decref(fields);
    json_decref(headers);
}

/* The contract: POST is a form, with fields or without. */
static void test_form_without_fields(void **state)
{
    (void)state;
    char value[200];
    upload("/ok", (struct job_upload){.method = "POST"}, "", 0);
    assert_null(done.why);
    assert_int_equal(header("Content-Type", value, sizeof value), 1);
    assert_memory_equal(value, "multipart/form-data", 19);
    assert_non_null(strstr(body(), "name=\"file\"; filename="));
}

static void test_big(void **state)
{
    (void)state;
    size_t len = 5u << 20;
    char *bytes = mem_alloc(len);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)(i * 7 + i / 256);
    upload("/ok", (struct job_upload){.method = "PUT"}, bytes, len);
    assert_null(done.why);
    assert_int_equal(server.last_body, len);
    size_t head = (size_t)(body() - server.last);
    assert_memory_equal(body(), bytes, sizeof server.last - 1 - head);
    free(bytes);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *path, *why;
    } rows[] = {{"/busy", "429"}, {"/loop", "302"}, {"/die", ""}, {"/garbage", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[60];
        snprintf(path, sizeof path, "%s?sig=hunter2", rows[i].path);
        int before = server.requests;
        upload(path, (struct job_upload){.method = "PUT"}, "data", 4);
        assert_null(done.url);
        assert_non_null(done.why);
        if (strstr(done.why, rows[i].why) == NULL || strstr(done.why, "hunter2") != NULL)
            fail_msg("%s: %s", rows[i].path, done.why);
        assert_int_equal(server.requests, before + 1); /* never sent again */
    }
}

static void start_and_wait(const char *url, struct job_upload target, struct upload_file *f)
{
    target.url = url;
    done_reset();
    upload_start(client, &target, f, settings, on_uploaded, NULL);
    run_until(done.calls > 0);
    assert_null(done.url);
    assert_non_null(done.why);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const urls[] = {"http://169.254.169.254/latest",
                                       "http://[::1]/x",
                                       "ftp://h/x",
                                       "file:///etc/passwd",
                                       "no url",
                                       "http://10.0.0.1/{fileId}"};
    struct upload_file f = make_file("x", 1);
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        start_and_wait(urls[i], (struct job_upload){.method = "PUT"}, &f);
    close(f.fd);
}

static void test_bad_header_and_huge_form(void **state)
{
    (void)state;
    char url[60];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/ok", server.port);
    struct upload_file f = make_file("x", 1);
    char *big = mem_alloc(300000);
    memset(big, 'x', 299999);
    json_t *fields = json_pack("{s:s}", "k", big);
    int before = server.requests;
    start_and_wait(url, (struct job_upload){.method = "POST", .fields = fields}, &f);
    assert_non_null(strstr(done.why, "too large"));
    assert_int_equal(server.requests, before);
    json_decref(fields);
    free(big);
    close(f.fd);
}

/* A file that became shorter than was said: not an upload of half a file that looks whole. */
static void test_short_file(void **state)
{
    (void)state;
    char url[60];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/ok", server.port);
    struct upload_file f = make_file("abc", 3);
    f.size = 1000;
    int before = server.requests;
    start_and_wait(url, (struct job_upload){.method = "PUT"}, &f);
    assert_int_equal(server.requests, before);
    close(f.fd);
}

static void on_late(struct ev_loop *l, ev_timer *timer, int events)
{
    (void)l;
    (void)events;
    *(bool *)timer->data = true;
}

static void test_cancel(void **state)
{
    (void)state;
    char url[60];
    bool late = false;
    ev_timer wait;
    struct upload_file f = make_file("x", 1);
    done_reset();
    snprintf(url, sizeof url, "http://127.0.0.1:%d/silence", server.port);
    struct job_upload target = {.method = "PUT", .url = url};
    int before = server.requests;
    struct upload *under_way = upload_start(client, &target, &f, settings, on_uploaded, NULL);
    run_until(server.requests > before);
    upload_cancel(under_way);
    target.url = "ftp://refused/"; /* has failed, and not yet said so */
    upload_cancel(upload_start(client, &target, &f, settings, on_uploaded, NULL));
    ev_timer_init(&wait, on_late, 0.1, 0);
    wait.data = &late;
    ev_timer_start(loop, &wait);
    run_until(late);
    assert_int_equal(done.calls, 0);
    run_until(server.open == 0);
    close(f.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expand),       cmocka_unit_test(test_put),
        cmocka_unit_test(test_put_own_type), cmocka_unit_test(test_put_empty),
        cmocka_unit_test(test_form),         cmocka_unit_test(test_form_without_fields),
        cmocka_unit_test(test_big),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_addresses),    cmocka_unit_test(test_bad_header_and_huge_form),
        cmocka_unit_test(test_short_file),   cmocka_unit_test(test_cancel),
    };
    int failed = cmocka_run_group_tests_name("upload", tests, set_up, tear_down);
    done_reset();
    return failed;
}
