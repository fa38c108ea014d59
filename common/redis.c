/* The state machine of a Redis connection: resolve, connect, greet, ready, lost, pause, again. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/redis_impl.h"

/* A peer that vanished without a word: noticed by the kernel after this, under a blocking command
 * too. */
#define REDIS_KEEPALIVE_IDLE_S     15
#define REDIS_KEEPALIVE_INTERVAL_S 5
#define REDIS_KEEPALIVE_PROBES     3
#define REDIS_USER_TIMEOUT_MS      30000
#define REDIS_SAME_FAILURE_MS      10000

static void redis_connect_start(struct redis *r);
static void redis_connect_next(struct redis *r);

long long redis_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void redis_set_state(struct redis *r, enum redis_state state)
{
    static const char *const names[] = {"waiting",  "locating", "resolving", "connecting",
                                        "greeting", "ready",    "closed"};
    log_debug("redis (%s): %s -> %s", r->options.label, names[r->state], names[state]);
    r->state = state;
}

/* ---- Time ---- */

static void redis_timer_at(struct redis *r, long long at)
{
    long long ms = at - redis_now_ms();
    r->timer_at = at;
    ev_now_update(r->loop); /* after a long callback the loop's clock is late and the timer early */
    ev_timer_stop(r->loop, &r->timer);
    ev_timer_set(&r->timer, ms > 0 ? (double)ms / 1000 : 0, 0);
    ev_timer_start(r->loop, &r->timer);
}

void redis_timer_before(struct redis *r, long long at)
{
    if (r->state == REDIS_STATE_READY && (!ev_is_active(&r->timer) || at < r->timer_at))
        redis_timer_at(r, at);
}

/* Half to all of min * 2^failures, so that replicas do not come back in step. */
static long long redis_backoff_ms(const struct redis *r)
{
    long long limit = r->options.backoff_min_ms;
    for (int i = 1; i < r->failures && limit < r->options.backoff_max_ms; i++)
        limit *= 2;
    if (limit > r->options.backoff_max_ms)
        limit = r->options.backoff_max_ms;
    return limit / 2 + random() % (limit / 2 + 1);
}

static void redis_idle_ping(struct redis *r)
{
    const char *const argv[] = {"PING"};
    if (redis_send(r, REDIS_STEP_IDLE_PING, 1, argv, NULL, 0, NULL, NULL))
        redis_drop(r, false, "no memory for a PING");
}

/* The next thing to be due in READY: a deadline, or with nothing under way the idle PING. */
static void redis_ready_timer(struct redis *r)
{
    const struct redis_call *whose = NULL;
    long long now = redis_now_ms();
    long long due = redis_next_deadline(r, &whose);
    if (whose && due <= now) {
        redis_drop(r, false, "no answer to %s within %d ms", whose->name, whose->timeout_ms);
        return;
    }
    if (!whose && r->options.idle_ping_ms > 0) {
        due = r->last_heard + r->options.idle_ping_ms;
        if (due <= now) {
            redis_idle_ping(r); /* arms the timer for its own deadline */
            return;
        }
    }
    if (due >= 0)
        redis_timer_at(r, due);
}

const char *redis_greeting_hint(const struct redis *r)
{
    return r->url.tls && r->state == REDIS_STATE_GREETING
               ? " (does the server speak TLS, and does it accept, or want, a client certificate?)"
               : "";
}

static void redis_attempt_timed_out(struct redis *r)
{
    static const char *const doing[] = {[REDIS_STATE_LOCATING] = "asking the sentinels",
                                        [REDIS_STATE_RESOLVING] = "resolving the host name",
                                        [REDIS_STATE_CONNECTING] = "connecting",
                                        [REDIS_STATE_GREETING] =
                                            "waiting for the greeting's answers"};
    redis_drop(r, false, "timed out after %d ms %s%s", r->options.connect_timeout_ms,
               doing[r->state], redis_greeting_hint(r));
}

