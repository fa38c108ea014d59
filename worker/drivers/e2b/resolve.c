/* From a thread to a sandbox: the handle held, the one the record names, discovery, or a
 * new one. */
#include "worker/drivers/e2b_resolve_impl.h"

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void resolve_free(void *arg)
{
    struct e2b_resolve *r = arg;
    struct e2b *e2b = r->e2b;
    ev_timer_stop(e2b->host->loop, &r->timer);
    e2b_wait_stop(e2b, &r->wait);
    for (size_t i = 0; i < r->count; i++) {
        free(r->candidates[i].id);
        free(r->candidates[i].started);
    }
    free(r->candidates);
    e2b_box_unref(r->box);
    json_decref(r->connected);
    json_decref(r->looked);
    free(r->why);
    free((char *)r->o.thread);
    free((char *)r->o.actor);
    free((char *)r->o.record.sandbox);
    free((char *)r->o.record.creation);
    free((char *)r->o.record.actor);
    settings_free(r->o.settings);
    free(r);
    e2b_work_end(e2b);
}

/* Frees it when nobody calls back any more; true when the caller has to return. */
bool e2b_resolve_over(struct e2b_resolve *r)
{
    if (!r->detached && !r->ended)
        return false;
    if (r->pending == 0)
        reaper_defer(resolve_free, r);
    return true;
}

