/* The worker: claims jobs while it has free slots, runs them, ends them, and drains. */
#include "worker/worker.h"

#include "common/http.h"
#include "common/log.h"
#include "common/machine.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/redis_settings.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/control.h"
#include "worker/drivers/local_probe.h"
#include "worker/intake.h"
#include "worker/metrics.h"
#include "worker/ops.h"
#include "worker/presence.h"
#include "worker/queue/marker.h"
#include "worker/queue/stalled.h"
#include "worker/queue/stats.h"
#include "worker/queue/turn.h"
#include "worker/run.h"
#include "worker/server_watch.h"
#include "worker/thread_records.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARK_HORIZON_MS 3600000 /* the last resort: parked jobs are woken by their thread */
#define DELAYED_WAIT_MAX_MS                                                                        \
    10000 /* longest wait on the marker when a delayed job is due (as BullMQ) */
#define LIMITED_WAIT_MAX_MS 30000 /* and while the queue is rate limited */
#define REDIS_OLDEST        60200 /* XAUTOCLAIM, LMOVE and what BullMQ's scripts need */
#define CLAIM_PAUSE_S       0.25  /* after a claim that failed */
#define CLAIM_LIMIT_MS      10000 /* a claim is answered or lost by then (redis.c) */
#define CATCH_UP_MS         2000  /* the first claim waits so long at most for older cancels */
#define DRAIN_EXTRA_S       1.5   /* for the last words, once runs were stopped */

struct worker {
    struct ev_loop *loop;
    struct settings *settings;
    char replica_id[37];
    struct redis *redis;
    struct queue *queue;
    struct turn *turn;
    struct locks *locks;
    struct stalled *stalled;
    struct marker *marker;
    struct intake *intake;
    struct control *control;
    struct presence *presence;
    struct server_watch *watch;
    struct stats *stats;
    struct ops *ops;
    struct factory *factory;
    struct http *http;
    struct run_host host;
    struct run *runs;
    long long running, concurrency;
    bool claiming, claim_again, was_ready;
    long long limited_until; /* monotonic ms: rate limited */
    struct ev_timer pause;   /* until the next claim */
    /* Monotonic ms: when the claim loop last turned, when the claim under way was sent, and by when
     * each of what it may wait for must have come. */
    long long turned, claimed_at, claim_due, marker_due, pause_due, ready_due;
    long long catch_up_due;
    bool draining, stopping, ended_said;
    bool intake_left;
    struct ev_timer drain_timer;
    void (*ended)(void *data);
    void *ended_data;
    void (*on_unfit)(const char *reason, void *data);
    void *unfit_data;
};

static void pump(struct worker *w);
static void check_drained(struct worker *w);

static void pump_after(struct worker *w, double seconds)
{
    w->pause_due = text_monotonic_ms() + (long long)(seconds * 1000);
    ev_timer_stop(w->loop, &w->pause);
    ev_timer_set(&w->pause, seconds, 0);
    ev_timer_start(w->loop, &w->pause);
}

static void on_pause_over(struct ev_loop *loop, struct ev_timer *t, int revents)
{
    (void)loop;
    (void)revents;
    pump(t->data);
}

static void on_woken(long long next_delayed_at, void *data);

static void wait_for_marker(struct worker *w, long long ms)
{
    w->marker_due = text_monotonic_ms() + ms + CLAIM_LIMIT_MS;
    marker_wait(w->marker, ms, on_woken, w);
}

static void on_woken(long long next_delayed_at, void *data)
{
    struct worker *w = data;
    long long wait = next_delayed_at - text_now_ms();
    /* The marker spoke of a delayed job that is not due yet: what comes before it has a marker of
     * its own. */
    if (next_delayed_at > 0 && wait > 0 && !w->draining && w->running < w->concurrency)
        wait_for_marker(w, wait < DELAYED_WAIT_MAX_MS ? wait : DELAYED_WAIT_MAX_MS);
    else
        pump(w);
}

