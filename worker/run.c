/* One claimed job from its claim to its end: the state machine of the pipeline. */
#include "worker/run.h"

#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/ending.h"
#include "worker/inputs.h"
#include "worker/job.h"
#include "worker/outputs.h"
#include "worker/reply.h"
#include "worker/result.h"

#include <ev.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* States in their order; run_enter is the one place that changes them.
 *   STAGING    inputs and secrets are brought here
 *   PREPARING  the driver gets the sandbox ready
 *   MARKING    `started` and the mark are on their way to Redis
 *   RUNNING    the code was delivered
 *   COLLECTING files are taken
 *   SETTLING   the last flush of the reply is awaited
 *   ENDING     the finishing call is under way
 *   OVER       waits to be freed */
enum state { NEW, STAGING, PREPARING, MARKING, RUNNING, COLLECTING, SETTLING, ENDING, OVER };
static const char *const state_names[] = {"new",      "staging", "preparing",
                                          "marking",  "running", "collecting",
                                          "settling", "ending",  "over"};

/* After an interrupt the driver has this long to end the run; it promises less. */
#define INTERRUPT_LIMIT_S 30.0

struct run {
    const struct run_host *host;
    struct claimed_job *claimed;
    struct jobopts opts;
    struct job job;
    struct settings *settings;
    char execution_id[37];
    enum state state;
    enum run_stop stop;
    enum outcome outcome;
    char *failed_reason;
    char *return_value;
    bool marked, fenced;
    struct lock *lock;
    struct reply *reply;
    struct inputs *inputs;
    struct outputs *outputs;
    struct driver *driver;
    struct driver_run *driver_run;
    struct ending *ending;
    struct result result;
    struct ev_timer timer;                      /* the time limit, then the limit of an interrupt */
    long long began_ms, delivered_ms, ended_ms; /* monotonic */
    size_t holds;     /* callbacks that cannot be called off and still know us */
    struct run *next; /* the worker's list */
};

const char *run_job_id(const struct run *run)
{
    return run->claimed->id.data;
}

struct run **run_link(struct run *run)
{
    return &run->next;
}

static struct log_ctx ctx_of(const struct run *run)
{
    return (struct log_ctx){.job = run->claimed->id.data, .thread = run->claimed->thread.data};
}

static void run_enter(struct run *run, enum state state)
{
    struct log_ctx ctx = ctx_of(run);
    log_write(LOG_LEVEL_DEBUG, &ctx, "%s -> %s", state_names[run->state], state_names[state]);
    run->state = state;
}

static void free_run(void *data)
{
    struct run *run = data;
    result_fini(&run->result);
    job_fini(&run->job);
    jobopts_fini(&run->opts);
    claimed_job_free(run->claimed);
    settings_free(run->settings);
    free(run->failed_reason);
    free(run->return_value);
    free(run);
}

/* Lets go of everything that could call back. */
static void let_go(struct run *run)
{
    ev_timer_stop(run->host->loop, &run->timer);
    lock_remove(run->lock);
    run->lock = NULL;
    outputs_free(run->outputs);
    run->outputs = NULL;
    if (run->driver_run != NULL)
        driver_close(run->driver_run);
    run->driver_run = NULL;
    inputs_free(run->inputs);
    run->inputs = NULL;
    ending_free(run->ending);
    run->ending = NULL;
    if (run->reply != NULL)
        reply_free(run->reply);
    run->reply = NULL;
    if (run->driver != NULL)
        factory_give_back(run->host->factory, run->driver);
    run->driver = NULL;
}

static void over(struct run *run, const struct claim_answer *answer)
{
    run_enter(run, OVER);
    let_go(run);
    run->host->ended(run, answer, run->host->data);
    if (run->holds == 0)
        reaper_defer(free_run, run);
}

/* A callback that cannot be called off has come; false when the run is over and it is all the same.
 */
static bool unhold(struct run *run)
{
    run->holds--;
    if (run->state != OVER)
        return true;
    if (run->holds == 0)
        reaper_defer(free_run, run);
    return false;
}

void run_abandon(struct run *run, const char *why)
{
    if (run->state == OVER)
        return;
    struct log_ctx ctx = ctx_of(run);
    log_write(LOG_LEVEL_WARN, &ctx, "the run is given up while %s: %s; nothing more is written",
              state_names[run->state], why);
    over(run, NULL);
}

/* The lock is not ours any more: another worker may have the job, or it was removed. */
static void lose(struct run *run, const char *why)
{
    if (run->state == OVER || run->fenced)
        return;
    run->fenced = true;
    if (run->reply != NULL)
        reply_say_removed(run->reply);
    run_abandon(run, why);
}

