/* The reply of one execution: numbered messages, coalesced by time and size, written by fenced
 * calls, capped. */
#include "worker/reply.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "common/utf8.h"
#include "worker/metrics.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX       (64 * 1024)  /* of one output message, before JSON escapes */
#define MESSAGE_MAX    (256u << 20) /* of one message; what is bigger is a bug of the caller */
#define FLUSH_MESSAGES 200          /* a call at most */
#define ENVELOPE_BYTES 160          /* what a message costs beside its own members */

struct message { /* not yet sent */
    struct message *next;
    int stream; /* DRIVER_STDOUT, DRIVER_STDERR: body is raw text; -1: body is the JSON after seq */
    struct buf body;
};

struct reply {
    struct reply_options o;
    reply_fenced_fn fenced;
    void *data;
    char *head; /* made by head_of: {"v":1,"jobId":...,"executionId":...,"seq": */
    struct message *first, *last;
    size_t pending_bytes;
    long long next_seq; /* of the next message to be numbered */
    long long stored;   /* last seq that Redis has acknowledged */
    long long bytes;    /* stored or pending */
    bool full;          /* the cap was met and said */
    bool wrote;         /* a call that may have written was made */
    bool is_short;      /* Redis was short of memory: nothing but `started` and `retrying` */
    bool is_fenced;
    long long marked_ms;       /* monotonic, when the mark was sent; 0: not */
    struct turn_part *call;    /* the flush under way */
    long long call_last;       /* last seq in it */
    struct turn_part *beat;    /* a heartbeat under way */
    void (*acked)(void *data); /* of the call under way */
    void *acked_data;
    void (*settled)(void *data); /* waits for the call under way */
    bool settling;
    struct ev_timer timer, heartbeat;
};

static void flush(struct reply *r, const char *mark, void (*acked)(void *data));

static struct ev_loop *loop_of(const struct reply *r)
{
    return queue_options(r->o.queue)->loop;
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct reply *r = w->data;
    if (r->call == NULL && r->first != NULL && !r->settling)
        flush(r, "", NULL);
}

static void restart_heartbeat(struct reply *r)
{
    ev_timer_stop(loop_of(r), &r->heartbeat);
    if (r->o.heartbeat_ms <= 0 || !r->o.enabled || r->settling || !r->wrote)
        return;
    ev_timer_set(&r->heartbeat, (double)r->o.heartbeat_ms / 1000.0, 0);
    ev_timer_start(loop_of(r), &r->heartbeat);
}

static void set_fenced(struct reply *r, bool removed)
{
    if (r->is_fenced)
        return;
    r->is_fenced = true;
    ev_timer_stop(loop_of(r), &r->timer);
    ev_timer_stop(loop_of(r), &r->heartbeat);
    r->fenced(removed, r->data);
}

static void on_beat(bool taken, bool removed, void *data)
{
    struct reply *r = data;
    r->beat = NULL;
    if (taken)
        restart_heartbeat(r);
    else
        set_fenced(r, removed);
}

/* What every message begins with. Made on first need: a job without replies has none. */
static const char *head_of(struct reply *r)
{
    if (r->head != NULL)
        return r->head;
    json_t *id = jsonx_string(r->o.job->id.data, r->o.job->id.len);
    char *id_text = jsonx_dump(id, NULL);
    r->head = mem_printf("{\"v\":1,\"jobId\":%s,\"executionId\":\"%s\",\"seq\":", id_text,
                         r->o.execution_id);
    free(id_text);
    json_decref(id);
    return r->head;
}

static void add_reply_key(struct queue_call *call, const struct claimed_job *job)
{
    struct str suffix = {mem_alloc(job->id.len + 7), job->id.len + 6};
    memcpy(suffix.data, "reply:", 6);
    memcpy(suffix.data + 6, job->id.data, job->id.len);
    queue_call_job_key(call, &suffix, "");
    str_fini(&suffix);
}

