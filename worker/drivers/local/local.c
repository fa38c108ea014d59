/* The LOCAL driver: Jupyter kernels on this machine, one a thread, each in a sandbox. */
#include "worker/drivers/local.h"

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "worker/drivers/local_host.h"
#include "worker/drivers/local_probe.h"
#include "worker/embedded.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_SECONDS  1.0
#define MOVED_TICKS   10  /* between two questions who owns the idle threads */
#define MOVED_MAX     256 /* threads in one question */
#define HOST_FAILURES 3   /* starts of the host in a row before waiting runs give up */

static struct local *live; /* drivers of this process that are not being disposed of */

/* --- calls from the loop ------------------------------------------------------------ */

static void on_done_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct local *local = w->data;
    struct local_waiter *waiter, *list = local->done;

    (void)loop, (void)revents;
    local->done = NULL;
    while ((waiter = list)) {
        list = waiter->next;
        waiter->cb(waiter->data);
        free(waiter);
    }
}

void local_call_later(struct local *local, driver_done_fn cb, void *data)
{
    struct local_waiter *waiter = mem_alloc(sizeof(*waiter)), **at = &local->done;

    *waiter = (struct local_waiter){.cb = cb, .data = data};
    while (*at)
        at = &(*at)->next;
    *at = waiter;
    if (!ev_is_active(&local->done_timer)) {
        ev_timer_set(&local->done_timer, 0., 0.);
        ev_timer_start(local->host->loop, &local->done_timer);
    }
}

/* --- what the host says ------------------------------------------------------------- */

static struct local_box *box_of_kernel(struct local *local, long long kernel)
{
    struct local_box *box;

    for (box = local->boxes; box; box = box->next)
        if (box->kernel == kernel && box->state != BOX_EMPTY)
            return box;
    return NULL;
}

static void on_kernel_dead(struct local_box *box, const json_t *event)
{
    const char *why = jsonx_get_str(event, "why", "");
    struct local *local = box->local;
    struct local_run *run = box->discarded ? NULL : box->run;

    box->disk_full = jsonx_get_bool(event, "full", false);
    if (box->disk_full)
        box->why_killed = "disk_full";
    struct log_ctx ctx = {.thread = box->thread};
    if (box->state != BOX_DYING)
        log_write(LOG_LEVEL_INFO, &ctx, "LOCAL: kernel %lld has died, exit status %lld%s%s",
                  box->kernel, jsonx_get_int(event, "code", 0), *why ? ": " : "", why);
    bool empty = !box->run && box->thread && !box->discarded && box->disk_full;
    local_box_dead(box); /* may free a discarded box */
    if (run)
        local_run_kernel_dead(run, event, why);
    else if (empty)
        local_box_empty(box);
    local_boxes_start(local);
}

static void on_event(void *data, const json_t *event)
{
    struct local *local = data;
    const char *name = jsonx_get_str(event, "ev", "");
    struct local_box *box = box_of_kernel(local, jsonx_get_int(event, "k", -1));

    if (!box)
        return;
    if (strcmp(name, "ready") == 0) {
        local_box_ready(box);
        local_boxes_start(local);
    } else if (strcmp(name, "dead") == 0) {
        on_kernel_dead(box, event);
    } else {
        struct local_run *run = box->state == BOX_RUNNING ? box->run : NULL;
        if (strcmp(name, "end") == 0)
            local_box_end_of_code(box);
        if (run)
            local_run_event(run, name, event);
    }
}

static void fail_waiting_runs(struct local *local, const char *reason)
{
    struct local_run *run, *next;

    for (run = local->runs; run; run = next) {
        next = run->next;
        if (run->state == RUN_PREPARING)
            local_run_fail(run, DRIVER_END_NO_SANDBOX,
                           "The LOCAL driver's Python process does not start: %s.", reason);
    }
}

static void on_host_down(struct local *local, const char *reason)
{
    struct local_box *box;
    bool found;

    /* A callback may close runs and free boxes: look from the start again after each. */
    do {
        found = false;
        for (box = local->boxes; box && !found; box = box->next) {
            struct local_run *run = box->discarded ? NULL : box->run;
            if (box->state == BOX_EMPTY)
                continue;
            found = true;
            box->failed_starts = -1; /* a start that was cut short is no failure of the kernel */
            local_box_dead(box);
            if (run)
                local_run_kernel_dead(run, NULL, reason);
            break;
        }
    } while (found);
}

