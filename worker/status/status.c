/* The status port: a few plain pages over HTTP, on the loop (libmicrohttpd without its threads). */
#include "worker/status/status.h"

#include "common/log.h"
#include "common/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ev.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX    32
#define CONNECTION_MEMORY  4096 /* head of a request, and of its answer */
#define CONNECTION_LIMIT_S 10u  /* of silence */
#define PAGE_MAX           ((size_t)4 << 20)
#define LISTEN_AGAIN_S     5.0
#define BACKLOG            16

struct status {
    struct status_options o;
    struct sockaddr_storage address;
    socklen_t address_len;
    struct MHD_Daemon *daemon; /* NULL: it does not listen */
    struct ev_io io;           /* of the daemon's epoll descriptor: readable when it has work */
    struct ev_timer timer;     /* its next deadline, or the next try to listen */
    char last_failure[128];    /* said already */
};

static int parse_address(struct status *s, const char *host, int port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&s->address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&s->address;
    if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &v4->sin_addr) ==
        1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        s->address_len = sizeof *v4;
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        s->address_len = sizeof *v6;
    } else {
        return -1;
    }
    return 0;
}

/* ---- one request ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              struct buf *body)
{
    size_t len = body->len;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, buf_steal(body), MHD_RESPMEM_MUST_FREE);
    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *data, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request)
{
    (void)version, (void)upload, (void)upload_size, (void)request;
    const struct status *s = data;
    const struct status_page *page = s->o.pages;
    unsigned status = MHD_HTTP_NOT_FOUND;
    const char *type = "text/plain; charset=utf-8";
    struct buf body;
    buf_init(&body, PAGE_MAX);
    while (page->path != NULL && strcmp(page->path, url) != 0)
        page++;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
    } else if (page->path != NULL) {
        type = page->type;
        status = (unsigned)page->write(&body, s->o.data);
    }
    if (body.len == 0 && buf_printf(&body, "%u\n", status) != 0)
        status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    enum MHD_Result result = answer(connection, status, type, &body);
    buf_fini(&body);
    return result;
}

/* ---- the daemon on our loop ---- */

static void listen_now(struct status *s);

static void run_daemon(struct status *s)
{
    MHD_UNSIGNED_LONG_LONG ms;
    MHD_run(s->daemon);
    ev_timer_stop(s->o.loop, &s->timer);
    if (MHD_get_timeout(s->daemon, &ms) != MHD_YES)
        return;
    ev_now_update(s->o.loop);
    ev_timer_set(&s->timer, (double)ms / 1000.0, 0);
    ev_timer_start(s->o.loop, &s->timer);
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int revents)
{
    (void)loop, (void)revents;
    run_daemon(io->data);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    struct status *s = w->data;
    if (s->daemon != NULL)
        run_daemon(s);
    else
        listen_now(s);
}

__attribute__((format(printf, 2, 0))) static void on_mhd_line(void *data, const char *fmt,
                                                              va_list args)
{
    char text[256];
    (void)data;
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = '\0';
    log_debug("status port: %s", text);
}

/* A listening socket of our own: so that a failure is known with its reason. */
static int open_listener(const struct status *s)
{
    int on = 1, fd = socket(s->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&s->address, s->address_len) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                              : ((struct sockaddr_in6 *)&address)->sin6_port);
}

static void listen_later(struct status *s, const char *setting, const char *why)
{
    log_write(strcmp(why, s->last_failure) == 0 ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, NULL,
              "%s: cannot listen on %s, port %d: %s; trying again every %.0f s, jobs are "
              "run meanwhile",
              setting, s->o.host, s->o.port, why, LISTEN_AGAIN_S);
    snprintf(s->last_failure, sizeof s->last_failure, "%s", why);
    ev_timer_set(&s->timer, LISTEN_AGAIN_S, 0);
    ev_timer_start(s->o.loop, &s->timer);
}

static void listen_now(struct status *s)
{
    int fd = open_listener(s);
    if (fd < 0) {
        listen_later(s, errno == EADDRNOTAVAIL ? "STATUS_HOST" : "STATUS_PORT", strerror(errno));
        return;
    }
    int port = port_of(fd);
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER,
        on_mhd_line, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_LIMIT_S, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        s->daemon != NULL ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (info == NULL) {
        if (s->daemon != NULL)
            MHD_stop_daemon(s->daemon);
        else
            close(fd);
        s->daemon = NULL;
        listen_later(s, "STATUS_PORT", "libmicrohttpd cannot be started");
        return;
    }
    s->last_failure[0] = '\0';
    ev_io_init(&s->io, on_readable, info->epoll_fd, EV_READ);
    s->io.data = s;
    ev_io_start(s->o.loop, &s->io);
    log_info("status port: listening on %s, port %d", s->o.host, port);
}

/* ---- life ---- */

struct status *status_new(const struct status_options *options)
{
    struct status *s = mem_alloc(sizeof *s);
    s->o = *options;
    s->o.host = mem_strdup(options->host);
    ev_timer_init(&s->timer, on_timer, 0, 0);
    s->timer.data = s;
    if (parse_address(s, options->host, options->port) != 0)
        abort(); /* settings.c has seen to it */
    listen_now(s);
    return s;
}

void status_free(struct status *s)
{
    if (s == NULL)
        return;
    ev_timer_stop(s->o.loop, &s->timer);
    if (s->daemon != NULL) {
        ev_io_stop(s->o.loop, &s->io); /* before its descriptor is closed */
        MHD_stop_daemon(s->daemon);
    }
    free((char *)s->o.host);
    free(s);
}