static void on_heartbeat(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct reply *r = w->data;
    if (r->beat != NULL || r->is_fenced || r->call != NULL)
        return;
    char *text = mem_printf("%s%lld,\"type\":\"heartbeat\"}", head_of(r), r->next_seq - 1);
    const struct str message = {text, strlen(text)};
    r->beat = turn_say(
        r->o.turn,
        &(struct turn_words){
            .job = r->o.job, .mark = "", .ttl_ms = r->o.ttl_ms, .messages = &message, .count = 1},
        on_beat, r);
    free(text);
}

struct reply *reply_new(const struct reply_options *options, reply_fenced_fn fenced, void *data)
{
    struct reply *r = mem_alloc(sizeof *r);
    r->o = *options;
    r->fenced = fenced;
    r->data = data;
    r->next_seq = options->job->last_seq + 1;
    ev_timer_init(&r->timer, on_timer, 0, 0);
    ev_timer_init(&r->heartbeat, on_heartbeat, 0, 0);
    r->timer.data = r->heartbeat.data = r;
    return r;
}

static void drop_first(struct reply *r)
{
    struct message *m = r->first;
    r->first = m->next;
    if (r->first == NULL)
        r->last = NULL;
    r->pending_bytes -= m->body.len;
    buf_fini(&m->body);
    free(m);
}

void reply_free(struct reply *r)
{
    ev_timer_stop(loop_of(r), &r->timer);
    ev_timer_stop(loop_of(r), &r->heartbeat);
    if (r->call != NULL)
        turn_say_cancel(r->call);
    if (r->beat != NULL)
        turn_say_cancel(r->beat);
    while (r->first != NULL)
        drop_first(r);
    free(r->head);
    free(r);
}

/* The first pending message as text with its number; it is dropped. */
static struct str number_first(struct reply *r)
{
    struct message *m = r->first;
    struct buf text;
    buf_init(&text, MESSAGE_MAX);
    int rc = buf_printf(&text, "%s%lld,", head_of(r), r->next_seq++);
    if (m->stream >= 0) {
        rc |= buf_printf(
            &text, "\"type\":\"%s\",\"text\":", m->stream == DRIVER_STDOUT ? "stdout" : "stderr");
        rc |= jsonx_quote(&text, m->body.data, m->body.len);
        rc |= buf_append(&text, "}", 1);
    } else {
        rc |= buf_append(&text, m->body.data, m->body.len);
    }
    if (rc != 0)
        abort();
    drop_first(r);
    size_t len = text.len;
    metrics_count(METRIC_REPLY_MESSAGES, 1, NULL, NULL);
    metrics_count(METRIC_REPLY_BYTES, (double)len, NULL, NULL);
    return (struct str){buf_steal(&text), len};
}

static void on_flushed(bool taken, bool removed, void *data)
{
    struct reply *r = data;
    void (*acked)(void *) = r->acked;
    r->call = NULL;
    r->acked = NULL;
    if (!taken) {
        set_fenced(r, removed);
        return;
    }
    r->stored = r->call_last;
    restart_heartbeat(r);
    if (acked != NULL)
        acked(r->acked_data);
    if (r->call != NULL) /* acked has sent another */
        return;
    if (r->settled != NULL) {
        void (*settled)(void *) = r->settled;
        r->settled = NULL;
        settled(r->data);
    } else if (r->settling) {
        return;
    } else if (r->first != NULL && r->pending_bytes >= (size_t)r->o.flush_bytes) {
        flush(r, "", NULL);
    } else if (r->first != NULL && !ev_is_active(&r->timer)) {
        ev_timer_set(&r->timer, (double)r->o.flush_ms / 1000.0, 0);
        ev_timer_start(loop_of(r), &r->timer);
    }
}

