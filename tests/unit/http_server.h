/* A small HTTP server of faults for unit tests, on the test's own loop. The path says what it does.
 */
#ifndef SANDPIPER_TESTS_HTTP_SERVER_H
#define SANDPIPER_TESTS_HTTP_SERVER_H

/* The including test has included cmocka.h and defines the loop. */
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/mem.h"

struct conn {
    struct conn *next;
    struct ev_io in, out;
    struct ev_timer tick;
    struct buf got, answer;
    size_t answered;
    bool close_after; /* the answer */
    int requests;     /* on this connection */
};

static struct {
    int fd, port;
    struct ev_io io;
    struct conn *conns;
    int last_nth; /* of its connection's requests, the last one was this */
    int accepted, open;
    int requests;     /* whole ones received */
    char last[65536]; /* the last one, head and body */
    size_t last_body; /* its length */
} server;

static void conn_close(struct conn *c)
{
    struct conn **at = &server.conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    ev_io_stop(loop, &c->in);
    ev_io_stop(loop, &c->out);
    ev_timer_stop(loop, &c->tick);
    close(c->in.fd);
    buf_fini(&c->got);
    buf_fini(&c->answer);
    free(c);
    server.open--;
}

__attribute__((format(printf, 2, 3))) static void say(struct conn *c, const char *fmt, ...)
{
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    assert_int_equal(buf_append_str(&c->answer, text), 0);
    ev_io_start(loop, &c->out);
}

static void say_many(struct conn *c, size_t len)
{
    char *many = mem_alloc(len);
    memset(many, 'x', len);
    say(c, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len);
    assert_int_equal(buf_append(&c->answer, many, len), 0);
    free(many);
}

