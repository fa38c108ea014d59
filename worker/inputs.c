/* Brings a job's input files and secrets to this worker before its sandbox is asked for. */
#include "worker/inputs.h"

#include "common/b64.h"
#include "common/http.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "worker/spool.h"

#include <errno.h>
#include <ev.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANGE_BYTES   (512 * 1024) /* read from a Redis key at a time */
#define FETCHES_MAX   4            /* downloads at a time */
#define REDIRECTS_MAX 5
#define RETRY_S       0.5 /* while Redis is away */

struct item {
    struct inputs *owner;
    const struct job_file *file;
    struct http_request *request;
    struct ev_timer retry;
    bool started, done;
};

struct inputs {
    struct queue *q;
    struct http *http;
    struct job *job;
    const struct settings *settings;
    inputs_done_fn cb;
    void *data;
    struct item *items;
    struct driver_input *list;
    size_t count, fetching;
    long long total; /* bytes so far */
    bool secrets_done, ended, freed;
    size_t replies; /* Redis callbacks that still hold a pointer to us */
    struct ev_timer secrets_retry;
    char *error;
    bool permanent;
};

static void step(struct inputs *in);

static struct ev_loop *loop_of(const struct inputs *in)
{
    return queue_options(in->q)->loop;
}

static void free_now(void *data)
{
    struct inputs *in = data;
    free(in->items);
    free(in->list);
    free(in->error);
    free(in);
}

static void free_when_unused(struct inputs *in)
{
    if (in->freed && in->replies == 0)
        reaper_defer(free_now, in);
}

void inputs_free(struct inputs *in)
{
    if (in == NULL)
        return;
    in->freed = true;
    in->ended = true;
    ev_timer_stop(loop_of(in), &in->secrets_retry);
    for (size_t i = 0; i < in->count; i++) {
        ev_timer_stop(loop_of(in), &in->items[i].retry);
        if (in->items[i].request != NULL)
            http_cancel(in->items[i].request);
        if (in->list[i].fd >= 0)
            close(in->list[i].fd);
    }
    free_when_unused(in);
}

static void report(void *data)
{
    struct inputs *in = data;
    if (!in->freed)
        in->cb(in->error, in->permanent, in->data);
}

/* The one place where the inputs end; text NULL is success. */
static void __attribute__((format(printf, 3, 4)))
end(struct inputs *in, bool permanent, const char *fmt, ...)
{
    if (in->ended)
        return;
    in->ended = true;
    in->permanent = permanent;
    if (fmt != NULL) {
        char text[512];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        in->error = mem_strdup(text);
    }
    reaper_defer(report, in);
}

static int put(struct item *item, const char *data, size_t len)
{
    struct inputs *in = item->owner;
    long long most = settings_int(in->settings, SETTING_INPUT_MAX_BYTES);
    struct driver_input *target = &in->list[item - in->items];
    in->total += (long long)len;
    if (in->total > most) {
        end(in, true,
            "The job's input files are larger than the limit of %lld bytes (INPUT_MAX_BYTES).",
            most);
        return -1;
    }
    if (spool_write(target->fd, data, len) != 0) {
        end(in, false, "An input file cannot be kept on this worker (TMPDIR): %s.",
            strerror(errno));
        return -1;
    }
    target->size += (long long)len;
    return 0;
}

static void item_done(struct item *item)
{
    item->done = true;
    step(item->owner);
}

static void decode_content(struct item *item)
{
    size_t len;
    unsigned char *bytes = b64_decode(item->file->value, item->file->value_len, &len);
    if (bytes == NULL) {
        end(item->owner, true, "The job's data is wrong: the content of file %.200s is not base64.",
            item->file->filename);
        return;
    }
    int rc = put(item, (const char *)bytes, len);
    free(bytes);
    if (rc == 0)
        item->done = true;
}

static void read_key(struct item *item);

static void on_retry(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    read_key(w->data);
}

static void retry_later(struct item *item)
{
    ev_timer_set(&item->retry, RETRY_S, 0);
    ev_timer_start(loop_of(item->owner), &item->retry);
}

static void on_exists(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct item *item = data;
    struct inputs *in = item->owner;
    in->replies--;
    if (in->ended) {
        free_when_unused(in);
        return;
    }
    if (reply == NULL || redis_is_passing(reply))
        retry_later(item);
    else if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 0)
        end(in, true, "The input file %.200s is not there: its key does not exist (any more).",
            item->file->filename);
    else
        item_done(item);
}

static void on_range(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct item *item = data;
    struct inputs *in = item->owner;
    in->replies--;
    if (in->ended) {
        free_when_unused(in);
        return;
    }
    if (reply == NULL ||
        (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "WRONGTYPE", 9) != 0)) {
        retry_later(item);
        return;
    }
    if (reply->type != REDIS_REPLY_STRING) {
        end(in, true, "The key of input file %.200s does not hold a string.", item->file->filename);
        return;
    }
    long long had = in->list[item - in->items].size;
    if (put(item, reply->str, reply->len) != 0)
        return;
    if (reply->len == RANGE_BYTES) {
        read_key(item);
    } else if (reply->len == 0 && had == 0) {
        const char *argv[] = {"EXISTS", item->file->value + strlen(queue_prefix(in->q))};
        if (queue_command(in->q, 2, argv, NULL, on_exists, item) == 0)
            in->replies++;
        else
            item_done(item);
    } else {
        item_done(item);
    }
}

