/* Boxes of the LOCAL driver: a private folder and the kernel in it, from start to removal. */
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "worker/drivers/local.h"
#include "worker/drivers/local_host.h"
#include "worker/drivers/local_probe.h"
#include "worker/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERRUPT_SECONDS 2.0  /* an interrupt has that long to help */
#define KILL_SECONDS      10.0 /* a kill that long; then the host is at fault */
#define MAX_STARTING      3    /* kernels starting at a time: each takes a core for half a second */
#define MAX_IDLE          32   /* idle sessions' kernels; beyond it the one unused longest stops */
#define RETRY_SECONDS     3.0  /* between two tries to start a spare */

static const char *const state_names[] = {"empty", "starting", "ready", "running", "dying"};

static double now(const struct local *local)
{
    return ev_now(local->host->loop);
}

static void stop_kill_timer(struct local_box *box)
{
    ev_timer_stop(box->local->host->loop, &box->kill_timer);
}

static void start_kill_timer(struct local_box *box, double seconds)
{
    stop_kill_timer(box);
    ev_timer_set(&box->kill_timer, seconds, 0.);
    ev_timer_start(box->local->host->loop, &box->kill_timer);
}

static void call_waiters(struct local_box *box)
{
    struct local_waiter **at = &box->waiters, *waiter;
    bool gone = box->state == BOX_EMPTY;
    bool idle = gone || box->state == BOX_READY;

    while ((waiter = *at)) {
        if (gone || (idle && !waiter->for_death)) {
            *at = waiter->next;
            local_call_later(box->local, waiter->cb, waiter->data);
            free(waiter);
        } else {
            at = &waiter->next;
        }
    }
}

/* The one place that changes a box's state. */
static void set_state(struct local_box *box, enum local_box_state state)
{
    if (box->state != state)
        log_debug("LOCAL: kernel %lld in %s: %s -> %s", box->kernel, box->name,
                  state_names[box->state], state_names[state]);
    box->state = state;
    if (state == BOX_EMPTY || state == BOX_READY)
        stop_kill_timer(box);
    call_waiters(box);
}

static void on_kill_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct local_box *box = w->data;

    (void)loop, (void)revents;
    if (box->state == BOX_RUNNING)
        local_box_kill(box, "killed_after_timeout", "the code did not heed the interrupt");
    else
        local_host_kill(box->local->process, "it does not kill a kernel");
}

struct local_box *local_box_new(struct local *local)
{
    struct local_box *box = mem_alloc(sizeof(*box));

    box->local = local;
    snprintf(box->name, sizeof(box->name), "s%lld", ++local->next_box);
    box->user = local->folder.drop ? local_folder_user(local->next_box) : 0;
    box->home_fd = local_folder_add(&local->folder, box->name, box->user);
    if (box->home_fd < 0) {
        int saved = errno;
        free(box);
        errno = saved;
        return NULL;
    }
    box->used_at = now(local);
    ev_timer_init(&box->kill_timer, on_kill_timer, 0., 0.);
    box->kill_timer.data = box;
    box->next = local->boxes;
    local->boxes = box;
    return box;
}

void local_box_free(struct local_box *box)
{
    struct local_box **at = &box->local->boxes;

    while (*at != box)
        at = &(*at)->next;
    *at = box->next;
    stop_kill_timer(box);
    box->state = BOX_EMPTY;
    call_waiters(box);
    close(box->home_fd);
    free(box->thread);
    free(box->actor);
    free(box);
}

struct local_box *local_box_of_thread(struct local *local, const char *thread)
{
    struct local_box *box;

    for (box = local->boxes; box; box = box->next)
        if (box->thread && !box->discarded && strcmp(box->thread, thread) == 0)
            return box;
    return NULL;
}

struct local_box *local_box_take(struct local *local)
{
    struct local_box *box, *best = NULL;

    for (box = local->boxes; box; box = box->next)
        if (box->spare && (!best || box->state > best->state) && box->state <= BOX_READY)
            best = box;
    if (!best)
        return local_box_new(local);
    best->spare = false;
    best->used_at = now(local);
    return best;
}

/* --- the end of kernels and boxes --------------------------------------------------- */

