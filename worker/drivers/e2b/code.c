/* The code goes out once, and its stream, a stop or a loss brings the run to one honest end. */
#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEND_TRIES_MAX 8
#define REFUSALS_MAX   4
#define KEEP_MIN_MS    1000

static const char *context_of(const struct e2b_run *run)
{
    return run->python ? NULL : jsonx_get_str(run->box->contexts, run->language, NULL);
}

/* --- the files, then the end --- */

static void on_listed(void *data, bool ok)
{
    struct e2b_run *run = data;
    run->list = NULL;
    if (!ok)
        e2b_run_warn(run, "the output folder could not be listed; its files are missing here");
    e2b_run_finish(run);
}

static void list_and_finish(struct e2b_run *run)
{
    run->state = RUN_LISTING;
    run->list = e2b_list_files_start(run->box, &run->listing,
                                     (size_t)settings_int(run->settings, SETTING_FILES_MAX_COUNT),
                                     run->warnings, on_listed, run);
}

static void end_by(struct e2b_run *run, enum driver_end_kind kind, int exit_code, char *message)
{
    free(run->end_message);
    run->end_message = message;
    run->end = (struct driver_end){.kind = kind, .exit_code = exit_code, .message = message};
}

/* --- the env of other languages --- */

static void ignore_line(void *data, const json_t *line)
{
    (void)data, (void)line;
}

static void ignore_done(void *data, const struct e2b_exec_end *end)
{
    (void)data, (void)end;
}

/* Off the critical path: whatever runs next in the context is queued behind it. */
static void remove_env(struct e2b_run *run)
{
    const char *context = context_of(run);
    if (run->python || context == NULL || json_object_size(run->env) == 0)
        return;
    char *cell = e2b_language_env(run->language, run->env, true);
    if (cell != NULL)
        e2b_exec_start(run->box, &(struct e2b_exec_options){.code = cell,
                                                            .code_len = strlen(cell),
                                                            .context = context,
                                                            .stall_ms = 5000,
                                                            .line_max = 1 << 16,
                                                            .on_line = ignore_line,
                                                            .on_done = ignore_done});
    free(cell);
}

/* --- the stream has ended --- */

/* The kernel did not know the line before the code, so it ran nothing of it: the hooks are under
 * way, or they went with an interpreter that has started anew. */
static void refused(struct e2b_run *run)
{
    struct e2b_box *box = run->box;
    struct log_ctx ctx = e2b_run_ctx(run);
    bool anew = run->outcome.anew;
    log_write(LOG_LEVEL_DEBUG, &ctx, "E2B: the kernel refused the code: it is not prepared%s",
              run->sent_prepared ? " any more" : " yet");
    e2b_outcome_fini(&run->outcome);
    if (run->sent_prepared) {
        box->prepared = false;
        box->restarted = anew;
        if (anew && run->thread != NULL)
            run->state_lost = "kernel_died";
    }
    run->state = RUN_PREPARING;
    run->awaits_hooks = true;
    if (++run->refusals > REFUSALS_MAX)
        e2b_run_fail(run, DRIVER_END_NO_SANDBOX,
                     "The sandbox's interpreter could not be made ready: it does not take the "
                     "hooks.");
    else if (box->prepared)
        e2b_code_send(run);
    else if (run->prepare == NULL)
        e2b_prepare_start(run); /* else its end sends the code again */
}

static void complete(struct e2b_run *run)
{
    if (run->outcome.refused && !run->outcome.spoke && run->outcome.listing == NULL) {
        refused(run);
        return;
    }
    e2b_prepare_proven(run);
    bool listed = e2b_outcome_judge(run);
    remove_env(run);
    if (!listed) {
        list_and_finish(run);
        return;
    }
    e2b_listing_from_hooks(&run->listing, run->outcome.listing,
                           (size_t)settings_int(run->settings, SETTING_FILES_MAX_COUNT),
                           run->warnings);
    e2b_run_finish(run);
}

static void on_looked(void *data, const struct e2b_answer *a)
{
    struct e2b_run *run = data;
    run->look = NULL;
    if (a->verdict == E2B_GONE) {
        end_by(run, DRIVER_END_SANDBOX_LOST, 1,
               mem_printf("The sandbox was lost while the code ran (%.200s).", run->why));
        if (run->thread != NULL)
            run->end.state_lost = "sandbox_gone";
        e2b_box_forget(run->box);
        e2b_run_finish(run);
        return;
    }
    end_by(run, DRIVER_END_OUTCOME_UNKNOWN, 1,
           mem_printf("The connection to the sandbox was lost while the code ran, as when its "
                      "memory runs out; how far it came is not known (%.200s).",
                      run->why));
    if (a->verdict == E2B_OK && strcmp(jsonx_get_str(a->body, "state", ""), "running") == 0)
        list_and_finish(run);
    else
        e2b_run_finish(run);
}

