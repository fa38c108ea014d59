/* Tests of the HTTP client against a small server of faults on the same loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/http.h"
#include "common/mem.h"
#include "common/reaper.h"

static struct ev_loop *loop;
#include "http_server.h" /* runs on it */
static struct http *client;

#include "run_until.h"

static int set_up(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    (void)state;
    loop = ev_loop_new(EVFLAG_NOENV);
    reaper_init(loop);
    memset(&server, 0, sizeof(server));
    server.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(server.fd, (struct sockaddr *)&a, size) || listen(server.fd, 64) ||
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
    return 0;
}

/* ---- A request and what came of it ---- */

struct probe {
    struct http_request *request;
    bool inside; /* http_start is on the stack */
    int done, pieces;
    struct http_answer a; /* pointers below */
    char type[100], error[300];
    struct buf got;
    int abort_at; /* piece at which on_data refuses; 0 never */
    struct probe *cancel, *start;
    long upload_left, upload_fails_at;
};

static void start(struct probe *p, const char *path, struct http_options options);

static int on_data(void *data, const char *piece, size_t len)
{
    struct probe *p = data;
    assert_false(p->inside);
    p->pieces++;
    assert_int_equal(buf_append(&p->got, piece, len), 0);
    if (p->cancel) {
        http_cancel(p->cancel->request);
        p->cancel = NULL;
    }
    if (p->start) {
        start(p->start, "/ok", (struct http_options){0});
        p->start = NULL;
    }
    return p->pieces == p->abort_at ? -1 : 0;
}

static void on_done(void *data, const struct http_answer *a)
{
    struct probe *p = data;
    assert_false(p->inside);
    p->done++;
    p->a = *a;
    snprintf(p->type, sizeof(p->type), "%s", a->content_type ? a->content_type : "");
    snprintf(p->error, sizeof(p->error), "%s", a->error ? a->error : "");
    if (a->body) {
        assert_int_equal(a->body[a->body_len], '\0');
        assert_int_equal(buf_append(&p->got, a->body, a->body_len), 0);
    }
    if (p->start)
        start(p->start, "/ok", (struct http_options){0});
}

static long on_upload(void *data, char *into, size_t size)
{
    struct probe *p = data;
    if (p->upload_left == p->upload_fails_at)
        return -1;
    long n = p->upload_left < (long)size ? p->upload_left : (long)size;
    if (p->upload_left > p->upload_fails_at && p->upload_left - n < p->upload_fails_at)
        n = p->upload_left - p->upload_fails_at;
    memset(into, 'u', (size_t)n);
    p->upload_left -= n;
    return n;
}

static void start(struct probe *p, const char *path, struct http_options options)
{
    char url[300], err[200];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d%s", server.port, path);
    if (!options.url)
        options.url = url;
    if (!options.method)
        options.method = "GET";
    options.on_done = on_done;
    options.data = p;
    buf_init(&p->got, (size_t)8 << 20);
    p->inside = true;
    p->request = http_start(client, &options, err, sizeof(err));
    p->inside = false;
    if (!p->request)
        fail_msg("%s", err);
}

/* Starts a request and runs it to its end. */
static void fetch(struct probe *p, const char *path, struct http_options options)
{
    struct probe fresh = {.upload_left = p->upload_left,
                          .upload_fails_at = p->upload_fails_at,
                          .abort_at = p->abort_at};
    buf_fini(&p->got);
    *p = fresh;
    start(p, path, options);
    run_until(p->done);
}

/* ---- Tests ---- */

static void test_simple(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    const char *const headers[] = {"X-One: 1", "X-Empty:", "Accept: a/b", NULL};
    (void)state;
    fetch(&p, "/ok?q=1", (struct http_options){.headers = headers});
    assert_int_equal(p.a.result, HTTP_DONE);
    assert_int_equal(p.a.status, 200);
    assert_string_equal(p.type, "text/x; a=b");
    assert_string_equal(p.got.data, "hello");
    assert_null(p.a.error);
    assert_true(p.a.request_sent);
    assert_true(p.a.retry_after_ms == -1);
    assert_non_null(strstr(server.last, "GET /ok?q=1 HTTP/1.1\r\n"));
    assert_non_null(strstr(server.last, "\r\nX-One: 1\r\n"));
    assert_non_null(strstr(server.last, "\r\nX-Empty:\r\n"));
    assert_non_null(strstr(server.last, "\r\nAccept: a/b\r\n"));
    fetch(&p, "/ok", (struct http_options){.method = "HEAD"});
    assert_int_equal(p.a.status, 200);
    assert_int_equal(p.a.body_len, 0);
    fetch(&p, "/chunked", (struct http_options){.on_data = on_data});
    assert_string_equal(p.got.data, "abcde");
    assert_null(p.a.body);
    fetch(&p, "/early", (struct http_options){0});
    assert_int_equal(p.a.status, 204);
    assert_true(p.a.retry_after_ms == -1); /* the 103's does not count */
    assert_int_equal(server.accepted, 1);  /* all on one connection */
    buf_fini(&p.got);
}

