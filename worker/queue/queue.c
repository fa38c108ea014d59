/* One BullMQ queue as this worker sees it: key names and calls that outlive a lost connection. */
#include "worker/queue/queue.h"

#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"

#include <ev.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MAX_BYTES   ((size_t)512 << 20) /* what is bigger is a bug of the caller */
#define RETRY_SECONDS    0.25  /* pause before a call that Redis refused for now is made again */
#define REFUSED_QUIET_MS 10000 /* the same state of the server is one line in that time */

struct queue_call {
    struct queue *queue;
    struct queue_call *prev, *next;
    const struct redis_script *script;
    int nkeys, argc;
    struct buf args; /* framed as Redis wants them, so that sending again costs nothing */
    queue_reply_fn cb;
    void *data;
    bool in_flight;
    bool cancelled; /* dies when Redis has answered, or at once when it is not in flight */
};

struct queue {
    struct queue_options options;
    char *prefix;
    size_t prefix_len;
    bool ready;
    struct queue_call *first, *last; /* in the order in which they were made */
    struct ev_timer retry;
    long long refused_said; /* monotonic ms */
    bool tight;
};

static void send_waiting(struct queue *q);

static void on_retry(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    send_waiting(w->data);
}

struct queue *queue_new(const struct queue_options *options)
{
    struct queue *q = mem_alloc(sizeof *q);
    q->options = *options;
    q->options.prefix = mem_strdup(options->prefix);
    q->options.name = mem_strdup(options->name);
    q->options.replica_id = mem_strdup(options->replica_id);
    q->options.worker_name = mem_strdup(options->worker_name);
    q->prefix = mem_printf("%s:%s:", options->prefix, options->name);
    q->prefix_len = strlen(q->prefix);
    ev_timer_init(&q->retry, on_retry, RETRY_SECONDS, 0);
    q->retry.data = q;
    return q;
}

static void call_unlink(struct queue_call *call)
{
    struct queue *q = call->queue;
    *(call->prev != NULL ? &call->prev->next : &q->first) = call->next;
    *(call->next != NULL ? &call->next->prev : &q->last) = call->prev;
}

static void call_free(struct queue_call *call)
{
    buf_fini(&call->args);
    free(call);
}

void queue_free(struct queue *q)
{
    ev_timer_stop(q->options.loop, &q->retry);
    while (q->first != NULL) {
        struct queue_call *call = q->first;
        call_unlink(call);
        call_free(call);
    }
    free((char *)q->options.prefix);
    free((char *)q->options.name);
    free((char *)q->options.replica_id);
    free((char *)q->options.worker_name);
    free(q->prefix);
    free(q);
}

const struct queue_options *queue_options(const struct queue *q)
{
    return &q->options;
}

const char *queue_prefix(const struct queue *q)
{
    return q->prefix;
}

struct str queue_key(const struct queue *q, const char *suffix, size_t len)
{
    struct str key = {mem_alloc(q->prefix_len + len + 1), q->prefix_len + len};
    memcpy(key.data, q->prefix, q->prefix_len);
    memcpy(key.data + q->prefix_len, suffix, len);
    return key;
}

bool queue_is_ready(const struct queue *q)
{
    return q->ready;
}

bool queue_is_tight(const struct queue *q)
{
    return q->tight;
}

void queue_set_tight(struct queue *q, bool tight)
{
    q->tight = tight;
}

void queue_set_ready(struct queue *q, bool ready)
{
    q->ready = ready;
    if (ready)
        send_waiting(q);
}

struct queue_call *queue_call_new(struct queue *q, const struct redis_script *script, int nkeys)
{
    struct queue_call *call = mem_alloc(sizeof *call);
    call->queue = q;
    call->script = script;
    call->nkeys = nkeys;
    buf_init(&call->args, CALL_MAX_BYTES);
    return call;
}

/* One argument: prefix and text and ending are one after the other in it. */
static void add_arg(struct queue_call *call, size_t prefix_len, const void *text, size_t len,
                    const char *ending)
{
    size_t ending_len = strlen(ending);
    char head[24];
    int head_len = redis_frame_head(head, prefix_len + len + ending_len);
    int rc = buf_append(&call->args, head, (size_t)head_len);
    rc |= buf_append(&call->args, call->queue->prefix, prefix_len);
    rc |= buf_append(&call->args, text, len);
    rc |= buf_append(&call->args, ending, ending_len);
    rc |= buf_append(&call->args, "\r\n", 2);
    if (rc != 0)
        abort();
    call->argc++;
}

