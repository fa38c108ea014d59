/* Ends a job, or sends it to its next attempt, as a stock Worker would, in one script call with our
 * reply and lease. */
#include "worker/queue/finish.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/msgpack.h"
#include "worker/queue/scripts.h"

#include <stdlib.h>
#include <string.h>

struct finishing {
    struct str id, token;
    finish_fn cb;
    void *data;
};

static void on_finished(redisReply *reply, void *data)
{
    struct finishing *f = data;
    struct claim_answer next = {NULL, 0, 0};
    enum finish_result result = FINISH_RESULT_OK;
    struct log_ctx ctx = {.job = f->id.data};
    if (reply->type == REDIS_REPLY_ERROR) {
        result = FINISH_RESULT_ERROR;
    } else if (reply->type == REDIS_REPLY_INTEGER && reply->integer < 0) {
        /* BullMQ's ErrorCode; after a lost connection the first try of this call may have done it
         * all. */
        bool children = reply->integer == -4 || reply->integer == -9;
        result = reply->integer == -4   ? FINISH_RESULT_CHILDREN
                 : reply->integer == -9 ? FINISH_RESULT_FAILED_CHILDREN
                                        : FINISH_RESULT_LOST;
        log_write(LOG_LEVEL_WARN, &ctx, "job could not be finished: BullMQ's code %lld (%s)",
                  reply->integer,
                  children               ? "it has children that are not done or failed"
                  : reply->integer == -1 ? "the job was removed"
                                         : "its lock is not ours any more");
    } else {
        claim_parse(reply, &f->token, &next);
    }
    f->cb(result, &next, f->data);
    str_fini(&f->id);
    str_fini(&f->token);
    free(f);
}

/* The sp.fin part: what fetchNextJob does for the job that the script has just moved. */
static void pack_fin(struct buf *out, const struct finish *f)
{
    bool end = f->kind == FINISH_COMPLETED || f->kind == FINISH_FAILED;
    bool release = end && f->job->thread.data != NULL;
    msgpack_str(out, "nf");
    msgpack_bool(out, !f->fetch_next);
    msgpack_str(out, "fin");
    msgpack_map(out, release ? 8 : 6);
    msgpack_str(out, "j");
    msgpack_bytes(out, f->job->id.data, f->job->id.len);
    msgpack_str(out, "end");
    msgpack_bool(out, end);
    msgpack_str(out, "seq");
    msgpack_int(out, f->first_seq);
    msgpack_str(out, "fresh");
    msgpack_bool(out, f->fresh_reply);
    msgpack_str(out, "ttl");
    msgpack_int(out, f->reply_ttl_ms);
    msgpack_str(out, "ms");
    msgpack_array(out, (uint32_t)f->message_count);
    for (size_t i = 0; i < f->message_count; i++)
        msgpack_bytes(out, f->messages[i].data, f->messages[i].len);
    if (release) {
        msgpack_str(out, "rel");
        msgpack_bool(out, true);
        msgpack_str(out, "t");
        msgpack_bytes(out, f->job->thread.data, f->job->thread.len);
    }
}

void finish_pack_keep(struct buf *out, const struct jobopts_keep *keep)
{
    const struct {
        bool has;
        const char *name;
        double value;
    } parts[] = {{keep->has_count, "count", keep->count},
                 {keep->has_age, "age", keep->age},
                 {keep->has_limit, "limit", keep->limit}};
    msgpack_map(out, (uint32_t)(keep->has_count + keep->has_age + keep->has_limit));
    for (size_t i = 0; i < 3; i++) {
        if (!parts[i].has)
            continue;
        msgpack_str(out, parts[i].name);
        if (parts[i].value == (double)(long long)parts[i].value)
            msgpack_int(out, (long long)parts[i].value);
        else
            msgpack_double(out, parts[i].value);
    }
}

/* fieldsToUpdate: a flat msgpack array, or "" for none. */
static void add_fields(struct queue_call *call, const struct finish *f)
{
    if (f->kind == FINISH_COMPLETED) {
        queue_call_str(call, "");
        return;
    }
    struct buf fields;
    buf_init(&fields, f->value_len + strlen(f->stacktrace) + 256);
    bool clear_mark = f->kind == FINISH_RETRY_NOW && f->marked;
    msgpack_array(&fields, clear_mark ? 6 : 4);
    msgpack_str(&fields, "failedReason");
    msgpack_bytes(&fields, f->value, f->value_len);
    msgpack_str(&fields, "stacktrace");
    msgpack_str(&fields, f->stacktrace);
    if (clear_mark) {
        msgpack_str(&fields, "sp:run");
        msgpack_str(&fields, "");
    }
    queue_call_bytes(call, fields.data, fields.len);
    buf_fini(&fields);
}

static size_t messages_size(const struct finish *f)
{
    size_t size = 8192 + f->job->thread.len + f->job->id.len + f->job->token.len;
    for (size_t i = 0; i < f->message_count; i++)
        size += f->messages[i].len + 8;
    return size;
}

static void add_keys(struct queue_call *call, const char *const *suffixes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        queue_call_key(call, suffixes[i]);
}

const struct jobopts_keep *finish_keep_of(const struct queue *q, const struct finish *f)
{
    bool failed = f->kind == FINISH_FAILED;
    const struct jobopts_keep *own = failed ? &f->opts->on_fail : &f->opts->on_complete;
    const struct jobopts_keep *worker =
        failed ? &queue_options(q)->keep_failed : &queue_options(q)->keep_completed;
    return !own->given && worker->given ? worker : own;
}