static void test_bodies(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    (void)state;
    fetch(&p, "/echo", (struct http_options){.method = "POST", .body = "a=b&c", .body_len = 5});
    assert_string_equal(p.got.data, "a=b&c");
    assert_true(p.a.request_sent);
    assert_non_null(strstr(server.last, "POST /echo "));
    assert_null(strcasestr(server.last, "Expect:"));
    assert_null(strcasestr(server.last, "Content-Type:"));
    fetch(&p, "/ok", (struct http_options){.method = "POST"});
    assert_int_equal(p.a.status, 200);
    assert_non_null(strstr(server.last, "Content-Length: 0\r\n"));
    fetch(&p, "/ok", (struct http_options){.method = "DELETE"});
    assert_non_null(strstr(server.last, "DELETE /ok "));

    char *big = mem_alloc((size_t)3 << 20);
    memset(big, 'b', (size_t)3 << 20);
    fetch(&p, "/ok",
          (struct http_options){.method = "PATCH", .body = big, .body_len = (size_t)3 << 20});
    free(big);
    assert_int_equal(p.a.status, 200);
    assert_int_equal(server.last_body, 3 << 20);
    assert_null(strcasestr(server.last, "Expect:"));

    p.upload_left = 1 << 20;
    fetch(&p, "/ok",
          (struct http_options){.method = "PUT", .read_body = on_upload, .read_body_len = 1 << 20});
    assert_int_equal(p.a.status, 200);
    assert_int_equal(server.last_body, 1 << 20);
    assert_int_equal(p.upload_left, 0);
    p.upload_left = 1 << 20;
    fetch(&p, "/ok",
          (struct http_options){.method = "PUT", .read_body = on_upload, .read_body_len = -1});
    assert_int_equal(p.a.status, 200);
    assert_true(server.last_body > 1 << 20); /* chunked */
    buf_fini(&p.got);
}

/* A streamed body that fails, or ends before its promised length, must not look complete. */
static void test_body_breaks_off(void **state)
{
    struct probe p = {0};
    (void)state;
    for (int chunked = 0; chunked < 2; chunked++) {
        p.upload_left = 1 << 20;
        p.upload_fails_at = 1 << 19;
        fetch(&p, "/ok",
              (struct http_options){.method = "PUT",
                                    .read_body = on_upload,
                                    .read_body_len = chunked ? -1 : 1 << 20});
        assert_int_equal(p.a.result, HTTP_REFUSED);
        assert_true(p.a.request_sent);
    }
    p.upload_left = 1000;
    p.upload_fails_at = -1;
    fetch(&p, "/ok",
          (struct http_options){.method = "PUT", .read_body = on_upload, .read_body_len = 2000});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    run_until(server.open == 0);
    assert_int_equal(server.requests, 0);
    buf_fini(&p.got);
}

/* The one that matters: a reused connection that dies after taking the code must not deliver it
 * twice. */
