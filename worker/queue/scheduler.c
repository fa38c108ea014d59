/* Job schedulers: a job that one made brings the next one, before it is worked on. */
#include "worker/queue/scheduler.h"

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/cron.h"
#include "worker/queue/msgpack.h"
#include "worker/queue/scripts.h"
#include "worker/queue/zone.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct advance {
    struct str id;
    void (*done)(void *data);
    void *data;
};

/* ---- dates as BullMQ's options have them ---- */

/* "2025-03-30", "2025-03-30T01:00:00[.5][Z or +02:00]"; NAN when it is none of these. */
static double parse_iso(const char *text)
{
    int y, mo, d, h = 0, mi = 0, s = 0, used = 0, oh = 0, om = 0;
    double fraction = 0;
    if (sscanf(text, "%4d-%2d-%2d%n", &y, &mo, &d, &used) < 3 || mo < 1 || mo > 12)
        return NAN;
    const char *p = text + used;
    if (*p == 'T' || *p == ' ') {
        used = 0;
        if (sscanf(p + 1, "%2d:%2d%n", &h, &mi, &used) < 2)
            return NAN;
        p += 1 + used;
        if (*p == ':')
            s = (int)strtol(p + 1, (char **)&p, 10);
        if (*p == '.')
            fraction = strtod(p, (char **)&p);
    }
    if (*p == '+' || *p == '-') {
        if (sscanf(p + 1, "%2d:%2d", &oh, &om) < 2)
            return NAN;
        oh *= *p == '-' ? -1 : 1;
        om *= *p == '-' ? -1 : 1;
    }
    double seconds = (double)zone_days(y, mo, d) * 86400 + (h - oh) * 3600 + (mi - om) * 60 + s;
    return seconds * 1000 + floor(fraction * 1000);
}

/* ms, or NAN when there is none. */
static double date_of(const json_t *repeat, const char *name)
{
    const json_t *v = json_object_get(repeat, name);
    if (json_is_number(v) && json_number_value(v) != 0)
        return json_number_value(v);
    return json_is_string(v) ? parse_iso(json_string_value(v)) : NAN;
}

static void set_date(json_t *repeat, const char *name, double ms)
{
    if (isnan(ms))
        json_object_del(repeat, name);
    else
        json_object_set_new(repeat, name, json_integer((json_int_t)ms));
}

/* ---- the next iteration ---- */

/* The next time of a pattern, 0 when there is none, -1 with a reason when it is wrong. */
static long long next_of_pattern(const json_t *repeat, long long after, char *err, size_t err_size)
{
    struct cron cron;
    if (cron_parse(&cron, jsonx_get_str(repeat, "pattern", ""),
                   jsonx_get_str(repeat, "hashSeed", NULL), err, err_size) != 0)
        return -1;
    struct zone *zone = zone_load(jsonx_get_str(repeat, "tz", NULL), err, err_size);
    if (zone == NULL)
        return -1;
    double start = date_of(repeat, "startDate"), end = date_of(repeat, "endDate");
    long long from = start > (double)after ? (long long)start : after;
    long long next = cron_next(&cron, zone, from);
    zone_free(zone);
    return next < 0 || (double)next > end ? 0 : next;
}

/* Has the scheduler come to its end? Counts this iteration. */
static const char *at_its_end(json_t *repeat, long long now)
{
    double count = json_number_value(json_object_get(repeat, "count")) + 1;
    const json_t *limit = json_object_get(repeat, "limit");
    if (json_is_number(limit) && count > json_number_value(limit))
        return "its limit is reached";
    if ((double)now > date_of(repeat, "endDate"))
        return "its end is reached";
    json_object_set_new(repeat, "count", json_integer((json_int_t)count));
    return NULL;
}

/* As BullMQ's Job has its options after it was read: a scheduler's first job lacks these. */
static void normalize(json_t *opts)
{
    const json_t *backoff = json_object_get(opts, "backoff");
    if (json_object_get(opts, "attempts") == NULL)
        json_object_set_new(opts, "attempts", json_integer(0));
    if (json_is_number(backoff))
        json_object_set_new(opts, "backoff",
                            json_pack("{s:s,s:O}", "type", "fixed", "delay", backoff));
    else if (!json_is_object(backoff) && json_string_length(backoff) == 0)
        json_object_del(opts, "backoff");
}

static void fill_opts(json_t *opts, json_t *repeat, const char *id, long long at, long long now)
{
    bool every = at == 0;
    normalize(opts);
    const json_t *offset = json_object_get(repeat, "offset");
    if (!every || json_number_value(offset) == 0)
        json_object_del(repeat, "offset");
    set_date(repeat, "startDate", date_of(repeat, "startDate"));
    set_date(repeat, "endDate", date_of(repeat, "endDate"));
    /* The script puts in jobId and delay itself; these are what a stock Worker hands it. */
    char *job_id =
        every ? mem_printf("repeat:%s:undefined", id) : mem_printf("repeat:%s:%lld", id, at);
    json_object_set_new(opts, "jobId", jsonx_string(job_id, strlen(job_id)));
    free(job_id);
    json_object_set_new(opts, "delay", json_integer(at > now ? at - now : 0));
    json_object_set_new(opts, "timestamp", json_integer(now));
    json_object_set_new(opts, "repeatJobKey", jsonx_string(id, strlen(id)));
    if (every)
        json_object_del(opts, "prevMillis");
    else
        json_object_set_new(opts, "prevMillis", json_integer(at));
}