static void sweep_dead_folders(struct local *local)
{
    for (size_t i = 0; i < local->folder.dead_count; i++) {
        json_t *message = json_pack("{s:s,s:s}", "op", "sweep", "dir", local->folder.dead[i]);
        if (local_host_send(local->process, message) != 0)
            return;
        free(local->folder.dead[i]);
        local->folder.dead[i] = NULL;
    }
    local->folder.dead_count = 0;
}

static void on_state(void *data, bool up, const char *reason, int failures)
{
    struct local *local = data;

    if (up) {
        sweep_dead_folders(local);
        local_boxes_start(local);
        return;
    }
    on_host_down(local, reason);
    if (failures >= HOST_FAILURES)
        fail_waiting_runs(local, reason);
}

/* The isolation was checked. */
static void on_verdict(void *data)
{
    struct local *local = data;

    for (struct local_run *run = local->runs; run; run = run->next)
        if (run->state == RUN_QUEUED)
            local_run_later(run, local_run_begin);
    local_boxes_start(local);
}

/* --- threads that went to other replicas -------------------------------------------- */

/* ctx is a serial, not a pointer: the answer may come when the driver is gone. */
static void on_moved(void *ctx, const char *thread)
{
    struct local *local = live;

    while (local && local->serial != (uintptr_t)ctx)
        local = local->next;
    struct local_box *box = local ? local_box_of_thread(local, thread) : NULL;
    if (box && !box->run)
        local_box_discard(box, "the thread has moved to another replica");
}

static void ask_moved(struct local *local)
{
    const char *threads[MOVED_MAX];
    size_t count = 0;
    struct local_box *box;

    for (box = local->boxes; box && count < MOVED_MAX; box = box->next)
        if (box->thread && !box->run && !box->discarded)
            threads[count++] = box->thread;
    if (count > 0 && local->host->check_moved)
        local->host->check_moved(local->host->data, threads, count, on_moved,
                                 (void *)(uintptr_t)local->serial);
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct local *local = w->data;

    (void)loop, (void)revents;
    if (local_host_send(local->process, json_pack("{s:s}", "op", "beat")) == 0)
        local_boxes_start(local);
    local_boxes_tick(local);
    if (++local->ticks % MOVED_TICKS == 0)
        ask_moved(local);
}

/* --- the driver's operations -------------------------------------------------------- */

static void op_release(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    struct local *local = (struct local *)d;
    struct local_box *box = local_box_of_thread(local, thread);

    if (!box) {
        local_call_later(local, cb, data);
        return;
    }
    if (box->state == BOX_EMPTY)
        local_call_later(local, cb, data);
    else
        local_box_wait(box, true, cb, data);
    local_box_discard(box, "the thread was released");
}

static void op_settle(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    struct local *local = (struct local *)d;
    struct local_box *box = local_box_of_thread(local, thread);

    if (!box || box->state == BOX_EMPTY || box->state == BOX_READY) {
        local_call_later(local, cb, data);
        return;
    }
    local_box_interrupt(box);
    local_box_wait(box, false, cb, data);
}

static void op_apply(struct driver *d, const struct settings *settings)
{
    struct local *local = (struct local *)d;
    struct settings *old = local->settings;

    local->settings = settings_ref((struct settings *)settings);
    settings_free(old);
}

static void local_free(void *arg)
{
    struct local *local = arg;
    struct local_waiter *waiter;

    ev_timer_stop(local->host->loop, &local->done_timer);
    while ((waiter = local->done)) {
        local->done = waiter->next;
        waiter->cb(waiter->data);
        free(waiter);
    }
    driver_done_fn disposed = local->disposed;
    void *data = local->disposed_data;
    local_folder_fini(&local->folder);
    settings_free(local->settings);
    free(local);
    disposed(data);
}

static void on_host_gone(void *data)
{
    struct local *local = data;

    while (local->boxes)
        local_box_free(local->boxes);
    reaper_defer(local_free, local);
}

static void op_dispose(struct driver *d, driver_done_fn cb, void *data)
{
    struct local *local = (struct local *)d, **at = &live;

    while (*at && *at != local)
        at = &(*at)->next;
    if (*at)
        *at = local->next;
    local->disposed = cb;
    local->disposed_data = data;
    ev_timer_stop(local->host->loop, &local->tick);
    local_probe_unwatch(on_verdict, local);
    local_host_free(local->process, on_host_gone, local);
}