/* Sends what is pending; the caller has seen to it that no call is under way. */
static void flush(struct reply *r, const char *mark, void (*acked)(void *data))
{
    ev_timer_stop(loop_of(r), &r->timer);
    struct str messages[FLUSH_MESSAGES];
    struct turn_words words = {.job = r->o.job,
                               .mark = mark,
                               .first_seq = r->next_seq,
                               .ttl_ms = r->o.ttl_ms,
                               .messages = messages};
    while (r->first != NULL && words.count < FLUSH_MESSAGES)
        messages[words.count++] = number_first(r);
    r->call_last = r->next_seq - 1;
    r->acked = acked;
    r->acked_data = r->data;
    r->wrote = true;
    r->call = turn_say(r->o.turn, &words, on_flushed, r);
    for (size_t i = 0; i < words.count; i++)
        str_fini(&messages[i]);
}

static void touch(struct reply *r)
{
    if (r->call != NULL || r->settling)
        return;
    if (r->pending_bytes >= (size_t)r->o.flush_bytes) {
        flush(r, "", NULL);
    } else if (!ev_is_active(&r->timer)) {
        ev_timer_set(&r->timer, (double)r->o.flush_ms / 1000.0, 0);
        ev_timer_start(loop_of(r), &r->timer);
    }
}

static struct message *append(struct reply *r, int stream, size_t max)
{
    struct message *m = mem_alloc(sizeof *m);
    m->stream = stream;
    buf_init(&m->body, max);
    *(r->last != NULL ? &r->last->next : &r->first) = m;
    r->last = m;
    return m;
}

/* Bytes of text once it is a JSON string. */
static size_t json_cost(const char *text, size_t len)
{
    size_t cost = len;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\' || (c >= '\b' && c <= '\r' && c != '\v'))
            cost += 1;
        else if (c < 0x20)
            cost += 5;
    }
    return cost;
}

/* Once short a reply stays so: what is stored is its beginning, without a gap. */
static bool is_short(struct reply *r)
{
    if (!r->is_short && queue_is_tight(r->o.queue))
        r->is_short = true;
    return r->is_short;
}

bool reply_is_short(const struct reply *r)
{
    return r->is_short;
}

/* Counts bytes against the cap. False: they are not to be stored; the first time, one message says
 * so. */
static bool has_room(struct reply *r, size_t len)
{
    if (!r->o.enabled || r->is_fenced || r->full || is_short(r))
        return false;
    if (r->bytes + (long long)len <= r->o.max_bytes) {
        r->bytes += (long long)len;
        return true;
    }
    r->full = true;
    reply_message(r, "truncated",
                  json_pack("{s:s,s:I}", "what", "reply", "limit", (json_int_t)r->o.max_bytes),
                  true);
    return false;
}

void reply_output(struct reply *r, enum driver_stream stream, const char *text, size_t len)
{
    while (len > 0) {
        size_t piece = utf8_cut(text, len, TEXT_MAX);
        struct message *m = r->last;
        bool fresh = m == NULL || m->stream != (int)stream || m->body.len + piece > TEXT_MAX;
        if (!has_room(r, json_cost(text, piece) + (fresh ? ENVELOPE_BYTES : 0)))
            return;
        if (fresh)
            m = append(r, (int)stream, TEXT_MAX);
        if (buf_append(&m->body, text, piece) != 0)
            abort();
        r->pending_bytes += piece;
        text += piece;
        len -= piece;
        touch(r);
    }
}

void reply_message_text(struct reply *r, const char *type, const char *members, size_t len,
                        bool always)
{
    bool kept =
        strcmp(type, "started") == 0 || strcmp(type, "retrying") == 0 || strcmp(type, "done") == 0;
    bool wanted = r->o.enabled && !r->is_fenced && (kept || !is_short(r));
    if (!wanted || (!always && !has_room(r, len + ENVELOPE_BYTES)))
        return;
    struct message *m = append(r, -1, MESSAGE_MAX);
    int rc = buf_printf(&m->body, "\"type\":\"%s\"", type);
    if (len > 2)
        rc |= buf_append(&m->body, ",", 1);
    rc |= buf_append(&m->body, members + 1, len - 1);
    if (rc != 0)
        abort();
    r->pending_bytes += m->body.len;
    touch(r);
}

