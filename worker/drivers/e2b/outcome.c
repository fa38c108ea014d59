/* What the lines of a stream mean: output, results, and how the code ended. */
#include "common/buf.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MIME "application/vnd.sandpiper.files+json"

static const struct {
    const char *name, *mime;
} kinds[] = {
    {"text", "text/plain"},        {"html", "text/html"},
    {"markdown", "text/markdown"}, {"svg", "image/svg+xml"},
    {"png", "image/png"},          {"jpeg", "image/jpeg"},
    {"pdf", "application/pdf"},    {"latex", "text/latex"},
    {"json", "application/json"},  {"javascript", "application/javascript"},
    {"data", "e2b/data"},          {"chart", "e2b/chart"},
};

/* The listing of our hooks, taken out of extra; the nonce shows that it is this run's. */
static void take_listing(struct e2b_run *run, json_t *extra)
{
    json_t *listing = json_object_get(extra, FILES_MIME);
    if (listing == NULL)
        return;
    if (strcmp(jsonx_get_str(listing, "nonce", ""), run->nonce) == 0) {
        json_decref(run->outcome.listing);
        run->outcome.listing = json_incref(listing);
    }
    json_object_del(extra, FILES_MIME);
}

static void on_result(struct e2b_run *run, const json_t *line)
{
    json_t *bundle = json_object(), *value, *extra = json_object_get(line, "extra");
    const char *mime;
    if (json_is_object(extra)) {
        take_listing(run, extra);
        json_object_foreach(extra, mime, value) if (!json_is_null(value))
            json_object_set(bundle, mime, value);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        value = json_object_get(line, kinds[i].name);
        if (value != NULL && !json_is_null(value))
            json_object_set(bundle, kinds[i].mime, value);
    }
    if (json_object_size(bundle) > 0)
        run->events.on_result(run->data, bundle, jsonx_get_bool(line, "is_main_result", false));
    json_decref(bundle);
}

/* One failure may be reported twice; the first line about it says most. */
static void on_error(struct e2b_run *run, const json_t *line)
{
    struct e2b_outcome *o = &run->outcome;
    struct buf clean;
    if (o->has_error)
        return;
    o->has_error = true;
    o->name = mem_strdup(jsonx_get_str(line, "name", "Error"));
    o->value = mem_strdup(jsonx_get_str(line, "value", ""));
    const char *trace = jsonx_get_str(line, "traceback", "");
    buf_init(&clean, strlen(trace) + 1);
    o->traceback = mem_strdup(
        text_strip_ansi(trace, strlen(trace), &clean) == 0 && clean.data != NULL ? clean.data : "");
    buf_fini(&clean);
}

/* Does the text name our line as a magic that the kernel does not know? The nonce was made for this
 * one request, so before its code has run nobody else can say it. */
static bool names_line(const struct e2b_run *run, const char *text)
{
    char name[60];
    snprintf(name, sizeof name, "%%sandpiper-%s", run->nonce);
    return strstr(text, name) != NULL;
}

/* A refusal is the first that is heard, and nothing but it comes. */
static bool is_refusal(struct e2b_run *run, const char *type, const json_t *line)
{
    struct e2b_outcome *o = &run->outcome;
    bool says = strcmp(type, "stderr") == 0 || strcmp(type, "error") == 0;
    if (!run->python || o->spoke ||
        (!says && strcmp(type, "stdout") != 0 && strcmp(type, "result") != 0))
        return false;
    if (says && !o->refused)
        o->refused = names_line(run, jsonx_get_str(line, "text", "")) ||
                     names_line(run, jsonx_get_str(line, "value", ""));
    o->spoke = !says || !o->refused;
    return o->refused && says;
}

void e2b_outcome_line(struct e2b_run *run, const json_t *line)
{
    const char *type = jsonx_get_str(line, "type", "");
    bool is_stdout = strcmp(type, "stdout") == 0;
    if (is_refusal(run, type, line))
        return;
    if (is_stdout || strcmp(type, "stderr") == 0) {
        const json_t *text = json_object_get(line, "text");
        if (json_string_length(text) > 0)
            run->events.on_output(run->data, is_stdout ? DRIVER_STDOUT : DRIVER_STDERR,
                                  json_string_value(text), json_string_length(text));
    } else if (strcmp(type, "result") == 0) {
        on_result(run, line);
    } else if (strcmp(type, "error") == 0) {
        on_error(run, line);
    } else if (strcmp(type, "number_of_executions") == 0 && run->python) {
        long long count = jsonx_get_int(line, "execution_count", 0);
        run->outcome.anew = count > 0 && count <= run->box->cells;
        run->box->cells = count;
    }
}

void e2b_outcome_fini(struct e2b_outcome *o)
{
    free(o->name);
    free(o->value);
    free(o->traceback);
    json_decref(o->listing);
    *o = (struct e2b_outcome){0};
}

/* Errors that the server makes up when it lost the kernel. */
static bool judge_loss(struct e2b_run *run)
{
    struct e2b_outcome *o = &run->outcome;
    if (!o->has_error || o->listing != NULL)
        return false;
    if (strcmp(o->name, "ContextRestarting") == 0) {
        run->end = (struct driver_end){
            .kind = DRIVER_END_KERNEL_DIED,
            .exit_code = 1,
            .message = "The interpreter died (a crash, an exit of its process, or memory that ran "
                       "out); its state is lost.",
            .state_lost = "kernel_died"};
        run->box->restarted = true;
    } else if (strcmp(o->name, "WebSocketError") == 0 ||
               strcmp(o->name, "UnexpectedEndOfExecution") == 0 ||
               strcmp(o->name, "ExecutionAborted") == 0) {
        run->end = (struct driver_end){
            .kind = DRIVER_END_OUTCOME_UNKNOWN,
            .exit_code = 1,
            .message = "The sandbox lost sight of its interpreter while the code ran; how far it "
                       "came is not known."};
    } else {
        return false;
    }
    run->box->prepared = false;
    e2b_run_unsettled(run); /* its next run would hang: seen on the real server */
    return true;
}

static void judge_code(struct e2b_run *run)
{
    struct e2b_outcome *o = &run->outcome;
    const json_t *exit = json_object_get(o->listing, "exit");
    const json_t *error = json_object_get(o->listing, "error");
    run->end = (struct driver_end){.kind = DRIVER_END_OK};
    if (json_is_array(exit) && json_is_integer(json_array_get(exit, 0))) {
        run->end.exit_code = (int)(json_integer_value(json_array_get(exit, 0)) & 0xff);
        if (run->end.exit_code == 0)
            return;
    } else if (!o->has_error && !json_is_object(error)) {
        return;
    } else {
        run->end.exit_code = 1;
    }
    run->end.kind = DRIVER_END_CODE_ERROR;
    run->end.error_name = o->name != NULL ? o->name : jsonx_get_str(error, "name", "Error");
    run->end.error_value = o->value != NULL ? o->value : jsonx_get_str(error, "value", "");
    if (o->name == NULL && json_is_array(exit)) {
        const char *text = json_string_value(json_array_get(exit, 1));
        run->end.error_name = "SystemExit";
        run->end.error_value = text != NULL ? text : "";
    }
    run->end.traceback = o->traceback != NULL ? o->traceback : "";
}

bool e2b_outcome_judge(struct e2b_run *run)
{
    bool listed = run->outcome.listing != NULL;
    if (run->python)
        run->box->prepared = listed; /* else its hooks are gone */
    if (judge_loss(run))
        return listed;
    judge_code(run);
    return listed;
}