static void on_lock_lost(void *data)
{
    struct run *run = data;
    if (run->state == ENDING) /* its own answer says what became of it */
        return;
    lose(run, "its lock was lost");
}

static void on_fenced(bool removed, void *data)
{
    lose(data, removed ? "the job was removed" : "its lock is another's or expired");
}

/* ---- the end ---- */

static void forget_secrets(const struct run *run)
{
    if (run->job.secrets_key == NULL)
        return;
    const char *argv[] = {"DEL", run->job.secrets_key + strlen(queue_prefix(run->host->queue))};
    queue_command(run->host->queue, 2, argv, NULL, NULL, NULL);
}

static void on_ended(enum finish_result finished, enum ending_kind kind,
                     const struct claim_answer *next, void *data)
{
    static const char *const words[] = {"completed", "failed", "to be retried"};
    struct run *run = data;
    struct log_ctx ctx = ctx_of(run);
    run->ending = NULL;
    const char *reason = outcome_row(run->outcome)->reason;
    if (finished == FINISH_RESULT_OK)
        log_write(LOG_LEVEL_INFO, &ctx,
                  "job %s: %s; queued %lld ms, sandbox %lld ms, run %lld ms, files %lld ms%s%s",
                  words[kind], reason, run->result.queued_ms, run->result.sandbox_ms,
                  run->result.run_ms, run->result.files_ms, run->failed_reason != NULL ? ": " : "",
                  run->failed_reason != NULL ? run->failed_reason : "");
    else
        log_write(LOG_LEVEL_WARN, &ctx, "job could not be ended as %s (%s)", words[kind], reason);
    if (finished == FINISH_RESULT_LOST)
        reply_say_removed(run->reply);
    if (kind != ENDING_RETRIED)
        forget_secrets(run);
    over(run, next);
}

static void finish(void *data)
{
    struct run *run = data;
    run_enter(run, ENDING);
    struct ending_options o = {
        .queue = run->host->queue,
        .claimed = run->claimed,
        .opts = &run->opts,
        .job = &run->job,
        .settings = run->settings,
        .reply = run->reply,
        .result = &run->result,
        .return_value = run->return_value,
        .outcome = run->outcome,
        .failed_reason = run->failed_reason,
        .marked = run->marked,
        .fetch_next = run->host->may_fetch(run->host->data),
    };
    run->ending = ending_start(&o, on_ended, run);
}

static void settle_and_finish(struct run *run)
{
    run_enter(run, SETTLING);
    ev_timer_stop(run->host->loop, &run->timer);
    reply_settle(run->reply, finish);
}

/* Ends a run whose code was not delivered; text is one sentence (stolen). */
static void fail(struct run *run, enum outcome outcome, char *text)
{
    run->outcome = outcome;
    free(run->failed_reason);
    run->failed_reason = text;
    settle_and_finish(run);
}

static void fail_stopped(struct run *run)
{
    bool drained = run->stop == RUN_STOP_DRAINED;
    fail(run, OUTCOME_CANCELLED_BEFORE,
         mem_strdup(drained ? "The worker shut down before the code was started."
                            : "The job was cancelled before its code was started."));
}

static void on_collected(void *data)
{
    struct run *run = data;
    run->result.files_ms = text_monotonic_ms() - run->ended_ms;
    settle_and_finish(run);
}

/* ---- what the driver says ---- */

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
    if (run->state != RUNNING) {
        if (run->delivered_ms == 0)
            run->result.sandbox_ms = run->ended_ms - run->began_ms;
        fail(run, outcome_of_end(run, end),
             mem_strdup(end->message != NULL ? end->message : "The sandbox could not be had."));
        return;
    }
    run->result.run_ms = run->ended_ms - run->delivered_ms;
    result_take_end(&run->result, end);
    run->outcome = outcome_of_end(run, end);
    bool stopped = run->outcome == OUTCOME_TIMEOUT || run->outcome == OUTCOME_CANCELLED ||
                   run->outcome == OUTCOME_DRAINED;
    if (stopped)
        tell_stop(run);
    run_enter(run, COLLECTING);
    outputs_collect(run->outputs, run->driver_run, end->files, end->file_count);
}

static void on_output(void *data, enum driver_stream stream, const char *text, size_t len)
{
    struct run *run = data;
    capture_add(stream == DRIVER_STDOUT ? &run->result.out : &run->result.err, text, len);
    reply_output(run->reply, stream, text, len);
}

static void on_result(void *data, const json_t *bundle, bool is_main)
{
    struct run *run = data;
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

static void interrupt(struct run *run, enum run_stop why)
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
    struct log_ctx ctx = ctx_of(run);
    log_write(LOG_LEVEL_INFO, &ctx, "the run is stopped: timeoutMs (%lld) is over",
              run->job.timeout_ms);
    interrupt(run, RUN_STOP_TIMEOUT);
}

