/* Gathers what an execution gave and makes its result: the job's return value, small enough to live
 * in Redis twice. */
#include "worker/result.h"

#include "common/jsonx.h"
#include "common/mem.h"
#include "common/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Budgets at scale 0; each further scale halves them until the whole fits. */
#define STREAM_BYTES    (20 * 1024)
#define TRACEBACK_BYTES (8 * 1024)
#define ERROR_BYTES     (2 * 1024)
#define RESULTS_BYTES   (12 * 1024)
#define VALUE_BYTES     (4 * 1024) /* a MIME value that is kept as it is */
#define FILES_BYTES     (16 * 1024)
#define WARNING_BYTES   512
#define WARNINGS_MAX    50
#define RESULTS_MAX     200
#define SCALES          12

void result_init(struct result *r, const char *execution_id, const char *language)
{
    *r = (struct result){
        .execution_id = execution_id, .language = language, .exit_code = OUTCOME_NO_EXIT_CODE};
    capture_init(&r->out, 2 * STREAM_BYTES);
    capture_init(&r->err, 2 * STREAM_BYTES);
    r->results = json_array();
    r->files = json_array();
    r->warnings = json_array();
}

void result_fini(struct result *r)
{
    capture_fini(&r->out);
    capture_fini(&r->err);
    json_decref(r->results);
    json_decref(r->files);
    json_decref(r->warnings);
    free(r->error);
    free(r->error_name);
    free(r->error_value);
    free(r->traceback);
    free(r->state_lost);
    memset(r, 0, sizeof *r);
}

json_t *result_add_bundle(struct result *r, const json_t *bundle, bool is_main, const json_t *refs)
{
    if (json_array_size(r->results) >= RESULTS_MAX) {
        if (!r->results_full)
            result_warn(r, "more than %d results; the rest is only in the reply", RESULTS_MAX);
        r->results_full = true;
        return NULL;
    }
    json_t *data = json_object(), *omitted = json_object();
    const char *mime;
    json_t *value;
    json_object_foreach((json_t *)bundle, mime, value)
    {
        size_t len = 0;
        char *text = jsonx_dump(value, &len);
        if (json_object_get(refs, mime) != NULL)
            ; /* told by refs */
        else if (text != NULL && len <= VALUE_BYTES && jsonx_depth(value) <= RESULT_DEPTH_MAX)
            json_object_set(data, mime, value);
        else
            json_object_set_new(omitted, mime, json_integer((json_int_t)len));
        free(text);
    }
    json_t *entry = json_pack("{s:o,s:b}", "data", data, "main", is_main);
    if (json_object_size(refs) > 0)
        json_object_set(entry, "refs", (json_t *)refs);
    if (json_object_size(omitted) > 0)
        json_object_set(entry, "omitted", omitted);
    json_decref(omitted);
    json_array_append_new(r->results, entry);
    return entry;
}

void result_warn(struct result *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = utf8_cut(text, strlen(text), WARNING_BYTES);
    if (json_array_size(r->warnings) < WARNINGS_MAX)
        json_array_append_new(r->warnings, jsonx_string(text, len));
}

static void replace(char **slot, const char *text)
{
    if (text == NULL)
        return;
    free(*slot);
    *slot = mem_strdup(text);
}

void result_take_end(struct result *r, const struct driver_end *end)
{
    replace(&r->error_name, end->error_name);
    replace(&r->error_value, end->error_value);
    replace(&r->traceback, end->traceback);
    replace(&r->state_lost, end->state_lost);
    r->exit_code = end->exit_code;
    if (end->message != NULL && end->message[0] != '\0') {
        replace(&r->error, end->message);
    } else if (end->error_name != NULL && end->error_name[0] != '\0') {
        free(r->error);
        bool has_value = end->error_value != NULL && end->error_value[0] != '\0';
        r->error = has_value ? mem_printf("%s: %s", end->error_name, end->error_value)
                             : mem_strdup(end->error_name);
    }
    for (size_t i = 0; i < json_array_size(end->warnings); i++)
        result_warn(r, "%s", json_string_value(json_array_get(end->warnings, i)));
}

int result_exit_code(const struct result *r, enum outcome outcome)
{
    int code = outcome_row(outcome)->exit_code;
    return code == OUTCOME_EXIT_FROM_CODE ? (r->exit_code > 0 ? r->exit_code : 1) : code;
}

static json_t *cut_string(const char *text, size_t max)
{
    if (text == NULL)
        return json_null();
    size_t len = strlen(text);
    struct capture c;
    long long dropped;
    capture_init(&c, 2 * TRACEBACK_BYTES);
    capture_add(&c, text, len);
    char *cut = capture_text(&c, max, &len, &dropped);
    json_t *s = jsonx_string(cut, len);
    free(cut);
    capture_fini(&c);
    return s;
}

