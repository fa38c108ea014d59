/* One POST /execute: the code goes out once, the stream comes back line by line, silence is
 * noticed. */
#include "worker/drivers/e2b_exec.h"

#include "common/buf.h"
#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BODY_MAX     ((size_t)128 << 20) /* of the request */
#define REFUSAL_MAX  8192                /* of an error's body that is looked at */
#define LINGER_S     5.0                 /* for the end of the body after the last line */
#define WAIT_END_S   0.3
#define CONNECT_MS   10000
#define NEVER_MS     (24 * 3600 * 1000)
#define FIRST_FACTOR 4 /* before the first line it may be queued or wake up, and nothing is said */

struct e2b_exec {
    struct e2b_exec *next;
    struct e2b *e2b;
    struct e2b_box *box;
    struct e2b_exec_options o;
    struct buf body; /* of the request */
    size_t sent;
    struct http_request *request;
    struct e2b_lines *lines;
    struct buf refusal;
    ev_timer timer;
    long long heard_ms; /* monotonic */
    bool first_line, complete;
    bool in_http;  /* a callback is under way: who cancels there leaves the freeing to it */
    bool detached; /* nobody listens any more */
    bool failed_start;
};

static void exec_free(struct e2b_exec *exec)
{
    struct e2b_exec **at = &exec->e2b->execs;
    while (*at != exec)
        at = &(*at)->next;
    *at = exec->next;
    ev_timer_stop(exec->e2b->host->loop, &exec->timer);
    if (exec->request != NULL)
        http_cancel(exec->request);
    e2b_lines_free(exec->lines);
    e2b_box_unref(exec->box);
    buf_fini(&exec->body);
    buf_fini(&exec->refusal);
    free(exec);
}

void e2b_exec_free_all(struct e2b *e2b)
{
    while (e2b->execs != NULL)
        exec_free(e2b->execs);
}

void e2b_exec_cancel(struct e2b_exec *exec)
{
    if (exec == NULL)
        return;
    exec->detached = true;
    if (!exec->in_http)
        exec_free(exec); /* else the callback ends the request, and its on_done frees */
}

static void report(struct e2b_exec *exec, const struct e2b_exec_end *end)
{
    if (exec->detached)
        return;
    exec->detached = true;
    exec->o.on_done(exec->o.data, end);
}

static void arm(struct e2b_exec *exec, double seconds)
{
    ev_now_update(exec->e2b->host->loop);
    ev_timer_stop(exec->e2b->host->loop, &exec->timer);
    ev_timer_set(&exec->timer, seconds, 0);
    ev_timer_start(exec->e2b->host->loop, &exec->timer);
}

static bool on_line(void *data, const char *text, size_t len, size_t lost)
{
    struct e2b_exec *exec = data;
    char err[120], note[300];
    if (exec->complete)
        return true; /* nothing comes after the end */
    exec->first_line = true;
    json_t *line = lost > 0 ? NULL : jsonx_parse_tolerant(text, len, err, sizeof err);
    if (json_is_object(line)) {
        exec->complete = strcmp(jsonx_get_str(line, "type", ""), "end_of_execution") == 0;
        if (!exec->complete)
            exec->o.on_line(exec->o.data, line);
    } else if (exec->o.on_loss != NULL) {
        if (lost > 0)
            snprintf(note, sizeof note,
                     "a result or piece of output of %zu bytes was left out: it is larger than "
                     "E2B_LINE_MAX_BYTES",
                     lost);
        else if (strspn(text, " \t\r") < len)
            snprintf(
                note, sizeof note,
                "a line of %zu bytes of the sandbox's stream could not be read and was left out",
                len);
        else
            note[0] = '\0';
        if (note[0] != '\0')
            exec->o.on_loss(exec->o.data, note);
    }
    json_decref(line);
    return !exec->detached;
}