static void deliver(struct run *run)
{
    run_enter(run, RUNNING);
    run->delivered_ms = text_monotonic_ms();
    run->result.sandbox_ms = run->delivered_ms - run->began_ms;
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
    if (!unhold(run) || run->state != MARKING)
        return;
    long long want = settings_int(run->settings, SETTING_MARK_WAIT_REPLICAS);
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer >= want)
        deliver(run);
    else
        fail(run, OUTCOME_DRIVER_ERROR,
             mem_printf("The mark of the run did not reach %lld Redis replicas in time "
                        "(MARK_WAIT_REPLICAS).",
                        want));
}

static void on_marked(void *data)
{
    struct run *run = data;
    if (run->state != MARKING)
        return;
    if (run->stop != RUN_STOP_NONE) {
        fail_stopped(run);
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
    run_enter(run, MARKING);
    bool mark = !run->job.idempotent || run->job.reply;
    run->marked = run->marked || mark;
    reply_started(run->reply, (int)run->claimed->attempts_made + 1, ready, mark, on_marked);
}

static const char *or_empty(const struct str *s)
{
    return s->data != NULL ? s->data : "";
}

static const struct driver_events driver_events = {on_ready, on_output, on_result, on_end};

static void on_inputs(const char *error, bool permanent, void *data)
{
    struct run *run = data;
    if (error != NULL) {
        fail(run, permanent ? OUTCOME_BAD_JOB : OUTCOME_DRIVER_ERROR, mem_strdup(error));
        return;
    }
    const struct str *before = &run->claimed->replica_before;
    run_enter(run, PREPARING);
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
        .attempt = (int)run->claimed->attempts_made + 1,
        .record = {or_empty(&run->claimed->sandbox), or_empty(&run->claimed->creation),
                   or_empty(&run->claimed->actor)},
        .other_replica_before =
            before->len > 0 &&
            strcmp(before->data, queue_options(run->host->queue)->replica_id) != 0,
        .settings = run->settings,
    };
    request.inputs = inputs_list(run->inputs, &request.input_count);
    run->driver_run = driver_start(run->driver, &request, &driver_events, run);
}

/* ---- the beginning ---- */

static void on_released(void *data)
{
    struct run *run = data;
    if (!unhold(run))
        return;
    run->outcome = OUTCOME_OK;
    run->return_value =
        mem_strdup("{\"v\":1,\"state\":\"completed\",\"reason\":\"ok\",\"released\":true}");
    settle_and_finish(run);
}

static void on_settled_lost(void *data)
{
    struct run *run = data;
    if (!unhold(run))
        return;
    fail(run, OUTCOME_WORKER_LOST,
         mem_strdup("WorkerLost: the worker that ran this job died or lost its lock while the code "
                    "was running; how far the "
                    "code came is not known. Retry the job to run it again."));
}

static void with_driver(struct run *run)
{
    char err[256] = "";
    run->driver = factory_take(run->host->factory, run->settings, err, sizeof err);
    run_enter(run, STAGING);
    if (run->claimed->mark.data != NULL && !run->job.idempotent) {
        /* Delivered once, by a worker that is gone. Before the thread goes on, its sandbox must be
         * free. */
        run->holds++;
        if (run->driver != NULL && run->claimed->thread.data != NULL)
            run->driver->ops->settle(run->driver, run->claimed->thread.data, on_settled_lost, run);
        else
            on_settled_lost(run);
    } else if (run->driver == NULL) {
        fail(run, OUTCOME_DRIVER_ERROR, mem_strdup(err));
    } else if (run->job.kind == JOB_RELEASE) {
        run->holds++;
        run->driver->ops->release(run->driver, run->job.thread, on_released, run);
    } else {
        run->inputs = inputs_start(run->host->queue, run->host->http, &run->job, run->settings,
                                   on_inputs, run);
    }
}

static void on_given_back(enum finish_result result, const struct claim_answer *next, void *data)
{
    (void)result;
    (void)next;
    struct run *run = data;
    if (unhold(run))
        over(run, NULL);
}

/* Nothing of it has run: another worker takes it, with no attempt used. */
static void give_back(struct run *run)
{
    run_enter(run, ENDING);
    run->holds++;
    finish_give_back(run->host->queue, run->claimed, on_given_back, run);
}

static bool known_name(const struct claimed_job *job)
{
    return job->name.data != NULL &&
           (strcmp(job->name.data, "execute") == 0 || strcmp(job->name.data, "release") == 0);
}