/* It may have run, and nobody saw its end: is there still a sandbox? Asked without waking it. */
static void lost(struct e2b_run *run, const char *why)
{
    struct log_ctx ctx = e2b_run_ctx(run);
    char *path = mem_printf("/sandboxes/%s", run->box->id);
    log_write(LOG_LEVEL_WARN, &ctx, "E2B: the stream of the run was lost: %s", why);
    free(run->why);
    run->why = mem_strdup(why);
    run->state = RUN_STOPPING;
    e2b_prepare_cancel(run->prepare);
    run->prepare = NULL;
    e2b_run_unsettled(run);
    run->box->prepared = false;
    run->look = e2b_call_start(
        run->e2b,
        &(struct e2b_call_options){.method = "GET", .path = path, .done = on_looked, .data = run});
    free(path);
}

/* --- nothing was run: again, elsewhere, or the end --- */

static void send_again(struct e2b_run *run)
{
    e2b_code_send(run);
}

static void on_turn(void *data, bool in_time)
{
    struct e2b_run *run = data;
    if (in_time)
        e2b_code_send(run);
    else
        e2b_run_fail(run, DRIVER_END_NO_CAPACITY,
                     "The account's number of E2B sandboxes is reached and none came free in time "
                     "(E2B_CAPACITY_WAIT_MS).");
}

static void wait_for_capacity(struct e2b_run *run)
{
    run->wait.since_ms = text_monotonic_ms();
    run->wait.give_up_ms =
        run->wait.since_ms + settings_int(run->settings, SETTING_E2B_CAPACITY_WAIT_MS);
    run->wait.turn = on_turn;
    run->wait.data = run;
    e2b_wait_start(run->e2b, &run->wait);
}

static void on_done(void *data, const struct e2b_exec_end *end)
{
    struct e2b_run *run = data;
    run->exec = NULL;
    switch (end->result) {
    case EXEC_COMPLETE:
        complete(run);
        break;
    case EXEC_CUT:
    case EXEC_STALLED:
        lost(run, end->message);
        break;
    case EXEC_GONE:
        e2b_run_renew(run, end->message);
        break;
    case EXEC_DENIED:
        e2b_run_denied(run, end->message);
        break;
    case EXEC_FULL:
        wait_for_capacity(run);
        break;
    case EXEC_REFUSED:
        if (end->status == 404) { /* its server has started anew: no context, no hooks */
            json_object_clear(run->box->contexts);
            e2b_run_renew(run, end->message);
            break;
        }
        e2b_run_fail(run, DRIVER_END_NO_SANDBOX, "The sandbox did not take the code: %s.",
                     end->message);
        break;
    case EXEC_NOT_SENT:
    case EXEC_PORT:
        if (++run->tries < SEND_TRIES_MAX)
            e2b_run_later(run, e2b_backoff_ms(run->tries, end->retry_after_ms), send_again);
        else
            e2b_run_fail(run, DRIVER_END_NO_SANDBOX, "The sandbox could not be reached: %s.",
                         end->message);
        break;
    }
}

/* --- sending --- */

static void keep_alive(struct e2b_run *run);

static void keep_later(struct e2b_run *run)
{
    long long left = (run->box->end_ms - text_monotonic_ms()) / 2;
    e2b_run_later(run, left < KEEP_MIN_MS ? KEEP_MIN_MS : left, keep_alive);
}

static void keep_alive(struct e2b_run *run)
{
    if (run->state != RUN_SENDING && run->state != RUN_CODE)
        return;
    e2b_ttl_keep(run->box, run->timeout_ms); /* at most: the caller's clock ends it before */
    keep_later(run);
}

static void on_line(void *data, const json_t *line)
{
    struct e2b_run *run = data;
    run->state = RUN_CODE;
    e2b_outcome_line(run, line);
}

static void on_loss(void *data, const char *what)
{
    e2b_run_warn(data, "%s", what);
}

/* The settings of the run travel in a line of its own; the hooks take it off before IPython sees
 * it. */
static char *code_of(struct e2b_run *run, size_t *len)
{
    if (!run->python) {
        *len = run->code_len;
        return mem_dup(run->code, run->code_len);
    }
    json_t *settings = json_pack("{s:O,s:s}", "env", run->env, "output", E2B_OUTPUT);
    text_uuid(run->nonce); /* nobody has seen it yet: only a refusal can name it */
    char *line = e2b_guard_line(run->box, run->nonce, settings);
    size_t line_len = strlen(line);
    char *code = mem_realloc(line, line_len + run->code_len + 1);
    memcpy(code + line_len, run->code, run->code_len);
    code[line_len + run->code_len] = '\0';
    *len = line_len + run->code_len;
    json_decref(settings);
    return code;
}

