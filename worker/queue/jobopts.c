/* The BullMQ options of a job that decide what becomes of it: attempts, backoff, what is kept. */
#include "worker/queue/jobopts.h"

#include "common/jsonx.h"
#include "common/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Longest wait we hand to Redis: a delayed score is ms * 4096 and must stay an exact double. */
#define MAX_DELAY_MS   315360000000.0 /* ten years */
#define LAST_MAX_BYTES 512            /* of options that are kept parsed */

/* A number as JavaScript's comparison would see it: numeric strings count, the rest is NaN. */
static double as_number(const json_t *v)
{
    if (json_is_number(v))
        return json_number_value(v);
    if (json_is_boolean(v))
        return json_is_true(v);
    if (!json_is_string(v) || json_string_length(v) == 0)
        return NAN;
    char *end;
    double d = strtod(json_string_value(v), &end);
    return *end == '\0' ? d : NAN;
}

static double member(const json_t *object, const char *key, double fallback)
{
    double d = as_number(json_object_get(object, key));
    return isnan(d) ? fallback : d;
}

/* removeOnComplete / removeOnFail: true, false, a number, or {count, age, limit}; absent: all are
 * kept. Any text is as good as true for BullMQ. */
static struct jobopts_keep parse_keep(const json_t *v)
{
    struct jobopts_keep keep = {.count = -1, .has_count = true, .given = v != NULL};
    if (json_is_true(v) || json_string_length(v) > 0) {
        keep.count = 0;
    } else if (json_is_number(v)) {
        keep.count = json_number_value(v);
    } else if (json_is_object(v)) {
        const json_t *count = json_object_get(v, "count"), *age = json_object_get(v, "age");
        const json_t *limit = json_object_get(v, "limit");
        keep = (struct jobopts_keep){.has_count = json_is_number(count),
                                     .has_age = json_is_number(age),
                                     .has_limit = json_is_number(limit),
                                     .given = true};
        keep.count = json_number_value(count);
        keep.age = json_number_value(age);
        keep.limit = json_number_value(limit);
    }
    return keep;
}

static void parse_backoff(struct jobopts *o, const json_t *v)
{
    if (json_is_number(v)) {
        o->backoff = JOBOPTS_BACKOFF_FIXED;
        o->delay_ms = json_number_value(v);
        return;
    }
    const char *type = json_is_string(v) ? "" : jsonx_get_str(v, "type", "");
    if (json_is_object(v) || (json_is_string(v) && json_string_length(v) > 0))
        o->backoff = strcmp(type, "fixed") == 0         ? JOBOPTS_BACKOFF_FIXED
                     : strcmp(type, "exponential") == 0 ? JOBOPTS_BACKOFF_EXPONENTIAL
                                                        : JOBOPTS_BACKOFF_UNKNOWN;
    o->delay_ms = member(v, "delay", 0);
    o->jitter = member(v, "jitter", 0);
}

int jobopts_keep_parse(const char *text, struct jobopts_keep *keep)
{
    *keep = parse_keep(NULL);
    if (*text == '\0')
        return 0;
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    bool fine = json_is_boolean(v) || json_is_number(v) || json_is_object(v);
    if (fine)
        *keep = parse_keep(v);
    json_decref(v);
    return fine ? 0 : -1;
}

/* "00-<32 hex>-<16 hex>-<2 hex>" in lower case, ids not zero (W3C Trace Context, level 1; later
 * versions may go on behind it). */
static bool is_traceparent(const char *text)
{
    static const char shape[] = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
    if (text == NULL || strlen(text) != sizeof shape - 1 || strncmp(text, "ff", 2) == 0)
        return false;
    for (size_t i = 0; i < sizeof shape - 1; i++)
        if (shape[i] == '-' ? text[i] != '-' : strchr("0123456789abcdef", text[i]) == NULL)
            return false;
    return strspn(text + 3, "0") < 32 && strspn(text + 36, "0") < 16;
}

