/* Requests and replies of a Redis connection: framing, the queue, deadlines, NOSCRIPT recovery. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/redis_impl.h"

#define DENIED_KINDS    8               /* missing rights that are remembered as said */
#define DENIED_QUIET_MS (5 * 60 * 1000) /* until they are said again */

/* hiredis moves its whole buffer at each partial write, so it gets a large request in slices. */
#define REDIS_SLICE_BYTES ((size_t)256 * 1024)
/* What one flush writes at most before other watchers get their turn. */
#define REDIS_FLUSH_BYTES ((size_t)2 * 1024 * 1024)
/* What one wake-up reads at most, in hiredis's reads of 16 KiB. */
#define REDIS_READS_PER_TURN 32

/* ---- The queue ---- */

static void call_free(struct redis_call *call)
{
    free(call->bytes);
    free(call);
}

static void calls_push(struct redis_calls *list, struct redis_call *call)
{
    call->next = NULL;
    if (list->tail)
        list->tail->next = call;
    else
        list->head = call;
    list->tail = call;
}

static struct redis_call *calls_pop(struct redis_calls *list)
{
    struct redis_call *call = list->head;
    if (!call)
        return NULL;
    list->head = call->next;
    if (!list->head)
        list->tail = NULL;
    return call;
}

void redis_calls_abandon(struct redis *r)
{
    struct redis_call *call;
    while ((call = calls_pop(&r->calls))) {
        if (call->step == REDIS_STEP_USER)
            calls_push(&r->lost, call);
        else
            call_free(call);
    }
    r->unsent = NULL;
    r->unsent_offset = 0;
    r->slice_left = false;
    r->socket_full = false;
    r->pending_bytes = 0;
}

static void call_answer(struct redis *r, const struct redis_call *call, redisReply *reply)
{
    if (!call->cb)
        return;
    r->in_callback = true;
    call->cb(r, reply, call->data);
    r->in_callback = false;
}

void redis_lost_deliver(struct redis *r)
{
    struct redis_call *call;
    while ((call = calls_pop(&r->lost))) {
        call_answer(r, call, NULL);
        call_free(call);
    }
}

long long redis_next_deadline(const struct redis *r, const struct redis_call **whose)
{
    long long earliest = -1;
    for (const struct redis_call *call = r->calls.head; call; call = call->next)
        if (earliest < 0 || call->deadline < earliest) {
            earliest = call->deadline;
            *whose = call;
        }
    return earliest;
}

/* ---- Framing ---- */

static size_t digits(size_t n)
{
    size_t count = 1;
    while (n >= 10) {
        n /= 10;
        count++;
    }
    return count;
}

static size_t framed_size(size_t len)
{
    return 1 + digits(len) + 2 + len + 2;
}

int redis_frame_head(char *out, size_t len)
{
    int count = (int)digits(len);
    out[0] = '$';
    for (int i = count; i > 0; i--, len /= 10)
        out[i] = (char)('0' + len % 10);
    memcpy(out + count + 1, "\r\n", 2);
    return count + 3;
}

static char *frame(char *out, const char *data, size_t len)
{
    out += redis_frame_head(out, len);
    if (len)
        memcpy(out, data, len);
    memcpy(out + len, "\r\n", 2);
    return out + len + 2;
}

static size_t frames_size(int argc, const char *const *argv, const size_t *lens)
{
    size_t size = 0;
    for (int i = 0; i < argc; i++)
        size += framed_size(lens ? lens[i] : strlen(argv[i]));
    return size;
}

static char *frames(char *out, int argc, const char *const *argv, const size_t *lens)
{
    for (int i = 0; i < argc; i++)
        out = frame(out, argv[i], lens ? lens[i] : strlen(argv[i]));
    return out;
}

/* A call with room for size bytes and the "*<count>" line written, whose end goes to *out. */
static struct redis_call *call_new(int count, size_t size, char **out)
{
    size_t head = 1 + digits((size_t)count) + 2;
    char *bytes = malloc(head + size + 1); /* sized by the caller's data, so it may fail */
    if (!bytes)
        return NULL;
    struct redis_call *call = mem_alloc(sizeof(*call));
    call->bytes = bytes;
    call->len = head + size;
    *out = bytes + sprintf(bytes, "*%d\r\n", count);
    return call;
}

/* ---- Sending ---- */

static void call_start(struct redis *r, struct redis_call *call)
{
    calls_push(&r->calls, call);
    if (!r->unsent) {
        r->unsent = call;
        r->unsent_offset = 0;
    }
    r->pending_bytes += call->len;
    redis_schedule_turn(r); /* all calls of one turn of the loop leave in one write */
}

