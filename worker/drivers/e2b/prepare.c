/* What a sandbox needs before a run's code: kernel hooks or a context, input files, scripts; all
 * side by side. */
#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_run.h"
#include "worker/drivers/e2b_scripts.h"
#include "worker/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOOKS_LIMIT_MS 15000 /* an unheeded run may still hold the kernel */
#define TRIES_MAX      8
#define CONTEXT_MS     60000
#define HOME_CELL      "\n__import__(\"os\").chdir(\"" E2B_HOME "\")\n"

struct input_upload {
    struct e2b_prepare *prepare;
    size_t index; /* of the run's inputs */
    struct e2b_upload *upload;
};

struct e2b_prepare {
    struct e2b_run *run;
    size_t pending;
    struct e2b_exec *hooks;
    struct e2b_settle *settle;
    struct http_request *context;
    struct e2b_rpc *rpc;
    struct input_upload *inputs;
    struct e2b_upload *scripts_upload;
    struct e2b_scripts *scripts;
    ev_timer timer;
    void (*step)(struct e2b_prepare *p);
    int tries;
    bool beside;       /* only the hooks are left, and the run goes on without waiting for them */
    bool hooks_failed; /* its cell raised */
    bool killed;       /* a run that did not end was killed */
};

static void prepare_free(struct e2b_prepare *p)
{
    ev_timer_stop(p->run->e2b->host->loop, &p->timer);
    if (p->hooks != NULL)
        p->run->box->unsettled = true; /* closing its connection interrupts what runs */
    e2b_exec_cancel(p->hooks);
    e2b_settle_cancel(p->settle);
    if (p->context != NULL)
        http_cancel(p->context);
    e2b_rpc_cancel(p->rpc);
    for (size_t i = 0; p->inputs != NULL && i < p->run->input_count; i++)
        e2b_upload_cancel(p->inputs[i].upload);
    e2b_upload_cancel(p->scripts_upload);
    e2b_scripts_free(p->scripts);
    free(p->inputs);
    free(p);
}

void e2b_prepare_cancel(struct e2b_prepare *p)
{
    if (p != NULL)
        prepare_free(p);
}

/* The run went on without waiting: its code's own answer tells how things are, or it was refused
 * and now needs the hooks as if nothing had been tried. Nothing here may touch a kernel that
 * perhaps runs the code. */
static void leave(struct e2b_prepare *p)
{
    struct e2b_run *run = p->run;
    run->prepare = NULL;
    prepare_free(p);
    if (run->awaits_hooks)
        e2b_prepare_start(run);
}

static void renew(struct e2b_prepare *p, const char *why)
{
    e2b_run_renew(p->run, why); /* cancels us */
}

/* True: envd has no word about the sandbox's files for us, and the run looks for it again. */
static bool unreachable(struct e2b_prepare *p, enum e2b_file_result result, const char *why)
{
    if (result == FILE_GONE)
        renew(p, "the sandbox is gone");
    else if (result == FILE_DENIED)
        e2b_run_denied(p->run, why); /* cancels us */
    return result == FILE_GONE || result == FILE_DENIED;
}

static void fail(struct e2b_prepare *p, enum driver_end_kind kind, const char *what,
                 const char *why)
{
    e2b_run_fail(p->run, kind, "%s: %.400s.", what, why); /* cancels us */
}

static void one_done(struct e2b_prepare *p)
{
    struct e2b_run *run = p->run;
    if (--p->pending > 0)
        return;
    bool waited_for = !p->beside || run->awaits_hooks;
    run->box->fresh = false;
    run->uploaded = true;
    run->prepare = NULL;
    if (p->killed)
        run->state_lost = "killed_after_timeout";
    prepare_free(p);
    if (waited_for)
        e2b_run_prepared(run);
}

void e2b_prepare_proven(struct e2b_run *run)
{
    struct e2b_prepare *p = run->prepare;
    if (p == NULL)
        return;
    run->box->prepared = true;
    run->box->unsettled = run->box->restarted = false;
    e2b_exec_cancel(p->hooks);
    p->hooks = NULL;
    e2b_prepare_cancel(p);
    run->prepare = NULL;
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_prepare *p = w->data;
    (void)loop, (void)revents;
    p->step(p);
}

