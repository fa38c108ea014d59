/* Checks once whether this machine can isolate code, by a sandbox with a script in it that looks
 * around; production's LOCAL waits for it. */
#include "worker/drivers/local_probe.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "worker/drivers/local_folder.h"
#include "worker/drivers/local_host.h"
#include "worker/embedded.h"

#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MAX    4096
#define LIMIT_SECONDS 30.
#define AGAIN_SECONDS 60.
#define REAP_SECONDS  0.01

struct watcher {
    driver_done_fn cb;
    void *data;
    struct watcher *next;
};

/* One for the process: what is checked, the machine and settings of the environment, is the same
 * for every driver. */
static struct {
    enum { UNKNOWN, RUNNING, PASSED, FAILED } state;
    char why[500];
    double failed_at; /* ev_now */
    struct ev_loop *loop;
    pid_t pid;
    ev_io out;
    ev_timer timer; /* the deadline; then looking for the exit status */
    struct buf answer;
    struct watcher *watchers;
} probe;

const char *local_network(const struct settings *s)
{
    const char *word = settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_NETWORK);

    if (strcmp(word, "auto") != 0)
        return word;
    return settings_is_development(s) ? "host" : "none";
}

static bool is_isolated(const struct settings *s)
{
    return strcmp(settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_ISOLATION), "bwrap") == 0;
}

/* What no check can mend; NULL when there is nothing. */
static const char *refused_by_settings(const struct settings *s)
{
    if (!is_isolated(s))
        return "CODE_INTERPRETER_LOCAL_ISOLATION=none is for development only";
    if (strcmp(local_network(s), "host") == 0)
        return "CODE_INTERPRETER_LOCAL_NETWORK=host is for development only, set none or internet";
    return NULL;
}

struct local_verdict local_verdict(const struct settings *s)
{
    const char *refused = settings_is_development(s) ? NULL : refused_by_settings(s);

    if (refused)
        return (struct local_verdict){.why = refused};
    if (settings_is_development(s) || probe.state == PASSED)
        return (struct local_verdict){.allowed = true, .why = ""};
    if (probe.state == FAILED)
        return (struct local_verdict){.why = probe.why};
    return (struct local_verdict){.pending = true, .why = "the isolation is being checked"};
}

/* --- who waits for the verdict ------------------------------------------------------ */

void local_probe_watch(driver_done_fn cb, void *data)
{
    struct watcher *w = mem_alloc(sizeof(*w));

    *w = (struct watcher){cb, data, probe.watchers};
    probe.watchers = w;
}

void local_probe_unwatch(driver_done_fn cb, void *data)
{
    struct watcher **at = &probe.watchers, *w;

    while ((w = *at)) {
        if (w->cb == cb && w->data == data) {
            *at = w->next;
            free(w);
        } else {
            at = &w->next;
        }
    }
}

/* A callback may unwatch, others too: each is looked for again before it is called. */
static void tell_watchers(void)
{
    size_t count = 0, i = 0;
    struct watcher *w;

    for (w = probe.watchers; w; w = w->next)
        count++;
    struct watcher *copy = mem_alloc((count + 1) * sizeof(*copy));
    for (w = probe.watchers; w; w = w->next)
        copy[i++] = *w;
    for (i = 0; i < count; i++) {
        for (w = probe.watchers; w && (w->cb != copy[i].cb || w->data != copy[i].data); w = w->next)
            ;
        if (w)
            copy[i].cb(copy[i].data);
    }
    free(copy);
}

/* --- the verdict -------------------------------------------------------------------- */

static void close_process(void)
{
    if (probe.out.fd >= 0) {
        ev_io_stop(probe.loop, &probe.out);
        close(probe.out.fd);
        probe.out.fd = -1;
    }
    ev_timer_stop(probe.loop, &probe.timer);
    if (probe.pid > 0)
        kill(probe.pid, SIGKILL);
}

/* The one place that gives a verdict; why NULL: passed. */
static void conclude(const char *why)
{
    probe.state = why ? FAILED : PASSED;
    probe.failed_at = ev_now(probe.loop);
    snprintf(probe.why, sizeof(probe.why), "%s", why ? why : "");
    if (why)
        log_error("LOCAL: code cannot be isolated on this machine, so none is run: %s", why);
    else
        log_info("LOCAL: the isolation was checked: it holds");
    buf_fini(&probe.answer);
    tell_watchers();
}