static void call_set_deadline(struct redis *r, struct redis_call *call, int timeout_ms)
{
    call->timeout_ms = timeout_ms > 0 ? timeout_ms : r->options.command_timeout_ms;
    call->deadline = redis_now_ms() + call->timeout_ms;
    redis_timer_before(r, call->deadline);
}

static bool call_fits(const struct redis *r, size_t size)
{
    return size <= r->options.max_pending_bytes &&
           r->pending_bytes <= r->options.max_pending_bytes - size;
}

int redis_send(struct redis *r, enum redis_step step, int argc, const char *const *argv,
               const size_t *lens, int timeout_ms, redis_reply_fn cb, void *data)
{
    char *out;
    struct redis_call *call = call_new(argc, frames_size(argc, argv, lens), &out);
    if (!call)
        return -1;
    frames(out, argc, argv, lens);
    snprintf(call->name, sizeof(call->name), "%.*s", (int)(lens ? lens[0] : strlen(argv[0])),
             argv[0]);
    call->step = step;
    call->cb = cb;
    call->data = data;
    call_set_deadline(r, call, timeout_ms);
    call_start(r, call);
    return 0;
}

int redis_command(struct redis *r, int argc, const char *const *argv, const size_t *lens,
                  int timeout_ms, redis_reply_fn cb, void *data)
{
    if (r->state != REDIS_STATE_READY || argc < 1 || !call_fits(r, frames_size(argc, argv, lens)))
        return -1;
    return redis_send(r, REDIS_STEP_USER, argc, argv, lens, timeout_ms, cb, data);
}

/* Where the first count of framed arguments end. */
static size_t frames_end(const char *args, int count)
{
    const char *at = args;
    for (int i = 0; i < count; i++) {
        char *text;
        size_t len = strtoul(at + 1, &text, 10);
        at = text + 2 + len + 2;
    }
    return (size_t)(at - args);
}

int redis_script_call_framed(struct redis *r, const struct redis_script *script, int nkeys,
                             int argc, const char *args, size_t len, int timeout_ms,
                             redis_reply_fn cb, void *data)
{
    char key_count[16];
    const char *guard = r->cluster ? r->url.slot_key : NULL;
    int extra = guard ? 1 : 0;
    snprintf(key_count, sizeof(key_count), "%d", nkeys + extra);
    const char *const head[] = {"EVALSHA", script->sha1};
    size_t head_size = frames_size(2, head, NULL) + (guard ? framed_size(strlen(guard)) : 0);
    size_t size = head_size + framed_size(strlen(key_count)) + len;
    if (r->state != REDIS_STATE_READY || argc < nkeys || !call_fits(r, size))
        return -1;

    char *out;
    struct redis_call *call = call_new(3 + argc + extra, size, &out);
    if (!call)
        return -1;
    out = frames(out, 2, head, NULL);
    call->tail = (size_t)(out - call->bytes);
    out = frame(out, key_count, strlen(key_count));
    if (guard) {
        size_t keys = frames_end(args, nkeys);
        memcpy(out, args, keys);
        out = frame(out + keys, guard, strlen(guard));
        memcpy(out, args + keys, len - keys);
    } else {
        memcpy(out, args, len);
    }
    call->script = script;
    call->argc = 1 + argc + extra;
    snprintf(call->name, sizeof(call->name), "%s", script->name);
    call->cb = cb;
    call->data = data;
    call_set_deadline(r, call, timeout_ms);
    call_start(r, call);
    return 0;
}

int redis_script_call(struct redis *r, const struct redis_script *script, int nkeys, int argc,
                      const char *const *argv, const size_t *lens, int timeout_ms,
                      redis_reply_fn cb, void *data)
{
    size_t len = frames_size(argc, argv, lens);
    char *args = malloc(len + 1); /* sized by the caller's data, so it may fail */
    if (!args)
        return -1;
    frames(args, argc, argv, lens);
    int rc = redis_script_call_framed(r, script, nkeys, argc, args, len, timeout_ms, cb, data);
    free(args);
    return rc;
}

/* The same call again with the script's text; the deadline stays. */
static void call_retry_as_eval(struct redis *r, const struct redis_call *call)
{
    const struct redis_script *script = call->script;
    size_t tail_len = call->len - call->tail;
    const char *const head[] = {"EVAL", script->text};
    const size_t lens[] = {4, script->text_len};
    char *out;
    struct redis_call *again =
        call_new(2 + call->argc, frames_size(2, head, lens) + tail_len, &out);
    if (!again) {
        call_answer(r, call, NULL);
        return;
    }
    out = frames(out, 2, head, lens);
    memcpy(out, call->bytes + call->tail, tail_len);
    memcpy(again->name, call->name, sizeof(again->name));
    again->deadline = call->deadline;
    again->timeout_ms = call->timeout_ms;
    again->cb = call->cb;
    again->data = call->data;
    call_start(r, again);
}

