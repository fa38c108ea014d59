/* The second door: entries of the Redis Stream "<prefix>:<queue>:stream:jobs" become BullMQ jobs,
 * once each. */
#include "worker/intake.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/intake_check.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP           "workers"
#define BATCH           "32"    /* entries a read */
#define BLOCK_MS        5000    /* a read waits that long at most */
#define MARGIN_MS       1000    /* past it the connection is not to be trusted */
#define RECLAIM_S       5.0     /* how often entries of dead replicas are looked for */
#define RECLAIM_IDLE_MS "15000" /* unadmitted for that long: their replica is dead or hangs */
#define PAUSE_S         0.5     /* after an error */
#define DEAD_KEPT       10000   /* dead letters kept */
#define WAITING_MAX     256     /* admissions not yet answered: read no more until they are */

struct intake {
    struct queue *q;
    struct redis *redis;
    struct ev_timer pause, reclaim;
    bool reading, stopped;
    size_t waiting;  /* admissions under way; their callbacks hold a pointer to us */
    char cursor[64]; /* of XAUTOCLAIM */
};

static void read_more(struct intake *in);

static void pause_then_read(struct intake *in)
{
    if (in->stopped || ev_is_active(&in->pause))
        return;
    ev_timer_set(&in->pause, PAUSE_S, 0);
    ev_timer_start(queue_options(in->q)->loop, &in->pause);
}

static void on_judged(redisReply *reply, void *data)
{
    struct intake *in = data;
    in->waiting--;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 2)
        log_info("a stream entry names a job id that exists already; nothing was added");
    read_more(in);
}

static void bury(struct intake *in, const char *entry_id, const struct str *fields, size_t count,
                 const char *why)
{
    log_warn("stream entry %s goes to stream:dead: %s", entry_id, why);
    struct queue_call *call = queue_call_new(in->q, &script_dead, 2);
    queue_call_key(call, "stream:jobs");
    queue_call_key(call, "stream:dead");
    queue_call_str(call, GROUP);
    queue_call_str(call, entry_id);
    queue_call_str(call, why);
    queue_call_int(call, DEAD_KEPT);
    for (size_t i = 0; i < count * 2 && i < 1000; i++)
        queue_call_bytes(call, fields[i].data, fields[i].len);
    in->waiting++;
    queue_call_send(call, on_judged, in);
}

static void admit(struct intake *in, const char *entry_id, const struct intake_entry *e)
{
    static const char *const keys[] = {"stream:jobs", "wait",   "prioritized", "delayed", "meta",
                                       "id",          "events", "marker",      "pc",      "active"};
    struct queue_call *call = queue_call_new(in->q, &script_admit, 11);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        queue_call_key(call, keys[i]);
    queue_call_job_key(call, &e->id, "");
    queue_call_str(call, queue_prefix(in->q));
    queue_call_str(call, GROUP);
    queue_call_str(call, entry_id);
    queue_call_bytes(call, e->id.data, e->id.len);
    queue_call_bytes(call, e->name.data, e->name.len);
    queue_call_bytes(call, e->data.data, e->data.len);
    queue_call_bytes(call, e->opts.data, e->opts.len);
    queue_call_int(call, text_now_ms());
    in->waiting++;
    queue_call_send(call, on_judged, in);
}

static void take_entry(struct intake *in, const redisReply *entry)
{
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 2 ||
        entry->element[0]->type != REDIS_REPLY_STRING)
        return;
    const char *entry_id = entry->element[0]->str;
    const redisReply *list = entry->element[1];
    if (list->type !=
        REDIS_REPLY_ARRAY) { /* deleted while it was pending: nothing is left to admit */
        bury(in, entry_id, NULL, 0, "the entry was deleted or trimmed before it was admitted");
        return;
    }
    size_t count = list->elements / 2;
    struct str *fields = mem_alloc((count * 2 + 1) * sizeof *fields);
    for (size_t i = 0; i < count * 2; i++)
        fields[i] = (struct str){list->element[i]->str, list->element[i]->len};
    struct intake_entry e;
    struct str id_storage = {NULL, 0};
    char *why = intake_check(fields, count, entry_id, (size_t)queue_options(in->q)->data_max_bytes,
                             &e, &id_storage);
    if (why != NULL)
        bury(in, entry_id, fields, count, why);
    else
        admit(in, entry_id, &e);
    str_fini(&id_storage);
    free(why);
    free(fields);
}

