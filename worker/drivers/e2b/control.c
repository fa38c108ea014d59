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
    json_t *body; /* or NULL */
    char *text;   /* it as last sent */
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
    json_decref(call->body);
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
                  NULL, "E2B: %s %.*s came to nothing after %d %s: %s%s", call->o.method,
                  (int)strcspn(call->path, "?"), call->path, call->tries,
                  call->tries == 1 ? "try" : "tries", answer->message,
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
    else if (a->status >= 200 && a->status < 300)
        text = mem_printf("HTTP %d, but it is not an answer of E2B", a->status);
    else if (said != NULL)
        text = mem_printf("HTTP %d: %.300s", a->status, said);
    else
        text = mem_printf("HTTP %d", a->status);
    char *clean = log_redact(text);
    free(text);
    return clean;
}

static void limit_ttl(struct e2b_call *call)
{
    json_int_t asked = json_integer_value(json_object_get(call->body, "timeout"));
    json_int_t allowed = e2b_ttl_allowed(call->e2b, asked);
    if (allowed < asked)
        json_object_set_new(call->body, "timeout", json_integer(allowed));
}

/* A life longer than the plan allows is refused: what it allows is learnt from the answer, or from
 * E2B's list of plans, and the call can be repeated with that. */
static bool learn_ttl_max(struct e2b_call *call, const struct http_answer *a, const char *message)
{
    static const long long plans_s[] = {24 * 3600, 3600};
    long long asked = json_integer_value(json_object_get(call->body, "timeout")), max_s = 0;
    if (a->status != 400 || strcasestr(message, "timeout") == NULL)
        return false;
    const char *digits = strpbrk(strcasestr(message, "timeout"), "0123456789");
    if (digits != NULL && strcasestr(digits, "hour") != NULL)
        max_s = strtoll(digits, NULL, 10) * 3600;
    for (size_t i = 0; max_s <= 0 && i < sizeof plans_s / sizeof plans_s[0]; i++)
        if (plans_s[i] < asked)
            max_s = plans_s[i];
    if (max_s <= 0 || max_s >= asked)
        return false;
    call->e2b->ttl_max_s = max_s;
    log_warn("E2B: a sandbox cannot live for %lld s on this plan, so it gets %lld s (look at "
             "CODE_INTERPRETER_IDLE_TIMEOUT_MS): %s",
             asked, max_s, message);
    return true;
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

/* A proxy or a portal on the way may answer 200 with a page of its own, or with nothing: that says
 * nothing about a sandbox. */
static bool is_answer(const struct e2b_call *call, const struct http_answer *a, const json_t *body)
{
    const char *kind = kind_of(call);
    if (strcmp(kind, "list") == 0)
        return json_is_array(body);
    if (strcmp(kind, "get") == 0 || strcmp(kind, "create") == 0 || strcmp(kind, "connect") == 0)
        return e2b_is_plain(jsonx_get_str(body, "sandboxID", ""));
    return a->body_len == 0 || body != NULL;
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
    if (verdict == E2B_OK && !is_answer(call, a, body))
        verdict = E2B_TRANSIENT;
    if (verdict == E2B_REFUSED && learn_ttl_max(call, a, message)) {
        retry_later(call, 0);
    } else if (may_repeat(call, verdict, a)) {
        log_debug("E2B: %s %.80s is tried again: %s", call->o.method, call->path, message);
        retry_later(call, a->retry_after_ms);
    } else {
        report(call, &(struct e2b_answer){verdict, a->status, body, a->header, message,
                                          text_monotonic_ms() - call->sent_ms});
    }
    free(message);
    json_decref(body);
}

static void send_call(struct e2b_call *call)
{
    struct e2b *e2b = call->e2b;
    char err[200], *url = mem_printf("%s%s", e2b->api_url, call->path);
    char *key = mem_printf("X-API-KEY: %s", e2b->api_key);
    const char *headers[] = {key, "Accept: application/json", "Content-Type: application/json",
                             NULL};
    size_t text_len = 0;
    limit_ttl(call);
    free(call->text);
    call->text = call->body != NULL ? jsonx_dump(call->body, &text_len) : NULL;
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
                                   .body_len = text_len,
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
    call->body = options->body;
    call->o.body = NULL;
    call->began_ms = text_monotonic_ms();
    ev_timer_init(&call->timer, on_timer, 0, 0);
    call->timer.data = call;
    call->next = e2b->calls;
    e2b->calls = call;
    ev_timer_start(e2b->host->loop, &call->timer); /* so that nothing is called back inside */
    return call;
}
