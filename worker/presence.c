/* Tells in Redis that this replica is there and what it can do. */
#include "worker/presence.h"

#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/factory.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFRESH_S 5.0
#define EXPIRE_MS "20000"
#define LEAVE_S   1.0   /* how long Redis has to hear that we leave */
#define FORGET_MS 60000 /* replicas not seen for that long leave the index */

struct presence {
    struct queue *q;
    struct settings *settings;
    struct presence_host host;
    char *key; /* suffix: "replica:<id>" */
    long long started;
    struct ev_timer timer, leave_timer;
    bool leaving;
    void (*left)(void *data);
    void *left_data;
};

static void command(struct presence *p, int argc, const char *const *argv)
{
    queue_command(p->q, argc, argv, NULL, NULL, NULL);
}

/* The driver that the next job would get. */
static void tell(struct presence *p, const char *driver, const char *why)
{
    const struct queue_options *o = queue_options(p->q);
    char host[256] = "", now[32], started[32], runs[32], old[32], pid[16], client[24];
    gethostname(host, sizeof host - 1);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    snprintf(now, sizeof now, "%lld", text_now_ms());
    snprintf(old, sizeof old, "%lld", text_now_ms() - FORGET_MS);
    snprintf(started, sizeof started, "%lld", p->started);
    snprintf(runs, sizeof runs, "%lld", p->host.running(p->host.data));
    snprintf(client, sizeof client, "%lld", p->host.client(p->host.data));
    bool enabled = strcmp(driver, "DISABLED") != 0 && strcmp(driver, "INVALID") != 0;
    const char *const set[] = {"HSET",      p->key,
                               "host",      host,
                               "pid",       pid,
                               "version",   SANDPIPER_VERSION,
                               "name",      o->worker_name,
                               "driver",    driver,
                               "enabled",   enabled ? "1" : "0",
                               "why",       why,
                               "running",   runs,
                               "draining",  p->host.draining(p->host.data) ? "1" : "0",
                               "intake",    p->host.intake(p->host.data),
                               "client",    client,
                               "startedAt", started,
                               "seenAt",    now};
    const char *const expire[] = {"PEXPIRE", p->key, EXPIRE_MS};
    const char *const add[] = {"ZADD", "index:replicas", now, o->replica_id};
    const char *const trim[] = {"ZREMRANGEBYSCORE", "index:replicas", "-inf", old};
    const char *const keep[] = {"PEXPIRE", "index:replicas", "604800000"};
    command(p, (int)(sizeof set / sizeof *set), set);
    command(p, 3, expire);
    command(p, 4, add);
    command(p, 4, trim);
    command(p, 3, keep);
}

static void on_runtime(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct presence *p = data;
    bool wrong = reply != NULL && reply->type == REDIS_REPLY_ERROR && !redis_is_unrun(reply);
    if (reply == NULL || (reply->type != REDIS_REPLY_ARRAY && !wrong) || p->leaving)
        return;
    const char **fields = mem_alloc((reply->elements + 2) * sizeof *fields);
    char err[256] = "";
    for (size_t i = 0; i < reply->elements; i++)
        fields[i] = reply->element[i]->str != NULL ? reply->element[i]->str : "";
    if (wrong)
        fields[0] = "", fields[1] = reply->str;
    struct settings *s =
        settings_overlay(p->settings, fields, wrong ? 1 : reply->elements / 2, err, sizeof err);
    const char *why = err, *driver = s != NULL ? factory_describe(s, &why) : "INVALID";
    tell(p, driver, why);
    settings_free(s);
    free(fields);
}

void presence_refresh(struct presence *p)
{
    const char *const get[] = {"HGETALL", "settings:runtime"};
    if (!p->leaving)
        queue_command(p->q, 2, get, NULL, on_runtime, p);
}

static void has_left(struct presence *p)
{
    ev_timer_stop(queue_options(p->q)->loop, &p->leave_timer);
    void (*left)(void *) = p->left;
    p->left = NULL;
    if (left != NULL)
        left(p->left_data);
}

static void on_left(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    (void)reply;
    has_left(data);
}

static void on_leave_late(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    has_left(w->data);
}

void presence_leave(struct presence *p, void (*left)(void *data), void *data)
{
    struct ev_loop *loop = queue_options(p->q)->loop;
    p->leaving = true;
    p->left = left;
    p->left_data = data;
    ev_timer_stop(loop, &p->timer);
    ev_timer_start(loop, &p->leave_timer);
    const char *const del[] = {"DEL", p->key};
    const char *const rem[] = {"ZREM", "index:replicas", queue_options(p->q)->replica_id};
    command(p, 2, del);
    if (queue_command(p->q, 3, rem, NULL, on_left, p) != 0)
        ev_feed_event(loop, &p->leave_timer, EV_TIMER); /* not connected: nobody to tell */
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    presence_refresh(w->data);
}

struct presence *presence_new(struct queue *q, struct settings *settings,
                              const struct presence_host *host)
{
    struct presence *p = mem_alloc(sizeof *p);
    p->q = q;
    p->settings = settings;
    p->host = *host;
    p->started = text_now_ms();
    p->key = mem_printf("replica:%s", queue_options(q)->replica_id);
    ev_timer_init(&p->timer, on_timer, REFRESH_S, REFRESH_S);
    ev_timer_init(&p->leave_timer, on_leave_late, LEAVE_S, 0);
    p->timer.data = p->leave_timer.data = p;
    ev_timer_start(queue_options(q)->loop, &p->timer);
    return p;
}

void presence_free(struct presence *p)
{
    ev_timer_stop(queue_options(p->q)->loop, &p->timer);
    ev_timer_stop(queue_options(p->q)->loop, &p->leave_timer);
    free(p->key);
    free(p);
}
