/* Claims the next job whose thread is free. */
#include "worker/queue/claim.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/msgpack.h"
#include "worker/queue/scripts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void claimed_job_free(struct claimed_job *job)
{
    if (job == NULL)
        return;
    struct str *const all[] = {
        &job->id,      &job->token,    &job->name,  &job->data,       &job->opts,
        &job->thread,  &job->mark,     &job->defa,  &job->stacktrace, &job->replica_before,
        &job->sandbox, &job->creation, &job->actor, &job->unsettled,  &job->scheduler};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        str_fini(all[i]);
    for (size_t i = 0; i < job->runtime_count * 2; i++)
        free(job->runtime[i]);
    free(job->runtime);
    free(job);
}

/* A string, taken out of the reply (hiredis ends it with a NUL, and frees what is left). */
static struct str from_reply(redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING)
        return str_make(NULL, 0);
    struct str s = {r->str, r->len};
    r->str = NULL;
    r->len = 0;
    return s;
}

static long long number(const redisReply *r)
{
    if (r->type == REDIS_REPLY_INTEGER)
        return r->integer;
    return r->type == REDIS_REPLY_STRING ? strtoll(r->str, NULL, 10) : 0;
}

static void take_settings(struct claimed_job *job, const redisReply *settings)
{
    if (settings == NULL || settings->type != REDIS_REPLY_ARRAY || settings->elements < 2)
        return;
    job->runtime_count = settings->elements / 2;
    job->runtime = mem_alloc(job->runtime_count * 2 * sizeof *job->runtime);
    for (size_t i = 0; i < job->runtime_count * 2; i++)
        job->runtime[i] = mem_strdup(
            settings->element[i]->type == REDIS_REPLY_STRING ? settings->element[i]->str : "");
}

/* In the order of spRead in claimed.lua. */
static void take_fields(struct claimed_job *job, const redisReply *fields)
{
    struct {
        struct str *text;
        long long *number;
    } const into[] = {
        {&job->name, NULL},      {&job->data, NULL},          {&job->opts, NULL},
        {NULL, &job->timestamp}, {NULL, &job->attempts_made}, {NULL, &job->attempts_started},
        {&job->thread, NULL},    {&job->mark, NULL},          {NULL, &job->last_seq},
        {&job->defa, NULL},      {&job->stacktrace, NULL},    {&job->scheduler, NULL}};
    for (size_t i = 0; i < fields->elements && i < sizeof into / sizeof *into; i++) {
        if (into[i].text != NULL)
            *into[i].text = from_reply(fields->element[i]);
        else
            *into[i].number = number(fields->element[i]);
    }
    if (job->mark.len == 0) /* a retry clears the mark by emptying it */
        str_fini(&job->mark);
}

/* Elements of a job, see fetchNextJob.lua. */
enum { AT_FIELDS, AT_ID, AT_THREAD, AT_CHILDREN, AT_CANCELLED, AT_SETTINGS, AT_AGAIN };
#define RECORD_UNSETTLED 9 /* its place in the record as threads.lua reads it */

static bool is_job(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY && r->elements > AT_ID &&
           r->element[AT_FIELDS]->type == REDIS_REPLY_ARRAY &&
           r->element[AT_ID]->type == REDIS_REPLY_STRING;
}

static const redisReply *element(const redisReply *job, size_t i, int type)
{
    return i < job->elements && job->element[i]->type == type ? job->element[i] : NULL;
}

static long long again_at(const redisReply *first_job)
{
    const redisReply *again = element(first_job, AT_AGAIN, REDIS_REPLY_INTEGER);
    return again != NULL ? again->integer : 0;
}

static struct claimed_job *take_job(const redisReply *reply, struct str *token,
                                    const redisReply *settings)
{
    struct claimed_job *job = mem_alloc(sizeof *job);
    job->id = from_reply(reply->element[AT_ID]);
    job->token = *token;
    *token = str_make(NULL, 0);
    job->claimed_at = text_now_ms();
    take_fields(job, reply->element[AT_FIELDS]);
    const redisReply *record = element(reply, AT_THREAD, REDIS_REPLY_ARRAY);
    if (record != NULL && record->elements >= 4) {
        struct str *const into[] = {&job->replica_before, &job->sandbox, &job->creation,
                                    &job->actor};
        for (size_t i = 0; i < 4; i++)
            *into[i] = from_reply(record->element[i]);
        if (record->elements > RECORD_UNSETTLED)
            job->unsettled = from_reply(record->element[RECORD_UNSETTLED]);
    }
    const redisReply *children = element(reply, AT_CHILDREN, REDIS_REPLY_INTEGER);
    job->pending_children = children != NULL ? children->integer : 0;
    const redisReply *cancelled = element(reply, AT_CANCELLED, REDIS_REPLY_INTEGER);
    job->cancelled = cancelled != NULL && cancelled->integer != 0;
    take_settings(job, settings);
    return job;
}

void claim_parse(const redisReply *reply, struct str *token, struct claim_answer *out)
{
    *out = (struct claim_answer){NULL, 0, 0};
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY)
        return;
    if (is_job(reply)) {
        out->again_at = again_at(reply);
        out->job = take_job(reply, token, element(reply, AT_SETTINGS, REDIS_REPLY_ARRAY));
    } else if (reply->elements >= 4) {
        out->limited_ms = number(reply->element[2]);
        out->again_at = number(reply->element[3]);
    }
}

