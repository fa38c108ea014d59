/* A run of the E2B driver from start to close: its states, and what comes before the code
 * goes out. */
#include "worker/drivers/e2b_run.h"

#include "common/jsonx.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RENEWALS_MAX 3
#define MAX_WARNINGS 50

static struct e2b_run *run_of(struct driver_run *run)
{
    return (struct e2b_run *)run; /* embedded first */
}

struct log_ctx e2b_run_ctx(const struct e2b_run *run)
{
    return (struct log_ctx){.job = run->job_id, .thread = run->thread, .trace = run->trace};
}

void e2b_run_warn(struct e2b_run *run, const char *fmt, ...)
{
    char text[500];
    va_list args;
    if (json_array_size(run->warnings) >= MAX_WARNINGS)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(run->warnings, jsonx_string(text, strlen(text)));
}

/* --- steps from the loop --- */

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_run *run = w->data;
    void (*step)(struct e2b_run *) = run->step;
    (void)loop, (void)revents;
    run->step = NULL;
    if (step != NULL)
        step(run);
}

void e2b_run_later(struct e2b_run *run, long long ms, void (*step)(struct e2b_run *run))
{
    struct ev_loop *loop = run->e2b->host->loop;
    run->step = step;
    ev_now_update(loop);
    ev_timer_stop(loop, &run->timer);
    ev_timer_set(&run->timer, (double)ms / 1000, 0);
    ev_timer_start(loop, &run->timer);
}

/* --- the end --- */

/* Calls off all that is under way. */
static void stop_work(struct e2b_run *run)
{
    ev_timer_stop(run->e2b->host->loop, &run->timer);
    run->step = NULL;
    e2b_resolve_detach(run->resolve);
    run->resolve = NULL;
    e2b_prepare_cancel(run->prepare);
    run->prepare = NULL;
    e2b_exec_cancel(run->exec);
    run->exec = NULL;
    e2b_settle_cancel(run->settle);
    run->settle = NULL;
    e2b_call_cancel(run->look);
    run->look = NULL;
    e2b_list_files_cancel(run->list);
    run->list = NULL;
    e2b_wait_stop(run->e2b, &run->wait);
}

void e2b_run_finish(struct e2b_run *run)
{
    stop_work(run);
    run->state = RUN_ENDED;
    run->end.files = run->listing.files;
    run->end.file_count = run->listing.count;
    run->end.warnings = json_array_size(run->warnings) > 0 ? run->warnings : NULL;
    if (run->end.state_lost == NULL && run->delivered) {
        run->end.state_lost = run->state_lost;
        run->end.anew = run->state_lost != NULL;
    }
    run->events.on_end(run->data, &run->end);
}