/* The last claim was answered: wait for the marker, but not past what else is known to come. */
static void wait_for_work(struct worker *w, const struct claim_answer *answer)
{
    if (w->draining || w->running >= w->concurrency || w->claiming || marker_waiting(w->marker))
        return; /* (what a claim under way brings is later news) */
    if (answer->limited_ms > 0) {
        /* Not past LIMITED_WAIT_MAX_MS, for a claim also promotes delayed jobs. */
        long long limited =
            answer->limited_ms < LIMITED_WAIT_MAX_MS ? answer->limited_ms : LIMITED_WAIT_MAX_MS;
        w->limited_until = text_monotonic_ms() + limited;
        pump_after(w, (double)limited / 1000.0);
        return;
    }
    long long most = settings_int(w->settings, SETTING_DRAIN_DELAY_MS), wait = most;
    if (answer->again_at > 0) {
        wait = answer->again_at - text_now_ms();
        most = most > DELAYED_WAIT_MAX_MS ? most : DELAYED_WAIT_MAX_MS;
        wait = wait > most ? most : wait;
    }
    if (wait <= 0)
        pump(w);
    else
        wait_for_marker(w, wait);
}

static void take_job(struct worker *w, struct claimed_job *job)
{
    struct run *run = run_start(&w->host, job);
    *run_link(run) = w->runs;
    if (w->runs != NULL)
        *run_back(w->runs) = run;
    w->runs = run;
    w->running++;
    metrics_count(METRIC_JOBS_CLAIMED, 1, NULL, NULL);
    if (job->timestamp > 0 && job->claimed_at >= job->timestamp)
        metrics_observe_ms(METRIC_JOB_WAIT, (double)(job->claimed_at - job->timestamp));
    if (control_was_cancelled(w->control, run_job_id(run), job->attempts_started) || job->cancelled)
        run_stop(run, RUN_STOP_CANCELLED);
}

static void on_claimed(const struct claim_answer *answer, void *data)
{
    struct worker *w = data;
    w->claiming = false;
    if (answer == NULL) {
        pump_after(w, CLAIM_PAUSE_S);
    } else if (answer->job != NULL) {
        metrics_observe_ms(METRIC_CLAIM_DURATION, (double)(text_monotonic_ms() - w->claimed_at));
        take_job(w, answer->job);
    }
    if (answer != NULL && w->claim_again)
        pump(w);
    else if (answer != NULL)
        wait_for_work(w, answer);
    check_drained(w);
}

#ifdef SANDPIPER_TEST_BUILD
static bool hung;

void worker_hang(void)
{
    hung = true;
}

static bool is_hung(void)
{
    return hung;
}
#else
static bool is_hung(void)
{
    return false;
}
#endif

/* Claims when there is a free slot; the one place where claims begin. */
static void pump(struct worker *w)
{
    if (is_hung())
        return;
    w->turned = text_monotonic_ms();
    if (w->draining || !queue_is_ready(w->queue) || w->running >= w->concurrency)
        return;
    if (w->claiming) {
        w->claim_again = true;
        return;
    }
    if (w->turned < w->catch_up_due && !control_has_caught_up(w->control)) {
        pump_after(w, (double)(w->catch_up_due - w->turned) / 1000.0);
        return;
    }
    long long limited = w->limited_until - text_monotonic_ms();
    if (limited > 0) {
        pump_after(w, (double)limited / 1000.0);
        return;
    }
    w->claim_again = false;
    w->claimed_at = w->turned;
    w->claim_due = w->turned + CLAIM_LIMIT_MS;
    w->claiming = claim_next(w->queue, on_claimed, w) == 0;
    if (!w->claiming)
        pump_after(w, CLAIM_PAUSE_S);
}

static bool may_fetch(void *data)
{
    struct worker *w = data;
    return !w->draining && w->running <= w->concurrency;
}

static void on_run_ended(struct run *run, const struct claim_answer *answer, void *data)
{
    struct worker *w = data;
    struct run *next = *run_link(run), *prev = *run_back(run);
    *(prev != NULL ? run_link(prev) : &w->runs) = next;
    if (next != NULL)
        *run_back(next) = prev;
    w->running--;
    if (w->intake != NULL)
        intake_job_ended(w->intake);
    if (answer != NULL && answer->job != NULL) {
        take_job(w, answer->job);
        wait_for_work(w, answer);
    } else if (!marker_waiting(w->marker)) {
        pump(w);
    }
    check_drained(w);
}

static void pump_again(void *data)
{
    pump(data);
}

/* ---- cancels ---- */