void queue_call_key(struct queue_call *call, const char *suffix)
{
    add_arg(call, call->queue->prefix_len, suffix, strlen(suffix), "");
}

void queue_call_job_key(struct queue_call *call, const struct str *id, const char *ending)
{
    add_arg(call, call->queue->prefix_len, id->data, id->len, ending);
}

void queue_call_bytes(struct queue_call *call, const void *data, size_t len)
{
    add_arg(call, 0, data, len, "");
}

void queue_call_str(struct queue_call *call, const char *text)
{
    add_arg(call, 0, text, strlen(text), "");
}

void queue_call_int(struct queue_call *call, long long value)
{
    char text[24];
    size_t len = text_from_int(text, value);
    queue_call_bytes(call, text, len);
}

void queue_say_refused(struct queue *q, const char *what, const redisReply *reply)
{
    long long now = text_monotonic_ms();
    bool said = q->refused_said != 0 && now - q->refused_said < REFUSED_QUIET_MS;
    bool quiet = said || redis_is_denied(reply); /* which is said where the setting is known */
    log_write(quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, NULL, "redis refused %s for now: %s", what,
              reply->str);
    if (!quiet)
        q->refused_said = now;
}

static void on_reply(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct queue_call *call = data;
    struct queue *q = call->queue;
    call->in_flight = false;
    if (!call->cancelled) {
        if (reply == NULL) /* lost: sent again when the connection is back */
            return;
        if (redis_is_unrun(reply)) {
            queue_say_refused(q, call->script->name, reply);
            if (!ev_is_active(&q->retry)) {
                ev_timer_set(&q->retry, RETRY_SECONDS, 0);
                ev_timer_start(q->options.loop, &q->retry);
            }
            return;
        }
        if (reply->type == REDIS_REPLY_ERROR)
            log_write(redis_is_denied(reply) ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR, NULL,
                      "script %s failed: %s", call->script->name, reply->str);
    }
    call_unlink(call);
    if (!call->cancelled && call->cb != NULL)
        call->cb(reply, call->data);
    call_free(call);
}

static void transmit(struct queue_call *call)
{
    call->in_flight =
        redis_script_call_framed(call->queue->options.redis, call->script, call->nkeys, call->argc,
                                 call->args.data, call->args.len, 0, on_reply, call) == 0;
}

static void send_waiting(struct queue *q)
{
    for (struct queue_call *call = q->first; call != NULL && q->ready; call = call->next)
        if (!call->in_flight && !call->cancelled)
            transmit(call);
}

void queue_call_send(struct queue_call *call, queue_reply_fn cb, void *data)
{
    struct queue *q = call->queue;
    call->cb = cb;
    call->data = data;
    call->prev = q->last;
    *(q->last != NULL ? &q->last->next : &q->first) = call;
    q->last = call;
    if (!q->ready)
        return;
    transmit(call);
    if (!call->in_flight && !ev_is_active(&q->retry)) { /* too much is queued already */
        ev_timer_set(&q->retry, RETRY_SECONDS, 0);
        ev_timer_start(q->options.loop, &q->retry);
    }
}

void queue_call_discard(struct queue_call *call)
{
    call_free(call);
}

void queue_call_cancel(struct queue_call *call)
{
    call->cancelled = true;
    if (!call->in_flight) {
        call_unlink(call);
        call_free(call);
    }
}

int queue_command(struct queue *q, int argc, const char *const *argv, const size_t *lens,
                  redis_reply_fn cb, void *data)
{
    const char *args[64];
    size_t sizes[64];
    if (!q->ready || argc < 2 || argc > 64)
        return -1;
    for (int i = 0; i < argc; i++) {
        args[i] = argv[i];
        sizes[i] = lens != NULL ? lens[i] : strlen(argv[i]);
    }
    struct str key = queue_key(q, argv[1], sizes[1]);
    args[1] = key.data;
    sizes[1] = key.len;
    int rc = redis_command(q->options.redis, argc, args, sizes, 0, cb, data);
    str_fini(&key);
    return rc;
}
