/* One claimed job from its claim to its end: its life, its states and its end. */
#include "worker/run_impl.h"

#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/metrics.h"

#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {"new",      "staging", "preparing",
                                          "marking",  "running", "collecting",
                                          "settling", "ending",  "over"};

const char *run_job_id(const struct run *run)
{
    return run->claimed->id.data;
}

const struct claimed_job *run_claimed(const struct run *run)
{
    return run->claimed;
}

const char *run_thread(const struct run *run)
{
    return run->claimed->thread.data;
}

struct run **run_link(struct run *run)
{
    return &run->next;
}

struct run **run_back(struct run *run)
{
    return &run->prev;
}

struct log_ctx run_log_ctx(const struct run *run)
{
    return (struct log_ctx){.job = run->claimed->id.data,
                            .thread = run->claimed->thread.data,
                            .trace = run->opts.traceparent};
}

void run_enter(struct run *run, enum run_state state)
{
    if (log_enabled(LOG_LEVEL_DEBUG)) {
        struct log_ctx ctx = run_log_ctx(run);
        log_write(LOG_LEVEL_DEBUG, &ctx, "%s -> %s", state_names[run->state], state_names[state]);
    }
    run->state = state;
    bool shown = state == RUN_PREPARING || state == RUN_RUNNING || state == RUN_COLLECTING;
    if (shown && settings_bool(run->settings, SETTING_JOB_PROGRESS))
        job_progress(run->host->queue, run->claimed, state_names[state]);
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
    job_log_free(run->log);
    run->log = NULL;
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

void run_over(struct run *run, const struct claim_answer *answer)
{
    run_enter(run, RUN_OVER);
    let_go(run);
    run->host->ended(run, answer, run->host->data);
    if (run->holds == 0)
        reaper_defer(free_run, run);
}

/* A callback that cannot be called off has come; false when the run is over and it is all the same.
 */
bool run_unhold(struct run *run)
{
    run->holds--;
    if (run->state != RUN_OVER)
        return true;
    if (run->holds == 0)
        reaper_defer(free_run, run);
    return false;
}

void run_abandon(struct run *run, const char *why)
{
    if (run->state == RUN_OVER)
        return;
    struct log_ctx ctx = run_log_ctx(run);
    metrics_count(METRIC_JOBS_ENDED, 1, "lost", run->fenced ? "fenced" : "abandoned");
    log_write(LOG_LEVEL_WARN, &ctx, "the run is given up while %s: %s; nothing more is written",
              state_names[run->state], why);
    run_over(run, NULL);
}

/* The lock is not ours any more: another worker may have the job, or it was removed. */
static void lose(struct run *run, const char *why)
{
    if (run->state == RUN_OVER || run->fenced)
        return;
    run->fenced = true;
    if (run->reply != NULL)
        reply_say_removed(run->reply);
    run_abandon(run, why);
}

static void on_lock_lost(void *data)
{
    struct run *run = data;
    if (run->state == RUN_ENDING) /* its own answer says what became of it */
        return;
    metrics_count(METRIC_LOCKS_LOST, 1, NULL, NULL);
    lose(run, "its lock was lost");
}

void run_on_fenced(bool removed, void *data)
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
    static const char *const ends[] = {"completed", "failed", "retried"};
    struct run *run = data;
    struct log_ctx ctx = run_log_ctx(run);
    run->ending = NULL;
    const char *reason = outcome_row(run->outcome)->reason;
    metrics_observe_ms(METRIC_FINISH_DURATION, (double)(text_monotonic_ms() - run->ending_ms));
    metrics_count(METRIC_JOBS_ENDED, 1, finished == FINISH_RESULT_OK ? ends[kind] : "lost",
                  finished == FINISH_RESULT_OK ? reason : "unfinished");
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
    run_over(run, next);
}

