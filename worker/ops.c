/* What operations see of a replica: the status port's pages, the service manager's notices. */
#include "worker/ops.h"

#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/notify.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/metrics.h"
#include "worker/queue/scripts.h"
#include "worker/status/status.h"

#include <ev.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The claim loop may be late by so much before it counts as hung: a machine under load, a long
 * callback. Every wait of it has a deadline of its own before that. */
#define OVERDUE_MS     10000
#define NOTICE_S       5.0
#define STATS_STALE_MS 60000

struct ops {
    struct ev_loop *loop;
    void (*look)(struct ops_view *view, void *data);
    void *data;
    struct status *status;  /* or NULL: STATUS_PORT=0 */
    struct ev_timer notice; /* the service manager's */
    struct ev_timer watchdog;
    char told[160];
    bool hang_said, stopping_told;
    long long started_ms; /* since the epoch */
};

static struct ops_view look(const struct ops *ops)
{
    struct ops_view view = {0};
    ops->look(&view, ops->data);
    return view;
}

/* The loop turns, or this would not run; so it is the claims' own progress that counts. */
static bool is_healthy(struct ops *ops, const struct ops_view *view)
{
    bool hangs = view->overdue_ms > OVERDUE_MS;
    if (hangs && !ops->hang_said)
        log_error("the claim loop hangs: it should have gone on %lld ms ago; /healthz says 503",
                  view->overdue_ms);
    else if (!hangs && ops->hang_said)
        log_info("the claim loop goes on");
    ops->hang_said = hangs;
    return !hangs;
}

/* ---- pages ---- */

static int write_health(struct buf *out, void *data)
{
    struct ops *ops = data;
    struct ops_view view = look(ops);
    bool healthy = is_healthy(ops, &view);
    int rc = healthy ? buf_append_str(out, "{\"healthy\":true}\n")
                     : buf_printf(out,
                                  "{\"healthy\":false,\"why\":\"the claim loop hangs\","
                                  "\"overdueMs\":%lld}\n",
                                  view.overdue_ms);
    return rc != 0 ? 500 : healthy ? 200 : 503;
}

static int write_ready(struct buf *out, void *data)
{
    struct ops *ops = data;
    struct ops_view view = look(ops);
    const char *why = view.draining             ? "the worker drains"
                      : !view.redis_ready       ? "Redis is not connected"
                      : !is_healthy(ops, &view) ? "the claim loop hangs"
                                                : NULL;
    int rc = buf_printf(
        out, "{\"ready\":%s%s%s%s,\"driver\":\"%s\",\"running\":%lld,\"slots\":%lld}\n",
        why == NULL ? "true" : "false", why != NULL ? ",\"why\":\"" : "", why != NULL ? why : "",
        why != NULL ? "\"" : "", view.driver, view.running, view.slots);
    return rc != 0 ? 500 : why == NULL ? 200 : 503;
}

static double resident_bytes(void)
{
    char text[128] = "";
    long long size, resident = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || sscanf(text, "%lld %lld", &size, &resident) != 2)
        return 0;
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double cpu_seconds(void)
{
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0)
        return 0;
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* Figures that are too old (Redis is away) are no figures: a scaler must not act on them. */
static void collect_queue(const struct stats_figures *q)
{
    const struct {
        const char *state;
        long long jobs;
    } states[] = {{"waiting", q->waiting}, {"prioritized", q->prioritized},
                  {"due", q->due},         {"delayed", q->delayed},
                  {"parked", q->parked},   {"running", q->running}};
    long long age = text_monotonic_ms() - q->heard_at;
    double or_none = q->counted_at == 0 || age > STATS_STALE_MS ? NAN : 0;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        metrics_set(METRIC_QUEUE_JOBS, (double)states[i].jobs + or_none, states[i].state, NULL);
    metrics_set(METRIC_QUEUE_RUNNABLE, (double)q->runnable + or_none, NULL, NULL);
    metrics_set(METRIC_QUEUE_OLDEST_RUNNABLE, (double)q->oldest_ms / 1000.0 + or_none, NULL, NULL);
    metrics_set(METRIC_QUEUE_PAUSED, (double)q->paused + or_none, NULL, NULL);
    metrics_set(METRIC_QUEUE_STREAM_ENTRIES, (double)q->stream_entries + or_none, NULL, NULL);
    metrics_set(METRIC_QUEUE_STATS_AGE, q->counted_at == 0 ? NAN : (double)age / 1000.0, NULL,
                NULL);
}