static bool is_tracestate(const char *text)
{
    if (text == NULL || *text == '\0' || strlen(text) > 512)
        return false;
    for (const char *c = text; *c != '\0'; c++)
        if (*c < 0x20 || *c > 0x7e)
            return false;
    return true;
}

/* tm: the carrier that the producer's propagator filled, as JSON text; omc: it shall not be used.
 */
static void parse_trace(struct jobopts *o, const json_t *root)
{
    const json_t *tm = json_object_get(root, "tm");
    char err[64];
    if (!json_is_string(tm) || json_is_true(json_object_get(root, "omc")))
        return;
    o->carrier = jsonx_parse(json_string_value(tm), json_string_length(tm), err, sizeof err);
    const char *parent = jsonx_get_str(o->carrier, "traceparent", NULL);
    const char *state = jsonx_get_str(o->carrier, "tracestate", NULL);
    if (!is_traceparent(parent))
        return;
    o->traceparent = parent;
    o->tracestate = is_tracestate(state) ? state : NULL;
}

static void parse_opts(struct jobopts *o, const struct str *opts_json)
{
    char err[64];
    *o = (struct jobopts){.stack_trace_limit = -1, .keep_logs = -1};
    o->root = opts_json->data != NULL
                  ? jsonx_parse(opts_json->data, opts_json->len, err, sizeof err)
                  : NULL;
    const json_t *root = json_is_object(o->root) ? o->root : NULL;
    o->attempts = as_number(json_object_get(root, "attempts"));
    o->lifo = json_is_true(json_object_get(root, "lifo"));
    o->stack_trace_limit = member(root, "stackTraceLimit", -1);
    o->keep_logs = member(root, "kl", -1);
    o->on_complete = parse_keep(json_object_get(root, "removeOnComplete"));
    o->on_fail = parse_keep(json_object_get(root, "removeOnFail"));
    o->group = json_object_get(root, "group");
    parse_backoff(o, json_object_get(root, "backoff"));
    parse_trace(o, root);
}

/* A producer's jobs mostly have the same options to the byte: the last ones are kept parsed. */
void jobopts_init(struct jobopts *o, const struct str *opts_json)
{
    static char text[LAST_MAX_BYTES];
    static size_t len;
    static struct jobopts last;
    if (opts_json->data != NULL && opts_json->len <= sizeof text && last.root != NULL &&
        opts_json->len == len && memcmp(opts_json->data, text, len) == 0) {
        *o = last;
        json_incref(o->root);
        json_incref(o->carrier);
        return;
    }
    parse_opts(o, opts_json);
    if (o->root == NULL || opts_json->len > sizeof text)
        return;
    jobopts_fini(&last);
    last = *o;
    json_incref(last.root);
    json_incref(last.carrier);
    len = opts_json->len;
    memcpy(text, opts_json->data, len);
}

void jobopts_fini(struct jobopts *o)
{
    json_decref(o->root);
    json_decref(o->carrier);
    o->root = o->carrier = NULL;
    o->traceparent = o->tracestate = NULL;
}

bool jobopts_retry(const struct jobopts *o, long long attempts_made, double random01,
                   long long *delay_ms)
{
    double attempt = (double)attempts_made + 1;
    *delay_ms = 0;
    if (!(attempt < o->attempts)) /* also when attempts is NaN */
        return false;
    if (o->backoff == JOBOPTS_BACKOFF_NONE)
        return true;
    double full = o->delay_ms;
    if (o->backoff == JOBOPTS_BACKOFF_EXPONENTIAL)
        full = round(pow(2, attempt - 1) * o->delay_ms);
    if (full == -1) /* BullMQ's spelling of "don't" */
        return false;
    if (o->jitter > 0)
        full = floor(random01 * full * o->jitter + full * (1 - o->jitter));
    if (!(full > 0))
        full = 0;
    *delay_ms = (long long)fmin(full, MAX_DELAY_MS);
    return true;
}