/* Hands at most one slice of what is unsent to hiredis; the bytes given. */
static size_t feed(struct redis *r)
{
    size_t fed = 0;
    while (r->unsent && fed < REDIS_SLICE_BYTES) {
        struct redis_call *call = r->unsent;
        size_t part = call->len - r->unsent_offset;
        if (part > REDIS_SLICE_BYTES - fed)
            part = REDIS_SLICE_BYTES - fed;
        if (redisAppendFormattedCommand(r->ctx, call->bytes + r->unsent_offset, part) != REDIS_OK)
            return 0;
        fed += part;
        r->unsent_offset += part;
        if (r->unsent_offset < call->len)
            break;
        r->unsent = call->next;
        r->unsent_offset = 0;
        if (!call->script) {
            free(call->bytes);
            call->bytes = NULL;
        }
    }
    return fed;
}

/* Why hiredis gave up; a server that hangs up often does not tell TLS why. */
static void say_broken(const struct redis *r, char *out, size_t size)
{
    const char *why = redis_tls_error(r->ctx->errstr);
    snprintf(out, size, "%s%s", why, why == r->ctx->errstr ? redis_greeting_hint(r) : "");
}

/* What the server said before it hung up is read first: replies that count, or its reason. */
static void write_failed(struct redis *r)
{
    const struct redisContext *ctx = r->ctx;
    char why[256];
    say_broken(r, why, sizeof(why));
    r->ctx->err = 0; /* hiredis would not read any more */
    if (!r->url.tls) /* a TLS session is at its end with its first error */
        redis_read(r);
    if (r->ctx == ctx)
        redis_drop(r, false, "%s%s", r->url.tls ? "" : "write: ", why);
}

void redis_flush(struct redis *r)
{
    for (size_t written = 0; r->ctx && !r->socket_full;) {
        size_t fed = r->slice_left ? 0 : feed(r);
        int done = 1;
        if (r->ctx->err || redisBufferWrite(r->ctx, &done) != REDIS_OK) {
            write_failed(r);
            return;
        }
        written += fed;
        r->slice_left = !done;
        if (!done || (r->unsent && written >= REDIS_FLUSH_BYTES)) {
            r->socket_full = true;
            ev_io_start(r->loop, &r->writable);
        }
        if (!r->unsent)
            return;
    }
}

/* ---- Replies ---- */

static bool is_error(const redisReply *reply, const char *code)
{
    size_t len = strlen(code);
    return reply->type == REDIS_REPLY_ERROR && !strncmp(reply->str, code, len) &&
           (reply->str[len] == ' ' || reply->str[len] == '\0');
}

/* Answers after which the server may not be the master any more: name resolution and connect again.
 */
static bool is_demotion(const redisReply *reply)
{
    return is_error(reply, "READONLY") || is_error(reply, "UNBLOCKED") ||
           is_error(reply, "MASTERDOWN");
}

bool redis_is_passing(const redisReply *reply)
{
    static const char *const words[] = {
        "LOADING", "BUSY",  "OOM",         "READONLY",   "MASTERDOWN", "UNBLOCKED", "TRYAGAIN",
        "ASK",     "MOVED", "CLUSTERDOWN", "NOREPLICAS", "MISCONF",    "NOAUTH",    "EXECABORT"};
    if (!reply || reply->type != REDIS_REPLY_ERROR)
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (is_error(reply, words[i]))
            return true;
    /* An error that Lua passed on carries the text of the command's error further inside. */
    return strstr(reply->str, "OOM command not allowed") != NULL;
}

bool redis_is_denied(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ERROR &&
           (is_error(reply, "NOPERM") || strstr(reply->str, "ACL failure in script") ||
            strstr(reply->str, "The user executing the script can't"));
}

bool redis_is_unrun(const redisReply *reply)
{
    return redis_is_passing(reply) ||
           (redis_is_denied(reply) && is_error(reply, "NOPERM") && !strstr(reply->str, "script:"));
}

/* One line for each right that is missing, now and then again, for all connections: many calls want
 * the same. */
