/* Cancels by the Redis Stream "<prefix>:<queue>:stream:control": durable, read by every replica. */
#include "worker/control.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MS  5000
#define MARGIN_MS 1000      /* past it the connection is not to be trusted */
#define KEEP_MS   3600000LL /* entries, and ids of jobs that are not there yet */
#define RACE_MS                                                                                    \
    10000LL /* a job that was running nowhere we know: its claim may be on its way to us */
#define REMEMBERED_MAX 10000
#define TRIM_S         60.0
#define READ_MAX       100 /* entries */
#define PAUSE_S        0.5

struct control {
    struct queue *q;
    struct control_host host;
    struct redis *redis;
    struct ev_timer pause, trim;
    char last[48]; /* id of the last entry read */
    bool caught_up;
    json_t *remembered; /* job id -> [until when (ms), the claim that is meant, 0: any] */
};

/* One job under way to being cancelled. */
struct cancelling {
    struct control *control;
    char *job_id;
};

static void read_on(struct control *c);

static void remember(struct control *c, const char *job_id, long long ms, long long nth)
{
    if (json_object_size(c->remembered) < REMEMBERED_MAX)
        json_object_set_new(c->remembered, job_id, json_pack("[I,I]", text_now_ms() + ms, nth));
    else
        log_warn("more than %d cancelled jobs are remembered; %.100s is not", REMEMBERED_MAX,
                 job_id);
}

static bool is_past(const json_t *one)
{
    return json_integer_value(json_array_get(one, 0)) <= text_now_ms();
}

bool control_was_cancelled(struct control *c, const char *job_id, long long nth)
{
    json_t *one = json_object_get(c->remembered, job_id);
    if (one == NULL)
        return false;
    long long meant = json_integer_value(json_array_get(one, 1));
    bool cancelled = !is_past(one) && (meant == 0 || meant == nth);
    json_object_del(c->remembered, job_id);
    return cancelled;
}

static void on_taken(struct claimed_job *taken, enum cancel_found found, long long nth, void *data)
{
    struct cancelling *one = data;
    struct control *c = one->control;
    /* (Claimed, and by us: then the claim's answer came while we asked, or is on its way.) */
    bool coming = found == CANCEL_CLAIMED && !c->host.stop_job(c->host.data, one->job_id);
    json_object_del(c->remembered, one->job_id);
    if (taken != NULL)
        c->host.fail_job(c->host.data, taken);
    else if (found == CANCEL_UNKNOWN)
        remember(c, one->job_id, KEEP_MS, 0);
    else if (coming)
        remember(c, one->job_id, RACE_MS, nth);
    free(one->job_id);
    free(one);
}

static void cancel_job(struct control *c, const char *job_id, long long said)
{
    if (c->host.stop_job(c->host.data, job_id))
        return;
    remember(c, job_id, RACE_MS, 0);
    struct cancelling *one = mem_alloc(sizeof *one);
    *one = (struct cancelling){c, mem_strdup(job_id)};
    claim_cancelled(c->q, job_id, said, on_taken, one);
}

static void on_named(redisReply *reply, void *data)
{
    for (size_t i = 1; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        cancel_job(data, reply->element[i]->str, strtoll(reply->element[0]->str, NULL, 10));
}

static void cancel_thread(struct control *c, const char *thread, long long said, long long before,
                          const char *spare)
{
    c->host.stop_thread(c->host.data, thread, before, spare);
    struct queue_call *call = queue_call_new(c->q, &script_cancelthread, 3);
    static const char *const kinds[] = {"thread", "parked", "lease"};
    for (size_t i = 0; i < 3; i++) {
        char *key = mem_printf("%s:%s", kinds[i], thread);
        queue_call_key(call, key);
        free(key);
    }
    queue_call_str(call, queue_prefix(c->q));
    queue_call_int(call, before);
    queue_call_str(call, spare);
    queue_call_int(call, said);
    queue_call_send(call, on_named, c);
}

static void take_entry(struct control *c, const redisReply *entry)
{
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 2)
        return;
    const char *id = entry->element[0]->str, *job = NULL, *thread = NULL, *spare = "";
    snprintf(c->last, sizeof c->last, "%s", id);
    long long said = strtoll(id, NULL, 10), before = said;
    const redisReply *fields = entry->element[1];
    for (size_t i = 0; fields->type == REDIS_REPLY_ARRAY && i + 1 < fields->elements; i += 2) {
        const char *name = fields->element[i]->str, *value = fields->element[i + 1]->str;
        if (strcmp(name, "cancel") == 0)
            job = value;
        else if (strcmp(name, "cancel-thread") == 0)
            thread = value;
        else if (strcmp(name, "spare") == 0)
            spare = value;
        else if (strcmp(name, "before") == 0)
            before = strtoll(value, NULL, 10);
    }
    if (job != NULL && job[0] != '\0')
        cancel_job(c, job, said);
    else if (thread != NULL && thread[0] != '\0')
        cancel_thread(c, thread, said, before, spare);
    else
        log_warn("control entry %s says neither cancel nor cancel-thread", id);
}