void reply_message(struct reply *r, const char *type, json_t *members, bool always)
{
    size_t len = 0;
    char *text = members != NULL && r->o.enabled ? jsonx_dump(members, &len) : NULL;
    json_decref(members);
    if (text != NULL)
        reply_message_text(r, type, text, len, always);
    free(text);
}

void reply_started(struct reply *r, int attempt, const struct driver_ready *ready, bool mark,
                   void (*acked)(void *data))
{
    r->settling = true; /* so that the message waits for the call below */
    if (r->o.enabled)
        reply_message(r, "started",
                      json_pack("{s:i,s:{s:b,s:b,s:s?}}", "attempt", attempt, "sandbox", "reused",
                                ready->reused, "resumed", ready->resumed, "stateLost",
                                ready->state_lost),
                      true);
    r->settling = false;
    if (mark)
        reply_mark(r, acked);
    else if (r->first == NULL)
        acked(r->data);
    else
        flush(r, "", acked);
}

void reply_mark(struct reply *r, void (*acked)(void *data))
{
    char *text = mem_printf("%s|%s", r->o.job->token.data, r->o.execution_id);
    r->marked_ms = text_monotonic_ms();
    flush(r, text, acked);
    free(text);
}

bool reply_mark_is_fresh(const struct reply *r)
{
    long long life = queue_options(r->o.queue)->lock_duration_ms;
    return r->marked_ms == 0 || text_monotonic_ms() - r->marked_ms < life * 2 / 3;
}

void reply_settle(struct reply *r, void (*done)(void *data))
{
    r->settling = true;
    ev_timer_stop(loop_of(r), &r->timer);
    ev_timer_stop(loop_of(r), &r->heartbeat);
    if (r->is_fenced)
        return;
    if (r->call == NULL)
        done(r->data);
    else
        r->settled = done;
}

struct str *reply_take(struct reply *r, size_t *count, long long *first_seq, bool *fresh)
{
    size_t n = 0;
    for (struct message *m = r->first; m != NULL; m = m->next)
        n++;
    struct str *messages = n > 0 ? mem_alloc(n * sizeof *messages) : NULL;
    *count = n;
    *first_seq = r->next_seq;
    *fresh = !r->wrote && r->o.job->last_seq == 0;
    for (size_t i = 0; i < n; i++)
        messages[i] = number_first(r);
    return messages;
}

void reply_renumber(struct reply *r, long long next_seq)
{
    r->next_seq = next_seq;
}

void reply_messages_free(struct str *messages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        str_fini(&messages[i]);
    free(messages);
}

void reply_flush_for(struct reply *r, void (*acked)(void *data), void *data)
{
    if (r->first == NULL) {
        acked(data);
        return;
    }
    flush(r, "", acked);
    r->acked_data = data;
}

void reply_say_removed(struct reply *r)
{
    const struct claimed_job *job = r->o.job;
    struct queue_call *call = queue_call_new(r->o.queue, &script_removed, 5);
    queue_call_job_key(call, &job->id, ":lock");
    queue_call_job_key(call, &job->id, "");
    add_reply_key(call, job);
    queue_call_key(call, "active");
    queue_call_key(call, "stalled");
    queue_call_int(call, r->o.ttl_ms);
    queue_call_int(call, r->stored);
    char *text =
        r->o.enabled && r->stored > 0
            ? mem_printf("%s%lld,\"type\":\"done\",\"state\":\"failed\",\"reason\":\"removed\","
                         "\"error\":\"The job was removed from the queue while it ran.\"}",
                         head_of(r), r->stored + 1)
            : mem_strdup("");
    queue_call_str(call, text);
    free(text);
    queue_call_bytes(call, job->token.data, job->token.len);
    queue_call_bytes(call, job->id.data, job->id.len);
    queue_call_send(call, NULL, NULL);
}
