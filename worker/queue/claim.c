/* Claims the next job whose thread is free. */
#include "worker/queue/claim.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/msgpack.h"
#include "worker/queue/scripts.h"

#include <stdlib.h>
#include <string.h>

void claimed_job_free(struct claimed_job *job)
{
    if (job == NULL)
        return;
    struct str *const all[] = {
        &job->id,      &job->token,    &job->name,  &job->data,       &job->opts,
        &job->thread,  &job->mark,     &job->defa,  &job->stacktrace, &job->replica_before,
        &job->sandbox, &job->creation, &job->actor, &job->scheduler};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        str_fini(all[i]);
    for (size_t i = 0; i < job->runtime_count * 2; i++)
        free(job->runtime[i]);
    free(job->runtime);
    free(job);
}

static struct str from_reply(const redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING && r->type != REDIS_REPLY_STATUS)
        return str_make(NULL, 0);
    return str_make(r->str, r->len);
}

static long long number(const redisReply *r)
{
    if (r->type == REDIS_REPLY_INTEGER)
        return r->integer;
    return r->type == REDIS_REPLY_STRING ? strtoll(r->str, NULL, 10) : 0;
}

static void take_field(struct claimed_job *job, const redisReply *name, const redisReply *value)
{
    const struct {
        const char *name;
        struct str *text;
        long long *number;
    } fields[] = {
        {"name", &job->name, NULL},
        {"data", &job->data, NULL},
        {"opts", &job->opts, NULL},
        {"sp:t", &job->thread, NULL},
        {"sp:run", &job->mark, NULL},
        {"defa", &job->defa, NULL},
        {"stacktrace", &job->stacktrace, NULL},
        {"rjk", &job->scheduler, NULL},
        {"timestamp", NULL, &job->timestamp},
        {"atm", NULL, &job->attempts_made},
        {"ats", NULL, &job->attempts_started},
        {"sp:seq", NULL, &job->last_seq},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (name->type != REDIS_REPLY_STRING || strcmp(name->str, fields[i].name) != 0)
            continue;
        if (fields[i].number != NULL) {
            *fields[i].number = number(value);
        } else {
            str_fini(fields[i].text);
            *fields[i].text = from_reply(value);
        }
    }
}

/* The fifth element: runtime settings, then the thread's record. */
static void take_thread_info(struct claimed_job *job, const redisReply *info)
{
    struct str *const record[] = {&job->replica_before, &job->sandbox, &job->creation, &job->actor};
    if (info->type != REDIS_REPLY_ARRAY || info->elements < 5)
        return;
    for (size_t i = 0; i < 4; i++)
        *record[i] = from_reply(info->element[i + 1]);
    job->cancelled = info->elements > 5 && info->element[5]->type == REDIS_REPLY_STRING &&
                     info->element[5]->len > 0;
    const redisReply *settings = info->element[0];
    if (settings->type != REDIS_REPLY_ARRAY || settings->elements < 2)
        return;
    job->runtime_count = settings->elements / 2;
    job->runtime = mem_alloc(job->runtime_count * 2 * sizeof *job->runtime);
    for (size_t i = 0; i < job->runtime_count * 2; i++)
        job->runtime[i] = mem_strdup(
            settings->element[i]->type == REDIS_REPLY_STRING ? settings->element[i]->str : "");
}

void claim_parse(const redisReply *reply, const struct str *token, struct claim_answer *out)
{
    *out = (struct claim_answer){NULL, 0, 0};
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY || reply->elements < 4)
        return;
    out->limited_ms = number(reply->element[2]);
    out->next_delayed_at = number(reply->element[3]);
    const redisReply *hash = reply->element[0];
    if (hash->type != REDIS_REPLY_ARRAY || reply->element[1]->type != REDIS_REPLY_STRING)
        return;
    struct claimed_job *job = mem_alloc(sizeof *job);
    job->id = from_reply(reply->element[1]);
    job->token = str_copy(token);
    job->claimed_at = text_now_ms();
    for (size_t i = 0; i + 1 < hash->elements; i += 2)
        take_field(job, hash->element[i], hash->element[i + 1]);
    if (job->mark.len == 0) /* a retry clears the mark by emptying it */
        str_fini(&job->mark);
    if (reply->elements > 4)
        take_thread_info(job, reply->element[4]);
    if (reply->elements > 5)
        job->pending_children = number(reply->element[5]);
    out->job = job;
}

void claim_pack_opts(const struct queue *q, struct buf *out, const struct str *token,
                     unsigned other_pairs, unsigned sp_extra)
{
    const struct queue_options *o = queue_options(q);
    bool named = o->worker_name[0] != '\0', limited = o->limiter_max > 0;
    msgpack_map(out, 3U + (named ? 1 : 0) + (limited ? 1 : 0) + other_pairs);
    msgpack_str(out, "token");
    msgpack_bytes(out, token->data, token->len);
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
    struct str token;
    claim_fn cb;
    void *data;
};

static void on_claimed(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct claim *c = data;
    struct claim_answer answer;
    if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
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
    static const char *const suffixes[] = {"wait",    "active",  "prioritized", "events",
                                           "stalled", "limiter", "delayed",     "paused",
                                           "meta",    "pc",      "marker"};
    enum { KEYS = sizeof suffixes / sizeof *suffixes, ARGS = KEYS + 3 };
    if (!queue_is_ready(q))
        return -1;
    struct claim *c = mem_alloc(sizeof *c);
    *c = (struct claim){new_token(), cb, data};

    struct str keys[KEYS];
    const char *argv[ARGS];
    size_t lens[ARGS];
    for (size_t i = 0; i < KEYS; i++) {
        keys[i] = queue_key(q, suffixes[i], strlen(suffixes[i]));
        argv[i] = keys[i].data;
        lens[i] = keys[i].len;
    }
    char *now = mem_printf("%lld", text_now_ms());
    struct buf opts;
    buf_init(&opts, 4096);
    claim_pack_opts(q, &opts, &c->token, 0, 0);
    argv[KEYS] = queue_prefix(q), lens[KEYS] = strlen(queue_prefix(q));
    argv[KEYS + 1] = now, lens[KEYS + 1] = strlen(now);
    argv[KEYS + 2] = opts.data, lens[KEYS + 2] = opts.len;
    int rc = redis_script_call(queue_options(q)->redis, &script_claim, KEYS, ARGS, argv, lens, 0,
                               on_claimed, c);
    for (size_t i = 0; i < KEYS; i++)
        str_fini(&keys[i]);
    free(now);
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
    c->cb(answer.job, reply->type == REDIS_REPLY_INTEGER && reply->integer == 1, c->data);
    str_fini(&c->token);
    free(c);
}

void claim_cancelled(struct queue *q, const char *job_id, cancel_fn cb, void *data)
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
    queue_call_send(call, on_cancelled, c);
}
