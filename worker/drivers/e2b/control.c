/* Calls of E2B's control API: retried until there is a definitive answer, within bounds. */
#include "worker/drivers/e2b_control.h"

#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TRIES_MAX       6
#define BACKOFF_MS      200
#define BACKOFF_MAX_MS  5000
#define RETRY_AFTER_MAX 60000 /* ms */
#define ANSWER_MAX      ((size_t)8 << 20)

struct e2b_call {
    struct e2b *e2b;
    struct e2b_call *next;
    struct e2b_call_options o;
    char *path;
    char *text; /* the body */
    size_t text_len;
    struct http_request *request;
    ev_timer timer;
    int tries;
    long long began_ms, sent_ms; /* monotonic */
    bool reporting;
};

long long e2b_backoff_ms(int tries, long long retry_after_ms)
{
    double jitter =
        0.5 + (double)random() / (double)RAND_MAX; /* replicas must not come as a herd */
    if (retry_after_ms >= 0) {
        if (retry_after_ms > RETRY_AFTER_MAX)
            retry_after_ms = RETRY_AFTER_MAX;
        return retry_after_ms + (long long)(100 * jitter);
    }
    long long ms = BACKOFF_MAX_MS;
    if (tries < 5)
        ms = (long long)BACKOFF_MS << (tries > 0 ? tries - 1 : 0);
    return (long long)((double)(ms > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : ms) * jitter);
}

bool e2b_is_full(int status, long long retry_after_ms, const char *message)
{
    if (status != 429)
        return false;
    if (message != NULL && strcasestr(message, "concurrent") != NULL)
        return true;
    return retry_after_ms < 0 && (message == NULL || strcasestr(message, "rate limit") == NULL) &&
           message != NULL && strcasestr(message, "maximum") != NULL;
}

static void call_free(struct e2b_call *call)
{
    struct e2b_call **at = &call->e2b->calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    ev_timer_stop(call->e2b->host->loop, &call->timer);
    if (call->request != NULL)
        http_cancel(call->request);
    free(call->path);
    free(call->text);
    free(call);
}

void e2b_call_cancel(struct e2b_call *call)
{
    if (call != NULL && !call->reporting)
        call_free(call);
}

static void report(struct e2b_call *call, const struct e2b_answer *answer)
{
    call->reporting = true;
    if (answer->verdict != E2B_OK)
        log_write(answer->verdict == E2B_TRANSIENT || answer->verdict == E2B_DENIED
                      ? LOG_LEVEL_WARN
                      : LOG_LEVEL_DEBUG,
                  NULL, "E2B: %s %.80s came to nothing after %d tries: %s%s", call->o.method,
                  call->path, call->tries, answer->message,
                  answer->verdict == E2B_DENIED ? " (look at E2B_API_KEY)" : "");
    if (call->o.done != NULL)
        call->o.done(call->o.data, answer);
    call_free(call);
}

static enum e2b_verdict judge(const struct http_answer *a, const char *message)
{
    int s = a->status;
    if (a->result != HTTP_DONE)
        return E2B_TRANSIENT;
    if (s >= 200 && s < 300)
        return E2B_OK;
    if (s == 404 || s == 410)
        return E2B_GONE;
    if (s == 409)
        return E2B_CONFLICT;
    if (s == 401 || s == 402 || s == 403)
        return E2B_DENIED;
    if (s == 429)
        return e2b_is_full(s, a->retry_after_ms, message) ? E2B_FULL : E2B_TRANSIENT;
    if (s == 408 || s == 425 || s >= 500 || s < 400)
        return E2B_TRANSIENT;
    return E2B_REFUSED;
}

/* May it be sent once more? A call that is made once is repeated only where the server said that it
 * did nothing, or never saw it. */
static bool may_repeat(const struct e2b_call *call, enum e2b_verdict verdict,
                       const struct http_answer *a)
{
    long long timeout = settings_int(call->e2b->settings, SETTING_E2B_REQUEST_TIMEOUT_MS);
    bool again =
        verdict == E2B_TRANSIENT || (verdict == E2B_CONFLICT && !call->o.conflict_is_final);
    if (!again || call->tries >= TRIES_MAX ||
        (call->e2b->disposing && strcmp(call->o.method, "DELETE") != 0))
        return false;
    if (text_monotonic_ms() - call->began_ms > 2 * timeout + 30000)
        return false;
    if (!call->o.once)
        return true;
    return a->status == 429 || (a->result == HTTP_FAILED && !a->request_sent);
}