bool control_has_caught_up(const struct control *c)
{
    return c->caught_up;
}

static void catch_up(struct control *c)
{
    if (c->caught_up)
        return;
    c->caught_up = true;
    c->host.caught_up(c->host.data);
}

static void pause_then_read(struct control *c)
{
    ev_timer_stop(queue_options(c->q)->loop, &c->pause);
    ev_timer_set(&c->pause, PAUSE_S, 0);
    ev_timer_start(queue_options(c->q)->loop, &c->pause);
}

static void on_read(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct control *c = data;
    if (reply == NULL) /* on_state goes on, from the last entry read */
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        queue_say_refused(c->q, "to read stream:control", reply);
        catch_up(c);
        pause_then_read(c);
        return;
    }
    size_t count = 0;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
        reply->element[0]->elements > 1) {
        const redisReply *entries = reply->element[0]->element[1];
        count = entries->elements;
        for (size_t i = 0; i < count; i++)
            take_entry(c, entries->element[i]);
    }
    if (count < READ_MAX)
        catch_up(c);
    read_on(c);
}

static void read_on(struct control *c)
{
    if (!redis_ready(c->redis))
        return;
    struct str key = queue_key(c->q, "stream:control", 14);
    char count[16], block[16];
    snprintf(count, sizeof count, "%d", READ_MAX);
    snprintf(block, sizeof block, "%d", BLOCK_MS);
    /* The first claim waits for what is there: Redis looks only every 100 ms whose wait is over. */
    const char *now[] = {"XREAD", "COUNT", count, "STREAMS", key.data, c->last};
    const char *later[] = {"XREAD", "COUNT", count, "BLOCK", block, "STREAMS", key.data, c->last};
    if (redis_command(c->redis, c->caught_up ? 8 : 6, c->caught_up ? later : now, NULL,
                      BLOCK_MS + MARGIN_MS, on_read, c) != 0)
        pause_then_read(c);
    str_fini(&key);
}

static void on_pause_over(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    read_on(w->data);
}

/* Entries that nobody needs any more, and ids that never came. */
static void on_trim(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct control *c = w->data;
    char oldest[32];
    snprintf(oldest, sizeof oldest, "%lld", text_now_ms() - KEEP_MS);
    const char *argv[] = {"XTRIM", "stream:control", "MINID", "~", oldest};
    queue_command(c->q, 5, argv, NULL, NULL, NULL);
    const char *id;
    json_t *one;
    void *next;
    json_object_foreach_safe(c->remembered, next, id, one) if (is_past(one))
        json_object_del(c->remembered, id);
}

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    (void)r;
    (void)reason;
    struct control *c = data;
    ev_timer_stop(queue_options(c->q)->loop, &c->pause);
    if (ready)
        read_on(c);
}

struct control *control_new(struct queue *q, const struct redis_url *url,
                            const struct control_host *host)
{
    struct ev_loop *loop = queue_options(q)->loop;
    struct control *c = mem_alloc(sizeof *c);
    c->q = q;
    c->host = *host;
    c->remembered = json_object();
    snprintf(c->last, sizeof c->last, "%lld-0", text_now_ms() - KEEP_MS);
    ev_timer_init(&c->pause, on_pause_over, 0, 0);
    ev_timer_init(&c->trim, on_trim, TRIM_S, TRIM_S);
    c->pause.data = c->trim.data = c;
    ev_timer_start(loop, &c->trim);
    c->redis =
        redis_new(loop, &(struct redis_options){.url = url, .label = "control"}, on_state, c);
    return c;
}

void control_free(struct control *c)
{
    ev_timer_stop(queue_options(c->q)->loop, &c->trim);
    redis_free(c->redis);
    ev_timer_stop(queue_options(c->q)->loop, &c->pause);
    json_decref(c->remembered);
    free(c);
}