__attribute__((format(printf, 2, 3))) static void redirect_to(struct conn *c, const char *fmt, ...)
{
    char to[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(to, sizeof(to), fmt, args);
    va_end(args);
    say(c, "HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 9\r\n\r\ngo there!", to);
}

static void on_tick(struct ev_loop *l, ev_timer *timer, int events)
{
    (void)l;
    (void)events;
    say(timer->data, "1\r\nx\r\n");
}

static void answer(struct conn *c, const char *method, const char *path, const char *body,
                   size_t len)
{
    if (!strcmp(path, "/ok"))
        say(c, "HTTP/1.1 200 OK\r\nContent-Type: text/x; a=b\r\nContent-Length: 5\r\n\r\n%s",
            strcmp(method, "HEAD") ? "hello" : "");
    else if (!strcmp(path, "/chunked"))
        say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: "
               "chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n");
    else if (!strcmp(path, "/early"))
        say(c, "HTTP/1.1 103 Early Hints\r\nRetry-After: 99\r\n\r\n"
               "HTTP/1.1 204 No Content\r\n\r\n");
    else if (!strcmp(path, "/echo"))
        say(c, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%.*s", len, (int)len, body);
    else if (!strcmp(path, "/cut"))
        say(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789"), c->close_after = true;
    else if (!strcmp(path, "/die"))
        conn_close(c);
    else if (!strcmp(path, "/garbage"))
        say(c, "SSH-2.0-nothing\r\n"), c->close_after = true;
    else if (!strcmp(path, "/head-only"))
        say(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
    else if (!strcmp(path, "/big"))
        say_many(c, (size_t)2 << 20);
    else if (!strcmp(path, "/loop"))
        redirect_to(c, "/loop");
    else if (!strcmp(path, "/to-ok"))
        redirect_to(c, "ok");
    else if (!strcmp(path, "/to-loopback"))
        redirect_to(c, "http://127.0.0.1:%d/ok?x=secret", server.port);
    else if (!strcmp(path, "/to-file"))
        redirect_to(c, "file:///etc/passwd");
    else if (!strcmp(path, "/to-ftp"))
        redirect_to(c, "ftp://localhost/x");
    else if (!strcmp(path, "/busy"))
        say(c, "HTTP/1.1 429 Too Many\r\nretry-after:  7 \r\nContent-Length: 0\r\n\r\n");
    else if (!strcmp(path, "/busy-date")) {
        char date[64];
        time_t when = time(NULL) + 30;
        strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime(&when));
        say(c, "HTTP/1.1 503 No\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n", date);
    } else if (!strcmp(path, "/busy-past"))
        say(c, "HTTP/1.1 503 No\r\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n"
               "Content-Length: 0\r\n\r\n");
    else if (!strcmp(path, "/busy-odd"))
        say(c, "HTTP/1.1 503 No\r\nRetry-After: soonish\r\nContent-Length: 0\r\n\r\n");
    else if (!strcmp(path, "/trickle")) {
        say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        ev_timer_set(&c->tick, 0.02, 0.02);
        ev_timer_start(loop, &c->tick);
    } else if (!strcmp(path, "/wide-head")) {
        say(c, "HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 300; i++)
            say(c, "X-%d: %01000d\r\n", i, 0);
        say(c, "\r\n");
    } /* "/silence": nothing */
}

/* The length of the whole request in the buffer, 0 while it is not all there. */
static size_t request_length(const struct buf *got, size_t *head, size_t *body)
{
    char *end = got->data ? strstr(got->data, "\r\n\r\n") : NULL;
    if (!end)
        return 0;
    *head = (size_t)(end - got->data) + 4;
    *body = 0;
    char *field = strcasestr(got->data, "\r\nContent-Length:");
    if (field && field < end) {
        *body = strtoul(field + 17, NULL, 10);
        return got->len >= *head + *body ? *head + *body : 0;
    }
    if (strcasestr(got->data, "\r\nTransfer-Encoding: chunked")) {
        char *last = strstr(end, "\r\n0\r\n\r\n");
        *body = last ? (size_t)(last + 7 - got->data) - *head : 0;
        return last ? *head + *body : 0;
    }
    return *head;
}

static void on_in(struct ev_loop *l, ev_io *io, int events)
{
    struct conn *c = io->data;
    char piece[65536], method[16], path[256];
    size_t head = 0, body = 0;
    (void)l;
    (void)events;
    ssize_t n = read(io->fd, piece, sizeof(piece));
    if (n <= 0) {
        conn_close(c);
        return;
    }
    assert_int_equal(buf_append(&c->got, piece, (size_t)n), 0);
    size_t whole = request_length(&c->got, &head, &body);
    if (!whole)
        return;
    server.requests++;
    server.last_nth = ++c->requests;
    server.last_body = body;
    size_t keep = whole < sizeof(server.last) ? whole : sizeof(server.last) - 1;
    memcpy(server.last, c->got.data, keep);
    server.last[keep] = '\0';
    assert_int_equal(sscanf(c->got.data, "%15s %255[^ ?]", method, path), 2);
    buf_consume(&c->got, whole);
    answer(c, method, path, server.last + head, body < keep - head ? body : keep - head);
}

static void on_out(struct ev_loop *l, ev_io *io, int events)
{
    struct conn *c = io->data;
    (void)events;
    ssize_t n = send(io->fd, c->answer.data, c->answer.len, MSG_NOSIGNAL);
    if (n < 0) {
        conn_close(c);
        return;
    }
    buf_consume(&c->answer, (size_t)n);
    if (c->answer.len)
        return;
    ev_io_stop(l, io);
    if (c->close_after)
        conn_close(c);
}

static void on_accept(struct ev_loop *l, ev_io *io, int events)
{
    (void)events;
    int fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct conn *c = mem_alloc(sizeof(*c));
    buf_init(&c->got, (size_t)64 << 20);
    buf_init(&c->answer, (size_t)64 << 20);
    ev_io_init(&c->in, on_in, fd, EV_READ);
    ev_io_init(&c->out, on_out, fd, EV_WRITE);
    ev_timer_init(&c->tick, on_tick, 0, 0);
    c->in.data = c->out.data = c->tick.data = c;
    c->next = server.conns;
    server.conns = c;
    server.accepted++;
    server.open++;
    ev_io_start(l, &c->in);
}

#endif