static void test_never_twice(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    (void)state;
    fetch(&p, "/ok", (struct http_options){0});
    assert_int_equal(server.accepted, 1);
    fetch(&p, "/die", (struct http_options){.method = "POST", .body = "run me", .body_len = 6});
    assert_int_equal(server.requests, 2);
    assert_int_equal(server.last_nth, 2); /* it was the reused connection */
    assert_int_equal(p.a.result, HTTP_CUT);
    assert_true(p.a.request_sent);
    assert_int_equal(p.a.status, 0);

    fetch(&p, "/ok", (struct http_options){0});
    p.upload_left = 10000;
    fetch(&p, "/die",
          (struct http_options){.method = "POST", .read_body = on_upload, .read_body_len = 10000});
    assert_int_equal(p.a.result, HTTP_CUT);
    assert_int_equal(server.requests, 4);
    assert_int_equal(server.last_nth, 2);

    fetch(&p, "/die", (struct http_options){.method = "POST", .body = "run me", .body_len = 6});
    assert_int_equal(p.a.result, HTTP_CUT); /* a fresh connection */
    assert_int_equal(server.requests, 5);
    /* What the server closed while idle costs nothing. */
    fetch(&p, "/ok", (struct http_options){0});
    conn_close(server.conns);
    fetch(&p, "/echo", (struct http_options){.method = "POST", .body = "x", .body_len = 1});
    assert_int_equal(p.a.result, HTTP_DONE);
    buf_fini(&p.got);
}

static void test_broken_answers(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    (void)state;
    fetch(&p, "/cut", (struct http_options){.on_data = on_data});
    assert_int_equal(p.a.result, HTTP_CUT);
    assert_int_equal(p.a.status, 200);
    assert_string_equal(p.got.data, "0123456789");
    fetch(&p, "/garbage?secret",
          (struct http_options){.method = "POST", .body = "x", .body_len = 1});
    assert_int_equal(p.a.result, HTTP_CUT);
    assert_null(strstr(p.error, "secret"));
    fetch(&p, "/big", (struct http_options){0});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    assert_non_null(strstr(p.error, "larger"));
    fetch(&p, "/big", (struct http_options){.max_body_bytes = (size_t)2 << 20});
    assert_int_equal(p.a.result, HTTP_DONE);
    assert_int_equal(p.a.body_len, 2 << 20);
    fetch(&p, "/big", (struct http_options){.on_data = on_data, .max_body_bytes = 100});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    assert_true(p.got.len <= 100);
    fetch(&p, "/wide-head", (struct http_options){0});
    assert_int_not_equal(p.a.result, HTTP_DONE);
    p.abort_at = 1;
    fetch(&p, "/big", (struct http_options){.on_data = on_data, .max_body_bytes = SIZE_MAX});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    assert_int_equal(p.pieces, 1);
    buf_fini(&p.got);
}

static void test_unreachable(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    char url[200];
    (void)state;
    snprintf(url, sizeof(url), "http://bob:canary@127.0.0.1:%d/p?token=canary", server.port);
    ev_io_stop(loop, &server.io);
    close(server.fd);
    fetch(&p, "", (struct http_options){.url = url, .method = "POST", .body = "x", .body_len = 1});
    assert_int_equal(p.a.result, HTTP_FAILED);
    assert_false(p.a.request_sent);
    assert_int_equal(p.a.status, 0);
    assert_non_null(strstr(p.error, "127.0.0.1"));
    assert_null(strstr(p.error, "canary"));
    assert_null(strchr(p.error, '\n'));
    fetch(&p, "", (struct http_options){.url = "http://no-such-host.invalid/?canary"});
    assert_int_equal(p.a.result, HTTP_FAILED);
    assert_false(p.a.request_sent);
    assert_null(strstr(p.error, "canary"));
    server.fd = socket(AF_INET, SOCK_STREAM, 0);
    buf_fini(&p.got);
}

static void test_timeouts(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    (void)state;
    fetch(&p, "/silence", (struct http_options){.idle_timeout_ms = 100});
    assert_int_equal(p.a.result, HTTP_TIMED_OUT);
    assert_true(p.a.request_sent);
    run_until(server.open == 0); /* and the connection is closed */
    fetch(&p, "/head-only", (struct http_options){.idle_timeout_ms = 100, .on_data = on_data});
    assert_int_equal(p.a.result, HTTP_TIMED_OUT);
    assert_int_equal(p.a.status, 200);
    assert_string_equal(p.got.data, "abc");
    /* Bytes put the idle deadline off, never the total one. */
    fetch(
        &p, "/trickle",
        (struct http_options){.idle_timeout_ms = 200, .total_timeout_ms = 600, .on_data = on_data});
    assert_int_equal(p.a.result, HTTP_TIMED_OUT);
    assert_non_null(strstr(p.error, "600 ms"));
    assert_true(p.pieces > 5);
    buf_fini(&p.got);
}

