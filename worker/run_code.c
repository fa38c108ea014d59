/* A run's sandbox and code: what the driver says, the mark, delivery, the time limit. */
#include "worker/run_impl.h"

#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After an interrupt the driver has this long to end the run; it promises less. */
#define INTERRUPT_LIMIT_S 30.0

static enum outcome outcome_of_end(const struct run *run, const struct driver_end *end)
{
    bool by_itself = end->kind == DRIVER_END_OK || end->kind == DRIVER_END_CODE_ERROR ||
                     end->kind == DRIVER_END_INTERRUPTED || end->kind == DRIVER_END_KERNEL_DIED;
    if (run->stop != RUN_STOP_NONE && by_itself)
        return run->stop == RUN_STOP_TIMEOUT     ? OUTCOME_TIMEOUT
               : run->stop == RUN_STOP_CANCELLED ? OUTCOME_CANCELLED
                                                 : OUTCOME_DRAINED;
    switch (end->kind) {
    case DRIVER_END_OK:
        return OUTCOME_OK;
    case DRIVER_END_CODE_ERROR:
    case DRIVER_END_INTERRUPTED: /* not by us: the code interrupted itself */
        return OUTCOME_CODE_ERROR;
    case DRIVER_END_KERNEL_DIED:
        return OUTCOME_KERNEL_DIED;
    case DRIVER_END_OOM:
        return OUTCOME_OOM;
    case DRIVER_END_SANDBOX_LOST:
        return OUTCOME_SANDBOX_LOST;
    case DRIVER_END_OUTCOME_UNKNOWN:
        return OUTCOME_OUTCOME_UNKNOWN;
    case DRIVER_END_NO_SANDBOX:
        return OUTCOME_NO_SANDBOX;
    case DRIVER_END_NO_CAPACITY:
        return OUTCOME_NO_CAPACITY;
    case DRIVER_END_DISABLED:
        return OUTCOME_DISABLED;
    case DRIVER_END_BAD_JOB:
        return OUTCOME_BAD_JOB;
    case DRIVER_END_DRIVER_ERROR:
        break;
    }
    return OUTCOME_DRIVER_ERROR;
}

/* A stopped run's error is why it was stopped, not the KeyboardInterrupt that stopped it. */
static void tell_stop(struct run *run)
{
    struct result *r = &run->result;
    free(r->error);
    free(r->error_name);
    free(r->error_value);
    free(r->traceback);
    r->error_name = r->error_value = r->traceback = NULL;
    r->error =
        run->outcome == OUTCOME_TIMEOUT
            ? mem_printf("The code did not finish within %lld ms (timeoutMs) and was stopped.",
                         run->job.timeout_ms)
        : run->outcome == OUTCOME_CANCELLED
            ? mem_strdup("The run was cancelled.")
            : mem_strdup("The worker shut down before the code had finished.");
}

static void on_end(void *data, const struct driver_end *end)
{
    struct run *run = data;
    ev_timer_stop(run->host->loop, &run->timer);
    run->ended_ms = text_monotonic_ms();
    if (run->state != RUN_RUNNING) {
        if (run->delivered_ms == 0)
            run->result.sandbox_ms = run->ended_ms - run->began_ms;
        run_fail(run, outcome_of_end(run, end),
                 mem_strdup(end->message != NULL ? end->message : "The sandbox could not be had."));
        return;
    }
    run->result.run_ms = run->ended_ms - run->delivered_ms;
    metrics_observe_ms(METRIC_RUN_DURATION, (double)run->result.run_ms);
    result_take_end(&run->result, end);
    run->outcome = outcome_of_end(run, end);
    bool stopped = run->outcome == OUTCOME_TIMEOUT || run->outcome == OUTCOME_CANCELLED ||
                   run->outcome == OUTCOME_DRAINED;
    if (stopped)
        tell_stop(run);
    run_enter(run, RUN_COLLECTING);
    outputs_collect(run->outputs, run->driver_run, end->files, end->file_count);
}

static void first_output(struct run *run)
{
    if (!run->has_output)
        metrics_observe_ms(METRIC_FIRST_OUTPUT, (double)(text_monotonic_ms() - run->delivered_ms));
    run->has_output = true;
}

static void on_output(void *data, enum driver_stream stream, const char *text, size_t len)
{
    struct run *run = data;
    first_output(run);
    capture_add(stream == DRIVER_STDOUT ? &run->result.out : &run->result.err, text, len);
    reply_output(run->reply, stream, text, len);
    if (run->log != NULL)
        job_log_output(run->log, text, len);
}

static void on_result(void *data, const json_t *bundle, bool is_main)
{
    struct run *run = data;
    first_output(run);
    outputs_add_result(run->outputs, bundle, is_main);
}

/* ---- delivery ---- */

static void on_interrupt_limit(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct run *run = w->data;
    struct driver_end end = {.kind = DRIVER_END_SANDBOX_LOST,
                             .message = "The sandbox did not answer when the code was stopped.",
                             .exit_code = OUTCOME_NO_EXIT_CODE};
    driver_close(run->driver_run);
    run->driver_run = NULL;
    on_end(run, &end);
}