static void finish(void *data)
{
    struct run *run = data;
    run_enter(run, RUN_ENDING);
    run->ending_ms = text_monotonic_ms();
    struct ending_options o = {
        .queue = run->host->queue,
        .turn = run->host->turn,
        .claimed = run->claimed,
        .opts = &run->opts,
        .job = &run->job,
        .settings = run->settings,
        .reply = run->reply,
        .result = &run->result,
        .outcome = run->outcome,
        .failed_reason = run->failed_reason,
        .marked = run->marked,
        .fetch_next = run->host->may_fetch(run->host->data),
    };
    run->ending = ending_start(&o, on_ended, run);
}

void run_settle_and_finish(struct run *run)
{
    run_enter(run, RUN_SETTLING);
    ev_timer_stop(run->host->loop, &run->timer);
    job_log_flush(run->log);
    if (reply_is_short(run->reply))
        result_warn(&run->result, "Redis is short of memory (REDIS_MEMORY_WATERMARK_PERCENT): the "
                                  "reply has no output beside this result");
    reply_settle(run->reply, finish);
}

/* Ends a run whose code was not delivered; text is one sentence (stolen). */
void run_fail(struct run *run, enum outcome outcome, char *text)
{
    run->outcome = outcome;
    free(run->failed_reason);
    run->failed_reason = text;
    run_settle_and_finish(run);
}

void run_fail_stopped(struct run *run)
{
    bool drained = run->stop == RUN_STOP_DRAINED;
    run_fail(run, OUTCOME_CANCELLED_BEFORE,
             mem_strdup(drained ? "The worker shut down before the code was started."
                                : "The job was cancelled before its code was started."));
}

void run_on_collected(void *data)
{
    struct run *run = data;
    run->result.files_ms = text_monotonic_ms() - run->ended_ms;
    run_settle_and_finish(run);
}

static void on_given_back(enum finish_result result, const struct claim_answer *next, void *data)
{
    (void)result;
    (void)next;
    struct run *run = data;
    if (run_unhold(run))
        run_over(run, NULL);
}

/* Nothing of it has run: another worker takes it, with no attempt used. */
void run_give_back(struct run *run)
{
    run_enter(run, RUN_ENDING);
    metrics_count(METRIC_JOBS_ENDED, 1, "returned", "drained");
    run->holds++;
    finish_give_back(run->host->queue, run->claimed, on_given_back, run);
}

void run_leave(struct run *run)
{
    metrics_count(METRIC_JOBS_ENDED, 1, "returned", "children");
    run_over(run, NULL);
}

/* ---- what the worker asks ---- */

struct run *run_start(const struct run_host *host, struct claimed_job *job)
{
    struct run *run = mem_alloc(sizeof *run);
    run->host = host;
    run->claimed = job;
    run->began_ms = text_monotonic_ms();
    text_uuid(run->execution_id);
    jobopts_init(&run->opts, &job->opts);
    run->marked = job->mark.data != NULL;
    run_timer_init(run);
    run->lock = lock_add(host->locks, &job->id, &job->token, on_lock_lost, run);
    reaper_defer(run_begin, run);
    return run;
}

void run_stop(struct run *run, enum run_stop why)
{
    if (run->stop != RUN_STOP_NONE || run->state >= RUN_COLLECTING)
        return;
    if (run->claimed->mark.data != NULL && run->state < RUN_MARKING && !run->job.idempotent)
        return; /* a lost run: WorkerLost is its end, whoever asks for another */
    struct log_ctx ctx = run_log_ctx(run);
    log_write(LOG_LEVEL_INFO, &ctx, "the run is stopped while %s: %s", state_names[run->state],
              why == RUN_STOP_DRAINED ? "the worker drains" : "cancelled");
    if (run->state == RUN_RUNNING) {
        run_interrupt(run, why);
    } else if (why == RUN_STOP_DRAINED &&
               (run->state == RUN_STAGING || run->state == RUN_PREPARING)) {
        run->stop = why;
        run_give_back(run);
    } else if (run->state == RUN_STAGING || run->state == RUN_PREPARING) {
        run->stop = why;
        run_fail_stopped(run);
    } else {
        run->stop = why;
    }
}
