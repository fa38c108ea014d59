/* What the whole queue holds: the hash "<prefix>:<queue>:stats:queue", kept current by one replica
 * at a time. */
#include "worker/queue/stats.h"

#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdlib.h>
#include <string.h>

#define LIFE_MS 60000 /* of the hash when nobody counts any more */

struct stats {
    struct queue *q;
    struct ev_timer timer;
    long long interval_ms;
    struct queue_call *call; /* under way, or NULL */
    struct stats_figures figures;
};

static void take_field(struct stats_figures *f, const redisReply *name, const redisReply *value)
{
    const struct {
        const char *name;
        long long *into;
    } fields[] = {
        {"at", &f->counted_at},
        {"waiting", &f->waiting},
        {"prioritized", &f->prioritized},
        {"due", &f->due},
        {"delayed", &f->delayed},
        {"parked", &f->parked},
        {"running", &f->running},
        {"runnable", &f->runnable},
        {"oldestRunnableMs", &f->oldest_ms},
        {"paused", &f->paused},
        {"streamEntries", &f->stream_entries},
    };
    if (name->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING)
        return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(name->str, fields[i].name) == 0)
            *fields[i].into = strtoll(value->str, NULL, 10);
}

static void on_counted(redisReply *reply, void *data)
{
    struct stats *s = data;
    s->call = NULL;
    if (reply->type != REDIS_REPLY_ARRAY)
        return;
    s->figures = (struct stats_figures){.heard_at = text_monotonic_ms()};
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        take_field(&s->figures, reply->element[i], reply->element[i + 1]);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct stats *s = w->data;
    if (!queue_is_ready(s->q) || s->call != NULL)
        return;
    s->call = queue_call_new(s->q, &script_stats, 1);
    queue_call_key(s->call, "stats:queue");
    queue_call_str(s->call, queue_prefix(s->q));
    /* Less than the interval: else every second turn of a lone replica would find it too young. */
    queue_call_int(s->call, s->interval_ms * 8 / 10);
    queue_call_int(s->call, s->interval_ms * 4 > LIFE_MS ? s->interval_ms * 4 : LIFE_MS);
    queue_call_send(s->call, on_counted, s);
}

struct stats *stats_new(struct queue *q, long long interval_ms)
{
    struct stats *s = mem_alloc(sizeof *s);
    double every = (double)interval_ms / 1000.0;
    s->q = q;
    s->interval_ms = interval_ms;
    ev_timer_init(&s->timer, on_timer, every < 1 ? every : 1, every);
    s->timer.data = s;
    ev_timer_start(queue_options(q)->loop, &s->timer);
    return s;
}

void stats_free(struct stats *s)
{
    ev_timer_stop(queue_options(s->q)->loop, &s->timer);
    if (s->call != NULL)
        queue_call_cancel(s->call);
    free(s);
}

const struct stats_figures *stats_figures(const struct stats *s)
{
    return &s->figures;
}