static void send_call(struct e2b_call *call);

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    send_call(w->data);
}

static void retry_later(struct e2b_call *call, long long retry_after_ms)
{
    ev_now_update(call->e2b->host->loop);
    ev_timer_set(&call->timer, (double)e2b_backoff_ms(call->tries, retry_after_ms) / 1000, 0);
    ev_timer_start(call->e2b->host->loop, &call->timer);
}

/* What E2B or the network said, without anything secret in it. */
static char *message_of(const struct http_answer *a, const json_t *body)
{
    const char *said = jsonx_get_str(body, "message", NULL);
    char *text;
    if (a->result != HTTP_DONE)
        text = mem_printf("%s", a->error);
    else if (said != NULL)
        text = mem_printf("HTTP %d: %.300s", a->status, said);
    else
        text = mem_printf("HTTP %d", a->status);
    char *clean = log_redact(text);
    free(text);
    return clean;
}

static void on_answer(void *data, const struct http_answer *a)
{
    struct e2b_call *call = data;
    char err[120];
    call->request = NULL;
    json_t *body =
        a->body_len > 0 ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err) : NULL;
    char *message = message_of(a, body);
    enum e2b_verdict verdict = judge(a, message);
    if (may_repeat(call, verdict, a)) {
        log_debug("E2B: %s %.80s is tried again: %s", call->o.method, call->path, message);
        retry_later(call, a->retry_after_ms);
    } else {
        report(call, &(struct e2b_answer){verdict, a->status, body, a->header, message,
                                          text_monotonic_ms() - call->sent_ms});
    }
    free(message);
    json_decref(body);
}

/* The call as the metrics name it. */
static const char *kind_of(const struct e2b_call *call)
{
    const char *last = strrchr(call->path, '/');
    if (strcmp(call->o.method, "DELETE") == 0)
        return "kill";
    if (strcmp(call->o.method, "GET") == 0)
        return strncmp(call->path, "/v2/", 4) == 0 ? "list" : "get";
    return strcmp(call->path, "/sandboxes") == 0 ? "create"
           : strcmp(last, "/connect") == 0       ? "connect"
           : strcmp(last, "/pause") == 0         ? "pause"
           : strcmp(last, "/timeout") == 0       ? "timeout"
                                                 : "other";
}

static void send_call(struct e2b_call *call)
{
    struct e2b *e2b = call->e2b;
    char err[200], *url = mem_printf("%s%s", e2b->api_url, call->path);
    char *key = mem_printf("X-API-KEY: %s", e2b->api_key);
    const char *headers[] = {key, "Accept: application/json", "Content-Type: application/json",
                             NULL};
    if (call->text == NULL)
        headers[2] = NULL;
    call->tries++;
    call->sent_ms = text_monotonic_ms();
    long long timeout = settings_int(e2b->settings, SETTING_E2B_REQUEST_TIMEOUT_MS);
    call->request = http_start(e2b->http,
                               &(struct http_options){
                                   .method = call->o.method,
                                   .kind = kind_of(call),
                                   .url = url,
                                   .headers = headers,
                                   .body = call->text,
                                   .body_len = call->text_len,
                                   .keep_header = "X-Next-Token",
                                   .on_done = on_answer,
                                   .data = call,
                                   .max_body_bytes = ANSWER_MAX,
                                   .idle_timeout_ms = (int)timeout,
                                   .total_timeout_ms = (int)timeout,
                               },
                               err, sizeof err);
    if (call->request == NULL)
        report(call, &(struct e2b_answer){.verdict = E2B_REFUSED, .message = err});
    free(url);
    free(key);
}

struct e2b_call *e2b_call_start(struct e2b *e2b, const struct e2b_call_options *options)
{
    struct e2b_call *call = mem_alloc(sizeof *call);
    call->e2b = e2b;
    call->o = *options;
    call->path = mem_strdup(options->path);
    call->o.path = NULL;
    if (options->body != NULL)
        call->text = jsonx_dump(options->body, &call->text_len);
    json_decref(options->body);
    call->o.body = NULL;
    call->began_ms = text_monotonic_ms();
    ev_timer_init(&call->timer, on_timer, 0, 0);
    call->timer.data = call;
    call->next = e2b->calls;
    e2b->calls = call;
    ev_timer_start(e2b->host->loop, &call->timer); /* so that nothing is called back inside */
    return call;
}
