/* The Python process of the LOCAL driver: spawned clean, bounded pipes, restarted. */
#include "worker/drivers/local_host.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/drivers/local_folder.h"
#include "worker/embedded.h"

#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUT_MAX        ((size_t)64 << 20) /* bytes queued for the host */
#define LINE_MAX_BYTES ((size_t)32 << 20) /* one message from it */
#define READ_SIZE      ((size_t)256 << 10)
#define BACKOFF_MIN    0.1
#define BACKOFF_MAX    5.0
#define HELLO_SECONDS  20.0
#define CLOSE_SECONDS  8.0
#define REAP_SECONDS   0.01

static const char PROGRAM[] = "host.pyz"; /* its file in the folder */

enum host_state {
    HOST_DOWN,     /* no process; the timer starts one */
    HOST_STARTING, /* spawned, no hello yet; the timer kills it */
    HOST_UP,
    HOST_REAPING, /* killed or ended; the timer looks for its exit status */
    HOST_CLOSING, /* told to end by the end of its stdin; the timer kills it */
};

struct local_host {
    struct ev_loop *loop;
    struct local_host_events events;
    char *python;
    struct local_folder *folder;
    json_t *config;
    enum host_state state;
    pid_t pid;
    ev_io in, out, err; /* fd -1 when closed */
    ev_timer timer;
    struct buf outgoing, incoming, errors;
    size_t scanned; /* bytes of incoming known to have no line end */
    double backoff; /* seconds until the next start */
    int failures;   /* starts in a row that came to nothing */
    bool was_up;
    bool freeing;
    char reason[512]; /* of the death under way */
    char said[512];   /* the reason of the last log line */
    char last_error[256];
    void (*done)(void *data);
    void *done_data;
};

static void host_start(struct local_host *h);
static void host_die(struct local_host *h, const char *reason);

static void set_state(struct local_host *h, enum host_state state, double timer_seconds)
{
    h->state = state;
    ev_timer_stop(h->loop, &h->timer);
    if (timer_seconds >= 0) {
        ev_timer_set(&h->timer, timer_seconds, 0.);
        ev_timer_start(h->loop, &h->timer);
    }
}

static void close_io(struct local_host *h, ev_io *io)
{
    if (io->fd < 0)
        return;
    ev_io_stop(h->loop, io);
    close(io->fd);
    io->fd = -1;
}

/* --- the process's end -------------------------------------------------------------- */

static void host_finish_free(struct local_host *h)
{
    ev_timer_stop(h->loop, &h->timer);
    close_io(h, &h->in);
    close_io(h, &h->out);
    close_io(h, &h->err);
    buf_fini(&h->outgoing);
    buf_fini(&h->incoming);
    buf_fini(&h->errors);
    json_decref(h->config);
    unlinkat(h->folder->fd, PROGRAM, 0); /* of a process that did not clean up itself */
    free(h->python);
    void (*done)(void *data) = h->done;
    void *data = h->done_data;
    free(h);
    done(data);
}

static void on_reaped(struct local_host *h)
{
    h->pid = 0;
    if (h->freeing) {
        host_finish_free(h);
        return;
    }
    h->failures = h->was_up ? 0 : h->failures + 1;
    h->backoff = h->was_up ? BACKOFF_MIN : h->backoff * 2;
    if (h->backoff > BACKOFF_MAX)
        h->backoff = BACKOFF_MAX;
    if (!h->was_up && h->last_error[0])
        snprintf(h->reason + strlen(h->reason), sizeof(h->reason) - strlen(h->reason), " (%s)",
                 h->last_error);
    /* The same reason again and again gets one line. */
    log_write(h->failures > 1 && strcmp(h->reason, h->said) == 0 ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN,
              NULL, "LOCAL: the kernel host is gone: %s; starting it again in %.1f s", h->reason,
              h->backoff);
    snprintf(h->said, sizeof(h->said), "%s", h->reason);
    set_state(h, HOST_DOWN, h->backoff);
    h->events.on_state(h->events.data, false, h->reason, h->failures);
}

static void host_reap(struct local_host *h)
{
    int status = 0;
    pid_t pid = h->pid > 0 ? waitpid(h->pid, &status, WNOHANG) : 0;

    if (pid == 0 && h->pid > 0)
        set_state(h, HOST_REAPING, REAP_SECONDS);
    else
        on_reaped(h);
}

static void host_die(struct local_host *h, const char *reason)
{
    snprintf(h->reason, sizeof(h->reason), "%s", reason);
    h->was_up = h->state == HOST_UP;
    close_io(h, &h->in);
    close_io(h, &h->out);
    if (h->pid > 0)
        kill(h->pid, SIGKILL);
    buf_clear(&h->outgoing);
    buf_clear(&h->incoming);
    h->scanned = 0;
    set_state(h, HOST_REAPING, REAP_SECONDS);
}

/* --- reading ------------------------------------------------------------------------ */