static void later(struct e2b_prepare *p, long long ms, void (*step)(struct e2b_prepare *p))
{
    struct ev_loop *loop = p->run->e2b->host->loop;
    p->step = step;
    ev_now_update(loop);
    ev_timer_stop(loop, &p->timer);
    ev_timer_set(&p->timer, (double)ms / 1000, 0);
    ev_timer_start(loop, &p->timer);
}

/* --- the python kernel --- */

static void send_hooks(struct e2b_prepare *p);

static void on_settled(void *data, enum e2b_settled how)
{
    struct e2b_prepare *p = data;
    p->settle = NULL;
    switch (how) {
    case SETTLED_RESTARTED:
        p->killed = true;
        /* fallthrough */
    case SETTLED_FREE:
        e2b_run_seen_free(p->run);
        if (p->run->box->prepared)
            one_done(p);
        else
            send_hooks(p);
        break;
    case SETTLED_GONE:
        renew(p, "the sandbox is gone");
        break;
    case SETTLED_FAILED:
        fail(p, DRIVER_END_NO_SANDBOX, "The sandbox's interpreter could not be made ready",
             "it is busy and does not restart");
        break;
    }
}

static void settle(struct e2b_prepare *p)
{
    p->settle = e2b_settle_start(p->run->box, NULL, on_settled, p);
}

static void hooks_too_late(struct e2b_prepare *p)
{
    e2b_exec_cancel(p->hooks);
    p->hooks = NULL;
    p->run->box->unsettled = true;
    if (p->beside)
        leave(p);
    else if (++p->tries >= TRIES_MAX)
        fail(p, DRIVER_END_NO_SANDBOX, "The sandbox's interpreter could not be made ready",
             "it does not answer");
    else
        settle(p);
}

static void on_hooks_line(void *data, const json_t *line)
{
    struct e2b_prepare *p = data;
    const char *type = jsonx_get_str(line, "type", "");
    if (strcmp(type, "number_of_executions") == 0)
        p->run->box->cells = jsonx_get_int(line, "execution_count", 0);
    if (strcmp(type, "error") != 0)
        return;
    p->hooks_failed = true;
    struct log_ctx ctx = e2b_run_ctx(p->run);
    log_write(LOG_LEVEL_WARN, &ctx, "E2B: the kernel could not be prepared: %.60s: %.200s",
              jsonx_get_str(line, "name", ""), jsonx_get_str(line, "value", ""));
}

static void on_hooks_done(void *data, const struct e2b_exec_end *end)
{
    struct e2b_prepare *p = data;
    struct e2b_box *box = p->run->box;
    p->hooks = NULL;
    ev_timer_stop(p->run->e2b->host->loop, &p->timer);
    if (end->result == EXEC_COMPLETE && !p->hooks_failed) {
        box->prepared = true;
        box->unsettled = box->restarted = false;
        one_done(p);
    } else if (p->beside) {
        leave(p);
    } else if (end->result == EXEC_GONE) {
        renew(p, "the sandbox is gone");
    } else if (end->result == EXEC_DENIED) {
        e2b_run_denied(p->run, end->message);
    } else if (end->result == EXEC_FULL) {
        renew(p, end->message); /* connecting says it definitively */
    } else if (++p->tries >= TRIES_MAX || end->result == EXEC_REFUSED) {
        fail(p, DRIVER_END_NO_SANDBOX, "The sandbox's interpreter could not be made ready",
             end->result == EXEC_COMPLETE ? "its kernel does not take the hooks" : end->message);
    } else if (end->result == EXEC_COMPLETE) { /* the kernel had just died, perhaps */
        p->hooks_failed = false;
        settle(p);
    } else {
        later(p, e2b_backoff_ms(p->tries, end->retry_after_ms), send_hooks);
    }
}

static void send_hooks(struct e2b_prepare *p)
{
    struct e2b_run *run = p->run;
    /* After a restart the kernel is in Jupyter's folder. */
    char *key = e2b_guard_key_line(run->box);
    char *cell =
        mem_printf("%s%s%s", key, embedded_prepare_py, run->box->restarted ? HOME_CELL : "");
    p->hooks = e2b_exec_start(run->box, &(struct e2b_exec_options){
                                            .code = cell,
                                            .code_len = strlen(cell),
                                            .stall_ms = HOOKS_LIMIT_MS,
                                            .line_max = 1 << 20,
                                            .wait_end = true,
                                            .on_line = on_hooks_line,
                                            .on_done = on_hooks_done,
                                            .data = p,
                                        });
    free(cell);
    free(key);
    later(p, HOOKS_LIMIT_MS, hooks_too_late);
}