static int on_data(void *data, const char *piece, size_t len)
{
    struct e2b_exec *exec = data;
    exec->heard_ms = text_monotonic_ms();
    if (exec->detached)
        return exec->complete ? 0 : -1;
    if (http_status(exec->request) != 200) {
        size_t room = REFUSAL_MAX - exec->refusal.len;
        return buf_append(&exec->refusal, piece, len < room ? len : room) == 0 ? 0 : -1;
    }
    bool was_complete = exec->complete;
    exec->in_http = true;
    bool on = e2b_lines_feed(exec->lines, piece, len, on_line, exec);
    bool ends = exec->complete && !was_complete; /* later words do not put its end off */
    if (ends && !exec->detached && exec->o.wait_end) {
        arm(exec, WAIT_END_S);
    } else if (ends && !exec->detached) {
        arm(exec, LINGER_S);
        report(exec, &(struct e2b_exec_end){.result = EXEC_COMPLETE, .status = 200, .message = ""});
    }
    exec->in_http = false;
    return on || exec->complete ? 0 : -1;
}

/* An answer other than 200 means that nothing was run. */
static enum e2b_exec_result judge_status(const struct http_answer *a, const json_t *body,
                                         const char *message)
{
    switch (a->status) {
    case 401:
    case 403:
        return EXEC_DENIED;
    case 429:
        return e2b_is_full(429, a->retry_after_ms, message) ? EXEC_FULL : EXEC_NOT_SENT;
    case 502:
        if (json_object_get(body, "port") != NULL)
            return EXEC_PORT;
        if (json_object_get(body, "sandboxId") != NULL || strcasestr(message, "not found") != NULL)
            return EXEC_GONE;
        return EXEC_NOT_SENT;
    case 408:
    case 409:
    case 425:
    case 503:
    case 504:
        return EXEC_NOT_SENT;
    case 404:
        return body != NULL && json_object_get(body, "sandboxId") != NULL ? EXEC_GONE
                                                                          : EXEC_REFUSED;
    default:
        return EXEC_REFUSED;
    }
}

static char *refusal_text(const struct e2b_exec *exec, const struct http_answer *a,
                          const json_t *body)
{
    const char *said = jsonx_get_str(body, "message", NULL);
    char *text = mem_printf("HTTP %d: %.300s", a->status,
                            said != NULL                 ? said
                            : exec->refusal.data != NULL ? exec->refusal.data
                                                         : "no explanation");
    char *clean = e2b_box_redact(exec->box, text);
    free(text);
    return clean;
}

static void judge(struct e2b_exec *exec, const struct http_answer *a)
{
    struct e2b_exec_end end = {
        .result = EXEC_CUT, .status = a->status, .retry_after_ms = a->retry_after_ms};
    char err[120], *text = NULL;
    if (a->status != 0 && a->status != 200) {
        json_t *body =
            exec->refusal.len > 0
                ? jsonx_parse_tolerant(exec->refusal.data, exec->refusal.len, err, sizeof err)
                : NULL;
        text = refusal_text(exec, a, body);
        end.result = judge_status(a, body, text);
        json_decref(body);
    } else if (a->status == 0 && a->result != HTTP_DONE && !a->request_sent) {
        end.result = EXEC_NOT_SENT;
        text =
            e2b_box_redact(exec->box, a->error != NULL ? a->error : "the sandbox was not reached");
    } else {
        text = log_redact(a->error != NULL ? a->error : "the stream ended without its end line");
    }
    end.message = text;
    report(exec, &end);
    free(text);
}

