/* Drives a LOCAL driver on a real loop with real kernels, for its unit tests. */
#ifndef SANDPIPER_TESTS_UNIT_LOCAL_RIG_H
#define SANDPIPER_TESTS_UNIT_LOCAL_RIG_H

#include "common/buf.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/driver.h"

#include <dirent.h>
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define RIG_MAX_FILES 64
#define RIG_PATIENCE  60. /* seconds: it costs nothing where it passes */

struct rig {
    struct ev_loop *loop;
    struct driver_host host;
    struct driver *driver;
    struct settings *settings;
    char dir[64];      /* CODE_INTERPRETER_LOCAL_DIR */
    bool flag;         /* set by rig_done */
    const char *moved; /* thread that check_moved says has moved; or NULL */
};

/* What a run is to do beyond its code. */
struct rig_options {
    const char *actor, *language;
    json_t *env; /* stolen */
    const struct driver_input *inputs;
    size_t input_count;
    /* Counted from the first output, so that the code is where it is to be; 0: never. */
    int interrupt_after_ms;
    int kill_host_after_ms; /* SIGKILL of the Python host */
    bool other_replica_before, close_at_first_output;
};

struct rig_result {
    struct buf out, err;
    json_t *results; /* of [bundle, is_main] */
    bool ready_seen, ended, closed;
    bool reused;
    char ready_lost[40], end_lost[40];
    enum driver_end_kind kind;
    int exit_code;
    char *message, *name, *value, *traceback;
    json_t *warnings;
    size_t file_count;
    struct {
        char *path;
        struct buf data;
        char why[80];
        long long size;
    } files[RIG_MAX_FILES];
    long long delivered_ms, first_output_ms, ended_ms; /* monotonic */
    /* the run under way */
    struct rig *rig;
    struct driver_run *run;
    const struct rig_options *options;
    size_t reading;
    bool files_done;
};

static void rig_done(void *data)
{
    struct rig *rig = data;

    rig->flag = true;
    ev_break(rig->loop, EVBREAK_ONE); /* also from the reaper, just before the loop would wait */
}

static void rig_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)revents;
    *(bool *)w->data = true;
    ev_break(loop, EVBREAK_ONE);
}

/* Turns the loop until *what; fails the test when that takes too long. */
static void rig_until(struct rig *rig, const bool *what)
{
    bool late = false;
    ev_timer timer;

    ev_timer_init(&timer, rig_deadline, RIG_PATIENCE, 0.);
    timer.data = &late;
    ev_now_update(rig->loop);
    ev_timer_start(rig->loop, &timer);
    while (!*what && !late)
        ev_run(rig->loop, EVRUN_ONCE);
    ev_timer_stop(rig->loop, &timer);
    if (!*what)
        fail_msg("not within %.0f s", RIG_PATIENCE);
}

static void rig_pass(struct rig *rig, double seconds)
{
    bool late = false;
    ev_timer timer;

    ev_timer_init(&timer, rig_deadline, seconds, 0.);
    timer.data = &late;
    ev_now_update(rig->loop);
    ev_timer_start(rig->loop, &timer);
    while (!late)
        ev_run(rig->loop, EVRUN_ONCE);
    ev_timer_stop(rig->loop, &timer);
}

static void rig_check_moved(void *data, const char *const *threads, size_t count,
                            void (*moved)(void *ctx, const char *thread), void *ctx)
{
    struct rig *rig = data;

    for (size_t i = 0; i < count; i++)
        if (rig->moved && strcmp(threads[i], rig->moved) == 0) {
            moved(ctx, threads[i]);
            rig_done(rig);
        }
}

