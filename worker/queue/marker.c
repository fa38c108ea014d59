/* Waits on BullMQ's marker for work, on a blocking connection of its own. */
#include "worker/queue/marker.h"

#include "common/b64.h"
#include "common/log.h"
#include "common/mem.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MARGIN_MS                                                                         \
    1000                    /* past the server's own timeout: the connection is not to be trusted */
#define NOT_READY_PAUSE 0.5 /* seconds until a wait without a connection comes back */

struct marker {
    struct queue *q;
    struct redis *redis;
    char *name; /* of the connection, without the worker's own */
    struct ev_timer pause;
    marker_fn woke;
    void *data;
    bool waiting;
    long long client; /* CLIENT ID of the connection; 0: not known */
};

static void wake(struct marker *m, long long next_delayed_at)
{
    if (!m->waiting)
        return;
    m->waiting = false;
    ev_timer_stop(queue_options(m->q)->loop, &m->pause);
    m->woke(next_delayed_at, m->data);
}

static void on_pause_over(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    wake(w->data, 0);
}

static void on_client_id(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct marker *m = data;
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER)
        m->client = reply->integer;
}

long long marker_client(const struct marker *m)
{
    return m->client;
}

const char *marker_name(const struct marker *m)
{
    return m->name;
}

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    (void)r;
    (void)reason;
    static const char *const ask[] = {"CLIENT", "ID"};
    struct marker *m = data;
    m->client = 0;
    if (!ready)
        return;
    redis_command(m->redis, 2, ask, NULL, 0, on_client_id, m);
    wake(m, 0); /* whatever was added while we were away */
}

struct marker *marker_new(struct queue *q, const struct redis_url *url)
{
    const struct queue_options *o = queue_options(q);
    struct marker *m = mem_alloc(sizeof *m);
    m->q = q;
    char *encoded = b64_encode(o->name, strlen(o->name));
    m->name = mem_printf("%s:%s", o->prefix, encoded);
    char *name = o->worker_name[0] != '\0' ? mem_printf("%s:w:%s", m->name, o->worker_name)
                                           : mem_strdup(m->name);
    ev_timer_init(&m->pause, on_pause_over, 0, 0);
    m->pause.data = m;
    m->redis = redis_new(
        o->loop, &(struct redis_options){.url = url, .label = "marker", .client_name = name},
        on_state, m);
    free(name);
    free(encoded);
    return m;
}

void marker_free(struct marker *m)
{
    m->waiting = false;
    redis_free(m->redis); /* its callbacks may start the timer yet */
    ev_timer_stop(queue_options(m->q)->loop, &m->pause);
    free(m->name);
    free(m);
}

static void pause_then_wake(struct marker *m)
{
    ev_timer_set(&m->pause, NOT_READY_PAUSE, 0);
    ev_timer_start(queue_options(m->q)->loop, &m->pause);
}

static void on_popped(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct marker *m = data;
    long long next = 0;
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        if (reply != NULL)
            queue_say_refused(m->q, "a wait on the marker", reply);
        pause_then_wake(m); /* or on_state wakes, when there is a connection again before */
        return;
    }
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
        strcmp(reply->element[1]->str, "1") == 0)
        next = (long long)strtod(reply->element[2]->str, NULL);
    wake(m, next);
}

void marker_wait(struct marker *m, long long ms, marker_fn woke, void *data)
{
    m->woke = woke;
    m->data = data;
    m->waiting = true;
    char timeout[32];
    /* Redis before 7.0.8 takes a shorter wait than 2 ms for ever. */
    snprintf(timeout, sizeof timeout, "%.3f", (double)(ms < 2 ? 2 : ms) / 1000.0);
    struct str key = queue_key(m->q, "marker", 6);
    const char *argv[] = {"BZPOPMIN", key.data, timeout};
    if (redis_command(m->redis, 3, argv, NULL, (int)ms + DEADLINE_MARGIN_MS, on_popped, m) != 0)
        pause_then_wake(m);
    str_fini(&key);
}

bool marker_waiting(const struct marker *m)
{
    return m->waiting;
}