/* Once: it does not change while the worker lives. */
static void log_limits(const char *limits)
{
    static bool done;

    if (!done && *limits)
        log_info(
            "LOCAL: sessions have rlimits, a seccomp filter, checked caps of memory and files, "
            "and %s",
            limits);
    done = true;
}

static void on_message(struct local_host *h, const char *line, size_t len)
{
    char err[160];
    json_t *event = jsonx_parse(line, len, err, sizeof(err));

    if (!event) /* a result with numbers that jansson refuses */
        event = jsonx_parse_tolerant(line, len, err, sizeof(err));
    if (!event) {
        log_warn("LOCAL: a message of the kernel host was dropped: %s", err);
        return;
    }
    if (strcmp(jsonx_get_str(event, "ev", ""), "hello") == 0) {
        set_state(h, HOST_UP, -1);
        h->backoff = BACKOFF_MIN;
        log_debug("LOCAL: the kernel host is up, pid %ld", (long)h->pid);
        log_limits(jsonx_get_str(event, "limits", ""));
        h->events.on_state(h->events.data, true, "", 0);
    } else {
        h->events.on_event(h->events.data, event);
    }
    json_decref(event);
}

static void take_lines(struct local_host *h)
{
    size_t start = 0;
    char *end;

    while (!h->freeing && h->scanned < h->incoming.len &&
           (end = memchr(h->incoming.data + h->scanned, '\n', h->incoming.len - h->scanned))) {
        size_t at = (size_t)(end - h->incoming.data);
        h->scanned = at + 1;
        on_message(h, h->incoming.data + start, at - start);
        start = at + 1;
        if (h->out.fd < 0) /* it died meanwhile, and the buffer with it */
            return;
    }
    buf_consume(&h->incoming, start);
    h->scanned = h->incoming.len;
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents)
{
    static char
        piece[READ_SIZE]; /* one loop, one thread: not on the stack, not allocated each time */
    struct local_host *h = w->data;
    ssize_t n = read(w->fd, piece, sizeof(piece));

    (void)loop, (void)revents;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        host_die(h, "it ended");
    else if (h->freeing)
        return; /* read on, so that it does not wait for us */
    else if (buf_append(&h->incoming, piece, (size_t)n) != 0)
        host_die(h, "it sent a line without an end");
    else
        take_lines(h);
}

static void log_error_lines(struct local_host *h)
{
    char *end;

    while (h->errors.len > 0 && (end = memchr(h->errors.data, '\n', h->errors.len))) {
        *end = '\0';
        if (h->errors.data[0]) {
            snprintf(h->last_error, sizeof(h->last_error), "%s", h->errors.data);
            log_debug("LOCAL host: %s", h->errors.data);
        }
        buf_consume(&h->errors, (size_t)(end - h->errors.data) + 1);
    }
}

static void on_error_readable(struct ev_loop *loop, ev_io *w, int revents)
{
    char piece[4096];
    struct local_host *h = w->data;
    ssize_t n = read(w->fd, piece, sizeof(piece));

    (void)loop, (void)revents;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close_io(h, w);
        return;
    }
    if (buf_append(&h->errors, piece, (size_t)n) != 0)
        buf_clear(&h->errors);
    log_error_lines(h);
}

/* --- writing ------------------------------------------------------------------------ */

static void on_writable(struct ev_loop *loop, ev_io *w, int revents)
{
    struct local_host *h = w->data;
    ssize_t n = write(w->fd, h->outgoing.data, h->outgoing.len);

    (void)revents;
    if (n > 0)
        buf_consume(&h->outgoing, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR) {
        host_die(h, "it does not listen");
        return;
    }
    if (h->outgoing.len == 0)
        ev_io_stop(loop, w);
}

static int host_write(struct local_host *h, const json_t *message)
{
    size_t len;
    char *text = jsonx_dump(message, &len);
    int result = -1;

    if (text && h->outgoing.len + len + 1 <= OUT_MAX && h->in.fd >= 0) {
        text[len] = '\n'; /* over the final NUL */
        result = buf_append(&h->outgoing, text, len + 1);
        ev_io_start(h->loop, &h->in);
    }
    free(text);
    return result;
}

int local_host_send(struct local_host *h, json_t *message)
{
    int result = h->state == HOST_UP ? host_write(h, message) : -1;

    json_decref(message);
    return result;
}

/* --- starting ----------------------------------------------------------------------- */

static int make_pipe(int pair[2], int our_end)
{
    if (pipe2(pair, O_CLOEXEC) != 0)
        return -1;
    return fcntl(pair[our_end], F_SETFL, O_NONBLOCK);
}

static void give_fds(posix_spawn_file_actions_t *actions, const int fds[4])
{
    for (int i = 0; i < 4; i++) {
        if (fds[i] >= 0)
            posix_spawn_file_actions_adddup2(actions, fds[i], i);
        else if (i < 3)
            posix_spawn_file_actions_addopen(actions, i, "/dev/null", O_RDWR, 0);
    }
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(actions, fds[3] >= 0 ? 4 : 3);
#endif
}

