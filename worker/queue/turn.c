/* What jobs want of Redis in one turn of the loop, in one script call.
 *
 * One call for many jobs: what a call costs (parsing, looking up, building keys, reading the
 * queue's settings) is then paid once, in Redis and here. Each call is small enough that Redis is
 * back within a millisecond, and so that it works on one while we work on the jobs of another. */
#include "worker/queue/turn.h"

#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"
#include "worker/queue/msgpack.h"
#include "worker/queue/scripts.h"

#include <stdlib.h>
#include <string.h>

#define PARTS_A_CALL 32
#define BYTES_A_CALL (256 * 1024) /* of values and messages; one job may have more */

enum kind { KIND_COMPLETE, KIND_SAY, KINDS };

struct turn_part {      /* one job's */
    struct str token;   /* COMPLETE */
    bool fetch;         /* COMPLETE */
    finish_fn finished; /* COMPLETE */
    turn_said_fn said;  /* SAY; NULL: cancelled */
    void *data;
};

struct batch { /* a call; dies when Redis has answered it */
    struct batch *prev, *next;
    struct turn *turn;
    struct queue_call *call;
    enum kind kind;
    size_t count, bytes;
    struct turn_part parts[PARTS_A_CALL];
};

struct turn {
    struct queue *q;
    struct str opts;           /* the same for every call */
    struct batch *open[KINDS]; /* they take more yet */
    struct batch *first;       /* all, the open ones too */
    bool pending, freed;       /* send_open is deferred; free waits for it */
};

static void batch_free(struct batch *b)
{
    *(b->prev != NULL ? &b->prev->next : &b->turn->first) = b->next;
    if (b->next != NULL)
        b->next->prev = b->prev;
    for (size_t i = 0; i < b->count; i++)
        str_fini(&b->parts[i].token);
    free(b);
}

static void on_completed(redisReply *reply, void *data)
{
    struct batch *b = data;
    struct claim_batch fetched;
    const redisReply *codes = NULL;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 4)
        codes = reply->element[0];
    claim_batch_init(&fetched, codes != NULL ? reply : NULL);
    for (size_t i = 0; i < b->count; i++) {
        struct turn_part *part = &b->parts[i];
        struct claim_answer answer = {NULL, 0, 0};
        /* A script that failed says nothing of single jobs: each is ended by itself then. */
        bool ended = codes != NULL && i < codes->elements && codes->element[i]->integer == 0;
        if (ended && part->fetch)
            claim_batch_next(&fetched, &part->token, &answer);
        part->finished(ended ? FINISH_RESULT_OK : FINISH_RESULT_UNCOMMON, &answer, part->data);
    }
    batch_free(b);
}

static void on_said(redisReply *reply, void *data)
{
    struct batch *b = data;
    for (size_t i = 0; i < b->count; i++) {
        const struct turn_part *part = &b->parts[i];
        bool told = reply->type == REDIS_REPLY_ARRAY && i < reply->elements;
        long long code = told ? reply->element[i]->integer : -7;
        if (part->said != NULL)
            part->said(code == 0, code == -1, part->data);
    }
    batch_free(b);
}

static void send_batch(struct batch *b)
{
    b->turn->open[b->kind] = NULL;
    queue_call_send(b->call, b->kind == KIND_COMPLETE ? on_completed : on_said, b);
}

static void send_open(void *data)
{
    struct turn *t = data;
    t->pending = false;
    if (t->freed) {
        free(t);
        return;
    }
    for (int kind = 0; kind < KINDS; kind++)
        if (t->open[kind] != NULL)
            send_batch(t->open[kind]);
}

static struct str pack_opts(const struct queue *q)
{
    struct buf opts;
    buf_init(&opts, 4096);
    claim_pack_opts(q, &opts, NULL, 1, 0);
    msgpack_str(&opts, "maxMetricsSize");
    if (queue_options(q)->metrics_points > 0)
        msgpack_int(&opts, queue_options(q)->metrics_points);
    else
        msgpack_str(&opts, "");
    size_t len = opts.len;
    return (struct str){buf_steal(&opts), len};
}

struct turn *turn_new(struct queue *q)
{
    struct turn *t = mem_alloc(sizeof *t);
    t->q = q;
    t->opts = pack_opts(q);
    return t;
}

void turn_free(struct turn *t)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (t->open[kind] != NULL)
            queue_call_discard(t->open[kind]->call);
    while (t->first != NULL)
        batch_free(t->first);
    str_fini(&t->opts);
    t->freed = true;
    if (!t->pending)
        free(t);
}