static json_t *stream(const struct capture *c, size_t max, json_t *truncated, const char *name)
{
    size_t len;
    long long dropped;
    char *text = capture_text(c, max, &len, &dropped);
    json_t *s = jsonx_string(text, len);
    free(text);
    json_object_set_new(truncated, name, json_integer(dropped));
    return s;
}

/* The first entries of an array whose text fits into max bytes. */
static json_t *cut_array(const json_t *all, size_t max, const char *what, json_t *warnings)
{
    json_t *kept = json_array();
    size_t used = 0;
    for (size_t i = 0; i < json_array_size(all); i++) {
        size_t len = 0;
        free(jsonx_dump(json_array_get(all, i), &len));
        used += len + 1;
        if (used > max) {
            char note[80];
            snprintf(note, sizeof note, "%zu of %zu %s are only in the reply",
                     json_array_size(all) - i, json_array_size(all), what);
            json_array_append_new(warnings, json_string(note));
            break;
        }
        json_array_append(kept, json_array_get(all, i));
    }
    return kept;
}

/* null when all went well; else a sentence, if need be one that only says the reason. */
static json_t *error_of(const struct result *r, enum outcome outcome, size_t max)
{
    char reason[80];
    if (outcome == OUTCOME_OK)
        return json_null();
    snprintf(reason, sizeof reason, "The run ended: %s.", outcome_row(outcome)->reason);
    return cut_string(r->error != NULL ? r->error : reason, max);
}

static json_t *build(const struct result *r, enum outcome outcome, int scale)
{
    const struct outcome_row *row = outcome_row(outcome);
    int exit_code = result_exit_code(r, outcome);
    json_t *truncated = json_object(), *warnings = json_array();
    for (size_t i = 0; i < json_array_size(r->warnings) >> (scale / 2); i++)
        json_array_append(warnings, json_array_get(r->warnings, i));
    json_t *o = json_object();
    json_object_set_new(o, "v", json_integer(1));
    json_object_set_new(o, "executionId", json_string(r->execution_id));
    json_object_set_new(o, "state",
                        json_string(!row->completes         ? "failed"
                                    : outcome == OUTCOME_OK ? "completed"
                                                            : "error"));
    json_object_set_new(o, "reason", json_string(row->reason));
    json_object_set_new(o, "language", cut_string(r->language, 64));
    json_object_set_new(o, "stdout", stream(&r->out, STREAM_BYTES >> scale, truncated, "stdout"));
    json_object_set_new(o, "stderr", stream(&r->err, STREAM_BYTES >> scale, truncated, "stderr"));
    json_object_set_new(o, "exitCode",
                        exit_code == OUTCOME_NO_EXIT_CODE ? json_null() : json_integer(exit_code));
    json_object_set_new(o, "executionTimeMs", json_integer(r->run_ms));
    json_object_set_new(o, "error", error_of(r, outcome, ERROR_BYTES >> (scale / 2)));
    json_object_set_new(o, "errorDetail",
                        r->error_name == NULL
                            ? json_null()
                            : json_pack("{s:o,s:o,s:o}", "name", cut_string(r->error_name, 256),
                                        "value",
                                        cut_string(r->error_value != NULL ? r->error_value : "",
                                                   ERROR_BYTES >> (scale / 2)),
                                        "traceback",
                                        cut_string(r->traceback != NULL ? r->traceback : "",
                                                   TRACEBACK_BYTES >> scale)));
    json_object_set_new(o, "results",
                        cut_array(r->results, RESULTS_BYTES >> scale, "results", warnings));
    json_object_set_new(o, "files",
                        cut_array(r->files, FILES_BYTES >> (scale / 2), "files", warnings));
    json_object_set_new(o, "truncated", truncated);
    json_object_set_new(o, "sandbox",
                        json_pack("{s:b,s:b,s:s?}", "reused", r->reused, "resumed", r->resumed,
                                  "stateLost", r->state_lost));
    json_object_set_new(o, "timings",
                        json_pack("{s:I,s:I,s:I,s:I}", "queuedMs", (json_int_t)r->queued_ms,
                                  "sandboxMs", (json_int_t)r->sandbox_ms, "runMs",
                                  (json_int_t)r->run_ms, "filesMs", (json_int_t)r->files_ms));
    json_object_set_new(o, "warnings", warnings);
    return o;
}

char *result_dump(const struct result *r, enum outcome outcome, size_t max, size_t *len)
{
    for (int scale = 0;; scale++) {
        json_t *o = build(r, outcome, scale);
        char *text = jsonx_dump(o, len);
        json_decref(o);
        if (text != NULL && (*len <= max || scale == SCALES))
            return text;
        free(text);
        if (scale == SCALES) /* unreachable: every part is bounded by then */
            abort();
    }
}
