/* Ends a run towards Redis: return value or failure, `done` or `retrying`, attempts and backoff. */
#include "worker/ending.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"

#include <stdlib.h>
#include <string.h>

#define STACK_ENTRY_MAX 4096 /* of one failure's text in the job's stacktrace */

struct ending {
    struct ending_options o;
    ending_fn cb;
    void *data;
    enum ending_kind kind;
    long long delay_ms;
    char *value; /* JSON or failedReason */
    size_t value_len;
    struct str *messages;
    size_t message_count;
    long long first_seq;
    bool fresh, taken, sent, freed;
    bool uncommon; /* only BullMQ's own script can end it */
};

static void send(struct ending *e);

static void free_now(void *data)
{
    struct ending *e = data;
    reply_messages_free(e->messages, e->message_count);
    free(e->value);
    free(e);
}

void ending_free(struct ending *e)
{
    if (e == NULL)
        return;
    e->freed = true;
    if (!e->sent) /* else the finishing call holds a pointer to us until Redis has answered */
        reaper_defer(free_now, e);
}

static double random01(void)
{
    return (double)random() / ((double)RAND_MAX + 1.0);
}

/* The stacktrace field as BullMQ keeps it: earlier texts, then this one, the last stackTraceLimit
 * of them. */
static char *stacktrace(const struct ending *e)
{
    char err[64];
    const struct str *old = &e->o.claimed->stacktrace;
    json_t *list = old->data != NULL ? jsonx_parse(old->data, old->len, err, sizeof err) : NULL;
    if (!json_is_array(list)) {
        json_decref(list);
        list = json_array();
    }
    char *text = mem_printf("Error: %.*s\n    at sandpiper (%s)", STACK_ENTRY_MAX, e->value,
                            outcome_row(e->o.outcome)->reason);
    json_array_append_new(list, jsonx_string(text, strlen(text)));
    free(text);
    double limit = e->o.opts->stack_trace_limit;
    while (limit >= 0 && (double)json_array_size(list) > limit)
        json_array_remove(list, 0);
    char *dumped = jsonx_dump(list, NULL);
    json_decref(list);
    return dumped;
}

static void say_end(struct ending *e)
{
    const struct outcome_row *row = outcome_row(e->o.outcome);
    bool completed = e->kind == ENDING_COMPLETED;
    json_t *done = json_object();
    const char *state = !completed ? "failed" : e->o.outcome == OUTCOME_OK ? "completed" : "error";
    json_object_set_new(done, "state", json_string(state));
    json_object_set_new(done, "reason", json_string(row->reason));
    if (!completed)
        json_object_set_new(done, "error", jsonx_string(e->value, e->value_len));
    else if (e->o.result != NULL && e->o.result->error != NULL)
        json_object_set_new(done, "error",
                            jsonx_string(e->o.result->error, strlen(e->o.result->error)));
    const struct jobopts *opts = e->o.opts;
    if (opts->traceparent != NULL)
        json_object_set_new(done, "trace",
                            json_pack("{s:s,s:s*}", "traceparent", opts->traceparent, "tracestate",
                                      opts->tracestate));
    size_t len;
    char *members = jsonx_dump(done, &len);
    json_decref(done);
    if (completed) { /* the text that is the return value, as it is */
        struct buf whole;
        buf_init(&whole, len + e->value_len + 16);
        if (buf_append(&whole, members, len - 1) != 0 ||
            buf_append_str(&whole, ",\"result\":") != 0 ||
            buf_append(&whole, e->value, e->value_len) != 0 || buf_append(&whole, "}", 1) != 0)
            abort();
        reply_message_text(e->o.reply, "done", whole.data, whole.len, true);
        buf_fini(&whole);
    } else {
        reply_message_text(e->o.reply, "done", members, len, true);
    }
    free(members);
}

static void say_retry(struct ending *e)
{
    reply_message(e->o.reply, "retrying",
                  json_pack("{s:o,s:s,s:I,s:I}", "error", jsonx_string(e->value, e->value_len),
                            "reason", outcome_row(e->o.outcome)->reason, "delayMs",
                            (json_int_t)e->delay_ms, "attempt",
                            (json_int_t)e->o.claimed->attempts_made + 1),
                  true);
}