static void test_redirects(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    const char *const headers[] = {"Authorization: Bearer canary", NULL};
    char url[100];
    (void)state;
    fetch(&p, "/to-ok", (struct http_options){0});
    assert_int_equal(p.a.status, 302); /* none followed by default */
    assert_string_equal(p.got.data, "go there!");
    fetch(&p, "/to-ok", (struct http_options){.max_redirects = 1, .headers = headers});
    assert_int_equal(p.a.status, 200);
    assert_string_equal(p.got.data, "hello");
    assert_non_null(strstr(server.last, "canary")); /* the same host */
    snprintf(url, sizeof(url), "http://localhost:%d/to-loopback", server.port);
    fetch(&p, "", (struct http_options){.url = url, .max_redirects = 1, .headers = headers});
    assert_int_equal(p.a.status, 200);
    assert_null(strstr(server.last, "canary")); /* another host */
    fetch(&p, "/loop", (struct http_options){.max_redirects = 3});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    assert_non_null(strstr(p.error, "more than 3"));
    fetch(&p, "/to-file", (struct http_options){.max_redirects = 3});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    fetch(&p, "/to-ftp", (struct http_options){.max_redirects = 3});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    int before = server.requests;
    fetch(&p, "/to-ok",
          (struct http_options){.method = "POST", .body = "x", .body_len = 1, .max_redirects = 3});
    assert_int_equal(p.a.status, 302); /* a body is sent once */
    assert_string_equal(p.got.data, "go there!");
    assert_int_equal(server.requests, before + 1);
    buf_fini(&p.got);
}

static void test_public_only(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost",          "2130706433", "0x7f.1",
                                        "[::1]",     "[::ffff:127.0.0.1]", "0.0.0.0",    "[::]"};
    struct probe p = {.upload_fails_at = -1};
    char url[100], list[100];
    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        snprintf(url, sizeof(url), "http://%s:%d/ok", hosts[i], server.port);
        fetch(&p, "", (struct http_options){.url = url, .public_only = true});
        if (p.a.result != HTTP_REFUSED)
            fail_msg("%s: %d %s", url, p.a.result, p.error);
        assert_false(p.a.request_sent);
    }
    assert_int_equal(server.accepted, 0);
    setenv("http_proxy", "http://127.0.0.1:1", 1); /* is not asked */
    snprintf(list, sizeof(list), "other:1,localhost:%d", server.port);
    struct http_options options = {.public_only = true, .allow_list = list, .max_redirects = 5};
    snprintf(url, sizeof(url), "http://localhost:%d/ok", server.port);
    options.url = url;
    fetch(&p, "", options);
    assert_int_equal(p.a.result, HTTP_DONE);
    unsetenv("http_proxy");

    /* From an allowed host to one that is not on the list, though it is the same server. */
    snprintf(url, sizeof(url), "http://localhost:%d/to-loopback", server.port);
    int before = server.requests;
    fetch(&p, "", options);
    assert_int_equal(p.a.result, HTTP_REFUSED);
    assert_int_equal(server.requests, before + 1);
    assert_non_null(strstr(p.error, "not a public address"));
    assert_null(strstr(p.error, "secret"));

    /* A connection that an unchecked request left open is not a way around. */
    fetch(&p, "/ok", (struct http_options){0});
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/ok", server.port);
    fetch(&p, "", (struct http_options){.url = url, .public_only = true});
    assert_int_equal(p.a.result, HTTP_REFUSED);
    buf_fini(&p.got);
}

static void test_retry_after(void **state)
{
    struct probe p = {.upload_fails_at = -1};
    (void)state;
    fetch(&p, "/busy", (struct http_options){0});
    assert_int_equal(p.a.status, 429);
    assert_int_equal(p.a.retry_after_ms, 7000);
    fetch(&p, "/busy-date", (struct http_options){0});
    assert_in_range(p.a.retry_after_ms, 25000, 30000);
    fetch(&p, "/busy-past", (struct http_options){0});
    assert_int_equal(p.a.retry_after_ms, 0);
    fetch(&p, "/busy-odd", (struct http_options){0});
    assert_true(p.a.retry_after_ms == -1);
    buf_fini(&p.got);
}

