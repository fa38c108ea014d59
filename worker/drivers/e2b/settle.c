/* Is the kernel free? A probe cell must answer soon, else it is interrupted again, and at last its
 * context is restarted. */
#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "worker/drivers/e2b_exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_STALL_MS  10000 /* the timer is faster */
#define RESTART_TRIES   3
#define RESTART_LIMIT_S 14.0 /* all in all, after the probes */

/* An interrupt that comes before the cell has begun, or between two of its steps, is lost, and a
 * probe sent while the kernel still unwinds may be: giving a probe up closes its connection, which
 * interrupts once more. So state is lost only where the code really resists. */
static const double probe_s[] = {2.0, 3.0, 5.0};
#define PROBES  (int)(sizeof probe_s / sizeof probe_s[0])
#define PAUSE_S 0.5 /* before the next probe: else that interrupt may strike it */

struct e2b_settle {
    struct e2b_box *box;
    char *context;
    void (*done)(void *data, enum e2b_settled how);
    void *data;
    struct e2b_exec *probe;
    struct http_request *request;
    ev_timer timer;
    int tries, probes;
    bool pausing, restarting;
    bool aborted, died; /* what the probe met */
};

static void settle_free(struct e2b_settle *s)
{
    ev_timer_stop(s->box->e2b->host->loop, &s->timer);
    e2b_exec_cancel(s->probe);
    if (s->request != NULL)
        http_cancel(s->request);
    e2b_box_unref(s->box);
    free(s->context);
    free(s);
}

void e2b_settle_cancel(struct e2b_settle *s)
{
    if (s != NULL)
        settle_free(s);
}

static void finish(struct e2b_settle *s, enum e2b_settled how)
{
    void (*done)(void *, enum e2b_settled) = s->done;
    void *data = s->data;
    if (how == SETTLED_FREE || how == SETTLED_RESTARTED)
        s->box->unsettled = false;
    if (how == SETTLED_RESTARTED && s->context == NULL) {
        s->box->prepared = false;
        s->box->restarted = true;
    }
    settle_free(s);
    done(data, how);
}

static void arm(struct e2b_settle *s, double seconds)
{
    ev_now_update(s->box->e2b->host->loop);
    ev_timer_stop(s->box->e2b->host->loop, &s->timer);
    ev_timer_set(&s->timer, seconds, 0);
    ev_timer_start(s->box->e2b->host->loop, &s->timer);
}

static int call(struct e2b_settle *s, const char *method, const char *path,
                void (*on_done)(void *data, const struct http_answer *a))
{
    struct e2b_headers headers;
    char err[200], *url = e2b_box_url(s->box, E2B_PORT_INTERPRETER, path);
    e2b_headers_init(&headers, s->box, E2B_PORT_INTERPRETER, NULL);
    s->request =
        http_start(s->box->e2b->http,
                   &(struct http_options){.method = method,
                                          .kind = "context",
                                          .url = url,
                                          .headers = (const char *const *)headers.lines,
                                          .on_done = on_done,
                                          .data = s,
                                          .total_timeout_ms = (int)(RESTART_LIMIT_S * 1000)},
                   err, sizeof err);
    e2b_headers_fini(&headers);
    free(url);
    return s->request != NULL ? 0 : -1;
}

static void restart(struct e2b_settle *s);

static void retry_or_fail(struct e2b_settle *s, const struct http_answer *a)
{
    if (a->status == 502 && a->body != NULL && strstr(a->body, "not found") != NULL)
        finish(s, SETTLED_GONE);
    else if (++s->tries < RESTART_TRIES)
        restart(s);
    else
        finish(s, SETTLED_FAILED);
}

static void on_restarted(void *data, const struct http_answer *a)
{
    struct e2b_settle *s = data;
    s->request = NULL;
    if (a->result == HTTP_DONE && a->status == 200) {
        log_info("E2B: the context of sandbox %.24s was restarted: it did not heed the interrupt",
                 s->box->id);
        finish(s, SETTLED_RESTARTED);
    } else {
        retry_or_fail(s, a);
    }
}