void scheduler_compute(const char *id, const struct str *opts_json, long long now,
                       struct scheduler_next *out)
{
    char why[120] = "";
    *out = (struct scheduler_next){
        .opts = opts_json->data == NULL
                    ? NULL
                    : jsonx_parse(opts_json->data, opts_json->len, why, sizeof why)};
    json_t *repeat = json_object_get(out->opts, "repeat");
    if (!json_is_object(repeat)) {
        snprintf(out->error, sizeof out->error, "its job has no repeat options");
        return;
    }
    double every = json_number_value(json_object_get(repeat, "every"));
    bool pattern = jsonx_get_str(repeat, "pattern", "")[0] != '\0';
    if (pattern == (every > 0)) {
        snprintf(out->error, sizeof out->error, "%s",
                 pattern ? "it has a pattern and an interval"
                         : "it has no pattern and no interval");
        return;
    }
    out->nothing = at_its_end(repeat, now);
    if (out->nothing != NULL)
        return;
    double before = json_number_value(json_object_get(out->opts, "prevMillis"));
    long long from = before > (double)now ? (long long)before : now;
    if (pattern) {
        out->at = json_is_true(json_object_get(repeat, "immediately"))
                      ? now
                      : next_of_pattern(repeat, from, out->error, sizeof out->error);
        if (out->at < 0)
            return;
        if (out->at == 0) {
            out->nothing = "its pattern names no more times";
            return;
        }
        out->at = out->at < from ? from : out->at;
    }
    json_object_del(repeat, "immediately");
    fill_opts(out->opts, repeat, id, out->at, now);
}

/* ---- the call ---- */

static void pack_json(struct buf *out, const json_t *v)
{
    const char *key;
    const json_t *member;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        msgpack_map(out, (uint32_t)json_object_size(v));
        json_object_foreach((json_t *)v, key, member)
        {
            msgpack_str(out, key);
            pack_json(out, member);
        }
        break;
    case JSON_ARRAY:
        msgpack_array(out, (uint32_t)json_array_size(v));
        for (size_t i = 0; i < json_array_size(v); i++)
            pack_json(out, json_array_get(v, i));
        break;
    case JSON_STRING:
        msgpack_bytes(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        msgpack_int(out, json_integer_value(v));
        break;
    case JSON_REAL:
        msgpack_double(out, json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        msgpack_bool(out, json_is_true(v));
        break;
    case JSON_NULL:
        msgpack_nil(out);
        break;
    }
}

static void on_advanced(redisReply *reply, void *data)
{
    struct advance *a = data;
    struct log_ctx ctx = {.job = a->id.data};
    if (reply->type == REDIS_REPLY_STRING)
        log_write(LOG_LEVEL_DEBUG, &ctx, "its scheduler's next job is %s", reply->str);
    a->done(a->data);
    str_fini(&a->id);
    free(a);
}

static void send(struct queue *q, const struct claimed_job *job, const struct scheduler_next *next,
                 struct advance *a)
{
    static const char *const keys[] = {"repeat",      "delayed", "wait", "paused", "meta",
                                       "prioritized", "marker",  "id",   "events", "pc"};
    struct queue_call *call = queue_call_new(q, &script_updateJobScheduler, 12);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        queue_call_key(call, keys[i]);
    queue_call_job_key(call, &job->id, "");
    queue_call_key(call, "active");
    if (next->at > 0)
        queue_call_int(call, next->at);
    else
        queue_call_str(call, "");
    queue_call_bytes(call, job->scheduler.data, job->scheduler.len);
    queue_call_bytes(call, job->data.data != NULL ? job->data.data : "{}",
                     job->data.data != NULL ? job->data.len : 2);
    struct buf opts;
    buf_init(&opts, job->opts.len * 9 + 4096);
    pack_json(&opts, next->opts);
    queue_call_bytes(call, opts.data, opts.len);
    buf_fini(&opts);
    queue_call_int(call, text_now_ms());
    queue_call_str(call, queue_prefix(q));
    queue_call_bytes(call, job->id.data, job->id.len);
    queue_call_send(call, on_advanced, a);
}

bool scheduler_advance(struct queue *q, const struct claimed_job *job, void (*done)(void *data),
                       void *data)
{
    if (job->scheduler.data == NULL)
        return false;
    struct scheduler_next next;
    struct log_ctx ctx = {.job = job->id.data};
    scheduler_compute(job->scheduler.data, &job->opts, text_now_ms(), &next);
    bool some = next.nothing == NULL && next.error[0] == '\0';
    if (next.error[0] != '\0')
        log_write(LOG_LEVEL_ERROR, &ctx, "scheduler %s brings no further job: %s",
                  job->scheduler.data, next.error);
    else if (next.nothing != NULL)
        log_write(LOG_LEVEL_DEBUG, &ctx, "scheduler %s brings no further job: %s",
                  job->scheduler.data, next.nothing);
    if (some) {
        struct advance *a = mem_alloc(sizeof *a);
        *a = (struct advance){str_copy(&job->id), done, data};
        send(q, job, &next, a);
    }
    json_decref(next.opts);
    return some;
}