static void send_cell(struct e2b_run *run, const char *code, size_t len,
                      void (*line)(void *data, const json_t *line),
                      void (*done)(void *data, const struct e2b_exec_end *end))
{
    run->exec = e2b_exec_start(
        run->box, &(struct e2b_exec_options){
                      .code = code,
                      .code_len = len,
                      .context = context_of(run),
                      .stall_ms = settings_int(run->settings, SETTING_E2B_STALL_TIMEOUT_MS),
                      .line_max = (size_t)settings_int(run->settings, SETTING_E2B_LINE_MAX_BYTES),
                      .on_line = line,
                      .on_loss = on_loss,
                      .on_done = done,
                      .data = run,
                  });
}

static void send_code(struct e2b_run *run)
{
    size_t len;
    char *code = code_of(run, &len);
    run->sent_prepared = run->box->prepared;
    send_cell(run, code, len, on_line, on_done);
    free(code);
    e2b_ttl_cover(run->box, run->settings, run->timeout_ms); /* beside it */
    keep_later(run);
}

static void on_env_line(void *data, const json_t *line)
{
    struct e2b_run *run = data;
    if (strcmp(jsonx_get_str(line, "type", ""), "error") == 0)
        run->uncertain = true;
}

static void on_env_set(void *data, const struct e2b_exec_end *end)
{
    struct e2b_run *run = data;
    run->exec = NULL;
    if (end->result == EXEC_COMPLETE && !run->uncertain)
        send_code(run);
    else if (end->result == EXEC_GONE || end->status == 404)
        e2b_run_renew(run, end->message);
    else if (end->result == EXEC_DENIED)
        e2b_run_denied(run, end->message);
    else
        e2b_run_fail(run, DRIVER_END_NO_SANDBOX, "The run's env could not be set: %s.",
                     end->message[0] != '\0' ? end->message : "the interpreter raised an error");
}

void e2b_code_send(struct e2b_run *run)
{
    run->state = RUN_SENDING;
    run->awaits_hooks = false;
    if (run->python || json_object_size(run->env) == 0) {
        send_code(run);
        return;
    }
    char *cell = e2b_language_env(run->language, run->env, false);
    if (cell == NULL) {
        e2b_run_fail(run, DRIVER_END_BAD_JOB, "env cannot be set for the language %.60s.",
                     run->language);
        return;
    }
    send_cell(run, cell, strlen(cell), on_env_line, on_env_set);
    free(cell);
}

/* --- stopping --- */

static void on_stopped(void *data, enum e2b_settled how)
{
    struct e2b_run *run = data;
    run->settle = NULL;
    if (how == SETTLED_GONE) {
        end_by(run, DRIVER_END_SANDBOX_LOST, 1,
               mem_strdup("The sandbox was lost while the code was being stopped."));
        if (run->thread != NULL)
            run->end.state_lost = "sandbox_gone";
        e2b_box_forget(run->box);
        e2b_run_finish(run);
        return;
    }
    if (how == SETTLED_FAILED)
        e2b_run_unsettled(run);
    end_by(run, DRIVER_END_INTERRUPTED, 130,
           mem_strdup(how == SETTLED_RESTARTED
                          ? "The code did not heed the interrupt; its interpreter was restarted."
                          : "The code was interrupted."));
    if (how == SETTLED_RESTARTED && run->thread != NULL)
        run->end.state_lost = "killed_after_timeout";
    remove_env(run);
    list_and_finish(run);
}

void e2b_code_stop(struct e2b_run *run)
{
    if (run->state == RUN_LISTING || run->state == RUN_STOPPING)
        return; /* its end is near already */
    e2b_prepare_cancel(run->prepare);
    run->prepare = NULL;
    if (run->exec == NULL) { /* nothing of it has been sent, or all was refused */
        end_by(run, DRIVER_END_INTERRUPTED, 130,
               mem_strdup("The code was stopped before the sandbox had it."));
        e2b_run_finish(run);
        return;
    }
    ev_timer_stop(run->e2b->host->loop, &run->timer);
    e2b_exec_cancel(run->exec); /* closing the connection is what interrupts the kernel */
    run->exec = NULL;
    run->state = RUN_STOPPING;
    run->box->unsettled = true;
    run->settle = e2b_settle_start(run->box, context_of(run), on_stopped, run);
}