/* Its environment is clean: kernels without isolation could read it. */
int local_host_spawn(pid_t *pid, const char *python, const char *program,
                     const char *const *arguments, const int fds[4])
{
    const char *argv[8] = {python, "-E", "-s", program};
    const char *envp[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;

    for (size_t i = 4; i + 1 < sizeof(argv) / sizeof(argv[0]) && *arguments; i++)
        argv[i] = *arguments++;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    give_fds(&actions, fds);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    /* A session of its own: a terminal's Ctrl-C is for the worker alone. */
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    int result =
        posix_spawn(pid, python, &actions, &attr, (char *const *)argv, (char *const *)envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (result != 0)
        *pid = 0;
    return result;
}

/* Written anew before each start: without isolation, code of sessions could have changed it. */
static int start_program(struct local_host *h, int in, int out, int err)
{
    if (local_folder_write(h->folder, PROGRAM, embedded_local_host_pyz,
                           embedded_local_host_pyz_len) != 0) {
        int error = errno;
        snprintf(h->last_error, sizeof(h->last_error), "CODE_INTERPRETER_LOCAL_DIR: %s: %s",
                 h->folder->base, strerror(error));
        return error;
    }
    char *program = mem_printf("%s/%s", h->folder->base, PROGRAM);
    int error = local_host_spawn(&h->pid, h->python, program, (const char *const[]){NULL},
                                 (const int[]){in, out, err, -1});
    free(program);
    return error;
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

static void watch(struct local_host *h, int in, int out, int err)
{
    ev_io_set(&h->in, in, EV_WRITE);
    ev_io_set(&h->out, out, EV_READ);
    ev_io_set(&h->err, err, EV_READ);
    ev_io_start(h->loop, &h->out);
    ev_io_start(h->loop, &h->err);
}

static void host_start(struct local_host *h)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, error;

    close_io(h, &h->err);
    buf_clear(&h->errors);
    h->last_error[0] = '\0';
    if (make_pipe(in, 1) != 0 || make_pipe(out, 0) != 0 || make_pipe(err, 0) != 0)
        error = errno;
    else
        error = start_program(h, in[0], out[1], err[1]);
    if (error != 0) {
        close_pair(in);
        close_pair(out);
        close_pair(err);
        if (!h->last_error[0])
            snprintf(h->last_error, sizeof(h->last_error), "%s: %s", h->python, strerror(error));
        host_die(h, "it could not be started");
        return;
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    watch(h, in[1], out[0], err[0]);
    set_state(h, HOST_STARTING, HELLO_SECONDS);
    if (host_write(h, h->config) != 0)
        host_die(h, "its configuration is too large");
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct local_host *h = w->data;

    (void)loop, (void)revents;
    switch (h->state) {
    case HOST_DOWN:
        host_start(h);
        break;
    case HOST_STARTING:
        host_die(h, "it gave no sign of life");
        break;
    case HOST_CLOSING:
        host_die(h, "it did not end in time");
        break;
    case HOST_REAPING:
        host_reap(h);
        break;
    case HOST_UP:
        break;
    }
}

/* --- the interface ------------------------------------------------------------------ */

struct local_host *local_host_new(struct ev_loop *loop, const char *python,
                                  struct local_folder *folder, json_t *config,
                                  const struct local_host_events *events)
{
    struct local_host *h = mem_alloc(sizeof(*h));

    h->loop = loop;
    h->events = *events;
    h->python = mem_strdup(python);
    h->folder = folder;
    h->config = config;
    h->backoff = BACKOFF_MIN;
    buf_init(&h->outgoing, OUT_MAX);
    buf_init(&h->incoming, LINE_MAX_BYTES + READ_SIZE);
    buf_init(&h->errors, 64 << 10);
    ev_io_init(&h->in, on_writable, -1, EV_WRITE);
    ev_io_init(&h->out, on_readable, -1, EV_READ);
    ev_io_init(&h->err, on_error_readable, -1, EV_READ);
    ev_timer_init(&h->timer, on_timer, 0., 0.);
    h->in.data = h->out.data = h->err.data = h->timer.data = h;
    /* From the loop: what goes wrong then is told by events. */
    set_state(h, HOST_DOWN, 0.);
    return h;
}

bool local_host_is_up(const struct local_host *h)
{
    return h->state == HOST_UP;
}

pid_t local_host_pid(const struct local_host *h)
{
    return h->pid;
}

void local_host_kill(struct local_host *h, const char *reason)
{
    if (h->state == HOST_UP || h->state == HOST_STARTING)
        host_die(h, reason);
}

void local_host_free(struct local_host *h, void (*done)(void *data), void *data)
{
    h->freeing = true;
    h->done = done;
    h->done_data = data;
    if (h->state == HOST_UP || h->state == HOST_STARTING) {
        close_io(h, &h->in);
        set_state(h, HOST_CLOSING, CLOSE_SECONDS);
    } else if (h->state == HOST_DOWN) {
        set_state(h, HOST_REAPING, 0.);
    }
}