static void redis_on_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct redis *r = timer->data;
    (void)loop;
    (void)events;
    if (r->state == REDIS_STATE_READY) {
        const struct redis_call *whose = NULL;
        /* When it was we who stalled, the answer may be waiting in the socket: look before judging.
         */
        if (redis_next_deadline(r, &whose) <= redis_now_ms() && whose)
            redis_read(r);
        if (r->state == REDIS_STATE_READY)
            redis_ready_timer(r);
    } else if (r->deadline > redis_now_ms()) {
        redis_timer_at(r, r->deadline);
    } else if (r->state == REDIS_STATE_WAITING) {
        redis_connect_start(r);
    } else if (r->state != REDIS_STATE_CLOSED) {
        redis_attempt_timed_out(r);
    }
}

/* ---- Losing the connection ---- */

static void redis_close_socket(struct redis *r)
{
    if (r->lookup)
        resolve_cancel(r->lookup);
    r->lookup = NULL;
    redis_locate_cancel(r);
    ev_timer_stop(r->loop, &r->timer);
    if (!r->ctx)
        return;
    ev_io_stop(r->loop, &r->readable);
    ev_io_stop(r->loop, &r->writable);
    redisFree(r->ctx);
    r->ctx = NULL;
}

const char *redis_setting(const struct redis *r)
{
    return r->url.setting ? r->url.setting : "REDIS_URL";
}

/* The same failure again and again gets one line, until it changes or the connection works; and one
 * line for all connections to the same server. */
static void redis_log_failure(struct redis *r, const char *reason)
{
    static char last[512];
    static long long last_at;
    char text[sizeof(last)];
    long long now = redis_now_ms();

    snprintf(text, sizeof(text), "%s: %s", r->where, reason);
    bool known = r->options.quiet || !strcmp(r->last_failure, reason);
    bool others = !strcmp(last, text) && now - last_at < REDIS_SAME_FAILURE_MS;
    log_write(known || others ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, NULL,
              "redis (%s) %s, %s: %s; trying again", r->options.label, r->where, redis_setting(r),
              reason);
    snprintf(r->last_failure, sizeof(r->last_failure), "%s", reason);
    if (!known && !others) {
        snprintf(last, sizeof(last), "%s", text);
        last_at = now;
    }
}

/* The connection, or the attempt at one, is over; the next attempt begins after delay_ms. */
static void redis_part(struct redis *r, const char *reason, long long delay_ms)
{
    if (r->state == REDIS_STATE_READY) {
        r->tell_lost = true;
        snprintf(r->lost_reason, sizeof(r->lost_reason), "%s", reason);
    }
    redis_close_socket(r);
    redis_calls_abandon(r);
    redis_set_state(r, REDIS_STATE_WAITING);
    r->deadline = redis_now_ms() + delay_ms;
    redis_schedule_turn(r);
}

__attribute__((format(printf, 4, 0))) static void redis_fail(struct redis *r, bool at_once,
                                                             bool permanent, const char *fmt,
                                                             va_list args)
{
    char reason[256];
    vsnprintf(reason, sizeof(reason), fmt, args);
    redis_log_failure(r, reason);
    if (r->state == REDIS_STATE_READY) {
        r->flapping = r->failures > 0; /* it became ready and never served */
    } else {
        r->tell_failed = true;
        r->permanent = permanent;
        redis_route_failed(r);
    }
    if (r->failures < 30)
        r->failures++;
    redis_part(r, reason, at_once ? 0 : redis_backoff_ms(r));
}

void redis_drop(struct redis *r, bool at_once, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    redis_fail(r, at_once, false, fmt, args);
    va_end(args);
}

void redis_refuse(struct redis *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    redis_fail(r, false, true, fmt, args);
    va_end(args);
}

void redis_redirect(struct redis *r, const char *host, int port, const char *why)
{
    if (++r->hops > REDIS_MAX_HOPS) {
        redis_drop(r, false, "the nodes of the cluster point at each other (%s)", why);
        r->hops = 0;
        return;
    }
    log_write(r->options.quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, NULL,
              "redis (%s) %s: %s; going to %s:%d", r->options.label, r->where, why, host, port);
    redis_route_set(r, host, port);
    redis_part(r, why, 0);
}

void redis_reopen(struct redis *r, const char *reason)
{
    /* In any other state it is on its way back already. Without one good answer since the last
     * time, "at once" would be a busy loop against a server that connects but does not serve. */
    if (r->state == REDIS_STATE_READY)
        redis_drop(r, r->failures == 0, "%s", reason);
}