static void remove_folder(struct local_box *box)
{
    json_t *message = json_pack("{s:s,s:s}", "op", "remove", "dir", box->name);

    if (local_host_send(box->local->process, message) != 0)
        log_debug("LOCAL: the folder %s stays until the end: the host is down", box->name);
}

/* A discarded box goes when its kernel is gone and its run, which may still read files, is
 * closed. */
static void maybe_bury(struct local_box *box)
{
    if (!box->discarded || box->run || box->state != BOX_EMPTY)
        return;
    remove_folder(box);
    local_box_free(box);
}

void local_box_kill(struct local_box *box, const char *lost, const char *reason)
{
    if (box->state == BOX_EMPTY || box->state == BOX_DYING)
        return;
    log_debug("LOCAL: killing kernel %lld in %s: %s", box->kernel, box->name, reason);
    box->why_killed = lost;
    metrics_count(METRIC_SANDBOXES_KILLED, 1, "LOCAL", NULL);
    set_state(box, BOX_DYING);
    json_t *message = json_pack("{s:s,s:I}", "op", "kill", "k", (json_int_t)box->kernel);
    if (local_host_send(box->local->process, message) != 0)
        local_host_kill(box->local->process, "it takes no more commands");
    start_kill_timer(box, KILL_SECONDS);
}

void local_box_discard(struct local_box *box, const char *reason)
{
    if (box->discarded)
        return;
    log_debug("LOCAL: discarding %s: %s", box->name, reason);
    box->discarded = true;
    box->spare = false;
    local_box_kill(box, "sandbox_gone", reason);
    if (box->run) /* its close may free the box */
        local_run_fail(box->run, DRIVER_END_SANDBOX_LOST, "The sandbox was discarded: %s.", reason);
    else
        maybe_bury(box);
}

void local_box_empty(struct local_box *box)
{
    struct local_box *fresh = local_box_new(box->local);

    if (fresh) {
        fresh->thread = mem_strdup(box->thread);
        fresh->actor = mem_strdup(box->actor);
        fresh->state_lost = "disk_full";
    } else {
        log_warn("LOCAL: no folder for a session that was emptied: %s", strerror(errno));
    }
    local_box_discard(box, "its files are over the cap"); /* may free it */
}

void local_box_give_back(struct local_box *box)
{
    box->run = NULL;
    box->used_at = now(box->local);
    if (!box->thread)
        local_box_discard(box, "a run without a thread is over");
    else if (box->disk_full && !box->discarded)
        local_box_empty(box);
    else
        maybe_bury(box);
}

void local_box_interrupt(struct local_box *box)
{
    if (box->state != BOX_RUNNING || ev_is_active(&box->kill_timer))
        return;
    json_t *message = json_pack("{s:s,s:I}", "op", "interrupt", "k", (json_int_t)box->kernel);
    if (local_host_send(box->local->process, message) != 0)
        log_debug("LOCAL: kernel %lld gets no interrupt: the host is down", box->kernel);
    start_kill_timer(box, INTERRUPT_SECONDS);
}

void local_box_wait(struct local_box *box, bool for_death, driver_done_fn cb, void *data)
{
    struct local_waiter *waiter = mem_alloc(sizeof(*waiter));

    *waiter = (struct local_waiter){cb, data, for_death, box->waiters};
    box->waiters = waiter;
    call_waiters(box);
}

/* --- what the host says ------------------------------------------------------------- */

void local_box_ready(struct local_box *box)
{
    if (box->state != BOX_STARTING)
        return;
    box->was_ready = true;
    box->failed_starts = 0;
    set_state(box, BOX_READY);
    if (box->run)
        local_run_kernel_ready(box->run);
}

void local_box_code_sent(struct local_box *box)
{
    set_state(box, BOX_RUNNING);
}

void local_box_end_of_code(struct local_box *box)
{
    if (box->state != BOX_RUNNING)
        return;
    box->used_at = now(box->local);
    set_state(box, BOX_READY);
}

void local_box_dead(struct local_box *box)
{
    if (!box->was_ready && !box->why_killed) {
        box->failed_starts++;
        box->retry_at = now(box->local) + (box->spare ? RETRY_SECONDS : 0);
    }
    /* What the thread had in the interpreter is gone; its files are not. */
    if (box->thread && (box->was_ready || box->why_killed) && !box->state_lost)
        box->state_lost = box->why_killed ? box->why_killed : "kernel_died";
    box->why_killed = NULL;
    box->was_ready = false;
    set_state(box, BOX_EMPTY);
    maybe_bury(box);
}