static void read_verdict(void)
{
    char err[160];
    size_t len = probe.answer.len;
    json_t *answer = len ? jsonx_parse(probe.answer.data, len, err, sizeof(err)) : NULL;

    if (!answer)
        conclude("the check of the isolation gave no answer");
    else if (jsonx_get_bool(answer, "ok", false))
        conclude(NULL);
    else
        conclude(jsonx_get_str(answer, "why", "the check failed"));
    json_decref(answer);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    int status;

    (void)revents;
    if (probe.out.fd >= 0) { /* the deadline */
        close_process();
        buf_clear(&probe.answer);
    }
    if (probe.pid > 0 && waitpid(probe.pid, &status, WNOHANG) == 0) {
        ev_timer_set(w, REAP_SECONDS, 0.);
        ev_timer_start(loop, w);
        return;
    }
    probe.pid = 0;
    read_verdict();
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents)
{
    char piece[1024];
    ssize_t n = read(w->fd, piece, sizeof(piece));

    (void)revents;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0 && buf_append(&probe.answer, piece, (size_t)n) == 0)
        return;
    close_process();
    ev_timer_set(&probe.timer, 0., 0.);
    ev_timer_start(loop, &probe.timer);
}

/* --- the process -------------------------------------------------------------------- */

/* The host's program, in a file without a name. */
static int program_fd(void)
{
    int fd = memfd_create("sandpiper-host", MFD_CLOEXEC);
    const char *data = embedded_local_host_pyz;
    size_t left = embedded_local_host_pyz_len;

    while (fd >= 0 && left > 0) {
        ssize_t n = write(fd, data, left);
        if (n <= 0) {
            close(fd);
            return -1;
        }
        data += n;
        left -= (size_t)n;
    }
    return fd;
}

static char *what_to_check(const struct settings *s)
{
    const char *dir = settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_DIR);
    json_t *config =
        json_pack("{s:s,s:s,s:s,s:s,s:I}", "base", local_folder_parent(dir), "python",
                  settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_PYTHON), "isolation", "bwrap",
                  "network", local_network(s), "uid", (json_int_t)local_folder_user(0));
    char *text = json_dumps(config, JSON_COMPACT);

    json_decref(config);
    return text;
}

static int spawn(const struct settings *s, int *out)
{
    int pair[2], error = EINVAL, program = program_fd();
    char *config = what_to_check(s);

    if (program < 0 || pipe2(pair, O_CLOEXEC) != 0) {
        error = errno;
    } else if (config) {
        const char *python = settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_PYTHON);
        error = local_host_spawn(&probe.pid, python, "/proc/self/fd/3",
                                 (const char *const[]){"probe", config, NULL},
                                 (const int[]){-1, pair[1], -1, program});
        close(pair[1]);
        *out = pair[0];
        if (error != 0)
            close(pair[0]);
    } else {
        close(pair[0]);
        close(pair[1]);
    }
    if (program >= 0)
        close(program);
    free(config);
    return error;
}

static void begin(struct ev_loop *loop, const struct settings *s)
{
    int out = -1;
    int error = spawn(s, &out);

    probe.loop = loop;
    probe.state = RUNNING;
    buf_init(&probe.answer, ANSWER_MAX);
    ev_io_init(&probe.out, on_readable, -1, EV_READ);
    ev_timer_init(&probe.timer, on_timer, LIMIT_SECONDS, 0.);
    if (error != 0) {
        char why[300];
        snprintf(why, sizeof(why), "CODE_INTERPRETER_LOCAL_PYTHON %s cannot be run: %s",
                 settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_PYTHON), strerror(error));
        probe.pid = 0;
        conclude(why);
        return;
    }
    fcntl(out, F_SETFL, O_NONBLOCK);
    ev_io_set(&probe.out, out, EV_READ);
    ev_io_start(loop, &probe.out);
    ev_timer_start(loop, &probe.timer);
}

void local_probe_start(struct ev_loop *loop, const struct settings *s)
{
    if (settings_is_development(s) || refused_by_settings(s))
        return;
    if (probe.state == UNKNOWN ||
        (probe.state == FAILED && ev_now(loop) > probe.failed_at + AGAIN_SECONDS))
        begin(loop, s);
}

void local_probe_end(void)
{
    if (probe.state == RUNNING) {
        close_process();
        if (probe.pid > 0)
            waitpid(probe.pid, NULL, 0); /* it was killed */
        buf_fini(&probe.answer);
    }
    while (probe.watchers)
        local_probe_unwatch(probe.watchers->cb, probe.watchers->data);
    probe.state = UNKNOWN;
}