/* --- another language's context --- */

static void ask_contexts(struct e2b_prepare *p);

static void context_failed(struct e2b_prepare *p, const struct http_answer *a)
{
    char *why = e2b_box_redact(p->run->box, a->result != HTTP_DONE ? a->error
                                            : a->body != NULL      ? a->body
                                                                   : "");
    if (a->status == 502 && strstr(why, "not found") != NULL)
        renew(p, "the sandbox is gone");
    else if (a->status == 401 || a->status == 403)
        e2b_run_denied(p->run, why);
    else if (a->status == 400 || a->status == 500 || a->status == 422)
        fail(p, DRIVER_END_BAD_JOB, "The sandbox cannot run this language", why);
    else if (++p->tries < TRIES_MAX)
        later(p, e2b_backoff_ms(p->tries, a->retry_after_ms), ask_contexts);
    else
        fail(p, DRIVER_END_NO_SANDBOX, "No context for the language could be had", why);
    free(why);
}

static int context_call(struct e2b_prepare *p, const char *method, json_t *body,
                        void (*done)(void *data, const struct http_answer *a))
{
    struct e2b_headers headers;
    size_t len = 0;
    char err[200], *text = body != NULL ? jsonx_dump(body, &len) : NULL;
    char *url = e2b_box_url(p->run->box, E2B_PORT_INTERPRETER, "/contexts");
    e2b_headers_init(&headers, p->run->box, E2B_PORT_INTERPRETER, "application/json");
    p->context = http_start(p->run->e2b->http,
                            &(struct http_options){.method = method,
                                                   .kind = "context",
                                                   .url = url,
                                                   .headers = (const char *const *)headers.lines,
                                                   .body = text,
                                                   .body_len = len,
                                                   .on_done = done,
                                                   .data = p,
                                                   .total_timeout_ms = CONTEXT_MS},
                            err, sizeof err);
    e2b_headers_fini(&headers);
    json_decref(body);
    free(text);
    free(url);
    return p->context != NULL ? 0 : -1;
}

static bool keep_context(struct e2b_prepare *p, const json_t *context)
{
    const char *id = jsonx_get_str(context, "id", "");
    if (!e2b_is_plain(id))
        return false;
    json_object_set_new(p->run->box->contexts, p->run->language, json_string(id));
    one_done(p);
    return true;
}

static void on_context(void *data, const struct http_answer *a)
{
    struct e2b_prepare *p = data;
    char err[120];
    p->context = NULL;
    json_t *context = a->result == HTTP_DONE && a->status == 200
                          ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err)
                          : NULL;
    if (context == NULL || !keep_context(p, context))
        context_failed(p, a);
    json_decref(context);
}

static void make_context(struct e2b_prepare *p)
{
    json_t *body = json_pack("{s:s,s:s}", "language", p->run->language, "cwd", E2B_HOME);
    if (context_call(p, "POST", body, on_context) != 0)
        fail(p, DRIVER_END_BAD_JOB, "The sandbox cannot run this language", "its name is odd");
}

static void on_contexts(void *data, const struct http_answer *a)
{
    struct e2b_prepare *p = data;
    char err[120];
    size_t i;
    json_t *c, *mine = NULL;
    p->context = NULL;
    json_t *contexts = a->result == HTTP_DONE && a->status == 200
                           ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err)
                           : NULL;
    if (contexts == NULL) {
        context_failed(p, a);
        return;
    }
    json_array_foreach(contexts, i, c) if (strcmp(jsonx_get_str(c, "language", ""),
                                                  p->run->language) == 0) mine = c;
    if (mine == NULL || !keep_context(p, mine))
        make_context(p);
    json_decref(contexts);
}

static void ask_contexts(struct e2b_prepare *p)
{
    if (context_call(p, "GET", NULL, on_contexts) != 0)
        fail(p, DRIVER_END_NO_SANDBOX, "No context for the language could be had", "bad address");
}

/* --- the output folder, where no hook empties it --- */

static void on_folder_made(void *data, enum e2b_file_result result, const json_t *body,
                           const char *code)
{
    struct e2b_prepare *p = data;
    (void)body;
    p->rpc = NULL;
    if (unreachable(p, result, code))
        return;
    if (result != FILE_OK && strcmp(code, "already_exists") != 0)
        fail(p, DRIVER_END_NO_SANDBOX, "The output folder could not be made", code);
    else
        one_done(p);
}