static bool stop_job(void *data, const char *job_id)
{
    struct worker *w = data;
    for (struct run *run = w->runs; run != NULL; run = *run_link(run)) {
        if (strcmp(run_job_id(run), job_id) != 0)
            continue;
        run_stop(run, RUN_STOP_CANCELLED);
        return true;
    }
    return false;
}

static void stop_thread(void *data, const char *thread, long long before, const char *spare)
{
    struct worker *w = data;
    for (struct run *run = w->runs; run != NULL; run = *run_link(run)) {
        const char *of = run_thread(run);
        const struct claimed_job *job = run_claimed(run);
        if (of != NULL && strcmp(of, thread) == 0 && strcmp(run_job_id(run), spare) != 0 &&
            (job->timestamp <= before || job->claimed_at <= before))
            run_stop(run, RUN_STOP_CANCELLED);
    }
}

static void fail_cancelled(void *data, struct claimed_job *job)
{
    job->cancelled = true;
    take_job(data, job);
}

/* ---- the connection ---- */

static void on_locks_renewed(bool ok, void *data)
{
    struct worker *w = data;
    if (!redis_ready(w->redis))
        return;
    if (!ok)
        log_warn("locks could not be renewed after the connection came back; trying with the next "
                 "renewal");
    queue_set_ready(w->queue, true);
    presence_refresh(w->presence);
    pump(w);
}

static void on_redis_state(struct redis *r, bool ready, const char *reason, void *data)
{
    (void)r;
    (void)reason;
    struct worker *w = data;
    if (!ready) {
        queue_set_ready(w->queue, false);
        if (w->was_ready)
            stalled_lost(w->stalled);
        return;
    }
    stalled_back(w->stalled);
    if (!w->was_ready)
        w->catch_up_due = text_monotonic_ms() + CATCH_UP_MS;
    w->was_ready = true;
    w->ready_due = text_monotonic_ms() + CLAIM_LIMIT_MS;
    locks_renew_now(w->locks, on_locks_renewed, w);
}

static void on_redis_failed(struct redis *r, const char *reason, bool permanent, void *data)
{
    (void)r;
    struct worker *w = data;
    /* Once it has served us, a server of another kind is a mishap that may pass. */
    if (!permanent || w->was_ready || w->on_unfit == NULL)
        return;
    void (*on_unfit)(const char *, void *) = w->on_unfit;
    w->on_unfit = NULL;
    on_unfit(reason, w->unfit_data);
}

/* ---- draining ---- */

/* Whether LOCAL may run here is known: whoever offers the tool should see it at once. */
static void on_verdict(void *data)
{
    presence_refresh(((struct worker *)data)->presence);
}

static void say_ended(void *data)
{
    struct worker *w = data;
    w->ended(w->ended_data);
}

static void on_disposed(void *data)
{
    struct worker *w = data;
    local_probe_unwatch(on_verdict, w);
    presence_leave(w->presence, say_ended, w);
}

static void check_drained(struct worker *w)
{
    if (!w->draining || w->ended_said || w->running > 0 || w->claiming || !w->intake_left)
        return;
    w->ended_said = true;
    ev_timer_stop(w->loop, &w->drain_timer);
    factory_dispose(w->factory, on_disposed, w);
    w->factory = NULL;
}

static void on_drain_limit(struct ev_loop *loop, struct ev_timer *t, int revents)
{
    (void)loop;
    (void)revents;
    struct worker *w = t->data;
    if (!w->stopping) {
        w->stopping = true;
        for (struct run *run = w->runs; run != NULL; run = *run_link(run))
            run_stop(run, RUN_STOP_DRAINED);
        ev_timer_set(&w->drain_timer, DRAIN_EXTRA_S, 0);
        ev_timer_start(w->loop, &w->drain_timer);
        return;
    }
    while (w->runs != NULL)
        run_abandon(w->runs, "the worker shuts down and Redis or the sandbox does not answer");
    w->claiming = false;
    check_drained(w);
}

static void on_intake_left(void *data)
{
    struct worker *w = data;
    w->intake_left = true;
    check_drained(w);
}