static void redis_release(struct redis *r)
{
    redis_url_fini(&r->url);
    free((char *)r->options.client_name);
    redis_route_fini(r);
    free(r);
}

/* What must not happen inside the caller's call: told losses, the next attempt, the write. */
static void redis_turn(void *arg)
{
    struct redis *r = arg;
    r->turn_pending = false;
    if (r->state == REDIS_STATE_CLOSED) {
        redis_release(r);
        return;
    }
    redis_lost_deliver(r);
    if (r->tell_lost) {
        r->tell_lost = false;
        r->in_callback = true;
        r->on_state(r, false, r->lost_reason, r->data);
        r->in_callback = false;
    }
    if (r->tell_failed) {
        r->tell_failed = false;
        r->in_callback = true;
        if (r->options.on_failed)
            r->options.on_failed(r, r->last_failure, r->permanent, r->data);
        r->in_callback = false;
    }
    if (r->state == REDIS_STATE_WAITING && !ev_is_active(&r->timer))
        redis_timer_at(r, r->deadline);
    else if (r->state == REDIS_STATE_GREETING || r->state == REDIS_STATE_READY)
        redis_flush(r);
}

void redis_schedule_turn(struct redis *r)
{
    if (r->turn_pending)
        return;
    r->turn_pending = true;
    reaper_defer(redis_turn, r);
}

/* ---- Connecting ---- */

static void redis_on_readable(struct ev_loop *loop, struct ev_io *io, int events)
{
    (void)loop;
    (void)events;
    redis_read(io->data);
}

static void redis_socket_options(int fd, bool tcp)
{
    if (!tcp)
        return;
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, REDIS_KEEPALIVE_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, REDIS_KEEPALIVE_INTERVAL_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, REDIS_KEEPALIVE_PROBES},
                   {IPPROTO_TCP, TCP_USER_TIMEOUT, REDIS_USER_TIMEOUT_MS}};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

static void redis_connected(struct redis *r)
{
    char err[160] = "";
    redis_socket_options(r->ctx->fd, r->target.host != NULL);
    if (r->url.tls &&
        redis_tls_start(r->ctx, r->target.host, &r->url.tls_files, err, sizeof(err))) {
        redis_drop(r, false, "%s", err[0] ? err : redis_tls_error(r->ctx->errstr));
        return;
    }
    ev_io_start(r->loop, &r->readable);
    r->last_heard = redis_now_ms();
    redis_set_state(r, REDIS_STATE_GREETING);
    redis_greet(r);
}

static void redis_connect_failed(struct redis *r, const char *why)
{
    char text[160];
    snprintf(text, sizeof(text), "connect: %s", why);
    if (r->ctx) {
        ev_io_stop(r->loop, &r->writable);
        redisFree(r->ctx);
        r->ctx = NULL;
    }
    if (r->target.host && r->address_tries < r->address_count)
        redis_connect_next(r);
    else
        redis_drop(r, false, "%s", text);
}