static void rig_new(struct rig *rig, const char *isolation)
{
    char err[300];

    signal(SIGPIPE, SIG_IGN); /* as the worker does */
    memset(rig, 0, sizeof(*rig));
    strcpy(rig->dir, "/tmp/sandpiper-local-test-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    assert_int_equal(chmod(rig->dir, 0711), 0); /* as root, sessions have users of their own */
    setenv("CODE_INTERPRETER_LOCAL_DIR", rig->dir, 1);
    setenv("CODE_INTERPRETER_LOCAL_ISOLATION", isolation, 1);
    rig->settings = settings_from_environment(err, sizeof(err));
    if (!rig->settings)
        fail_msg("%s", err);
    rig->loop = ev_loop_new(EVFLAG_AUTO);
    reaper_init(rig->loop);
    rig->host = (struct driver_host){.loop = rig->loop,
                                     .replica_id = "test:replica/1",
                                     .check_moved = rig_check_moved,
                                     .data = rig,
                                     .lock_duration_ms = 15000};
    rig->driver = driver_local_new(&rig->host, rig->settings, err, sizeof(err));
    if (!rig->driver)
        fail_msg("%s", err);
}

static void rig_free(struct rig *rig)
{
    rig->flag = false;
    rig->driver->ops->dispose(rig->driver, rig_done, rig);
    rig_until(rig, &rig->flag);
    reaper_fini();
    ev_loop_destroy(rig->loop);
    settings_free(rig->settings);
    char *parent = mem_printf("%s/sandpiper-%ld", rig->dir, (long)geteuid());
    char *lock = mem_printf("%s/.lock", parent);
    unlink(lock);
    assert_int_equal(rmdir(parent), 0); /* nothing of a session is left */
    assert_int_equal(rmdir(rig->dir), 0);
    free(lock);
    free(parent);
}

/* --- processes ---------------------------------------------------------------------- */

/* Whether /proc/<pid>/<file> has `text` in it (NULs are spaces). */
static bool rig_process_has(long pid, const char *file, const char *text)
{
    static char data[65536];
    char path[64];

    snprintf(path, sizeof(path), "/proc/%ld/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, data, sizeof(data) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    for (ssize_t i = 0; i < n; i++)
        if (!data[i])
            data[i] = ' ';
    data[n] = '\0';
    return strstr(data, text) != NULL;
}

/* Counts the processes that have `text` in `file`, and `mark`, if any, in their environment: a
 * machine may run this test twice at a time. They get the signal, if it is not 0. */
static int rig_processes(const char *file, const char *text, const char *mark, int signal_number)
{
    struct dirent *entry;
    int count = 0;
    DIR *proc = opendir("/proc");

    assert_non_null(proc);
    while ((entry = readdir(proc))) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || pid == getpid() || !rig_process_has(pid, file, text) ||
            (mark && !rig_process_has(pid, "environ", mark)))
            continue;
        count++;
        if (signal_number)
            kill((pid_t)pid, signal_number);
    }
    closedir(proc);
    return count;
}

/* Kernels of a worker's drivers, and what is started in them, carry the driver's token. */
static const char *rig_token(pid_t worker)
{
    static char token[64];

    snprintf(token, sizeof(token), "SANDPIPER_KERNEL=test_replica_1-%ld-", (long)worker);
    return token;
}

/* Processes of this process's kernels. */
static int rig_kernels(void)
{
    return rig_processes("environ", rig_token(getpid()), NULL, 0);
}

/* Those of them that have `text` in their command line. */
static int rig_running(const char *text)
{
    return rig_processes("cmdline", text, rig_token(getpid()), 0);
}

/* The Python host is our only child. */
static int rig_signal_host(int signal_number)
{
    char parent[64];

    snprintf(parent, sizeof(parent), "PPid:\t%ld\n", (long)getpid());
    return rig_processes("status", parent, NULL, signal_number);
}

/* --- one run ------------------------------------------------------------------------ */

static void rig_on_ready(void *data, const struct driver_ready *ready)
{
    struct rig_result *r = data;

    assert_false(r->ready_seen);
    r->ready_seen = true;
    r->reused = ready->reused;
    snprintf(r->ready_lost, sizeof(r->ready_lost), "%s",
             ready->state_lost ? ready->state_lost : "");
    r->delivered_ms = text_monotonic_ms();
    driver_deliver(r->run);
}

static void rig_close(struct rig_result *r)
{
    if (r->closed)
        return;
    r->closed = true;
    driver_close(r->run);
}

static void rig_on_output(void *data, enum driver_stream stream, const char *text, size_t len)
{
    struct rig_result *r = data;

    assert_true(len > 0);
    if (r->first_output_ms == 0)
        r->first_output_ms = text_monotonic_ms();
    assert_int_equal(buf_append(stream == DRIVER_STDOUT ? &r->out : &r->err, text, len), 0);
    if (r->options->close_at_first_output)
        rig_close(r);
}

static void rig_on_result(void *data, const json_t *bundle, bool is_main)
{
    struct rig_result *r = data;

    json_array_append_new(r->results, json_pack("[o,b]", json_deep_copy(bundle), is_main));
}

static void rig_on_piece(void *data, const char *piece, long len, const char *why)
{
    struct rig_result *r = data;

    if (len > 0) {
        assert_int_equal(buf_append(&r->files[r->reading].data, piece, (size_t)len), 0);
    } else {
        if (len < 0)
            snprintf(r->files[r->reading].why, sizeof(r->files[0].why), "%s", why);
        r->reading++;
    }
    if (r->reading < r->file_count)
        driver_file_read(r->run, r->reading, rig_on_piece, r);
    else
        r->files_done = true;
}

static void rig_on_end(void *data, const struct driver_end *end)
{
    struct rig_result *r = data;

    assert_false(r->ended);
    r->ended = true;
    r->ended_ms = text_monotonic_ms();
    r->kind = end->kind;
    r->exit_code = end->exit_code;
    r->message = mem_strdup(end->message);
    r->name = mem_strdup(end->error_name);
    r->value = mem_strdup(end->error_value);
    r->traceback = mem_strdup(end->traceback);
    r->warnings = end->warnings ? json_deep_copy(end->warnings) : json_array();
    snprintf(r->end_lost, sizeof(r->end_lost), "%s", end->state_lost ? end->state_lost : "");
    assert_true(end->file_count <= RIG_MAX_FILES);
    r->file_count = end->file_count;
    for (size_t i = 0; i < end->file_count; i++) {
        r->files[i].path = mem_strdup(end->files[i].path);
        r->files[i].size = end->files[i].size;
        buf_init(&r->files[i].data, 64 << 20);
    }
    if (end->file_count > 0)
        driver_file_read(r->run, 0, rig_on_piece, r);
    else
        r->files_done = true;
}

