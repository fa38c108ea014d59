/* Gathers what an execution gave and makes its result: the job's return value, small enough to live
 * in Redis twice. */
#include "worker/result.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "common/utf8.h"

#include <stdarg.h>
#include <stdint.h>
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
#define RESULT_BYTES    600 /* of one without output */

void result_init(struct result *r, const char *execution_id, const char *language)
{
    *r = (struct result){
        .execution_id = execution_id, .language = language, .exit_code = OUTCOME_NO_EXIT_CODE};
    capture_init(&r->out, 2 * STREAM_BYTES);
    capture_init(&r->err, 2 * STREAM_BYTES);
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

/* Appends to a list that is made on first need: most runs have nothing for it. */
static void list_append_new(json_t **list, json_t *value)
{
    if (*list == NULL)
        *list = json_array();
    json_array_append_new(*list, value);
}

void result_add_file(struct result *r, json_t *file)
{
    list_append_new(&r->files, file);
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
    list_append_new(&r->results, entry);
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
        list_append_new(&r->warnings, jsonx_string(text, len));
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
    r->reused = r->reused && !end->anew;
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

/* ---- the text ---- */

static void put(struct buf *out, const char *text)
{
    if (buf_append_str(out, text) != 0)
        abort();
}

static void put_number(struct buf *out, const char *before, long long value)
{
    char digits[24];
    put(out, before);
    if (buf_append(out, digits, text_from_int(digits, value)) != 0)
        abort();
}

static void put_string(struct buf *out, const char *text, size_t len)
{
    struct buf repaired;
    buf_init(&repaired, SIZE_MAX / 4);
    int rc;
    if (utf8_valid(text, len))
        rc = jsonx_quote(out, text, len);
    else
        rc = utf8_repair(text, len, &repaired) != 0 ||
             jsonx_quote(out, repaired.data, repaired.len) != 0;
    buf_fini(&repaired);
    if (rc != 0)
        abort();
}

static void put_cut(struct buf *out, const char *text, size_t max)
{
    size_t len = strlen(text);
    if (len <= max) {
        put_string(out, text, len);
        return;
    }
    struct capture c;
    long long dropped;
    capture_init(&c, 2 * TRACEBACK_BYTES);
    capture_add(&c, text, len);
    char *cut = capture_text(&c, max, &len, &dropped);
    put_string(out, cut, len);
    free(cut);
    capture_fini(&c);
}

/* Returns how many bytes were left out. */
static long long put_stream(struct buf *out, const struct capture *c, size_t max)
{
    size_t len = 0;
    long long dropped = 0;
    char *text = c->total > 0 ? capture_text(c, max, &len, &dropped) : NULL;
    put_string(out, text != NULL ? text : "", len);
    free(text);
    return dropped;
}

/* The first entries of an array whose text fits into max bytes; what is left out is noted. */
static void put_array(struct buf *out, const json_t *all, size_t max, const char *what,
                      json_t **notes)
{
    size_t used = 0;
    put(out, "[");
    for (size_t i = 0; i < json_array_size(all); i++) {
        size_t len = 0;
        char *text = jsonx_dump(json_array_get(all, i), &len);
        used += len + 1;
        if (used > max || text == NULL) {
            char note[80];
            snprintf(note, sizeof note, "%zu of %zu %s are only in the reply",
                     json_array_size(all) - i, json_array_size(all), what);
            list_append_new(notes, json_string(note));
            free(text);
            break;
        }
        put(out, i > 0 ? "," : "");
        put(out, text);
        free(text);
    }
    put(out, "]");
}

/* null when all went well; else a sentence, if need be one that only says the reason. */
static void put_error(struct buf *out, const struct result *r, enum outcome outcome, size_t max)
{
    char reason[80];
    put(out, ",\"error\":");
    if (outcome == OUTCOME_OK) {
        put(out, "null");
        return;
    }
    snprintf(reason, sizeof reason, "The run ended: %s.", outcome_row(outcome)->reason);
    put_cut(out, r->error != NULL ? r->error : reason, max);
}

static void put_detail(struct buf *out, const struct result *r, int scale)
{
    put(out, ",\"errorDetail\":");
    if (r->error_name == NULL) {
        put(out, "null");
        return;
    }
    put(out, "{\"name\":");
    put_cut(out, r->error_name, 256);
    put(out, ",\"value\":");
    put_cut(out, r->error_value != NULL ? r->error_value : "", ERROR_BYTES >> (scale / 2));
    put(out, ",\"traceback\":");
    put_cut(out, r->traceback != NULL ? r->traceback : "", TRACEBACK_BYTES >> scale);
    put(out, "}");
}

static void put_head(struct buf *out, const struct result *r, enum outcome outcome)
{
    const struct outcome_row *row = outcome_row(outcome);
    put(out, "{\"v\":1,\"executionId\":");
    put_string(out, r->execution_id, strlen(r->execution_id));
    put(out, ",\"state\":\"");
    put(out, !row->completes ? "failed" : outcome == OUTCOME_OK ? "completed" : "error");
    put(out, "\",\"reason\":\"");
    put(out, row->reason);
    put(out, "\",\"language\":");
    put_cut(out, r->language, 64);
}

static void put_sandbox(struct buf *out, const struct result *r)
{
    put(out, ",\"sandbox\":{\"reused\":");
    put(out, r->reused ? "true" : "false");
    put(out, ",\"resumed\":");
    put(out, r->resumed ? "true" : "false");
    put(out, ",\"stateLost\":");
    if (r->state_lost != NULL)
        put_string(out, r->state_lost, strlen(r->state_lost));
    else
        put(out, "null");
    put_number(out, "},\"timings\":{\"queuedMs\":", r->queued_ms);
    put_number(out, ",\"sandboxMs\":", r->sandbox_ms);
    put_number(out, ",\"runMs\":", r->run_ms);
    put_number(out, ",\"filesMs\":", r->files_ms);
    put(out, "}");
}

/* The notes of this text come after the warnings that are kept. */
static void put_warnings(struct buf *out, const struct result *r, int scale, const json_t *notes)
{
    size_t kept = json_array_size(r->warnings) >> (scale / 2), all = kept + json_array_size(notes);
    put(out, ",\"warnings\":[");
    for (size_t i = 0; i < all; i++) {
        const json_t *one =
            i < kept ? json_array_get(r->warnings, i) : json_array_get(notes, i - kept);
        put(out, i > 0 ? "," : "");
        put_string(out, json_string_value(one), json_string_length(one));
    }
    put(out, "]}");
}

static void put_all(struct buf *out, const struct result *r, enum outcome outcome, int scale)
{
    int exit_code = result_exit_code(r, outcome);
    json_t *notes = NULL;
    put_head(out, r, outcome);
    put(out, ",\"stdout\":");
    long long cut_out = put_stream(out, &r->out, STREAM_BYTES >> scale);
    put(out, ",\"stderr\":");
    long long cut_err = put_stream(out, &r->err, STREAM_BYTES >> scale);
    if (exit_code == OUTCOME_NO_EXIT_CODE)
        put(out, ",\"exitCode\":null");
    else
        put_number(out, ",\"exitCode\":", exit_code);
    put_number(out, ",\"executionTimeMs\":", r->run_ms);
    put_error(out, r, outcome, ERROR_BYTES >> (scale / 2));
    put_detail(out, r, scale);
    put(out, ",\"results\":");
    put_array(out, r->results, RESULTS_BYTES >> scale, "results", &notes);
    put(out, ",\"files\":");
    put_array(out, r->files, FILES_BYTES >> (scale / 2), "files", &notes);
    put_number(out, ",\"truncated\":{\"stdout\":", cut_out);
    put_number(out, ",\"stderr\":", cut_err);
    put(out, "}");
    put_sandbox(out, r);
    put_warnings(out, r, scale, notes);
    json_decref(notes);
}

char *result_dump(const struct result *r, enum outcome outcome, size_t max, size_t *len)
{
    struct buf out;
    buf_init(&out, SIZE_MAX / 4); /* its parts are bounded */
    if (buf_reserve(&out, RESULT_BYTES) != 0)
        abort();
    for (int scale = 0;; scale++) {
        buf_clear(&out);
        put_all(&out, r, outcome, scale);
        *len = out.len;
        if (out.len <= max || scale == SCALES)
            return buf_steal(&out);
    }
}