void e2b_run_fail(struct e2b_run *run, enum driver_end_kind kind, const char *fmt, ...)
{
    char message[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    free(run->end_message);
    /* Once the caller has delivered it counts as run, though nothing of it was. */
    if (run->delivered) {
        kind = run->interrupted ? DRIVER_END_INTERRUPTED : DRIVER_END_SANDBOX_LOST;
        run->end_message =
            mem_printf("The sandbox was lost before the code was started: %s", message);
    } else {
        run->end_message = mem_strdup(message);
    }
    run->end = (struct driver_end){.kind = kind, .exit_code = 1, .message = run->end_message};
    e2b_run_finish(run);
}

/* --- was its end seen? --- */

void e2b_run_unsettled(struct e2b_run *run)
{
    run->box->unsettled = true;
    if (run->thread == NULL)
        return;
    free(run->record_unsettled);
    run->record_unsettled = mem_strdup(run->box->id);
    e2b_session_unsettled(run->e2b, run->thread, run->box->id);
}

void e2b_run_seen_free(struct e2b_run *run)
{
    if (run->thread == NULL || run->record_unsettled[0] == '\0')
        return;
    run->record_unsettled[0] = '\0';
    e2b_session_unsettled(run->e2b, run->thread, "");
}

/* --- the sandbox --- */

static void on_found(void *data, const struct e2b_resolved *found)
{
    struct e2b_run *run = data;
    struct log_ctx ctx = e2b_run_ctx(run);
    run->resolve = NULL;
    run->box = found->box;
    run->reused = found->reused;
    run->resumed = found->resumed;
    if (found->state_lost != NULL)
        run->state_lost = found->state_lost;
    log_write(LOG_LEVEL_DEBUG, &ctx, "E2B: sandbox %.24s%s%s", found->box->id,
              found->reused ? ", reused" : ", new", found->resumed ? ", resumed" : "");
    if (strcmp(run->record_unsettled, run->box->id) == 0) /* another process saw it so */
        run->box->unsettled = true;
    run->state = RUN_PREPARING;
    e2b_prepare_start(run);
}

static void on_not_found(void *data, enum driver_end_kind kind, const char *message)
{
    struct e2b_run *run = data;
    run->resolve = NULL;
    e2b_run_fail(run, kind, "%s", message);
}

void e2b_run_resolve(struct e2b_run *run)
{
    struct e2b_resolve_options o = {
        .thread = run->thread,
        .actor = run->actor_digest,
        .record = {run->record_sandbox, run->record_creation, run->record_actor,
                   run->record_unsettled},
        .ttl_s = e2b_ttl_for(run->settings, run->timeout_ms, run->thread != NULL),
        .give_up_ms =
            text_monotonic_ms() + settings_int(run->settings, SETTING_E2B_CAPACITY_WAIT_MS),
        .settings = run->settings,
        .found = on_found,
        .failed = on_not_found,
        .data = run,
    };
    run->state = RUN_RESOLVING;
    run->resolve = e2b_resolve_start(run->e2b, &o);
}

static void drop_box(struct e2b_run *run)
{
    if (run->box == NULL)
        return;
    run->box->busy = false;
    if (run->box->thread == NULL)
        e2b_kill(run->e2b, run->box->id, "it could not be used");
    e2b_box_forget(run->box);
    e2b_box_unref(run->box);
    run->box = NULL;
    run->uploaded = false;
}

void e2b_run_renew(struct e2b_run *run, const char *why)
{
    struct log_ctx ctx = e2b_run_ctx(run);
    log_write(LOG_LEVEL_WARN, &ctx, "E2B: the run looks for its sandbox again: %s", why);
    if (run->interrupted || ++run->renewals > RENEWALS_MAX) {
        e2b_run_fail(run, DRIVER_END_NO_SANDBOX, "The sandbox could not be used: %s.", why);
        return;
    }
    if (run->thread != NULL && run->box != NULL) { /* as the record now has it */
        free(run->record_sandbox);
        free(run->record_actor);
        run->record_sandbox = mem_strdup(run->box->id);
        run->record_actor = mem_strdup(run->actor_digest);
    }
    stop_work(run);
    drop_box(run);
    e2b_run_resolve(run);
}

void e2b_run_denied(struct e2b_run *run, const char *why)
{
    if (run->denied) {
        e2b_run_fail(run, DRIVER_END_NO_SANDBOX,
                     "The sandbox refuses the access token that E2B gives for it: %s.", why);
        return;
    }
    run->denied = true;
    e2b_run_renew(run, why);
}

/* --- from the sandbox to the code --- */

void e2b_run_prepared(struct e2b_run *run)
{
    if (run->delivered) { /* a sandbox in place of one that was lost before the code got there */
        run->state = RUN_SENDING;
        e2b_code_send(run);
        return;
    }
    run->state = RUN_READY;
    struct driver_ready ready = {.reused = run->reused && run->state_lost == NULL,
                                 .resumed = run->resumed,
                                 .state_lost = run->state_lost};
    run->state_lost = NULL; /* told */
    run->events.on_ready(run->data, &ready);
}

void e2b_run_deliver(struct driver_run *base)
{
    struct e2b_run *run = run_of(base);
    if (run->state != RUN_READY)
        return;
    run->delivered = true;
    run->state = RUN_SENDING;
    e2b_code_send(run);
}

void e2b_run_interrupt(struct driver_run *base)
{
    struct e2b_run *run = run_of(base);
    if (!run->delivered || run->interrupted || run->state >= RUN_ENDED)
        return;
    run->interrupted = true;
    e2b_code_stop(run);
}

static void start_step(struct e2b_run *run)
{
    e2b_run_resolve(run);
}

struct driver_run *e2b_run_start(struct driver *d, const struct driver_request *request,
                                 const struct driver_events *events, void *data)
{
    struct e2b_run *run = mem_alloc(sizeof *run);
    run->base.driver = d;
    run->e2b = (struct e2b *)d;
    run->events = *events;
    run->data = data;
    run->settings = settings_ref((struct settings *)request->settings);
    run->job_id = mem_strdup(request->job_id);
    run->trace = mem_strdup(request->trace);
    run->thread = mem_strdup(request->thread);
    run->language = mem_strdup(request->language);
    run->python = strcmp(request->language, "python") == 0;
    run->code = mem_dup(request->code, request->code_len);
    run->code_len = request->code_len;
    run->env = request->env != NULL ? json_deep_copy(request->env) : json_object();
    run->inputs = request->inputs;
    run->input_count = request->input_count;
    run->timeout_ms = request->timeout_ms;
    run->record_sandbox = mem_strdup(request->record.sandbox);
    run->record_creation = mem_strdup(request->record.creation);
    run->record_actor = mem_strdup(request->record.actor);
    run->record_unsettled = mem_strdup(request->record.unsettled);
    run->warnings = json_array();
    /* "-" and "=...": no actor is not the empty one. */
    char *actor = request->actor != NULL ? mem_printf("=%s", request->actor) : mem_strdup("-");
    e2b_digest(actor, run->actor_digest);
    free(actor);
    text_uuid(run->nonce);
    ev_timer_init(&run->timer, on_timer, 0, 0);
    run->timer.data = run;
    run->next = run->e2b->runs;
    run->e2b->runs = run;
    e2b_run_later(run, 0, start_step);
    return &run->base;
}

void e2b_run_file_read(struct driver_run *base, size_t index, driver_piece_fn cb, void *data)
{
    struct e2b_run *run = run_of(base);
    if (run->state != RUN_ENDED || index >= run->listing.count)
        return;
    if (run->reads == NULL)
        run->reads = e2b_reads_new(run->box, &run->listing,
                                   settings_int(run->settings, SETTING_FILE_MAX_BYTES));
    e2b_reads_next(run->reads, index, cb, data);
}

static void run_free(void *arg)
{
    struct e2b_run *run = arg;
    e2b_listing_fini(&run->listing);
    e2b_outcome_fini(&run->outcome);
    json_decref(run->warnings);
    json_decref(run->env);
    settings_free(run->settings);
    free(run->job_id);
    free(run->trace);
    free(run->thread);
    free(run->language);
    free(run->code);
    free(run->record_sandbox);
    free(run->record_creation);
    free(run->record_actor);
    free(run->record_unsettled);
    free(run->why);
    free(run->end_message);
    free(run->end_trace);
    free(run);
}

/* The sandbox waits for the thread's next run, or is killed. */
static void give_back(struct e2b_run *run, bool code_runs)
{
    struct e2b_box *box = run->box;
    if (box == NULL)
        return;
    run->box = NULL;
    box->busy = false;
    box->used_ms = text_monotonic_ms();
    if (code_runs)
        box->unsettled = true;
    if (box->thread == NULL)
        e2b_kill(run->e2b, box->id, "its job has ended");
    else if (box->cached)
        e2b_ttl_idle(box, run->settings);
    e2b_box_unref(box);
    e2b_wait_kick(run->e2b);
}

void e2b_run_close(struct driver_run *base)
{
    struct e2b_run *run = run_of(base);
    struct e2b_run **at = &run->e2b->runs;
    bool code_runs = run->state == RUN_SENDING || run->state == RUN_CODE ||
                     run->state == RUN_STOPPING || run->state == RUN_PREPARING;
    if (run->state == RUN_CLOSED)
        return;
    run->state = RUN_CLOSED;
    stop_work(run);
    e2b_reads_free(run->reads);
    run->reads = NULL;
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    give_back(run, code_runs);
    reaper_defer(run_free, run);
}