static void on_done(void *data, const struct http_answer *a)
{
    struct e2b_exec *exec = data;
    exec->in_http = true; /* a cancel in the callbacks must leave the freeing to us */
    exec->request = NULL;
    if (!exec->detached && a->status == 200)
        e2b_lines_end(exec->lines, on_line, exec);
    if (!exec->detached && exec->complete)
        report(exec, &(struct e2b_exec_end){.result = EXEC_COMPLETE, .status = 200, .message = ""});
    if (!exec->detached)
        judge(exec, a);
    exec_free(exec);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_exec *exec = w->data;
    (void)loop, (void)revents;
    exec->in_http = true; /* a cancel in the callbacks leaves the freeing to us */
    if (exec->failed_start) {
        report(exec, &(struct e2b_exec_end){.result = EXEC_REFUSED,
                                            .message = "the sandbox's address is not usable"});
        exec_free(exec);
        return;
    }
    if (exec->complete) { /* the end of the body does not come */
        report(exec, &(struct e2b_exec_end){.result = EXEC_COMPLETE, .status = 200, .message = ""});
        exec_free(exec);
        return;
    }
    long long limit = exec->o.stall_ms * (exec->first_line ? 1 : FIRST_FACTOR);
    long long left = exec->heard_ms + limit - text_monotonic_ms();
    if (left > 0) {
        exec->in_http = false;
        arm(exec, (double)left / 1000);
        return;
    }
    char text[120];
    snprintf(text, sizeof text, "no sign of life for %lld ms", limit);
    http_cancel(exec->request);
    exec->request = NULL;
    report(exec, &(struct e2b_exec_end){.result = EXEC_STALLED, .message = text});
    exec_free(exec);
}

static long read_body(void *data, char *into, size_t size)
{
    struct e2b_exec *exec = data;
    size_t left = exec->body.len - exec->sent, n = left < size ? left : size;
    memcpy(into, exec->body.data + exec->sent, n);
    exec->sent += n;
    exec->heard_ms = text_monotonic_ms();
    return (long)n;
}

static int write_body(struct e2b_exec *exec)
{
    const struct e2b_exec_options *o = &exec->o;
    buf_init(&exec->body, BODY_MAX);
    if (buf_append_str(&exec->body, "{\"code\":") != 0 ||
        jsonx_quote(&exec->body, o->code, o->code_len) != 0)
        return -1;
    if (o->context != NULL && (buf_append_str(&exec->body, ",\"context_id\":") != 0 ||
                               jsonx_quote(&exec->body, o->context, strlen(o->context)) != 0))
        return -1;
    return buf_append_str(&exec->body, "}");
}

struct e2b_exec *e2b_exec_start(struct e2b_box *box, const struct e2b_exec_options *options)
{
    struct e2b_exec *exec = mem_alloc(sizeof *exec);
    struct e2b_headers headers;
    char err[200] = "the code is too large";
    exec->e2b = box->e2b;
    exec->box = e2b_box_ref(box);
    exec->o = *options;
    exec->lines = e2b_lines_new(options->line_max);
    buf_init(&exec->refusal, REFUSAL_MAX);
    exec->heard_ms = text_monotonic_ms();
    exec->next = box->e2b->execs;
    box->e2b->execs = exec;
    ev_timer_init(&exec->timer, on_timer, 0, 0);
    exec->timer.data = exec;
    char *url = e2b_box_url(box, E2B_PORT_INTERPRETER, "/execute");
    e2b_headers_init(&headers, box, E2B_PORT_INTERPRETER, "application/json");
    if (write_body(exec) == 0)
        exec->request = http_start(box->e2b->http,
                                   &(struct http_options){
                                       .method = "POST",
                                       .kind = "execute",
                                       .url = url,
                                       .headers = (const char *const *)headers.lines,
                                       .read_body = read_body,
                                       .read_body_len = (long long)exec->body.len,
                                       .on_data = on_data,
                                       .on_done = on_done,
                                       .data = exec,
                                       .max_body_bytes = SIZE_MAX / 2,
                                       .connect_timeout_ms = CONNECT_MS,
                                       .idle_timeout_ms = NEVER_MS, /* the watch is ours */
                                   },
                                   err, sizeof err);
    exec->failed_start = exec->request == NULL;
    if (exec->failed_start)
        log_warn("E2B: the code cannot be sent: %s", err);
    arm(exec, exec->failed_start ? 0 : (double)options->stall_ms / 1000);
    exec->o.code = exec->o.context = NULL;
    e2b_headers_fini(&headers);
    free(url);
    return exec;
}