static void test_bad_options(void **state)
{
    static const char *const urls[] = {
        "ftp://h/",    "file:///etc/passwd", "h/x", "http://", "http://h:x/",
        "http://h h/", "http://h/\r\nX: y",  "",    NULL};
    static const char *const bad_headers[] = {"X: a\r\nY: b", "NoColon", ": x", "A B: c", "X;: y"};
    char err[200];
    (void)state;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct http_options o = {.method = "GET", .url = urls[i]};
        err[0] = '\0';
        if (http_start(client, &o, err, sizeof(err)))
            fail_msg("accepted: %s", urls[i]);
        assert_true(err[0]);
    }
    for (size_t i = 0; i < sizeof(bad_headers) / sizeof(bad_headers[0]); i++) {
        const char *const headers[] = {bad_headers[i], NULL};
        struct http_options o = {.method = "GET", .url = "http://h/", .headers = headers};
        if (http_start(client, &o, err, sizeof(err)))
            fail_msg("accepted: %s", bad_headers[i]);
    }
    struct http_options o = {.method = "GET /x", .url = "http://h/"};
    assert_null(http_start(client, &o, err, sizeof(err)));
}

static void test_cancel(void **state)
{
    struct probe a = {0}, b = {0}, c = {0};
    (void)state;
    start(&a, "/silence", (struct http_options){0});
    http_cancel(a.request); /* before it began */
    start(&a, "/silence", (struct http_options){0});
    run_until(server.requests == 1);
    http_cancel(a.request);
    run_until(server.open == 0); /* closed at once */
    assert_int_equal(a.done, 0);

    /* From another one's on_data, in the middle of curl; and a new one started there. */
    start(&a, "/trickle", (struct http_options){.on_data = on_data});
    run_until(a.pieces > 0);
    b.cancel = &a;
    b.start = &c;
    start(&b, "/chunked", (struct http_options){.on_data = on_data});
    run_until(b.done && c.done);
    assert_int_equal(c.a.status, 200);
    assert_int_equal(a.done, 0);
    buf_fini(&c.got);
    buf_fini(&b.got);

    /* And from an on_done. */
    memset(&b, 0, sizeof(b));
    memset(&c, 0, sizeof(c));
    b.start = &c;
    start(&b, "/ok", (struct http_options){0});
    run_until(c.done);
    assert_string_equal(c.got.data, "hello");
    buf_fini(&a.got);
    buf_fini(&b.got);
    buf_fini(&c.got);
}

/* http_free with requests in every state: no callback. */
static void test_free_busy(void **state)
{
    struct probe a = {0}, b = {0}, c = {0};
    (void)state;
    start(&a, "/silence", (struct http_options){0});
    start(&b, "/trickle", (struct http_options){.on_data = on_data});
    run_until(b.pieces > 0);
    start(&c, "/ok", (struct http_options){0});
    http_free(client);
    client = NULL;
    int pieces = b.pieces;
    run_until(server.open == 0);
    assert_int_equal(a.done + b.done + c.done, 0);
    assert_int_equal(b.pieces, pieces);
    buf_fini(&b.got);
}

static int done_of(const struct probe *p, int count)
{
    int done = 0;
    for (int i = 0; i < count; i++)
        done += p[i].done;
    return done;
}

static void test_many(void **state)
{
    enum { COUNT = 100 };
    static struct probe p[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++)
        start(&p[i], i % 2 ? "/ok" : "/chunked", (struct http_options){0});
    run_until(done_of(p, COUNT) == COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(p[i].done, 1);
        assert_string_equal(p[i].got.data, i % 2 ? "hello" : "abcde");
        buf_fini(&p[i].got);
    }
}

/* No socket of ours may be left open in a child. */
static void test_close_on_exec(void **state)
{
    struct probe a = {0};
    struct sockaddr_in peer;
    (void)state;
    start(&a, "/silence", (struct http_options){0});
    run_until(server.requests == 1);
    int found = 0;
    for (int fd = 3; fd < 256; fd++) {
        socklen_t size = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &size) || peer.sin_family != AF_INET ||
            ntohs(peer.sin_port) != server.port)
            continue;
        found++;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    assert_int_equal(found, 1);
    http_cancel(a.request);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_simple),      TEST(test_bodies),         TEST(test_body_breaks_off),
        TEST(test_never_twice), TEST(test_broken_answers), TEST(test_unreachable),
        TEST(test_timeouts),    TEST(test_redirects),      TEST(test_public_only),
        TEST(test_retry_after), TEST(test_bad_options),    TEST(test_cancel),
        TEST(test_free_busy),   TEST(test_many),           TEST(test_close_on_exec),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
