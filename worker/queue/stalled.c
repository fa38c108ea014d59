/* The stalled pass: BullMQ's own, and beside it the look at threads whose holder is gone. */
#include "worker/queue/stalled.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/metrics.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdlib.h>

#define THREADS_A_PASS 1000

struct stalled {
    struct queue *q;
    struct ev_timer timer;
    long long interval_ms, max_count, hold_until; /* hold_until: monotonic ms */
    struct queue_call *pass, *wake;               /* under way, or NULL */
    void (*woke)(void *data);
    void *data;
};

static void on_pass(redisReply *reply, void *data)
{
    struct stalled *s = data;
    s->pass = NULL;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return;
    metrics_count(METRIC_JOBS_STALLED, (double)reply->elements, NULL, NULL);
    for (size_t i = 0; i < reply->elements; i++) {
        struct log_ctx ctx = {.job = reply->element[i]->str};
        log_write(LOG_LEVEL_WARN, &ctx, "job stalled: its lock has expired; it is back in wait");
    }
    s->woke(s->data);
}

static void on_wake(redisReply *reply, void *data)
{
    struct stalled *s = data;
    s->wake = NULL;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer > 0)
        s->woke(s->data);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    static const char *const keys[] = {"stalled", "wait",   "active", "stalled-check", "meta",
                                       "paused",  "marker", "events", "repeat"};
    (void)loop;
    (void)revents;
    struct stalled *s = w->data;
    if (!queue_is_ready(s->q) || text_monotonic_ms() < s->hold_until || s->pass != NULL ||
        s->wake != NULL)
        return;
    s->pass = queue_call_new(s->q, &script_moveStalledJobsToWait, 9);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        queue_call_key(s->pass, keys[i]);
    queue_call_int(s->pass, s->max_count);
    queue_call_str(s->pass, queue_prefix(s->q));
    queue_call_int(s->pass, text_now_ms());
    queue_call_int(s->pass, s->interval_ms * 8 / 10);
    queue_call_int(s->pass, queue_options(s->q)->lock_duration_ms);
    queue_call_send(s->pass, on_pass, s);

    s->wake = queue_call_new(s->q, &script_wake, 1);
    queue_call_key(s->wake, "index:parked");
    queue_call_str(s->wake, queue_prefix(s->q));
    queue_call_int(s->wake, text_now_ms());
    queue_call_int(s->wake, text_now_ms() - s->interval_ms * 8 / 10);
    queue_call_int(s->wake, THREADS_A_PASS);
    queue_call_send(s->wake, on_wake, s);
}

struct stalled *stalled_new(struct queue *q, long long interval_ms, long long max_stalled_count,
                            void (*woke)(void *data), void *data)
{
    struct stalled *s = mem_alloc(sizeof *s);
    s->q = q;
    s->interval_ms = interval_ms;
    s->max_count = max_stalled_count;
    s->woke = woke;
    s->data = data;
    ev_timer_init(&s->timer, on_timer, 0.0, (double)interval_ms / 1000.0);
    s->timer.data = s;
    ev_timer_start(queue_options(q)->loop, &s->timer);
    return s;
}

void stalled_free(struct stalled *s)
{
    ev_timer_stop(queue_options(s->q)->loop, &s->timer);
    if (s->pass != NULL)
        queue_call_cancel(s->pass);
    if (s->wake != NULL)
        queue_call_cancel(s->wake);
    free(s);
}

void stalled_hold(struct stalled *s, long long ms)
{
    s->hold_until = text_monotonic_ms() + ms;
}