static void read_key(struct item *item)
{
    struct inputs *in = item->owner;
    char from[32], to[32];
    long long at = in->list[item - in->items].size;
    snprintf(from, sizeof from, "%lld", at);
    snprintf(to, sizeof to, "%lld", at + RANGE_BYTES - 1);
    const char *argv[] = {"GETRANGE", item->file->value + strlen(queue_prefix(in->q)), from, to};
    if (queue_command(in->q, 4, argv, NULL, on_range, item) == 0) {
        in->replies++;
    } else {
        retry_later(item);
    }
}

static int on_body(void *data, const char *piece, size_t len)
{
    struct item *item = data;
    return item->owner->ended ? -1 : put(item, piece, len);
}

static void on_fetched(void *data, const struct http_answer *answer)
{
    struct item *item = data;
    struct inputs *in = item->owner;
    item->request = NULL;
    in->fetching--;
    if (in->ended)
        return;
    if (answer->result == HTTP_DONE && answer->status >= 200 && answer->status < 300) {
        item_done(item);
        return;
    }
    bool refused = answer->result == HTTP_REFUSED;
    bool gone = answer->status >= 400 && answer->status < 500 && answer->status != 408 &&
                answer->status != 429;
    if (answer->result == HTTP_DONE)
        end(in, gone, "The input file %.200s cannot be fetched: its server answered %d.",
            item->file->filename, answer->status);
    else
        end(in, refused, "The input file %.200s cannot be fetched: %s.", item->file->filename,
            answer->error);
}

static void fetch(struct item *item)
{
    struct inputs *in = item->owner;
    char err[200];
    struct http_options o = {
        .method = "GET",
        .url = item->file->value,
        .on_data = on_body,
        .on_done = on_fetched,
        .data = item,
        .max_body_bytes = (size_t)settings_int(in->settings, SETTING_INPUT_MAX_BYTES),
        .max_redirects = REDIRECTS_MAX,
        .public_only = true,
        .allow_list = settings_str(in->settings, SETTING_URL_ALLOW),
    };
    item->request = http_start(in->http, &o, err, sizeof err);
    if (item->request == NULL)
        end(in, true, "The input file %.200s cannot be fetched: %s.", item->file->filename, err);
    else
        in->fetching++;
}

static void start_item(struct item *item)
{
    item->started = true;
    switch (item->file->source) {
    case JOB_FILE_CONTENT:
        decode_content(item);
        break;
    case JOB_FILE_KEY:
        read_key(item);
        break;
    case JOB_FILE_URL:
        fetch(item);
        break;
    }
}

static void on_secrets(struct redis *r, redisReply *reply, void *data);

static void read_secrets(struct inputs *in)
{
    const char *argv[] = {"HGETALL", in->job->secrets_key + strlen(queue_prefix(in->q))};
    if (queue_command(in->q, 2, argv, NULL, on_secrets, in) == 0) {
        in->replies++;
        return;
    }
    ev_timer_set(&in->secrets_retry, RETRY_S, 0);
    ev_timer_start(loop_of(in), &in->secrets_retry);
}

static void on_secrets_retry(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    read_secrets(w->data);
}

static void on_secrets(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct inputs *in = data;
    in->replies--;
    if (in->ended) {
        free_when_unused(in);
        return;
    }
    if (reply == NULL || redis_is_passing(reply)) {
        ev_timer_set(&in->secrets_retry, RETRY_S, 0);
        ev_timer_start(loop_of(in), &in->secrets_retry);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0) {
        end(in, true, "The job's secretsKey names no hash in Redis (it may have expired).");
        return;
    }
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        char *why = job_env_add(in->job->env, "the hash of secretsKey", reply->element[i]->str,
                                reply->element[i + 1]->str, reply->element[i + 1]->len);
        if (why != NULL)
            end(in, true, "%s", why);
        free(why);
    }
    in->secrets_done = true;
    step(in);
}

/* Starts what may start now, and ends when all is there. */
static void step(struct inputs *in)
{
    size_t done = 0;
    for (size_t i = 0; i < in->count && !in->ended; i++) {
        struct item *item = &in->items[i];
        bool later = item->file->source == JOB_FILE_URL && in->fetching >= FETCHES_MAX;
        if (!item->started && !later)
            start_item(item);
        done += item->done;
    }
    if (done == in->count && in->secrets_done)
        end(in, false, NULL);
}

struct inputs *inputs_start(struct queue *q, struct http *http, struct job *job,
                            const struct settings *settings, inputs_done_fn done, void *data)
{
    struct inputs *in = mem_alloc(sizeof *in);
    *in = (struct inputs){
        .q = q, .http = http, .job = job, .settings = settings, .cb = done, .data = data};
    in->count = job->file_count;
    if (in->count > 0) {
        in->items = mem_alloc(in->count * sizeof *in->items);
        in->list = mem_alloc(in->count * sizeof *in->list);
    }
    ev_timer_init(&in->secrets_retry, on_secrets_retry, 0, 0);
    in->secrets_retry.data = in;
    for (size_t i = 0; i < in->count; i++) {
        in->items[i] = (struct item){.owner = in, .file = &job->files[i]};
        ev_timer_init(&in->items[i].retry, on_retry, 0, 0);
        in->items[i].retry.data = &in->items[i];
        in->list[i] = (struct driver_input){job->files[i].filename, spool_open(), 0};
        if (in->list[i].fd < 0)
            end(in, false, "An input file cannot be kept on this worker (TMPDIR): %s.",
                strerror(errno));
    }
    in->secrets_done = job->secrets_key == NULL;
    if (!in->secrets_done && !in->ended)
        read_secrets(in);
    step(in);
    return in;
}

const struct driver_input *inputs_list(const struct inputs *in, size_t *count)
{
    *count = in->count;
    return in->list;
}