static void redis_on_writable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct redis *r = io->data;
    (void)events;
    ev_io_stop(loop, io);
    if (r->state != REDIS_STATE_CONNECTING) {
        r->socket_full = false;
        redis_flush(r);
        return;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(r->ctx->fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (error)
        redis_connect_failed(r, strerror(error));
    else
        redis_connected(r);
}

/* One socket, to the next address of the look-up or to the socket path. */
static void redis_connect_next(struct redis *r)
{
    if (r->target.host) {
        const char *address = r->addresses[r->address_next++ % r->address_count];
        r->address_tries++;
        r->ctx = redisConnectNonBlock(address, r->target.port);
    } else {
        r->ctx = redisConnectUnixNonBlock(r->url.unix_path);
    }
    if (!r->ctx || r->ctx->err) {
        redis_connect_failed(r, r->ctx ? r->ctx->errstr : "out of memory");
        return;
    }
    (void)fcntl(r->ctx->fd, F_SETFD, FD_CLOEXEC); /* hiredis leaves it open for children */
    ev_io_init(&r->readable, redis_on_readable, r->ctx->fd, EV_READ);
    ev_io_init(&r->writable, redis_on_writable, r->ctx->fd, EV_WRITE);
    r->readable.data = r->writable.data = r;
    ev_io_start(r->loop, &r->writable);
}

static void redis_on_resolved(char addresses[][RESOLVE_ADDRESS_SIZE], int count, const char *error,
                              void *data)
{
    struct redis *r = data;
    r->lookup = NULL;
    if (!count) {
        redis_drop(r, false, "cannot resolve the host name: %s", error);
        return;
    }
    memcpy(r->addresses, addresses, sizeof(r->addresses[0]) * (size_t)count);
    r->address_count = count;
    r->address_tries = 0;
    redis_set_state(r, REDIS_STATE_CONNECTING);
    /* address_next goes on from the last attempt: one that swallowed packets does not stay first.
     */
    redis_connect_next(r);
}

void redis_connect_target(struct redis *r)
{
    r->deadline = redis_now_ms() + r->options.connect_timeout_ms;
    redis_timer_at(r, r->deadline);
    if (r->target.host) {
        redis_set_state(r, REDIS_STATE_RESOLVING);
        r->lookup = resolve_start(r->loop, r->target.host, redis_on_resolved, r);
    } else {
        redis_set_state(r, REDIS_STATE_CONNECTING);
        redis_connect_next(r);
    }
}

static void redis_connect_start(struct redis *r)
{
    if (!r->url.sentinel_count) {
        redis_connect_target(r);
        return;
    }
    r->deadline = redis_now_ms() + r->options.connect_timeout_ms;
    redis_timer_at(r, r->deadline);
    redis_set_state(r, REDIS_STATE_LOCATING);
    redis_locate(r);
}

void redis_become_ready(struct redis *r)
{
    log_write(r->flapping || r->options.quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, NULL,
              "redis (%s) %s: connected, server %d.%d.%d", r->options.label, r->where,
              r->server_version / 10000, r->server_version / 100 % 100, r->server_version % 100);
    redis_set_state(r, REDIS_STATE_READY);
    r->hops = 0;
    r->times_ready++;
    ev_timer_stop(r->loop, &r->timer);
    redis_ready_timer(r);
    r->in_callback = true;
    r->on_state(r, true, NULL, r->data);
    r->in_callback = false;
}

/* ---- Life ---- */

static void or_default(int *value, int preset)
{
    if (*value <= 0)
        *value = preset;
}

static void redis_copy_options(struct redis *r, const struct redis_options *options)
{
    r->options = *options;
    r->options.client_name = mem_strdup(options->client_name);
    r->options.url = &r->url;
    redis_url_copy(&r->url, options->url);
    redis_route_init(r);
    or_default(&r->options.connect_timeout_ms, 5000);
    or_default(&r->options.command_timeout_ms, 10000);
    or_default(&r->options.backoff_min_ms, 50);
    or_default(&r->options.backoff_max_ms, 5000);
    if (!r->options.max_pending_bytes)
        r->options.max_pending_bytes = (size_t)64 << 20;
}

struct redis *redis_new(struct ev_loop *loop, const struct redis_options *options,
                        redis_state_fn on_state, void *data)
{
    struct redis *r = mem_alloc(sizeof(*r));
    struct sigaction old;
    /* hiredis writes without MSG_NOSIGNAL: a closing server would end the process. */
    if (!sigaction(SIGPIPE, NULL, &old) && old.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
    r->loop = loop;
    r->on_state = on_state;
    r->data = data;
    redis_copy_options(r, options);
    ev_timer_init(&r->timer, redis_on_timer, 0, 0);
    r->timer.data = r;
    r->deadline = redis_now_ms();
    redis_timer_at(r, r->deadline);
    return r;
}

void redis_free(struct redis *r)
{
    if (!r)
        return;
    assert(!r->in_callback);
    redis_close_socket(r);
    redis_calls_abandon(r);
    redis_set_state(r, REDIS_STATE_CLOSED);
    redis_lost_deliver(r);
    if (!r->turn_pending) /* else redis_turn releases it */
        redis_release(r);
}

bool redis_ready(const struct redis *r)
{
    return r->state == REDIS_STATE_READY;
}

bool redis_is_cluster(const struct redis *r)
{
    return r->cluster;
}

long long redis_reconnects(const struct redis *r)
{
    return r->times_ready > 1 ? r->times_ready - 1 : 0;
}

int redis_server_version(const struct redis *r)
{
    return r->server_version;
}
