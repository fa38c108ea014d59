/* What drivers may know and keep of threads in Redis: the driver_host functions, on the queue's
 * connection. */
#include "worker/thread_records.h"

#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"
#include "worker/queue/scripts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One question under way; which callback is set says what is asked. */
struct asked {
    struct queue *q;
    char *text; /* thread, token or value, as the question needs */
    void (*moved)(void *ctx, const char *thread);
    void (*done)(void *ctx, bool ok);
    void (*record)(void *ctx, const struct driver_record *record, long long last_claim_ms);
    void (*value)(void *ctx, const char *value);
    void *ctx;
};

static void asked_free(struct asked *a)
{
    free(a->text);
    free(a);
}

/* Redis was not reached. */
static void answer_lost(void *data)
{
    struct asked *a = data;
    if (a->done != NULL)
        a->done(a->ctx, false);
    else if (a->record != NULL)
        a->record(a->ctx, NULL, 0);
    else if (a->value != NULL)
        a->value(a->ctx, NULL);
    asked_free(a);
}

static void ask(struct asked *a, int argc, const char *const *argv, redis_reply_fn cb)
{
    if (queue_command(a->q, argc, argv, NULL, cb, a) != 0)
        reaper_defer(answer_lost, a);
}

static char *thread_key(const char *thread)
{
    return mem_printf("thread:%s", thread);
}

static void on_owner(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct asked *a = data;
    if (reply != NULL && reply->type == REDIS_REPLY_STRING &&
        strcmp(reply->str, queue_options(a->q)->replica_id) != 0)
        a->moved(a->ctx, a->text);
    asked_free(a);
}

static void check_moved(void *data, const char *const *threads, size_t count,
                        void (*moved)(void *ctx, const char *thread), void *ctx)
{
    for (size_t i = 0; i < count; i++) {
        struct asked *a = mem_alloc(sizeof *a);
        *a = (struct asked){.q = data, .text = mem_strdup(threads[i]), .moved = moved, .ctx = ctx};
        char *key = thread_key(threads[i]);
        const char *const argv[] = {"HGET", key, "replica"};
        ask(a, 3, argv, on_owner);
        free(key);
    }
}

static void on_done(redisReply *reply, void *data)
{
    struct asked *a = data;
    a->done(a->ctx, reply->type != REDIS_REPLY_ERROR);
    asked_free(a);
}

static void record_set(void *data, const char *thread, const char *const *fields, size_t pairs,
                       void (*done)(void *ctx, bool ok), void *ctx)
{
    struct asked *a = mem_alloc(sizeof *a);
    *a = (struct asked){.q = data, .done = done, .ctx = ctx};
    char *key = thread_key(thread);
    struct queue_call *call = queue_call_new(data, &script_record, 1);
    queue_call_key(call, key);
    for (size_t i = 0; i < pairs * 2; i++)
        queue_call_str(call, fields[i]);
    queue_call_send(call, on_done, a);
    free(key);
}

static const char *text_of(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING ? reply->str : "";
}

static void on_record(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct asked *a = data;
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY || reply->elements != 5) {
        answer_lost(a);
        return;
    }
    struct driver_record record = {text_of(reply->element[0]), text_of(reply->element[1]),
                                   text_of(reply->element[2]), text_of(reply->element[3])};
    a->record(a->ctx, &record, strtoll(text_of(reply->element[4]), NULL, 10));
    asked_free(a);
}

static void record_get(void *data, const char *thread,
                       void (*got)(void *ctx, const struct driver_record *record,
                                   long long last_claim_ms),
                       void *ctx)
{
    struct asked *a = mem_alloc(sizeof *a);
    *a = (struct asked){.q = data, .record = got, .ctx = ctx};
    char *key = thread_key(thread);
    const char *const argv[] = {"HMGET", key, "sandbox", "creation", "actor", "unsettled", "claim"};
    ask(a, 7, argv, on_record);
    free(key);
}

static void on_shared(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct asked *a = data;
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        answer_lost(a);
        return;
    }
    a->value(a->ctx, reply->type == REDIS_REPLY_STRING ? reply->str : NULL);
    asked_free(a);
}

static void shared_value(void *data, const char *name, const char *mine,
                         void (*got)(void *ctx, const char *value), void *ctx)
{
    struct asked *a = mem_alloc(sizeof *a);
    *a = (struct asked){.q = data, .value = got, .ctx = ctx};
    /* Two commands in a row: SET with NX and GET together needs Redis 7. */
    const char *const set[] = {"SET", name, mine, "NX"};
    const char *const get[] = {"GET", name};
    queue_command(a->q, 4, set, NULL, NULL, NULL);
    ask(a, 2, get, on_shared);
}

static struct queue_call *sweep_call(struct queue *q, const char *thread, const char *token,
                                     long long ms)
{
    struct queue_call *call = queue_call_new(q, &script_sweep, 1);
    char *key = mem_printf("lease:%s", thread);
    queue_call_key(call, key);
    free(key);
    queue_call_str(call, queue_prefix(q));
    queue_call_str(call, thread);
    queue_call_str(call, token);
    queue_call_int(call, ms);
    queue_call_int(call, text_now_ms());
    return call;
}

static void on_swept(redisReply *reply, void *data)
{
    struct asked *a = data;
    bool mine = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    a->value(a->ctx, mine ? a->text : NULL);
    asked_free(a);
}

static void sweep_take(void *data, const char *thread, long long ms,
                       void (*got)(void *ctx, const char *token), void *ctx)
{
    struct asked *a = mem_alloc(sizeof *a);
    char uuid[37];
    text_uuid(uuid);
    *a = (struct asked){.q = data, .text = mem_printf("sweep:%s", uuid), .value = got, .ctx = ctx};
    queue_call_send(sweep_call(data, thread, a->text, ms), on_swept, a);
}

static void sweep_release(void *data, const char *thread, const char *token)
{
    queue_call_send(sweep_call(data, thread, token, 0), NULL, NULL);
}

static void on_turn(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct asked *a = data;
    a->done(a->ctx, reply != NULL && reply->type == REDIS_REPLY_STATUS);
    asked_free(a);
}

static void turn_take(void *data, const char *name, long long ms, void (*got)(void *ctx, bool mine),
                      void *ctx)
{
    struct asked *a = mem_alloc(sizeof *a);
    *a = (struct asked){.q = data, .done = got, .ctx = ctx};
    char px[24], *key = mem_printf("turn:%s", name);
    snprintf(px, sizeof px, "%lld", ms);
    const char *const argv[] = {"SET", key, queue_options(a->q)->replica_id, "NX", "PX", px};
    ask(a, 6, argv, on_turn);
    free(key);
}

void thread_records_attach(struct driver_host *host, struct queue *q)
{
    host->check_moved = check_moved;
    host->record_set = record_set;
    host->record_get = record_get;
    host->shared_value = shared_value;
    host->sweep_take = sweep_take;
    host->sweep_release = sweep_release;
    host->turn_take = turn_take;
    host->data = q;
}