/* The default context of python is the first of its language: no other is made by us. */
static const char *default_context(const json_t *contexts)
{
    size_t i;
    json_t *c;
    json_array_foreach(contexts, i, c)
    {
        const char *id = jsonx_get_str(c, "id", "");
        if (strcmp(jsonx_get_str(c, "language", ""), "python") == 0 && e2b_is_plain(id))
            return id;
    }
    return NULL;
}

static void restart_context(struct e2b_settle *s, const char *id)
{
    char *path = mem_printf("/contexts/%s/restart", id);
    if (call(s, "POST", path, on_restarted) != 0)
        finish(s, SETTLED_FAILED);
    free(path);
}

static void on_contexts(void *data, const struct http_answer *a)
{
    struct e2b_settle *s = data;
    char err[120];
    s->request = NULL;
    json_t *contexts = a->result == HTTP_DONE && a->status == 200
                           ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err)
                           : NULL;
    const char *id = default_context(contexts);
    if (id != NULL)
        restart_context(s, id);
    else
        retry_or_fail(s, a);
    json_decref(contexts);
}

static void restart(struct e2b_settle *s)
{
    if (s->context != NULL)
        restart_context(s, s->context);
    else if (call(s, "GET", "/contexts", on_contexts) != 0)
        finish(s, SETTLED_FAILED);
}

static void begin_restart(struct e2b_settle *s)
{
    e2b_exec_cancel(s->probe);
    s->probe = NULL;
    s->restarting = true;
    arm(s, RESTART_LIMIT_S);
    restart(s);
}

static void begin_probe(struct e2b_settle *s);

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_settle *s = w->data;
    (void)loop, (void)revents;
    if (s->restarting) {
        finish(s, SETTLED_FAILED);
    } else if (s->pausing) {
        s->pausing = false;
        begin_probe(s);
    } else if (s->probes < PROBES) {
        e2b_exec_cancel(s->probe);
        s->probe = NULL;
        s->pausing = true;
        arm(s, PAUSE_S);
    } else {
        begin_restart(s);
    }
}

static void on_probe_line(void *data, const json_t *line)
{
    struct e2b_settle *s = data;
    const char *name = jsonx_get_str(line, "name", "");
    if (strcmp(jsonx_get_str(line, "type", ""), "error") != 0)
        return;
    s->aborted = strcmp(name, "ExecutionAborted") == 0;
    s->died = s->died || strcmp(name, "ContextRestarting") == 0;
}

static void probe(struct e2b_settle *s);

static void on_probed(void *data, const struct e2b_exec_end *end)
{
    struct e2b_settle *s = data;
    s->probe = NULL;
    if (end->result == EXEC_COMPLETE && s->aborted) /* it still unwinds from the interrupt */
        probe(s);
    else if (end->result == EXEC_COMPLETE)
        finish(s, s->died ? SETTLED_RESTARTED : SETTLED_FREE);
    else if (end->result == EXEC_GONE)
        finish(s, SETTLED_GONE);
    else if (end->result == EXEC_FULL || end->result == EXEC_DENIED)
        finish(s, SETTLED_FAILED);
    else
        begin_restart(s);
}

static void probe(struct e2b_settle *s)
{
    s->aborted = false;
    s->probe = e2b_exec_start(s->box, &(struct e2b_exec_options){.code = "",
                                                                 .context = s->context,
                                                                 .stall_ms = PROBE_STALL_MS,
                                                                 .line_max = 1 << 20,
                                                                 .wait_end = true,
                                                                 .on_line = on_probe_line,
                                                                 .on_done = on_probed,
                                                                 .data = s});
}

static void begin_probe(struct e2b_settle *s)
{
    arm(s, probe_s[s->probes++]);
    probe(s);
}

struct e2b_settle *e2b_settle_start(struct e2b_box *box, const char *context,
                                    void (*done)(void *data, enum e2b_settled how), void *data)
{
    struct e2b_settle *s = mem_alloc(sizeof *s);
    *s = (struct e2b_settle){.box = e2b_box_ref(box), .done = done, .data = data};
    s->context = mem_strdup(context);
    ev_timer_init(&s->timer, on_timer, 0, 0);
    s->timer.data = s;
    begin_probe(s);
    return s;
}