void run_interrupt(struct run *run, enum run_stop why)
{
    run->stop = why;
    ev_timer_stop(run->host->loop, &run->timer);
    ev_timer_init(&run->timer, on_interrupt_limit, INTERRUPT_LIMIT_S, 0);
    run->timer.data = run;
    ev_timer_start(run->host->loop, &run->timer);
    driver_interrupt(run->driver_run);
}

static void on_time_limit(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct run *run = w->data;
    struct log_ctx ctx = run_log_ctx(run);
    log_write(LOG_LEVEL_INFO, &ctx, "the run is stopped: timeoutMs (%lld) is over",
              run->job.timeout_ms);
    run_interrupt(run, RUN_STOP_TIMEOUT);
}

void run_timer_init(struct run *run)
{
    ev_timer_init(&run->timer, on_time_limit, 0, 0);
    run->timer.data = run;
}

static void on_marked(void *data);

static void deliver(struct run *run)
{
    /* Was this process stopped, or Redis slow, for so long that the lock may be another's by now?
     * Then the mark is made again: that asks whose the run is. */
    if (!reply_mark_is_fresh(run->reply)) {
        struct log_ctx ctx = run_log_ctx(run);
        log_write(LOG_LEVEL_WARN, &ctx, "the mark is too old to deliver the code; marking again");
        reply_mark(run->reply, on_marked);
        return;
    }
    run_enter(run, RUN_RUNNING);
    run->delivered_ms = text_monotonic_ms();
    run->result.sandbox_ms = run->delivered_ms - run->began_ms;
    metrics_observe_ms(METRIC_SANDBOX_WAIT, (double)run->result.sandbox_ms);
    ev_now_update(run->host->loop);
    ev_timer_init(&run->timer, on_time_limit, (double)run->job.timeout_ms / 1000.0, 0);
    run->timer.data = run;
    ev_timer_start(run->host->loop, &run->timer);
    driver_deliver(run->driver_run);
}

static void on_waited(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct run *run = data;
    if (!run_unhold(run) || run->state != RUN_MARKING)
        return;
    long long want = settings_int(run->settings, SETTING_MARK_WAIT_REPLICAS);
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer >= want)
        deliver(run);
    else
        run_fail(run, OUTCOME_DRIVER_ERROR,
                 mem_printf("The mark of the run did not reach %lld Redis replicas in time "
                            "(MARK_WAIT_REPLICAS).",
                            want));
}

static void on_marked(void *data)
{
    struct run *run = data;
    if (run->state != RUN_MARKING)
        return;
    if (run->stop != RUN_STOP_NONE) {
        run_fail_stopped(run);
        return;
    }
    if (settings_int(run->settings, SETTING_MARK_WAIT_REPLICAS) > 0 && !run->job.idempotent) {
        char replicas[24], ms[24];
        snprintf(replicas, sizeof replicas, "%lld",
                 settings_int(run->settings, SETTING_MARK_WAIT_REPLICAS));
        snprintf(ms, sizeof ms, "%lld", settings_int(run->settings, SETTING_MARK_WAIT_TIMEOUT_MS));
        const char *argv[] = {"WAIT", replicas, ms};
        if (redis_command(run->host->redis, 3, argv, NULL, 0, on_waited, run) == 0) {
            run->holds++;
            return;
        }
    }
    deliver(run);
}

static void on_ready(void *data, const struct driver_ready *ready)
{
    struct run *run = data;
    struct result *r = &run->result;
    r->reused = ready->reused;
    r->resumed = ready->resumed;
    free(r->state_lost);
    r->state_lost = mem_strdup(ready->state_lost);
    if (run->claimed->thread.data != NULL)
        metrics_count(METRIC_SANDBOXES_ACQUIRED, 1, run->driver->ops->name,
                      ready->resumed  ? "resumed"
                      : ready->reused ? "warm"
                                      : "fresh");
    run_enter(run, RUN_MARKING);
    bool mark = !run->job.idempotent || run->job.reply;
    run->marked = run->marked || mark;
    reply_started(run->reply, (int)run->claimed->attempts_made + 1, ready, mark, on_marked);
}

static const char *or_empty(const struct str *s)
{
    return s->data != NULL ? s->data : "";
}

static const struct driver_events driver_events = {on_ready, on_output, on_result, on_end};

/* ---- the sandbox ---- */

void run_prepare(struct run *run)
{
    const struct str *before = &run->claimed->replica_before;
    run_enter(run, RUN_PREPARING);
    struct driver_request request = {
        .job_id = run->claimed->id.data,
        .execution_id = run->execution_id,
        .thread = run->job.thread,
        .actor = run->job.actor,
        .language = run->job.language,
        .code = run->job.code,
        .code_len = run->job.code_len,
        .env = run->job.env,
        .timeout_ms = run->job.timeout_ms,
        .trace = run->opts.traceparent,
        .attempt = (int)run->claimed->attempts_made + 1,
        .record = {or_empty(&run->claimed->sandbox), or_empty(&run->claimed->creation),
                   or_empty(&run->claimed->actor), or_empty(&run->claimed->unsettled)},
        .other_replica_before =
            before->len > 0 &&
            strcmp(before->data, queue_options(run->host->queue)->replica_id) != 0,
        .settings = run->settings,
    };
    request.inputs = inputs_list(run->inputs, &request.input_count);
    run->driver_run = driver_start(run->driver, &request, &driver_events, run);
}