static void collect(struct ops *ops)
{
    struct ops_view view = look(ops);
    bool ready = view.redis_ready && !view.draining && is_healthy(ops, &view);
    metrics_set(METRIC_BUILD_INFO, 1, SANDPIPER_VERSION, script_bullmq_version);
    metrics_set(METRIC_DRIVER_INFO, 1, view.driver, NULL);
    metrics_set(METRIC_REDIS_CONNECTED, view.redis_ready, NULL, NULL);
    metrics_set(METRIC_REDIS_RECONNECTS, (double)view.reconnects, NULL, NULL);
    metrics_set(METRIC_READY, ready, NULL, NULL);
    metrics_set(METRIC_DRAINING, view.draining, NULL, NULL);
    metrics_set(METRIC_SLOTS, (double)view.slots, NULL, NULL);
    metrics_set(METRIC_JOBS_RUNNING, (double)view.running, NULL, NULL);
    metrics_set(METRIC_PROCESS_CPU, cpu_seconds(), NULL, NULL);
    metrics_set(METRIC_PROCESS_MEMORY, resident_bytes(), NULL, NULL);
    metrics_set(METRIC_PROCESS_START, (double)ops->started_ms / 1000.0, NULL, NULL);
    for (int level = LOG_LEVEL_DEBUG; level <= LOG_LEVEL_ERROR; level++)
        metrics_set(METRIC_LOG_LINES, (double)log_lines((enum log_level)level),
                    log_level_word((enum log_level)level), NULL);
    metrics_set(METRIC_LOG_LINES_SUPPRESSED, (double)log_lines_suppressed(), NULL, NULL);
    collect_queue(view.queue);
}

static int write_metrics(struct buf *out, void *data)
{
    collect(data);
    return metrics_print(out) == 0 ? 200 : 500;
}

/* The hash stats:queue as JSON, for scalers that cannot read a field of a hash. */
static int write_stats(struct buf *out, void *data)
{
    struct ops_view view = look(data);
    const struct stats_figures *q = view.queue;
    if (q->counted_at == 0)
        return buf_append_str(out, "{\"why\":\"not counted yet\"}\n") == 0 ? 503 : 500;
    int rc = buf_printf(out,
                        "{\"runnable\":%lld,\"waiting\":%lld,\"prioritized\":%lld,\"due\":%lld,"
                        "\"delayed\":%lld,\"parked\":%lld,\"running\":%lld,\"oldestMs\":%lld,"
                        "\"paused\":%lld,\"streamEntries\":%lld,\"countedAt\":%lld}\n",
                        q->runnable, q->waiting, q->prioritized, q->due, q->delayed, q->parked,
                        q->running, q->oldest_ms, q->paused, q->stream_entries, q->counted_at);
    return rc == 0 ? 200 : 500;
}

static const struct status_page pages[] = {
    {"/healthz", "application/json", write_health},
    {"/readyz", "application/json", write_ready},
    {"/stats", "application/json", write_stats},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", write_metrics},
    {NULL, NULL, NULL},
};

/* ---- the service manager ---- */

void ops_refresh(struct ops *ops)
{
    char text[sizeof ops->told];
    struct ops_view view = look(ops);
    snprintf(text, sizeof text, "%sSTATUS=%s%s, %lld of %lld slots taken",
             view.draining && !ops->stopping_told ? "STOPPING=1\n" : "",
             view.draining ? "draining, " : "",
             view.redis_ready ? "Redis connected" : "waiting for Redis", view.running, view.slots);
    if (strcmp(text, ops->told) == 0)
        return;
    ops->stopping_told = view.draining;
    snprintf(ops->told, sizeof ops->told, "%s", text);
    notify_send(text);
}

static void on_notice(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    struct ops *ops = w->data;
    struct ops_view view = look(ops);
    is_healthy(ops, &view); /* said in the log, also when nobody asks */
    ops_refresh(ops);
}

static void on_watchdog(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    struct ops_view view = look(w->data);
    if (is_healthy(w->data, &view))
        notify_send("WATCHDOG=1");
}

struct ops *ops_new(struct ev_loop *loop, const struct settings *settings,
                    void (*look_fn)(struct ops_view *view, void *data), void *data)
{
    struct ops *ops = mem_alloc(sizeof *ops);
    long long port = settings_int(settings, SETTING_STATUS_PORT);
    double watchdog = (double)notify_watchdog_ms() / 1000.0;
    *ops = (struct ops){.loop = loop, .look = look_fn, .data = data, .started_ms = text_now_ms()};
    if (port != 0)
        ops->status =
            status_new(&(struct status_options){.loop = loop,
                                                .host = settings_str(settings, SETTING_STATUS_HOST),
                                                .port = port < 0 ? 0 : (int)port,
                                                .pages = pages,
                                                .data = ops});
    ev_timer_init(&ops->notice, on_notice, 0, NOTICE_S);
    ev_timer_init(&ops->watchdog, on_watchdog, 0, watchdog / 2);
    ops->notice.data = ops->watchdog.data = ops;
    ev_timer_start(loop, &ops->notice);
    if (watchdog > 0)
        ev_timer_start(loop, &ops->watchdog);
    notify_send("READY=1");
    return ops;
}

void ops_free(struct ops *ops)
{
    ev_timer_stop(ops->loop, &ops->notice);
    ev_timer_stop(ops->loop, &ops->watchdog);
    status_free(ops->status);
    metrics_clear();
    free(ops);
}
