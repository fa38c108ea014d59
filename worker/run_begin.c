/* The beginning of a run: what becomes of a job that was just claimed. */
#include "worker/run_impl.h"

#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/queue/children.h"
#include "worker/queue/scheduler.h"

#include <string.h>

static void on_inputs(const char *error, bool permanent, void *data)
{
    struct run *run = data;
    if (error != NULL) {
        run_fail(run, permanent ? OUTCOME_BAD_JOB : OUTCOME_DRIVER_ERROR, mem_strdup(error));
        return;
    }
    run_prepare(run);
}

static void on_released(void *data)
{
    struct run *run = data;
    if (!run_unhold(run) || run->state != RUN_STAGING)
        return;
    run->outcome = OUTCOME_OK;
    run_settle_and_finish(run);
}

static void on_settled_lost(void *data)
{
    struct run *run = data;
    if (!run_unhold(run) || run->state != RUN_STAGING)
        return;
    run_fail(
        run, OUTCOME_WORKER_LOST,
        mem_strdup("WorkerLost: the worker that ran this job died or lost its lock while the code "
                   "was running; how far the "
                   "code came is not known. Retry the job to run it again."));
}

static void with_driver(struct run *run)
{
    char err[256] = "";
    run->driver = factory_take(run->host->factory, run->settings, err, sizeof err);
    run_enter(run, RUN_STAGING);
    if (run->claimed->mark.data != NULL && !run->job.idempotent) {
        /* Delivered once, by a worker that is gone. Before the thread goes on, its sandbox must be
         * free. */
        run->holds++;
        if (run->driver != NULL && run->claimed->thread.data != NULL)
            run->driver->ops->settle(run->driver, run->claimed->thread.data, on_settled_lost, run);
        else
            on_settled_lost(run);
    } else if (run->driver == NULL) {
        run_fail(run, OUTCOME_DRIVER_ERROR, mem_strdup(err));
    } else if (run->job.kind == JOB_RELEASE) {
        run->holds++;
        run->driver->ops->release(run->driver, run->job.thread, on_released, run);
    } else {
        run->inputs = inputs_start(run->host->queue, run->host->http, &run->job, run->settings,
                                   on_inputs, run);
    }
}

static void on_children(enum children_result result, void *data)
{
    struct run *run = data;
    if (!run_unhold(run))
        return;
    if (result == CHILDREN_DONE)
        with_driver(run);
    else if (result == CHILDREN_FAILED)
        run_fail(run, OUTCOME_DEFERRED,
                 mem_printf("Cannot complete job %s because it has at least one failed child. "
                            "moveToWaitingChildren",
                            run_job_id(run)));
    else
        run_leave(run);
}

/* Children that were added after the job had become ready, or whose parent was sent back by hand:
 * code is delivered once all of them are done. */
static void wait_for_children(struct run *run)
{
    run_enter(run, RUN_ENDING); /* from here on only the answer says whose the job is */
    run->holds++;
    children_wait(run->host->queue, run->claimed, on_children, run);
}

static bool started_too_often(const struct run *run)
{
    long long most = settings_int(run->settings, SETTING_MAX_STARTED_ATTEMPTS);
    return most > 0 && run->claimed->attempts_started > most;
}

static bool known_name(const struct claimed_job *job)
{
    return job->name.data != NULL &&
           (strcmp(job->name.data, "execute") == 0 || strcmp(job->name.data, "release") == 0);
}

/* Decides what becomes of the job. */
static void decide(struct run *run)
{
    const struct claimed_job *job = run->claimed;
    char err[256] = "";
    struct settings *overlaid =
        settings_overlay(run->host->settings, (const char *const *)job->runtime, job->runtime_count,
                         err, sizeof err);
    run->settings = overlaid != NULL ? overlaid : settings_ref(run->host->settings);
    char *wrong =
        job_parse(&run->job, job, &run->opts, queue_prefix(run->host->queue), run->settings);
    run->reply = reply_new(
        &(struct reply_options){
            .queue = run->host->queue,
            .turn = run->host->turn,
            .job = job,
            .execution_id = run->execution_id,
            .enabled = run->job.reply,
            .flush_ms = settings_int(run->settings, SETTING_REPLY_FLUSH_MS),
            .flush_bytes = settings_int(run->settings, SETTING_REPLY_FLUSH_BYTES),
            .max_bytes = settings_int(run->settings, SETTING_REPLY_MAX_BYTES),
            .ttl_ms = settings_int(run->settings, SETTING_REPLY_TTL_MS),
            .heartbeat_ms = settings_int(run->settings, SETTING_REPLY_HEARTBEAT_MS),
        },
        run_on_fenced, run);
    result_init(&run->result, run->execution_id,
                run->job.language != NULL ? run->job.language : "python");
    run->result.queued_ms = job->claimed_at > job->timestamp && job->timestamp > 0
                                ? job->claimed_at - job->timestamp
                                : 0;
    for (size_t i = 0; i < json_array_size(run->job.warnings); i++)
        result_warn(&run->result, "%s", json_string_value(json_array_get(run->job.warnings, i)));
    run->outputs = outputs_new(
        &(struct outputs_options){run->host->queue, run->host->http, job, &run->job, run->settings,
                                  &run->result, run->reply, run_on_fenced, run_on_collected, run});
    if (settings_bool(run->settings, SETTING_JOB_LOG))
        run->log = job_log_new(run->host->queue, job, run->opts.keep_logs,
                               settings_int(run->settings, SETTING_REPLY_MAX_BYTES));
    if (job->mark.data != NULL && (wrong != NULL || !run->job.idempotent)) {
        free(wrong);
        with_driver(run);
    } else if (job->defa.data != NULL) {
        free(wrong);
        bool stalled = strstr(job->defa.data, "stalled more than allowable limit") != NULL;
        run_fail(run, stalled ? OUTCOME_STALLED : OUTCOME_DEFERRED, mem_strdup(job->defa.data));
    } else if (started_too_often(run)) {
        free(wrong);
        run_fail(run, OUTCOME_STALLED, mem_strdup("job started more than allowable limit"));
    } else if (!known_name(job)) {
        free(wrong);
        run_fail(run, OUTCOME_UNKNOWN_NAME,
                 mem_printf("The job's name is %.100s; this worker knows execute and release.",
                            job->name.data != NULL ? job->name.data : "missing"));
    } else if (wrong != NULL) {
        run_fail(run, OUTCOME_BAD_JOB, wrong);
    } else if (overlaid == NULL) {
        run_fail(run, OUTCOME_DRIVER_ERROR, mem_printf("The runtime settings are wrong: %s", err));
    } else if (run->stop == RUN_STOP_DRAINED) {
        run_give_back(run);
    } else if (run->stop != RUN_STOP_NONE) {
        run_fail_stopped(run);
    } else if (run->job.start_by > 0 && text_now_ms() > run->job.start_by) {
        run_fail(
            run, OUTCOME_EXPIRED,
            mem_strdup("The job expired: it was not started before the time that startBy names."));
    } else if (job->pending_children > 0) {
        wait_for_children(run);
    } else {
        with_driver(run);
    }
}

static void on_scheduled(void *data)
{
    struct run *run = data;
    if (run_unhold(run))
        decide(run);
}

/* From the loop, after run_start has returned. */
void run_begin(void *data)
{
    struct run *run = data;
    if (run->state == RUN_OVER)
        return;
    run->holds++;
    if (!scheduler_advance(run->host->queue, run->claimed, on_scheduled, run))
        on_scheduled(run);
}