/* Decides what becomes of the job; runs from the loop, after run_start has returned. */
static void begin(void *data)
{
    struct run *run = data;
    const struct claimed_job *job = run->claimed;
    char err[256] = "";
    if (run->state == OVER)
        return;
    struct settings *overlaid =
        settings_overlay(run->host->settings, (const char *const *)job->runtime, job->runtime_count,
                         err, sizeof err);
    run->settings = overlaid != NULL ? overlaid : settings_ref(run->host->settings);
    char *wrong =
        job_parse(&run->job, job, &run->opts, queue_prefix(run->host->queue), run->settings);
    run->reply = reply_new(
        &(struct reply_options){
            .queue = run->host->queue,
            .job = job,
            .execution_id = run->execution_id,
            .enabled = run->job.reply,
            .flush_ms = settings_int(run->settings, SETTING_REPLY_FLUSH_MS),
            .flush_bytes = settings_int(run->settings, SETTING_REPLY_FLUSH_BYTES),
            .max_bytes = settings_int(run->settings, SETTING_REPLY_MAX_BYTES),
            .ttl_ms = settings_int(run->settings, SETTING_REPLY_TTL_MS),
            .heartbeat_ms = settings_int(run->settings, SETTING_REPLY_HEARTBEAT_MS),
        },
        on_fenced, run);
    result_init(&run->result, run->execution_id,
                run->job.language != NULL ? run->job.language : "python");
    run->result.queued_ms = job->claimed_at > job->timestamp && job->timestamp > 0
                                ? job->claimed_at - job->timestamp
                                : 0;
    for (size_t i = 0; i < json_array_size(run->job.warnings); i++)
        result_warn(&run->result, "%s", json_string_value(json_array_get(run->job.warnings, i)));
    run->outputs = outputs_new(&(struct outputs_options){run->host->queue, run->host->http, job,
                                                         &run->job, run->settings, &run->result,
                                                         run->reply, on_fenced, on_collected, run});
    if (job->mark.data != NULL && (wrong != NULL || !run->job.idempotent)) {
        free(wrong);
        with_driver(run);
    } else if (job->defa.data != NULL) {
        free(wrong);
        bool stalled = strstr(job->defa.data, "stalled more than allowable limit") != NULL;
        fail(run, stalled ? OUTCOME_STALLED : OUTCOME_DEFERRED, mem_strdup(job->defa.data));
    } else if (!known_name(job)) {
        free(wrong);
        fail(run, OUTCOME_UNKNOWN_NAME,
             mem_printf("The job's name is %.100s; this worker knows execute and release.",
                        job->name.data != NULL ? job->name.data : "missing"));
    } else if (wrong != NULL) {
        fail(run, OUTCOME_BAD_JOB, wrong);
    } else if (overlaid == NULL) {
        fail(run, OUTCOME_DRIVER_ERROR, mem_printf("The runtime settings are wrong: %s", err));
    } else if (run->stop == RUN_STOP_DRAINED) {
        give_back(run);
    } else if (run->stop != RUN_STOP_NONE) {
        fail_stopped(run);
    } else if (run->job.start_by > 0 && text_now_ms() > run->job.start_by) {
        fail(run, OUTCOME_EXPIRED,
             mem_strdup("The job expired: it was not started before the time that startBy names."));
    } else {
        with_driver(run);
    }
}

struct run *run_start(const struct run_host *host, struct claimed_job *job)
{
    struct run *run = mem_alloc(sizeof *run);
    run->host = host;
    run->claimed = job;
    run->began_ms = text_monotonic_ms();
    text_uuid(run->execution_id);
    jobopts_init(&run->opts, &job->opts);
    run->marked = job->mark.data != NULL;
    ev_timer_init(&run->timer, on_time_limit, 0, 0);
    run->timer.data = run;
    run->lock = lock_add(host->locks, &job->id, &job->token, on_lock_lost, run);
    reaper_defer(begin, run);
    return run;
}

void run_stop(struct run *run, enum run_stop why)
{
    if (run->stop != RUN_STOP_NONE || run->state >= COLLECTING)
        return;
    struct log_ctx ctx = ctx_of(run);
    log_write(LOG_LEVEL_INFO, &ctx, "the run is stopped while %s: %s", state_names[run->state],
              why == RUN_STOP_DRAINED ? "the worker drains" : "cancelled");
    if (run->state == RUNNING) {
        interrupt(run, why);
    } else if (why == RUN_STOP_DRAINED && (run->state == STAGING || run->state == PREPARING)) {
        run->stop = why;
        give_back(run);
    } else if (run->state == STAGING || run->state == PREPARING) {
        run->stop = why;
        fail_stopped(run);
    } else {
        run->stop = why;
    }
}
