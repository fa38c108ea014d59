/* The stalled pass: BullMQ's own, and beside it the look at threads whose holder is gone. */
#include "worker/queue/stalled.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/metrics.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdlib.h>

#define THREADS_A_CALL 250
#define CALLS_A_PASS   1000 /* of either script: the rest is for the next pass */
#define HOLD_REST      5    /* lock durations from one hold to the next, for short losses */
#define TRIES          8    /* in an interval, while no pass can be made */

struct stalled {
    struct queue *q;
    struct ev_timer timer;
    long long interval_ms, max_count;
    /* Monotonic ms; lost_at 0: connected, held_at 0: never. */
    long long lost_at, held_at, hold_until;
    struct queue_call *pass, *wake; /* under way, or NULL */
    int pass_calls, wake_calls;     /* made in this pass */
    void (*woke)(void *data);
    void *data;
};

static void send_pass(struct stalled *s, const char *from);
static void send_wake(struct stalled *s);

static void tell_stalled(struct stalled *s, const redisReply *ids)
{
    if (ids->type != REDIS_REPLY_ARRAY || ids->elements == 0)
        return;
    metrics_count(METRIC_JOBS_STALLED, (double)ids->elements, NULL, NULL);
    for (size_t i = 0; i < ids->elements; i++) {
        struct log_ctx ctx = {.job = ids->element[i]->str};
        log_write(LOG_LEVEL_WARN, &ctx, "job stalled: its lock has expired; it is back in wait");
    }
    s->woke(s->data);
}

static void on_pass(redisReply *reply, void *data)
{
    struct stalled *s = data;
    s->pass = NULL;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return;
    const redisReply *next = reply->element[1];
    if (next->type == REDIS_REPLY_STRING && next->len > 0 && s->pass_calls < CALLS_A_PASS)
        send_pass(s, next->str);
    tell_stalled(s, reply->element[0]);
}

static void on_wake(redisReply *reply, void *data)
{
    struct stalled *s = data;
    s->wake = NULL;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return;
    if (reply->element[1]->integer > 0 && s->wake_calls < CALLS_A_PASS)
        send_wake(s);
    if (reply->element[0]->integer > 0)
        s->woke(s->data);
}

static void send_pass(struct stalled *s, const char *from)
{
    static const char *const keys[] = {"stalled", "wait",   "active", "stalled-check", "meta",
                                       "paused",  "marker", "events", "repeat"};
    s->pass_calls++;
    s->pass = queue_call_new(s->q, &script_moveStalledJobsToWait, 9);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        queue_call_key(s->pass, keys[i]);
    queue_call_int(s->pass, s->max_count);
    queue_call_str(s->pass, queue_prefix(s->q));
    queue_call_int(s->pass, text_now_ms());
    queue_call_int(s->pass, s->interval_ms * 8 / 10);
    queue_call_int(s->pass, queue_options(s->q)->lock_duration_ms);
    queue_call_str(s->pass, from);
    queue_call_send(s->pass, on_pass, s);
}

static void send_wake(struct stalled *s)
{
    s->wake_calls++;
    s->wake = queue_call_new(s->q, &script_wake, 1);
    queue_call_key(s->wake, "index:parked");
    queue_call_str(s->wake, queue_prefix(s->q));
    queue_call_int(s->wake, text_now_ms());
    queue_call_int(s->wake, text_now_ms() - s->interval_ms * 8 / 10);
    queue_call_int(s->wake, THREADS_A_CALL);
    queue_call_send(s->wake, on_wake, s);
}

static void arm(struct stalled *s, long long ms)
{
    ev_timer_stop(queue_options(s->q)->loop, &s->timer);
    ev_timer_set(&s->timer, (double)ms / 1000.0, 0);
    ev_timer_start(queue_options(s->q)->loop, &s->timer);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct stalled *s = w->data;
    if (!queue_is_ready(s->q) || text_monotonic_ms() < s->hold_until || s->pass != NULL ||
        s->wake != NULL) {
        /* Soon again: where the connection often breaks, the moments in which it is there count. */
        arm(s, s->interval_ms / TRIES + 1);
        return;
    }
    arm(s, s->interval_ms);
    s->pass_calls = s->wake_calls = 0;
    send_pass(s, "");
    send_wake(s);
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
    ev_timer_init(&s->timer, on_timer, 0.0, 0.0);
    s->timer.data = s;
    arm(s, 0);
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

void stalled_lost(struct stalled *s)
{
    if (s->lost_at == 0)
        s->lost_at = text_monotonic_ms();
}

void stalled_back(struct stalled *s)
{
    if (s->lost_at == 0)
        return;
    long long now = text_monotonic_ms(), life = queue_options(s->q)->lock_duration_ms;
    long long away = now - s->lost_at;
    s->lost_at = 0;
    /* A later part of a pass does not ask whether Redis was away, so it must not be sent again. */
    if (s->pass != NULL)
        queue_call_cancel(s->pass);
    s->pass = NULL;
    /* Locks are renewed thrice in their life, so that a short loss alone costs none of them. */
    if (away < life / 3 && s->held_at != 0 && now - s->held_at < life * HOLD_REST)
        return;
    s->held_at = now;
    s->hold_until = now + life;
}