static void on_folder_removed(void *data, enum e2b_file_result result, const json_t *body,
                              const char *code)
{
    struct e2b_prepare *p = data;
    (void)body;
    p->rpc = NULL;
    if (unreachable(p, result, code))
        return;
    if (result != FILE_OK && strcmp(code, "not_found") != 0)
        fail(p, DRIVER_END_NO_SANDBOX, "The output folder could not be emptied", code);
    else
        p->rpc = e2b_rpc_start(p->run->box, "filesystem.Filesystem/MakeDir",
                               json_pack("{s:s}", "path", E2B_OUTPUT), on_folder_made, p);
}

/* --- files --- */

static void on_uploaded(void *data, enum e2b_file_result result, const char *message)
{
    struct input_upload *u = data;
    struct e2b_prepare *p = u->prepare;
    char what[320];
    u->upload = NULL;
    if (result == FILE_OK) {
        one_done(p);
        return;
    }
    if (unreachable(p, result, message))
        return;
    snprintf(what, sizeof what, "The input file %.200s cannot be put into the sandbox",
             p->run->inputs[u->index].filename);
    fail(p, result == FILE_REFUSED ? DRIVER_END_BAD_JOB : DRIVER_END_NO_SANDBOX, what, message);
}

static void upload_inputs(struct e2b_prepare *p)
{
    struct e2b_run *run = p->run;
    if (run->input_count == 0 || run->uploaded)
        return;
    p->inputs = mem_alloc(run->input_count * sizeof *p->inputs);
    for (size_t i = 0; i < run->input_count; i++) {
        char *path = mem_printf(E2B_HOME "/%s", run->inputs[i].filename);
        struct e2b_part part = {path, run->inputs[i].fd, NULL, run->inputs[i].size};
        p->inputs[i] = (struct input_upload){.prepare = p, .index = i};
        p->pending++;
        p->inputs[i].upload = e2b_upload_start(run->box, &part, 1, on_uploaded, &p->inputs[i]);
        free(path);
    }
}

static void on_scripts(void *data, enum e2b_file_result result, const char *message)
{
    struct e2b_prepare *p = data;
    p->scripts_upload = NULL;
    if (unreachable(p, result, message))
        return;
    if (result != FILE_OK)
        e2b_run_warn(p->run, "the scripts folder could not be put into the sandbox: %.200s",
                     message);
    one_done(p);
}

static void upload_scripts(struct e2b_prepare *p)
{
    const char *folder = settings_str(p->run->settings, SETTING_E2B_SCRIPTS_DIR);
    if (!p->run->box->fresh || folder[0] == '\0')
        return;
    p->scripts = e2b_scripts_read(folder);
    if (p->scripts->count == 0)
        return;
    p->pending++;
    p->scripts_upload =
        e2b_upload_start(p->run->box, p->scripts->parts, p->scripts->count, on_scripts, p);
}

void e2b_prepare_start(struct e2b_run *run)
{
    struct e2b_prepare *p = mem_alloc(sizeof *p);
    struct e2b_box *box = run->box;
    p->run = run;
    run->prepare = p;
    ev_timer_init(&p->timer, on_timer, 0, 0);
    p->timer.data = p;
    p->pending = 1; /* ours, until all is under way */
    upload_inputs(p);
    upload_scripts(p);
    if (run->python && (!box->prepared || box->unsettled)) {
        p->pending++;
        if (box->unsettled)
            settle(p);
        else
            send_hooks(p);
    }
    if (!run->python) {
        p->pending++;
        p->rpc = e2b_rpc_start(box, "filesystem.Filesystem/Remove",
                               json_pack("{s:s}", "path", E2B_OUTPUT), on_folder_removed, p);
        if (json_object_get(box->contexts, run->language) == NULL) {
            p->pending++;
            ask_contexts(p);
        }
    }
    /* A sandbox that was found running takes the hooks and the code in one wave. A new one may not
     * work at all, and in one that was paused an old run may go on: that must show before the job
     * counts as run. */
    p->beside =
        p->hooks != NULL && p->pending == 2 && run->reused && !run->resumed && !run->delivered;
    bool beside = p->beside;
    one_done(p);
    if (beside)
        e2b_run_prepared(run);
}