void worker_drain(struct worker *w, void (*ended)(void *data), void *data)
{
    w->ended = ended;
    w->ended_data = data;
    double limit = (double)settings_int(w->settings, SETTING_DRAIN_TIMEOUT_MS) / 1000.0;
    if (w->draining)
        limit = 0;
    else
        log_info("draining: no more jobs are claimed; %lld are running", w->running);
    w->draining = true;
    ev_timer_stop(w->loop, &w->pause);
    if (w->intake != NULL)
        intake_stop(w->intake, on_intake_left, w);
    if (!w->stopping) {
        ev_timer_stop(w->loop, &w->drain_timer);
        ev_timer_set(&w->drain_timer, limit, 0);
        ev_timer_start(w->loop, &w->drain_timer);
    }
    presence_refresh(w->presence);
    ops_refresh(w->ops);
    check_drained(w);
}

/* ---- the beginning and the end ---- */

static long long slots(const struct settings *s)
{
    long long given = settings_int(s, SETTING_WORKER_CONCURRENCY);
    if (given > 0)
        return given;
    if (!factory_is_local(s))
        return 100;
    /* A kernel takes about 80 MB before the user's data; half a GiB each is a careful guess. */
    struct machine m;
    machine_read("", &m);
    long long by_memory = m.memory_kib / (512 * 1024);
    long long count = m.cores * 4 < by_memory ? m.cores * 4 : by_memory;
    return count < 2 ? 2 : count;
}

static long long running(void *data)
{
    return ((struct worker *)data)->running;
}

static const char *intake_state(void *data)
{
    struct worker *w = data;
    return w->intake != NULL ? intake_describe(w->intake) : "off";
}

static long long marker_id(void *data)
{
    return marker_client(((struct worker *)data)->marker);
}

static void on_intake_changed(void *data)
{
    presence_refresh(((struct worker *)data)->presence);
}

static bool is_draining(void *data)
{
    return ((struct worker *)data)->draining;
}

/* By how much the claim loop is late: whatever it waits for should have come by then. A loop that
 * waits for nothing, with a free slot, has lost its thread. */
static long long overdue(const struct worker *w, long long now)
{
    if (w->draining || !redis_ready(w->redis) || w->running >= w->concurrency)
        return 0;
    long long due = !queue_is_ready(w->queue)   ? w->ready_due
                    : w->claiming               ? w->claim_due
                    : marker_waiting(w->marker) ? w->marker_due
                    : ev_is_active(&w->pause)   ? w->pause_due
                                                : w->turned;
    return now > due ? now - due : 0;
}

static void look(struct ops_view *view, void *data)
{
    const struct worker *w = data;
    *view = (struct ops_view){.redis_ready = queue_is_ready(w->queue),
                              .draining = w->draining,
                              .running = w->running,
                              .slots = w->concurrency,
                              .overdue_ms = overdue(w, text_monotonic_ms()),
                              .reconnects = redis_reconnects(w->redis),
                              .queue = stats_figures(w->stats)};
    view->driver = factory_describe(w->settings, &view->why_not);
}

/* The settings for jobs that do not say themselves what is kept of them. */
static int take_keep(const struct settings *s, enum setting id, struct jobopts_keep *keep,
                     char *err, unsigned long err_size)
{
    if (jobopts_keep_parse(settings_str(s, id), keep) == 0)
        return 0;
    snprintf(err, err_size, "%s must be true, false, a number or a JSON object like {\"age\":3600}",
             settings_row(id)->name);
    return -1;
}