void claim_batch_init(struct claim_batch *b, const redisReply *reply)
{
    *b = (struct claim_batch){NULL, NULL, 0, 0, 0, 0};
    if (reply == NULL || reply->element[1]->type != REDIS_REPLY_ARRAY)
        return;
    b->jobs = reply->element[1];
    b->limited_ms = number(reply->element[2]);
    b->again_at = number(reply->element[3]);
    if (b->jobs->elements > 0 && is_job(b->jobs->element[0])) {
        b->settings = element(b->jobs->element[0], AT_SETTINGS, REDIS_REPLY_ARRAY);
        b->more_at = again_at(b->jobs->element[0]);
    }
}

void claim_batch_next(struct claim_batch *b, struct str *token, struct claim_answer *out)
{
    *out = (struct claim_answer){NULL, b->limited_ms, b->again_at};
    if (b->jobs == NULL || b->taken >= b->jobs->elements)
        return;
    const redisReply *job = b->jobs->element[b->taken++];
    if (is_job(job))
        *out = (struct claim_answer){take_job(job, token, b->settings), 0, b->more_at};
}

void claim_pack_opts(const struct queue *q, struct buf *out, const struct str *token,
                     unsigned other_pairs, unsigned sp_extra)
{
    const struct queue_options *o = queue_options(q);
    bool named = o->worker_name[0] != '\0', limited = o->limiter_max > 0;
    msgpack_map(out, (token != NULL ? 3U : 2U) + (named ? 1 : 0) + (limited ? 1 : 0) + other_pairs);
    if (token != NULL) {
        msgpack_str(out, "token");
        msgpack_bytes(out, token->data, token->len);
    }
    msgpack_str(out, "lockDuration");
    msgpack_int(out, o->lock_duration_ms);
    if (named) {
        msgpack_str(out, "name");
        msgpack_str(out, o->worker_name);
    }
    if (limited) {
        msgpack_str(out, "limiter");
        msgpack_map(out, 2);
        msgpack_str(out, "max");
        msgpack_int(out, o->limiter_max);
        msgpack_str(out, "duration");
        msgpack_int(out, o->limiter_duration_ms);
    }
    msgpack_str(out, "sp");
    msgpack_map(out, 3 + sp_extra);
    msgpack_str(out, "rid");
    msgpack_str(out, o->replica_id);
    msgpack_str(out, "hz");
    msgpack_int(out, o->park_horizon_ms);
    msgpack_str(out, "dm");
    msgpack_int(out, o->data_max_bytes);
}

struct claim {
    struct queue *queue;
    struct str token;
    claim_fn cb;
    void *data;
};

static void on_claimed(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct claim *c = data;
    struct claim_answer answer;
    if (redis_is_passing(reply) || redis_is_denied(reply))
        queue_say_refused(c->queue, "claim", reply);
    else if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
        log_error("claim failed: %s", reply->str);
    claim_parse(reply, &c->token, &answer);
    c->cb(reply == NULL || reply->type == REDIS_REPLY_ERROR ? NULL : &answer, c->data);
    str_fini(&c->token);
    free(c);
}

/* A token that no other claim has had: "<uuid>:<count>", as BullMQ's. */
static struct str new_token(void)
{
    static unsigned long long count;
    char uuid[37];
    text_uuid(uuid);
    char *token = mem_printf("%s:%llu", uuid, count++);
    return (struct str){token, strlen(token)};
}

int claim_next(struct queue *q, claim_fn cb, void *data)
{
    if (!queue_is_ready(q))
        return -1;
    struct claim *c = mem_alloc(sizeof *c);
    *c = (struct claim){q, new_token(), cb, data};
    struct str wait = queue_key(q, "wait", 4);
    char now[24];
    int now_len = snprintf(now, sizeof now, "%lld", text_now_ms());
    struct buf opts;
    buf_init(&opts, 4096);
    claim_pack_opts(q, &opts, &c->token, 0, 0);
    const char *const argv[] = {wait.data, queue_prefix(q), now, opts.data};
    const size_t lens[] = {wait.len, strlen(queue_prefix(q)), (size_t)now_len, opts.len};
    int rc = redis_script_call(queue_options(q)->redis, &script_claim, 1, 4, argv, lens, 0,
                               on_claimed, c);
    str_fini(&wait);
    buf_fini(&opts);
    if (rc != 0) {
        str_fini(&c->token);
        free(c);
    }
    return rc;
}

struct cancelling {
    struct str token;
    cancel_fn cb;
    void *data;
};

static void on_cancelled(redisReply *reply, void *data)
{
    struct cancelling *c = data;
    struct claim_answer answer;
    claim_parse(reply, &c->token, &answer);
    enum cancel_found found = CANCEL_TAKEN;
    long long code = 0;
    if (answer.job == NULL) { /* an error counts as: nobody knows */
        code = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
        found = code == 1 ? CANCEL_UNKNOWN : code == 2 ? CANCEL_OVER : CANCEL_CLAIMED;
    }
    c->cb(answer.job, found, -code, c->data);
    str_fini(&c->token);
    free(c);
}

void claim_cancelled(struct queue *q, const char *job_id, long long said, cancel_fn cb, void *data)
{
    struct cancelling *c = mem_alloc(sizeof *c);
    *c = (struct cancelling){new_token(), cb, data};
    struct queue_call *call = queue_call_new(q, &script_cancel, 1);
    queue_call_key(call, job_id);
    queue_call_str(call, queue_prefix(q));
    queue_call_int(call, text_now_ms());
    queue_call_str(call, job_id);
    struct buf opts;
    buf_init(&opts, 4096);
    claim_pack_opts(q, &opts, &c->token, 0, 0);
    queue_call_bytes(call, opts.data, opts.len);
    buf_fini(&opts);
    queue_call_int(call, said);
    queue_call_send(call, on_cancelled, c);
}