/* --- starting kernels --------------------------------------------------------------- */

bool local_box_wants_kernel(const struct local_box *box)
{
    if (box->state != BOX_EMPTY || box->discarded || box->retry_at > now(box->local))
        return false;
    return box->spare || (box->run && box->run->state == RUN_PREPARING);
}

static int start_kernel(struct local_box *box)
{
    const struct settings *s = box->local->settings;
    json_t *message;

    box->kernel = ++box->local->next_kernel;
    message = json_pack(
        "{s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "op", "start", "k", (json_int_t)box->kernel, "dir",
        box->name, "uid", (json_int_t)box->user, "cpu_s",
        (json_int_t)settings_int(s, SETTING_CODE_INTERPRETER_LOCAL_CPU_S), "disk_mb",
        (json_int_t)settings_int(s, SETTING_CODE_INTERPRETER_LOCAL_DISK_MB), "memory_mb",
        (json_int_t)settings_int(s, SETTING_CODE_INTERPRETER_LOCAL_MEMORY_MB), "max_processes",
        (json_int_t)settings_int(s, SETTING_CODE_INTERPRETER_LOCAL_MAX_PROCESSES), "file_mb",
        (json_int_t)settings_int(s, SETTING_CODE_INTERPRETER_LOCAL_FILE_MB));
    if (local_host_send(box->local->process, message) != 0)
        return -1;
    box->was_ready = false;
    metrics_count(METRIC_SANDBOXES_CREATED, 1, "LOCAL", NULL);
    set_state(box, BOX_STARTING);
    return 0;
}

static void keep_spares(struct local *local)
{
    long long want = settings_int(local->settings, SETTING_CODE_INTERPRETER_LOCAL_SPARE_KERNELS);
    struct local_box *box, *next;

    for (box = local->boxes; box; box = next) {
        next = box->next;
        if (box->spare && --want < 0)
            local_box_discard(box, "fewer spare kernels are wanted");
    }
    for (; want > 0; want--) {
        box = local_box_new(local);
        if (!box) {
            log_warn("LOCAL: no folder for a spare kernel: %s (CODE_INTERPRETER_LOCAL_DIR)",
                     strerror(errno));
            return;
        }
        box->spare = true;
    }
}

void local_boxes_start(struct local *local)
{
    struct local_box *box;
    int starting = 0;

    if (!local_host_is_up(local->process) || !local_verdict(local->settings).allowed)
        return;
    keep_spares(local);
    for (box = local->boxes; box; box = box->next)
        starting += box->state == BOX_STARTING;
    /* Runs first: spares only take what is left. */
    for (int spares = 0; spares < 2; spares++)
        for (box = local->boxes; box && starting < MAX_STARTING; box = box->next)
            if (box->spare == (spares == 1) && local_box_wants_kernel(box) &&
                start_kernel(box) == 0)
                starting++;
}

/* --- what time does ----------------------------------------------------------------- */

static bool is_idle(const struct local_box *box)
{
    return box->thread && !box->discarded && !box->run && box->state == BOX_READY;
}

static void stop_oldest_idle(struct local *local)
{
    struct local_box *box, *oldest = NULL;
    int count = 0;

    for (box = local->boxes; box; box = box->next) {
        if (!is_idle(box))
            continue;
        count++;
        if (!oldest || box->used_at < oldest->used_at)
            oldest = box;
    }
    if (count > MAX_IDLE)
        local_box_kill(oldest, "idle", "too many idle kernels");
}

void local_boxes_tick(struct local *local)
{
    double idle_ms =
        (double)settings_int(local->settings, SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS);
    double age_ms =
        (double)settings_int(local->settings, SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS);
    struct local_box *box, *next;

    for (box = local->boxes; box; box = next) {
        next = box->next;
        double unused_ms = (now(local) - box->used_at) * 1000;
        if (!box->thread || box->discarded || box->run)
            continue;
        if (unused_ms > age_ms)
            local_box_discard(box, "the session was not used for too long");
        else if (box->state == BOX_READY && unused_ms > idle_ms)
            local_box_kill(box, "idle", "idle for too long");
    }
    stop_oldest_idle(local);
}