static void fail(struct e2b_resolve *r, enum driver_end_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct e2b_resolve *r, enum driver_end_kind kind, const char *fmt, ...)
{
    char message[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    r->ended = true;
    if (!r->detached)
        r->o.failed(r->o.data, kind, message);
    e2b_resolve_over(r);
}

void e2b_resolve_found(struct e2b_resolve *r, struct e2b_box *box, bool reused, bool resumed)
{
    r->ended = true;
    e2b_box_cache(box);
    box->asleep = false;
    box->busy = true;
    if (r->detached) {
        box->busy = false;
        e2b_box_unref(box);
    } else {
        r->o.found(r->o.data, &(struct e2b_resolved){box, reused, resumed, r->lost});
    }
    e2b_resolve_over(r);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_resolve *r = w->data;
    (void)loop, (void)revents;
    r->step(r);
}

void e2b_resolve_later(struct e2b_resolve *r, long long ms, void (*step)(struct e2b_resolve *r))
{
    r->step = step;
    ev_now_update(r->e2b->host->loop);
    ev_timer_stop(r->e2b->host->loop, &r->timer);
    ev_timer_set(&r->timer, (double)ms / 1000, 0);
    ev_timer_start(r->e2b->host->loop, &r->timer);
}

static void on_turn(void *data, bool in_time)
{
    struct e2b_resolve *r = data;
    if (in_time)
        r->after_wait(r);
    else
        fail(r, DRIVER_END_NO_CAPACITY,
             "The account's number of E2B sandboxes is reached and none came free in time "
             "(E2B_CAPACITY_WAIT_MS); retry later.");
}

void e2b_resolve_wait(struct e2b_resolve *r, void (*after)(struct e2b_resolve *r))
{
    r->after_wait = after;
    r->wait.give_up_ms = r->o.give_up_ms;
    r->wait.turn = on_turn;
    r->wait.data = r;
    e2b_wait_start(r->e2b, &r->wait);
}

void e2b_resolve_fail_by(struct e2b_resolve *r, const char *what, enum e2b_verdict verdict,
                         const char *why)
{
    int len = (int)strnlen(why, 300);
    if (len && why[len - 1] == '.') /* a sentence of E2B's own */
        len--;
    if (verdict == E2B_DENIED)
        what = "E2B did not accept the API key (check E2B_API_KEY)";
    fail(r, DRIVER_END_NO_SANDBOX, "%s: %.*s.", what, len, why);
}

/* ---- the record ---- */

static void on_recorded(void *ctx, bool ok)
{
    (void)ctx;
    if (!ok)
        log_warn("E2B: a thread's record could not be written");
}

void e2b_resolve_remember(struct e2b_resolve *r, const char *id)
{
    const char *fields[] = {"sandbox", id, "actor", r->o.actor};
    r->e2b->host->record_set(r->e2b->host->data, r->o.thread, fields, 2, on_recorded, NULL);
}

/* ---- a new sandbox ---- */

static void on_created(void *data, const struct e2b_created *created)
{
    struct e2b_resolve *r = data;
    r->pending--;
    r->create = NULL;
    if (created->box != NULL && r->detached) {
        /* A session's is found by its metadata; without a session nobody would ever look for it. */
        if (r->o.thread == NULL)
            e2b_kill(r->e2b, created->box->id, "its job is gone");
        e2b_box_unref(created->box);
    }
    if (e2b_resolve_over(r))
        return;
    if (created->box == NULL) {
        fail(r, created->kind, "%s", created->message);
        return;
    }
    if (r->o.thread != NULL)
        e2b_resolve_remember(r, created->box->id);
    e2b_resolve_found(r, created->box, false, false);
}

void e2b_resolve_create(struct e2b_resolve *r)
{
    if (r->lost == NULL && r->o.record.sandbox[0] != '\0')
        r->lost = "sandbox_gone";
    r->pending++;
    r->create = e2b_create_start(r->e2b, &(struct e2b_create_options){.thread = r->o.thread,
                                                                      .actor = r->o.actor,
                                                                      .ttl_s = r->o.ttl_s,
                                                                      .give_up_ms = r->o.give_up_ms,
                                                                      .since_ms = r->wait.since_ms,
                                                                      .settings = r->o.settings,
                                                                      .done = on_created,
                                                                      .data = r});
}

void e2b_resolve_connect(struct e2b_resolve *r, const char *id,
                         void (*done)(void *data, const struct e2b_answer *a))
{
    char *path = mem_printf("/sandboxes/%s/connect", id);
    r->pending++;
    e2b_call_start(r->e2b, &(struct e2b_call_options){
                               .method = "POST",
                               .path = path,
                               .body = json_pack("{s:I}", "timeout", (json_int_t)r->o.ttl_s),
                               .done = done,
                               .data = r,
                           });
    free(path);
}

/* ---- the sandbox that the record names ---- */

static void judge_named(struct e2b_resolve *r)
{
    enum e2b_verdict verdict = r->connect_verdict;
    const char *actor = e2b_meta(r->looked, E2B_META_ACTOR);
    if (verdict == E2B_GONE || r->look_verdict == E2B_GONE) {
        e2b_resolve_discover(r);
    } else if (verdict == E2B_REFUSED) {
        e2b_kill(r->e2b, r->o.record.sandbox, "it refused its life time");
        r->lost = "sandbox_gone";
        e2b_resolve_discover(r);
    } else if (verdict != E2B_OK || r->look_verdict != E2B_OK) {
        e2b_resolve_fail_by(r, "The thread's sandbox could not be reached",
                            verdict != E2B_OK ? verdict : r->look_verdict, r->why);
    } else if (!e2b_resolve_is_ours(r, r->looked)) {
        struct log_ctx ctx = {.thread = r->o.thread};
        log_write(LOG_LEVEL_WARN, &ctx,
                  "E2B: the thread's record names sandbox %.24s, which is not the thread's",
                  r->o.record.sandbox);
        e2b_resolve_discover(r);
    } else if (actor != NULL && strcmp(actor, r->o.actor) != 0) {
        e2b_kill(r->e2b, r->o.record.sandbox, "the actor changed");
        r->lost = "actor_changed";
        e2b_resolve_create(r);
    } else {
        struct e2b_box *box = e2b_box_new(r->e2b, r->o.thread, r->o.actor, r->connected);
        if (box == NULL) {
            fail(r, DRIVER_END_NO_SANDBOX, "E2B's answer to connect is not usable.");
            return;
        }
        e2b_box_lives_until(box, r->o.ttl_s);
        e2b_resolve_found(r, box, true, r->connect_status == 201);
    }
}

static void named(struct e2b_resolve *r);

static void both_in(struct e2b_resolve *r)
{
    if (r->pending > 0)
        return;
    if (r->connect_verdict == E2B_FULL)
        e2b_resolve_wait(r, named);
    else
        judge_named(r);
}

static void on_named(void *data, const struct e2b_answer *a)
{
    struct e2b_resolve *r = data;
    r->pending--;
    if (e2b_resolve_over(r))
        return;
    r->connect_verdict = a->verdict;
    r->connect_status = a->status;
    json_decref(r->connected);
    r->connected = json_incref((json_t *)a->body);
    if (a->verdict != E2B_OK) {
        free(r->why);
        r->why = mem_strdup(a->message);
    }
    both_in(r);
}

static void on_looked(void *data, const struct e2b_answer *a)
{
    struct e2b_resolve *r = data;
    r->pending--;
    if (e2b_resolve_over(r))
        return;
    r->look_verdict = a->verdict;
    json_decref(r->looked);
    r->looked = json_incref((json_t *)a->body);
    if (a->verdict != E2B_OK && r->why == NULL)
        r->why = mem_strdup(a->message);
    both_in(r);
}

static void named(struct e2b_resolve *r)
{
    char *path = mem_printf("/sandboxes/%s", r->o.record.sandbox);
    e2b_resolve_connect(r, r->o.record.sandbox, on_named);
    r->pending++;
    e2b_call_start(r->e2b, &(struct e2b_call_options){
                               .method = "GET", .path = path, .done = on_looked, .data = r});
    free(path);
}

/* ---- the handle that this process holds, of a sandbox that may sleep ---- */

static void reconnect(struct e2b_resolve *r);

static void on_reconnected(void *data, const struct e2b_answer *a)
{
    struct e2b_resolve *r = data;
    r->pending--;
    if (e2b_resolve_over(r))
        return;
    struct e2b_box *box = r->box;
    if (a->verdict == E2B_OK) {
        r->box = NULL;
        e2b_box_update(box, a->body);
        if (a->status == 201) /* it may have come back without its memory */
            box->prepared = false;
        e2b_box_lives_until(box, r->o.ttl_s);
        e2b_resolve_found(r, box, true, a->status == 201);
    } else if (a->verdict == E2B_FULL) {
        e2b_resolve_wait(r, reconnect);
    } else if (a->verdict == E2B_GONE || a->verdict == E2B_REFUSED) {
        if (a->verdict == E2B_REFUSED)
            e2b_kill(r->e2b, box->id, "it refused its life time");
        r->lost = "sandbox_gone";
        e2b_box_forget(box);
        e2b_resolve_discover(r);
    } else {
        e2b_resolve_fail_by(r, "The thread's sandbox could not be reached", a->verdict, a->message);
    }
}

static void reconnect(struct e2b_resolve *r)
{
    e2b_resolve_connect(r, r->box->id, on_reconnected);
}

/* ---- the beginning ---- */

static bool same_actor(const struct e2b_resolve *r, const char *actor)
{
    return actor == NULL || actor[0] == '\0' || strcmp(actor, r->o.actor) == 0;
}

static void resolve_session(struct e2b_resolve *r)
{
    const char *id = r->o.record.sandbox;
    struct e2b_box *box = e2b_box_of_thread(r->e2b, r->o.thread);
    if (box != NULL && (strcmp(box->id, id) != 0 || strcmp(box->actor, r->o.actor) != 0)) {
        e2b_box_forget(box); /* another replica went on elsewhere, or another actor comes */
        box = NULL;
    }
    if (id[0] != '\0' && !same_actor(r, r->o.record.actor)) {
        if (e2b_is_plain(id))
            e2b_kill(r->e2b, id, "the actor changed");
        r->lost = "actor_changed";
        e2b_resolve_create(r);
    } else if (box != NULL && !box->asleep && box->end_ms > text_monotonic_ms() + 500) {
        e2b_resolve_found(r, e2b_box_ref(box), true, false);
    } else if (box != NULL) {
        r->box = e2b_box_ref(box);
        reconnect(r);
    } else if (id[0] != '\0' && e2b_is_plain(id)) {
        named(r);
    } else {
        e2b_resolve_discover(r);
    }
}

static void begin(struct e2b_resolve *r)
{
    if (r->o.thread == NULL)
        e2b_resolve_create(r);
    else
        resolve_session(r);
}

/* ---- the deployment id ---- */

static void go_on_all(struct e2b *e2b)
{
    struct e2b_resolve *r = e2b->deployment_waiters;
    e2b->deployment_waiters = NULL;
    while (r != NULL) {
        struct e2b_resolve *next = r->next_waiter;
        r->pending--;
        if (!e2b_resolve_over(r)) {
            if (e2b->deployment != NULL)
                begin(r);
            else
                fail(r, DRIVER_END_DRIVER_ERROR,
                     "The deployment's id could not be read from Redis.");
        }
        r = next;
    }
}

static void on_deployment(void *ctx, const char *value)
{
    struct e2b *e2b = ctx;
    e2b->asking_deployment = false;
    if (value != NULL && e2b->deployment == NULL)
        e2b->deployment = mem_strdup(value);
    go_on_all(e2b);
    e2b_work_end(e2b);
}

static void ask_deployment(struct e2b *e2b)
{
    char uuid[37];
    if (e2b->asking_deployment)
        return;
    e2b->asking_deployment = true;
    text_uuid(uuid);
    e2b_work_begin(e2b);
    e2b->host->shared_value(e2b->host->data, "e2b:deployment", uuid, on_deployment, e2b);
}

static void start_step(struct e2b_resolve *r)
{
    if (r->e2b->deployment != NULL) {
        begin(r);
        return;
    }
    r->pending++;
    r->next_waiter = r->e2b->deployment_waiters;
    r->e2b->deployment_waiters = r;
    ask_deployment(r->e2b);
}

static char *copy(const char *text)
{
    return mem_strdup(text != NULL ? text : "");
}

struct e2b_resolve *e2b_resolve_start(struct e2b *e2b, const struct e2b_resolve_options *options)
{
    struct e2b_resolve *r = mem_alloc(sizeof *r);
    r->e2b = e2b;
    r->o = *options;
    r->o.thread = mem_strdup(options->thread);
    r->o.actor = mem_strdup(options->actor);
    r->o.record.sandbox = copy(options->record.sandbox);
    r->o.record.creation = copy(options->record.creation);
    r->o.record.actor = copy(options->record.actor);
    r->o.settings = settings_ref(options->settings);
    r->wait.since_ms = text_monotonic_ms();
    ev_timer_init(&r->timer, on_timer, 0, 0);
    r->timer.data = r;
    e2b_work_begin(e2b);
    e2b_resolve_later(r, 0, start_step);
    return r;
}

void e2b_resolve_detach(struct e2b_resolve *r)
{
    if (r == NULL || r->ended)
        return;
    r->detached = true;
    ev_timer_stop(r->e2b->host->loop, &r->timer);
    e2b_wait_stop(r->e2b, &r->wait);
    if (r->create != NULL)
        e2b_create_stop_waiting(r->create);
    if (r->pending == 0)
        reaper_defer(resolve_free, r);
}