static void decide(struct ending *e)
{
    const struct outcome_row *row = outcome_row(e->o.outcome);
    if (row->completes) {
        e->kind = ENDING_COMPLETED;
        size_t most = (size_t)settings_int(e->o.settings, SETTING_RESULT_MAX_BYTES);
        e->value = result_dump(e->o.result, e->o.outcome, most, &e->value_len);
        return;
    }
    e->value = log_redact(e->o.failed_reason);
    e->value_len = strlen(e->value);
    long long starts = settings_int(e->o.settings, SETTING_MAX_STARTED_ATTEMPTS);
    bool started_enough = starts > 0 && starts <= e->o.claimed->attempts_started;
    bool retry = row->retried && !started_enough &&
                 jobopts_retry(e->o.opts, e->o.claimed->attempts_made, random01(), &e->delay_ms);
    e->kind = retry ? ENDING_RETRIED : ENDING_FAILED;
    if (retry && e->o.opts->backoff == JOBOPTS_BACKOFF_UNKNOWN) {
        struct log_ctx ctx = {.job = e->o.claimed->id.data,
                              .thread = e->o.claimed->thread.data,
                              .trace = e->o.opts->traceparent};
        log_write(
            LOG_LEVEL_WARN, &ctx,
            "the job's backoff strategy is not one of BullMQ's own; its delay is used as fixed");
    }
}

static void on_finished(enum finish_result result, const struct claim_answer *next, void *data)
{
    struct ending *e = data;
    if (e->freed) {
        claimed_job_free(next != NULL ? next->job : NULL);
        free_now(e);
        return;
    }
    if (result == FINISH_RESULT_UNCOMMON) {
        e->uncommon = true;
        send(e);
        return;
    }
    bool children = result == FINISH_RESULT_CHILDREN || result == FINISH_RESULT_FAILED_CHILDREN;
    if (children && e->kind == ENDING_COMPLETED) {
        /* A parent whose children are not done cannot be completed: it fails, with a stock Worker's
         * words. It is not retried, for its code has run. */
        free(e->value);
        e->value = mem_printf(result == FINISH_RESULT_CHILDREN
                                  ? "Job %s has pending dependencies. moveToFinished"
                                  : "Cannot complete job %s because it has at least one failed "
                                    "child. moveToFinished",
                              e->o.claimed->id.data);
        e->value_len = strlen(e->value);
        e->kind = ENDING_FAILED;
        if (e->message_count > 0) {
            str_fini(&e->messages[--e->message_count]);
            reply_renumber(e->o.reply, e->first_seq + (long long)e->message_count);
        }
        send(e);
        return;
    }
    e->cb(result, e->kind, next, e->data);
    free_now(e);
}

/* Everything that is pending in the reply, and the last message, go with the finishing call itself.
 */
static void take_messages(struct ending *e)
{
    if (e->o.reply == NULL)
        return;
    if (e->o.job->reply && e->kind == ENDING_RETRIED)
        say_retry(e);
    else if (e->o.job->reply)
        say_end(e);
    size_t count;
    long long first;
    bool fresh;
    struct str *more = reply_take(e->o.reply, &count, &first, &fresh);
    if (!e->taken) {
        e->first_seq = first;
        e->fresh = fresh;
        e->taken = true;
    }
    if (count == 0)
        return;
    e->messages = mem_realloc(e->messages, (e->message_count + count) * sizeof *e->messages);
    memcpy(e->messages + e->message_count, more, count * sizeof *more);
    e->message_count += count;
    free(more);
}

static void send(struct ending *e)
{
    e->sent = true;
    bool resent = e->uncommon && e->kind == ENDING_COMPLETED;
    if (!resent && (e->kind != ENDING_RETRIED || e->delay_ms > 0))
        take_messages(e);
    char *trace = e->kind == ENDING_COMPLETED ? NULL : stacktrace(e);
    struct finish f = {
        .kind = e->kind == ENDING_COMPLETED ? FINISH_COMPLETED
                : e->kind == ENDING_FAILED  ? FINISH_FAILED
                : e->delay_ms > 0           ? FINISH_RETRY_LATER
                                            : FINISH_RETRY_NOW,
        .job = e->o.claimed,
        .opts = e->o.opts,
        .value = e->value,
        .value_len = e->value_len,
        .stacktrace = trace,
        .delay_ms = e->delay_ms,
        .marked = e->o.marked,
        .fetch_next = e->o.fetch_next,
        .messages = e->messages,
        .message_count = e->message_count,
        .first_seq = e->first_seq,
        .fresh_reply = e->fresh,
        .reply_ttl_ms = settings_int(e->o.settings, SETTING_REPLY_TTL_MS),
    };
    if (e->kind == ENDING_COMPLETED && !e->uncommon)
        turn_complete(e->o.turn, &f, on_finished, e);
    else
        finish_send(e->o.queue, &f, on_finished, e);
    free(trace);
}

static void on_retry_said(void *data)
{
    send(data);
}

struct ending *ending_start(const struct ending_options *options, ending_fn cb, void *data)
{
    struct ending *e = mem_alloc(sizeof *e);
    e->o = *options;
    e->cb = cb;
    e->data = data;
    decide(e);
    if (e->kind == ENDING_RETRIED && e->delay_ms == 0 && e->o.reply != NULL) {
        /* BullMQ's immediate retry carries no options: what there is to say is said before. */
        say_retry(e);
        reply_flush_for(e->o.reply, on_retry_said, e);
    } else {
        send(e);
    }
    return e;
}