static void rig_on_interrupt_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct rig_result *r = w->data;

    (void)loop, (void)revents;
    if (r->ended || r->closed)
        return;
    if (r->options->kill_host_after_ms)
        assert_true(rig_signal_host(SIGKILL) > 0);
    else
        driver_interrupt(r->run);
}

static const struct driver_events rig_events = {rig_on_ready, rig_on_output, rig_on_result,
                                                rig_on_end};

static void rig_start(struct rig *rig, struct rig_result *r, const char *thread, const char *code,
                      const struct rig_options *options)
{
    struct driver_request request = {
        .job_id = "job",
        .execution_id = "00000000-0000-4000-8000-000000000000",
        .thread = thread,
        .actor = options->actor,
        .language = options->language ? options->language : "python",
        .code = code,
        .code_len = strlen(code),
        .env = options->env,
        .inputs = options->inputs,
        .input_count = options->input_count,
        .timeout_ms = 60000,
        .other_replica_before = options->other_replica_before,
        .settings = rig->settings,
    };

    memset(r, 0, sizeof(*r));
    r->rig = rig;
    r->options = options;
    r->results = json_array();
    buf_init(&r->out, 256 << 20);
    buf_init(&r->err, 256 << 20);
    r->run = driver_start(rig->driver, &request, &rig_events, r);
    json_decref(options->env);
}

static bool rig_over(const struct rig_result *r)
{
    return r->closed || (r->ended && r->files_done);
}

/* Starts a run and turns the loop until it has ended and its files are read; closes it. */
static void rig_run_with(struct rig *rig, struct rig_result *r, const char *thread,
                         const char *code, const struct rig_options *options)
{
    bool late = false;
    ev_timer limit, interrupt;

    rig_start(rig, r, thread, code, options);
    ev_timer_init(&limit, rig_deadline, RIG_PATIENCE, 0.);
    limit.data = &late;
    ev_now_update(rig->loop);
    ev_timer_start(rig->loop, &limit);
    ev_timer_init(&interrupt, rig_on_interrupt_timer, 0., 0.);
    interrupt.data = r;
    int after =
        options->kill_host_after_ms ? options->kill_host_after_ms : options->interrupt_after_ms;
    while (!rig_over(r) && !late) {
        if (after && r->first_output_ms) {
            ev_now_update(rig->loop);
            ev_timer_set(&interrupt, after / 1000.0, 0.);
            ev_timer_start(rig->loop, &interrupt);
            after = 0;
        }
        ev_run(rig->loop, EVRUN_ONCE);
    }
    ev_timer_stop(rig->loop, &limit);
    ev_timer_stop(rig->loop, &interrupt);
    if (!rig_over(r))
        fail_msg("the run did not end; out: %.200s", r->out.data ? r->out.data : "");
    rig_close(r);
}

static void rig_run(struct rig *rig, struct rig_result *r, const char *thread, const char *code)
{
    static const struct rig_options none;

    rig_run_with(rig, r, thread, code, &none);
}

static void rig_result_fini(struct rig_result *r)
{
    buf_fini(&r->out);
    buf_fini(&r->err);
    json_decref(r->results);
    json_decref(r->warnings);
    free(r->message);
    free(r->name);
    free(r->value);
    free(r->traceback);
    for (size_t i = 0; i < r->file_count; i++) {
        free(r->files[i].path);
        buf_fini(&r->files[i].data);
    }
    memset(r, 0, sizeof(*r));
}

static const char *rig_text(const struct buf *b)
{
    return b->data ? b->data : "";
}

/* Runs code that must succeed and print exactly `out`. */
static void rig_expect(struct rig *rig, const char *thread, const char *code, const char *out)
{
    struct rig_result r;

    rig_run(rig, &r, thread, code);
    if (r.kind != DRIVER_END_OK)
        fail_msg("%s: %s: %s %s\n%s", code, r.name ? r.name : "", r.value ? r.value : "",
                 r.message ? r.message : "", r.traceback ? r.traceback : "");
    assert_string_equal(rig_text(&r.out), out);
    assert_string_equal(rig_text(&r.err), "");
    rig_result_fini(&r);
}

/* The value of a MIME type in the n-th result, or NULL. */
static inline const json_t *rig_mime(const struct rig_result *r, size_t n, const char *mime)
{
    return json_object_get(json_array_get(json_array_get(r->results, n), 0), mime);
}

#endif