static void say_denied(const struct redis *r, const redisReply *reply)
{
    static char said[DENIED_KINDS][160];
    static long long said_at[DENIED_KINDS];
    static size_t next;
    const char *more = strstr(reply->str, " script: "); /* a hash and a line's number */
    int len = (int)(more ? (size_t)(more - reply->str) : strlen(reply->str));
    char text[sizeof(said[0])];
    long long now = redis_now_ms();

    snprintf(text, sizeof(text), "%.*s", len, reply->str);
    for (size_t i = 0; i < DENIED_KINDS; i++)
        if (!strcmp(said[i], text) && now - said_at[i] < DENIED_QUIET_MS)
            return;
    log_error("redis (%s) %s, %s: its user has not all the rights that the worker needs, which "
              "README lists (%s); trying again",
              r->options.label, r->where, redis_setting(r), text);
    snprintf(said[next], sizeof(said[next]), "%s", text);
    said_at[next] = now;
    next = (next + 1) % DENIED_KINDS;
}

/* One line when the slot begins to move, and one when it is at rest again. */
static void watch_slot(struct redis *r, const redisReply *reply)
{
    bool moves = is_error(reply, "ASK") || is_error(reply, "TRYAGAIN");
    if (moves && !r->slot_moves)
        log_warn("redis (%s) %s: the queue's slot is being moved to another node; scripts wait",
                 r->options.label, r->where);
    else if (!moves && r->slot_moves)
        log_info("redis (%s) %s: the queue's slot is at rest again", r->options.label, r->where);
    r->slot_moves = moves;
}

static void mark_healthy(struct redis *r)
{
    r->failures = 0;
    r->flapping = false;
    r->last_failure[0] = '\0';
}

static void answer_idle_ping(struct redis *r, const redisReply *reply)
{
    if (is_demotion(reply))
        redis_drop(r, false, "%s", reply->str);
    else
        mark_healthy(r);
}

static void answer_user(struct redis *r, const struct redis_call *call, redisReply *reply)
{
    if (call->script && is_error(reply, "NOSCRIPT")) {
        call_retry_as_eval(r, call);
        return;
    }
    const struct redisContext *ctx = r->ctx;
    bool demotion = is_demotion(reply), moved = is_error(reply, "MOVED");
    if (!demotion && !moved)
        mark_healthy(r);
    if (r->cluster && call->script)
        watch_slot(r, reply);
    if (redis_is_denied(reply))
        say_denied(r, reply);
    char text[320] = "";
    if (demotion || moved)
        snprintf(text, sizeof(text), "%s", reply->str);
    call_answer(r, call, reply);
    if (r->ctx != ctx) /* the callback has reopened already */
        return;
    if (demotion)
        redis_drop(r, false, "%s", text);
    else if (moved)
        redis_route_moved(r, text);
}

static void dispatch(struct redis *r, redisReply *reply)
{
    struct redis_call *call = calls_pop(&r->calls);
    r->last_heard = redis_now_ms();
    if (!call) {
        redis_drop(r, false, "unasked reply: %s",
                   reply->type == REDIS_REPLY_ERROR ? reply->str : "no error text");
        return;
    }
    if (call == r->unsent) { /* answered before it was sent: out of step */
        call->next = r->calls.head;
        r->calls.head = call;
        if (!r->calls.tail)
            r->calls.tail = call;
        redis_drop(r, false, "reply out of step: %s",
                   reply->type == REDIS_REPLY_ERROR ? reply->str : "no error text");
        return;
    }
    r->pending_bytes -= call->len;
    if (call->step == REDIS_STEP_USER)
        answer_user(r, call, reply);
    else if (call->step == REDIS_STEP_IDLE_PING)
        answer_idle_ping(r, reply);
    else
        redis_greet_reply(r, call->step, reply);
    call_free(call);
}

/* Runs the callbacks of the replies read so far; false when the connection was dropped meanwhile.
 */
static bool dispatch_all(struct redis *r, const struct redisContext *ctx)
{
    while (r->ctx == ctx) {
        void *reply = NULL;
        if (redisGetReplyFromReader(r->ctx, &reply) != REDIS_OK) {
            redis_drop(r, false, "protocol: %s", r->ctx->errstr);
            return false;
        }
        if (!reply)
            return true;
        dispatch(r, reply);
        freeReplyObject(reply);
    }
    return false;
}

void redis_read(struct redis *r)
{
    const struct redisContext *ctx = r->ctx;
    for (int i = 0; i < REDIS_READS_PER_TURN; i++) {
        int waiting = 0;
        if (redisBufferRead(r->ctx) != REDIS_OK) {
            char why[256];
            say_broken(r, why, sizeof(why));
            redis_drop(r, false, "%s", why);
            return;
        }
        if (!dispatch_all(r, ctx))
            return;
        if (ioctl(r->ctx->fd, FIONREAD, &waiting) || !waiting)
            return;
    }
}