static struct queue_call *build_finished(struct queue *q, const struct finish *f)
{
    static const char *const keys[] = {"wait",    "active",  "prioritized", "events", "stalled",
                                       "limiter", "delayed", "paused",      "meta",   "pc"};
    bool failed = f->kind == FINISH_FAILED;
    const char *target = failed ? "failed" : "completed";
    struct queue_call *call = queue_call_new(q, &script_moveToFinished, 14);
    add_keys(call, keys, 10);
    queue_call_key(call, target);
    queue_call_job_key(call, &f->job->id, "");
    queue_call_key(call, failed ? "metrics:failed" : "metrics:completed");
    queue_call_key(call, "marker");
    queue_call_bytes(call, f->job->id.data, f->job->id.len);
    queue_call_int(call, text_now_ms());
    queue_call_str(call, failed ? "failedReason" : "returnvalue");
    queue_call_bytes(call, f->value, f->value_len);
    queue_call_str(call, target);
    queue_call_str(call,
                   "1"); /* always: our part rides in fetchNextJob, which may then not fetch */
    queue_call_str(call, queue_prefix(q));
    struct buf opts;
    buf_init(&opts, messages_size(f));
    claim_pack_opts(q, &opts, &f->job->token, 3, 2);
    pack_fin(&opts, f);
    msgpack_str(&opts, "keepJobs");
    finish_pack_keep(&opts, finish_keep_of(q, f));
    msgpack_str(&opts, "attempts");
    msgpack_int(&opts, f->opts->attempts == f->opts->attempts ? (long long)f->opts->attempts : 0);
    msgpack_str(&opts, "maxMetricsSize");
    if (queue_options(q)->metrics_points > 0)
        msgpack_int(&opts, queue_options(q)->metrics_points);
    else
        msgpack_str(&opts, "");
    queue_call_bytes(call, opts.data, opts.len);
    buf_fini(&opts);
    add_fields(call, f);
    return call;
}

static struct queue_call *build_delayed(struct queue *q, const struct finish *f)
{
    static const char *const before[] = {"marker", "active", "prioritized", "delayed"};
    static const char *const after[] = {"events", "meta", "stalled", "wait", "limiter", "pc"};
    struct queue_call *call = queue_call_new(q, &script_moveToDelayed, 11);
    add_keys(call, before, 4);
    queue_call_job_key(call, &f->job->id, "");
    add_keys(call, after, 6);
    queue_call_str(call, queue_prefix(q));
    queue_call_int(call, text_now_ms());
    queue_call_bytes(call, f->job->id.data, f->job->id.len);
    queue_call_bytes(call, f->job->token.data, f->job->token.len);
    queue_call_int(call, f->delay_ms);
    queue_call_str(call, "0"); /* the attempt counts */
    add_fields(call, f);
    queue_call_str(call, "1");
    struct buf opts;
    buf_init(&opts, messages_size(f));
    claim_pack_opts(q, &opts, &f->job->token, 0, 2);
    pack_fin(&opts, f);
    queue_call_bytes(call, opts.data, opts.len);
    buf_fini(&opts);
    return call;
}

static struct queue_call *build_retry(struct queue *q, const struct finish *f)
{
    static const char *const before[] = {"active", "wait", "paused"};
    static const char *const after[] = {"meta", "events", "delayed", "prioritized",
                                        "pc",   "marker", "stalled"};
    struct queue_call *call = queue_call_new(q, &script_retryJob, 11);
    add_keys(call, before, 3);
    queue_call_job_key(call, &f->job->id, "");
    add_keys(call, after, 7);
    queue_call_str(call, queue_prefix(q));
    queue_call_int(call, text_now_ms());
    queue_call_str(call, f->opts->lifo ? "RPUSH" : "LPUSH");
    queue_call_bytes(call, f->job->id.data, f->job->id.len);
    queue_call_bytes(call, f->job->token.data, f->job->token.len);
    add_fields(call, f);
    return call;
}

void finish_send(struct queue *q, const struct finish *f, finish_fn cb, void *data)
{
    struct queue_call *call = f->kind == FINISH_RETRY_LATER ? build_delayed(q, f)
                              : f->kind == FINISH_RETRY_NOW ? build_retry(q, f)
                                                            : build_finished(q, f);
    struct finishing *state = mem_alloc(sizeof *state);
    state->id = str_copy(&f->job->id);
    state->token = str_copy(&f->job->token);
    state->cb = cb;
    state->data = data;
    queue_call_send(call, on_finished, state);
}

void finish_give_back(struct queue *q, const struct claimed_job *job, finish_fn cb, void *data)
{
    static const char *const keys[] = {"active",  "wait",        "stalled", "paused", "meta",
                                       "limiter", "prioritized", "marker",  "events"};
    struct queue_call *call = queue_call_new(q, &script_moveJobFromActiveToWait, 9);
    add_keys(call, keys, 9);
    queue_call_bytes(call, job->id.data, job->id.len);
    queue_call_bytes(call, job->token.data, job->token.len);
    queue_call_job_key(call, &job->id, "");
    struct finishing *state = mem_alloc(sizeof *state);
    *state = (struct finishing){str_copy(&job->id), str_copy(&job->token), cb, data};
    queue_call_send(call, on_finished, state);
}