struct worker *worker_new(struct ev_loop *loop, struct settings *settings, char *err,
                          unsigned long err_size)
{
    struct redis_url url;
    if (redis_settings_parse(settings, &url, err, err_size) != 0)
        return NULL;
    struct jobopts_keep completed, failed;
    if (take_keep(settings, SETTING_REMOVE_ON_COMPLETE, &completed, err, err_size) != 0 ||
        take_keep(settings, SETTING_REMOVE_ON_FAIL, &failed, err, err_size) != 0) {
        redis_url_fini(&url);
        return NULL;
    }
    struct worker *w = mem_alloc(sizeof *w);
    w->loop = loop;
    w->settings = settings_ref(settings);
    w->concurrency = slots(settings);
    text_uuid(w->replica_id);
    ev_timer_init(&w->pause, on_pause_over, 0, 0);
    ev_timer_init(&w->drain_timer, on_drain_limit, 0, 0);
    w->pause.data = w->drain_timer.data = w;
    w->http = http_new(loop);
    w->redis = redis_new(loop,
                         &(struct redis_options){.url = &url,
                                                 .label = "commands",
                                                 .idle_ping_ms = 5000,
                                                 .min_version = REDIS_OLDEST,
                                                 .on_failed = on_redis_failed},
                         on_redis_state, w);
    w->queue = queue_new(&(struct queue_options){
        .loop = loop,
        .redis = w->redis,
        .prefix = settings_str(settings, SETTING_QUEUE_PREFIX),
        .name = settings_str(settings, SETTING_QUEUE_NAME),
        .replica_id = w->replica_id,
        .worker_name = settings_str(settings, SETTING_WORKER_NAME),
        .lock_duration_ms = settings_int(settings, SETTING_LOCK_DURATION_MS),
        .park_horizon_ms = PARK_HORIZON_MS,
        .data_max_bytes = settings_int(settings, SETTING_JOB_DATA_MAX_BYTES),
        .limiter_max = settings_int(settings, SETTING_LIMITER_MAX),
        .limiter_duration_ms = settings_int(settings, SETTING_LIMITER_DURATION_MS),
        .metrics_points = settings_int(settings, SETTING_METRICS_MAX_DATA_POINTS),
        .keep_completed = completed,
        .keep_failed = failed,
    });
    w->turn = turn_new(w->queue);
    w->locks = locks_new(w->queue, settings_int(settings, SETTING_LOCK_RENEW_MS));
    w->stalled = stalled_new(w->queue, settings_int(settings, SETTING_STALLED_INTERVAL_MS),
                             settings_int(settings, SETTING_MAX_STALLED_COUNT), pump_again, w);
    w->marker = marker_new(w->queue, &url);
    if (settings_bool(settings, SETTING_STREAM_INTAKE))
        w->intake = intake_new(w->queue, &url, settings_int(settings, SETTING_STREAM_BACKLOG_MAX),
                               on_intake_changed, w);
    w->intake_left = w->intake == NULL;
    w->control =
        control_new(w->queue, &url,
                    &(struct control_host){stop_job, stop_thread, fail_cancelled, pump_again, w});
    w->stats = stats_new(w->queue, settings_int(settings, SETTING_STALLED_INTERVAL_MS));
    w->watch = server_watch_new(w->queue, w->marker,
                                settings_int(settings, SETTING_REDIS_MEMORY_WATERMARK_PERCENT));
    w->presence =
        presence_new(w->queue, settings,
                     &(struct presence_host){running, is_draining, intake_state, marker_id, w});
    struct driver_host host = {.loop = loop,
                               .replica_id = w->replica_id,
                               .lock_duration_ms =
                                   settings_int(settings, SETTING_LOCK_DURATION_MS)};
    thread_records_attach(&host, w->queue);
    w->factory = factory_new(&host);
    factory_prepare(w->factory, settings);
    local_probe_watch(on_verdict, w);
    w->host = (struct run_host){loop,    w->queue,    w->turn,   w->redis,     w->locks, w->factory,
                                w->http, w->settings, may_fetch, on_run_ended, w};
    redis_url_fini(&url);
    /* DISABLED is wanted, or is LOCAL's, which has lines of its own. */
    const char *not_named, *driver = factory_describe(settings, &not_named);
    log_write(*not_named && strcmp(driver, "DISABLED") ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, NULL,
              "replica %s: queue %s, %lld slots, driver %s%s%s", w->replica_id,
              queue_prefix(w->queue), w->concurrency, driver, *not_named ? ": " : "", not_named);
    w->ops = ops_new(loop, settings, look, w);
    return w;
}

void worker_on_unfit(struct worker *w, void (*unfit)(const char *reason, void *data), void *data)
{
    w->on_unfit = unfit;
    w->unfit_data = data;
}

void worker_free(struct worker *w)
{
    local_probe_end();
    ops_free(w->ops);
    redis_free(w->redis); /* first: commands under way get their callback while all is there */
    marker_free(w->marker);
    ev_timer_stop(w->loop, &w->pause); /* such a callback may have started it */
    ev_timer_stop(w->loop, &w->drain_timer);
    if (w->intake != NULL)
        intake_free(w->intake);
    control_free(w->control);
    stats_free(w->stats);
    stalled_free(w->stalled);
    locks_free(w->locks);
    http_free(w->http);
    presence_free(w->presence);
    server_watch_free(w->watch);
    turn_free(w->turn);
    queue_free(w->queue);
    settings_free(w->settings);
    free(w);
}