static struct batch *open_batch(struct turn *t, enum kind kind)
{
    struct batch *b = mem_alloc(sizeof *b);
    b->turn = t;
    b->kind = kind;
    b->next = t->first;
    if (t->first != NULL)
        t->first->prev = b;
    t->first = t->open[kind] = b;
    b->call = queue_call_new(t->q, kind == KIND_COMPLETE ? &script_turn : &script_reply, 1);
    queue_call_key(b->call, kind == KIND_COMPLETE ? "wait" : "active");
    queue_call_str(b->call, queue_prefix(t->q));
    if (kind == KIND_COMPLETE) {
        queue_call_int(b->call, text_now_ms());
        queue_call_bytes(b->call, t->opts.data, t->opts.len);
    } else {
        queue_call_int(b->call, queue_options(t->q)->lock_duration_ms);
    }
    if (!t->pending)
        reaper_defer(send_open, t);
    t->pending = true;
    return b;
}

static struct batch *batch_for(struct turn *t, enum kind kind)
{
    return t->open[kind] != NULL ? t->open[kind] : open_batch(t, kind);
}

/* The part is complete: its arguments are in the call. */
static void close_part(struct batch *b, size_t bytes)
{
    b->count++;
    b->bytes += bytes;
    if (b->count == PARTS_A_CALL || b->bytes >= BYTES_A_CALL)
        send_batch(b);
}

static size_t messages_size(const struct str *messages, size_t count)
{
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += messages[i].len;
    return size;
}

/* keepJobs as turn.lua wants it: the two common cases need no decoding. */
static void add_keep(struct queue_call *call, const struct jobopts_keep *keep)
{
    if (keep->has_count && keep->count == 0) {
        queue_call_str(call, "0");
    } else if (!keep->has_age && !(keep->has_count && keep->count > 0)) {
        queue_call_str(call, "");
    } else {
        struct buf packed;
        buf_init(&packed, 256);
        finish_pack_keep(&packed, keep);
        queue_call_bytes(call, packed.data, packed.len);
        buf_fini(&packed);
    }
}

static void add_job(struct queue_call *call, const struct finish *f,
                    const struct jobopts_keep *keep)
{
    const struct str *thread = &f->job->thread;
    queue_call_bytes(call, f->job->id.data, f->job->id.len);
    queue_call_bytes(call, f->job->token.data, f->job->token.len);
    queue_call_str(call, f->fetch_next ? "1" : "");
    queue_call_bytes(call, f->value, f->value_len);
    add_keep(call, keep);
    queue_call_bytes(call, thread->data != NULL ? thread->data : "", thread->len);
    queue_call_int(call, (long long)f->message_count);
    if (f->message_count == 0)
        return;
    queue_call_int(call, f->first_seq);
    queue_call_int(call, f->reply_ttl_ms);
    queue_call_str(call, f->fresh_reply ? "1" : "");
    for (size_t i = 0; i < f->message_count; i++)
        queue_call_bytes(call, f->messages[i].data, f->messages[i].len);
}

void turn_complete(struct turn *t, const struct finish *f, finish_fn cb, void *data)
{
    struct batch *b = batch_for(t, KIND_COMPLETE);
    add_job(b->call, f, finish_keep_of(t->q, f));
    b->parts[b->count] = (struct turn_part){
        .token = str_copy(&f->job->token), .fetch = f->fetch_next, .finished = cb, .data = data};
    close_part(b, f->value_len + messages_size(f->messages, f->message_count));
}

struct turn_part *turn_say(struct turn *t, const struct turn_words *w, turn_said_fn cb, void *data)
{
    struct batch *b = batch_for(t, KIND_SAY);
    struct turn_part *part = &b->parts[b->count];
    queue_call_bytes(b->call, w->job->id.data, w->job->id.len);
    queue_call_bytes(b->call, w->job->token.data, w->job->token.len);
    queue_call_int(b->call, w->ttl_ms);
    queue_call_str(b->call, w->mark);
    queue_call_int(b->call, w->first_seq);
    queue_call_int(b->call, (long long)w->count);
    for (size_t i = 0; i < w->count; i++)
        queue_call_bytes(b->call, w->messages[i].data, w->messages[i].len);
    *part = (struct turn_part){.said = cb, .data = data};
    close_part(b, messages_size(w->messages, w->count));
    return part;
}

void turn_say_cancel(struct turn_part *part)
{
    part->said = NULL;
}