static const struct driver_ops local_ops = {
    .name = "LOCAL",
    .start = local_run_start,
    .deliver = local_run_deliver,
    .interrupt = local_run_interrupt,
    .file_read = local_run_file_read,
    .close = local_run_close,
    .release = op_release,
    .settle = op_settle,
    .apply = op_apply,
    .dispose = op_dispose,
};

/* --- making it ---------------------------------------------------------------------- */

static bool find_bwrap(void)
{
    static const char *const places[] = {"/usr/local/bin/bwrap", "/usr/bin/bwrap", "/bin/bwrap"};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (access(places[i], X_OK) == 0)
            return true;
    return false;
}

static bool is_isolated(const struct settings *settings)
{
    return strcmp(settings_str(settings, SETTING_CODE_INTERPRETER_LOCAL_ISOLATION), "bwrap") == 0;
}

static int check_tools(const struct settings *settings, char *err, size_t err_size)
{
    const char *python = settings_str(settings, SETTING_CODE_INTERPRETER_LOCAL_PYTHON);

    if (access(python, X_OK) != 0) {
        snprintf(err, err_size, "CODE_INTERPRETER_LOCAL_PYTHON: %s cannot be run: %s", python,
                 strerror(errno));
        return -1;
    }
    if (is_isolated(settings) && !find_bwrap()) {
        snprintf(err, err_size,
                 "bubblewrap (bwrap) is not installed; install it, or in development set "
                 "CODE_INTERPRETER_LOCAL_ISOLATION=none");
        return -1;
    }
    return 0;
}

static json_t *host_config(const struct local *local, const struct settings *s)
{
    double lock_s = (double)local->host->lock_duration_ms / 1000;
    /* The code is dead before the lock can be anyone else's. */
    double silence_s = lock_s - (lock_s > 8 ? 2 : lock_s / 4);
    const char *token = strrchr(local->folder.base, '/') + 1;

    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:f,s:s}", "op", "config", "base",
                     local->folder.base, "token", token, "python",
                     settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_PYTHON), "isolation",
                     settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_ISOLATION), "network",
                     local_network(s), "silence_s", silence_s, "prepare", embedded_prepare_py);
}

/* The sessions' folder; an error names the setting. */
static int make_folder(const struct driver_host *host, const struct settings *settings,
                       struct local_folder *folder, char *err, size_t err_size)
{
    static const char name[] = "CODE_INTERPRETER_LOCAL_DIR";
    char why[300];

    if (local_folder_init(folder, settings_str(settings, SETTING_CODE_INTERPRETER_LOCAL_DIR),
                          host->replica_id, is_isolated(settings), why, sizeof(why)) == 0)
        return 0;
    bool named = strncmp(why, name, sizeof(name) - 1) == 0;
    snprintf(err, err_size, "%s%s%s", named ? "" : name, named ? "" : ": ", why);
    return -1;
}

struct driver *driver_local_new(const struct driver_host *host, const struct settings *settings,
                                char *err, size_t err_size)
{
    static unsigned serial;
    struct local_folder folder;

    if (check_tools(settings, err, err_size) != 0 ||
        make_folder(host, settings, &folder, err, err_size) != 0)
        return NULL;
    struct local *local = mem_alloc(sizeof(*local));
    local->base.ops = &local_ops;
    local->host = host;
    local->settings = settings_ref((struct settings *)settings);
    local->folder = folder;
    local->serial = ++serial;
    local->next = live;
    live = local;
    ev_timer_init(&local->done_timer, on_done_timer, 0., 0.);
    local->done_timer.data = local;
    ev_timer_init(&local->tick, on_tick, TICK_SECONDS, TICK_SECONDS);
    local->tick.data = local;
    ev_timer_start(host->loop, &local->tick);
    struct local_host_events events = {on_event, on_state, local};
    local->process =
        local_host_new(host->loop, settings_str(settings, SETTING_CODE_INTERPRETER_LOCAL_PYTHON),
                       &local->folder, host_config(local, settings), &events);
    if (!is_isolated(settings))
        log_warn("LOCAL: CODE_INTERPRETER_LOCAL_ISOLATION=none: code runs as this user, with all "
                 "that this user may do");
    local_probe_watch(on_verdict, local);
    return &local->base;
}