static void take_entries(struct intake *in, const redisReply *entries)
{
    for (size_t i = 0; entries->type == REDIS_REPLY_ARRAY && i < entries->elements; i++)
        take_entry(in, entries->element[i]);
}

static void on_group_made(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct intake *in = data;
    if (reply != NULL && reply->type == REDIS_REPLY_ERROR &&
        strncmp(reply->str, "BUSYGROUP", 9) != 0) {
        log_warn("stream:jobs: the consumer group cannot be made: %s", reply->str);
        pause_then_read(in);
    } else if (reply != NULL) {
        read_more(in);
    }
}

static void make_group(struct intake *in)
{
    struct str key = queue_key(in->q, "stream:jobs", 11);
    const char *argv[] = {"XGROUP", "CREATE", key.data, GROUP, "0", "MKSTREAM"};
    redis_command(in->redis, 6, argv, NULL, 0, on_group_made, in);
    str_fini(&key);
}

static void on_read(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct intake *in = data;
    in->reading = false;
    if (reply == NULL) /* on_state goes on */
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        if (strncmp(reply->str, "NOGROUP", 7) ==
            0) /* destroyed under us: what is left is read from 0 again */
            make_group(in);
        else
            log_warn("stream:jobs cannot be read: %s", reply->str), pause_then_read(in);
        return;
    }
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->elements > 1)
        take_entries(in, reply->element[0]->element[1]);
    read_more(in);
}

static void read_more(struct intake *in)
{
    if (in->reading || in->stopped || in->waiting > WAITING_MAX || !redis_ready(in->redis) ||
        ev_is_active(&in->pause))
        return;
    struct str key = queue_key(in->q, "stream:jobs", 11);
    char block[16];
    snprintf(block, sizeof block, "%d", BLOCK_MS);
    const char *argv[] = {"XREADGROUP", "GROUP",  GROUP,   queue_options(in->q)->replica_id,
                          "COUNT",      BATCH,    "BLOCK", block,
                          "STREAMS",    key.data, ">"};
    in->reading = redis_command(in->redis, 11, argv, NULL, BLOCK_MS + MARGIN_MS, on_read, in) == 0;
    if (!in->reading)
        pause_then_read(in);
    str_fini(&key);
}

static void on_pause_over(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    read_more(w->data);
}

static void on_reclaimed(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct intake *in = data;
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY || reply->elements < 2)
        return;
    snprintf(in->cursor, sizeof in->cursor, "%s", reply->element[0]->str);
    take_entries(in, reply->element[1]);
    /* Redis 7 tells apart what it dropped from the pending list because the entry is gone. */
    if (reply->elements > 2 && reply->element[2]->elements > 0)
        log_warn("%zu entries were deleted from stream:jobs before they were admitted",
                 reply->element[2]->elements);
}

static void on_reclaim_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct intake *in = w->data;
    if (in->stopped)
        return;
    const char *argv[] = {"XAUTOCLAIM",    "stream:jobs", GROUP,   queue_options(in->q)->replica_id,
                          RECLAIM_IDLE_MS, in->cursor,    "COUNT", BATCH};
    queue_command(in->q, 8, argv, NULL, on_reclaimed, in);
}

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    (void)r;
    (void)reason;
    struct intake *in = data;
    in->reading = false;
    if (ready && !in->stopped)
        make_group(in);
}

struct intake *intake_new(struct queue *q, const struct redis_url *url)
{
    struct intake *in = mem_alloc(sizeof *in);
    in->q = q;
    strcpy(in->cursor, "0-0");
    ev_timer_init(&in->pause, on_pause_over, PAUSE_S, 0);
    ev_timer_init(&in->reclaim, on_reclaim_timer, RECLAIM_S, RECLAIM_S);
    in->pause.data = in->reclaim.data = in;
    ev_timer_start(queue_options(q)->loop, &in->reclaim);
    in->redis = redis_new(queue_options(q)->loop,
                          &(struct redis_options){.url = url, .label = "stream"}, on_state, in);
    return in;
}

void intake_stop(struct intake *in)
{
    in->stopped = true; /* a read under way is the last one; what it brings is still admitted */
    ev_timer_stop(queue_options(in->q)->loop, &in->pause);
    ev_timer_stop(queue_options(in->q)->loop, &in->reclaim);
}

void intake_free(struct intake *in)
{
    in->stopped = true;
    redis_free(in->redis);
    ev_timer_stop(queue_options(in->q)->loop, &in->pause);
    ev_timer_stop(queue_options(in->q)->loop, &in->reclaim);
    free(in);
}
