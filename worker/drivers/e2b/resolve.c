/* From a thread to a sandbox: the handle held, the one the record names, discovery, or a new one. */
#include "worker/drivers/e2b_resolve.h"

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_create.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOKUP_TRUST_MS 20000 /* a sandbox made longer ago is in the list, if it is anywhere */
#define LOOKUP_FIRST_MS 250
#define LOOKUP_MAX_MS   2000

struct candidate {
    char *id;
    long long rank; /* lower first */
    char *started;
};

struct e2b_resolve {
    struct e2b *e2b;
    struct e2b_resolve_options o;
    struct e2b_resolve *next_waiter; /* for the deployment id */
    size_t pending;                  /* answers to come, whatever happens */
    bool detached, ended;
    const char *lost; /* why earlier state is gone */
    ev_timer timer;
    void (*step)(struct e2b_resolve *r);
    struct e2b_wait wait;
    void (*after_wait)(struct e2b_resolve *r);
    /* named: */
    struct e2b_box *box; /* a cached handle that is connected again */
    json_t *connected, *looked;
    enum e2b_verdict connect_verdict, look_verdict;
    int connect_status;
    char *why;
    /* discovery: */
    struct candidate *candidates;
    size_t count, at;
    int lookups;
    struct e2b_create *create;
};

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
static bool over(struct e2b_resolve *r)
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
    over(r);
}

static void found(struct e2b_resolve *r, struct e2b_box *box, bool reused, bool resumed)
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
    over(r);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_resolve *r = w->data;
    (void)loop, (void)revents;
    r->step(r);
}

static void later(struct e2b_resolve *r, long long ms, void (*step)(struct e2b_resolve *r))
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

static void wait_for_capacity(struct e2b_resolve *r, void (*after)(struct e2b_resolve *r))
{
    r->after_wait = after;
    r->wait.give_up_ms = r->o.give_up_ms;
    r->wait.turn = on_turn;
    r->wait.data = r;
    e2b_wait_start(r->e2b, &r->wait);
}

static void fail_by(struct e2b_resolve *r, const char *what, enum e2b_verdict verdict,
                    const char *why)
{
    if (verdict == E2B_DENIED)
        fail(r, DRIVER_END_NO_SANDBOX,
             "E2B did not accept the API key (check E2B_API_KEY): %.300s.", why);
    else
        fail(r, DRIVER_END_NO_SANDBOX, "%s: %.300s.", what, why);
}

/* ---- the record ---- */

static void on_recorded(void *ctx, bool ok)
{
    (void)ctx;
    if (!ok)
        log_warn("E2B: a thread's record could not be written");
}

static void remember(struct e2b_resolve *r, const char *id)
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
    if (over(r))
        return;
    if (created->box == NULL) {
        fail(r, created->kind, "%s", created->message);
        return;
    }
    if (r->o.thread != NULL)
        remember(r, created->box->id);
    found(r, created->box, false, false);
}

static void create(struct e2b_resolve *r)
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

/* ---- discovery ---- */

static void connect_next(struct e2b_resolve *r);

static void reap_others(struct e2b_resolve *r, size_t kept)
{
    for (size_t i = 0; i < r->count; i++)
        if (i != kept && r->candidates[i].id != NULL)
            e2b_kill(r->e2b, r->candidates[i].id, "the thread has another sandbox");
}

static void on_candidate(void *data, const struct e2b_answer *a)
{
    struct e2b_resolve *r = data;
    struct candidate *c = &r->candidates[r->at];
    r->pending--;
    if (over(r))
        return;
    struct e2b_box *box = NULL;
    if (a->verdict == E2B_OK)
        box = e2b_box_new(r->e2b, r->o.thread, r->o.actor, a->body);
    if (box != NULL) {
        e2b_box_lives_until(box, r->o.ttl_s);
        if (r->o.record.sandbox[0] != '\0' && strcmp(r->o.record.sandbox, box->id) != 0 &&
            r->lost == NULL)
            r->lost = "sandbox_gone";
        reap_others(r, r->at);
        remember(r, box->id);
        found(r, box, true, a->status == 201);
    } else if (a->verdict == E2B_GONE) {
        free(c->id);
        c->id = NULL;
        r->at++;
        connect_next(r);
    } else if (a->verdict == E2B_REFUSED) {
        e2b_kill(r->e2b, c->id, "it refused its life time");
        free(c->id);
        c->id = NULL;
        r->at++;
        connect_next(r);
    } else if (a->verdict == E2B_FULL) {
        wait_for_capacity(r, connect_next);
    } else {
        fail_by(r, "The thread's sandbox could not be reached", a->verdict,
                a->message != NULL ? a->message : "an odd answer");
    }
}

static void connect_call(struct e2b_resolve *r, const char *id,
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

static void connect_next(struct e2b_resolve *r)
{
    if (r->at < r->count)
        connect_call(r, r->candidates[r->at].id, on_candidate);
    else
        create(r);
}

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    int order = strcmp(x->started, y->started);
    return order != 0 ? order : strcmp(x->id, y->id);
}

/* Is this sandbox the thread's, and this deployment's? The filter of the list is not trusted. */
static bool is_ours(const struct e2b_resolve *r, const json_t *entry)
{
    const char *tag = e2b_meta(entry, r->e2b->tag);
    const char *deployment = e2b_meta(entry, E2B_META_DEPLOYMENT);
    if (tag == NULL || strcmp(tag, r->o.thread) != 0)
        return false;
    if (deployment == NULL)
        return settings_bool(r->o.settings, SETTING_E2B_ADOPT_FOREIGN);
    return strcmp(deployment, r->e2b->deployment) == 0;
}

static void add_candidate(struct e2b_resolve *r, const json_t *entry)
{
    const char *id = jsonx_get_str(entry, "sandboxID", "");
    const char *actor = e2b_meta(entry, E2B_META_ACTOR);
    const char *creation = e2b_meta(entry, E2B_META_CREATION);
    if (!e2b_is_plain(id) || !is_ours(r, entry))
        return;
    if (actor != NULL && strcmp(actor, r->o.actor) != 0) {
        e2b_kill(r->e2b, id, "the actor changed");
        r->lost = "actor_changed";
        return;
    }
    long long rank = strcmp(jsonx_get_str(entry, "state", ""), "running") == 0 ? 1 : 2;
    if (creation != NULL && strcmp(creation, r->o.record.creation) == 0)
        rank = 0;
    r->candidates = mem_realloc(r->candidates, (r->count + 1) * sizeof *r->candidates);
    r->candidates[r->count++] =
        (struct candidate){mem_strdup(id), rank, mem_strdup(jsonx_get_str(entry, "startedAt", ""))};
}

static void discover(struct e2b_resolve *r);

/* A create whose answer never came may have made a sandbox that the list does not show yet. */
static bool look_again(struct e2b_resolve *r)
{
    const char *creation = r->o.record.creation;
    if (creation[0] == '\0' || r->o.record.sandbox[0] != '\0')
        return false;
    long long age = text_now_ms() - strtoll(creation, NULL, 16);
    if (age < 0 || age > LOOKUP_TRUST_MS)
        return false;
    long long ms = (long long)LOOKUP_FIRST_MS << (r->lookups < 4 ? r->lookups : 4);
    r->lookups++;
    later(r, ms > LOOKUP_MAX_MS ? LOOKUP_MAX_MS : ms, discover);
    return true;
}

static void on_list(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct e2b_resolve *r = data;
    size_t i;
    json_t *entry;
    r->pending--;
    if (over(r))
        return;
    if (failed != NULL) {
        fail_by(r, "E2B's list of sandboxes could not be had", failed->verdict, failed->message);
        return;
    }
    json_array_foreach((json_t *)list, i, entry) add_candidate(r, entry);
    if (r->count > 1)
        qsort(r->candidates, r->count, sizeof *r->candidates, by_rank);
    if (r->count == 0 && look_again(r))
        return;
    connect_next(r);
}

static void discover(struct e2b_resolve *r)
{
    const char *metadata[] = {r->e2b->tag, r->o.thread, E2B_META_DEPLOYMENT, r->e2b->deployment,
                              NULL};
    if (settings_bool(r->o.settings, SETTING_E2B_ADOPT_FOREIGN))
        metadata[2] = NULL;
    r->pending++;
    e2b_list_start(r->e2b, metadata, "running,paused", on_list, r);
}

/* ---- the sandbox that the record names ---- */

static void judge_named(struct e2b_resolve *r)
{
    enum e2b_verdict verdict = r->connect_verdict;
    const char *actor = e2b_meta(r->looked, E2B_META_ACTOR);
    if (verdict == E2B_GONE || r->look_verdict == E2B_GONE) {
        discover(r);
    } else if (verdict == E2B_REFUSED) {
        e2b_kill(r->e2b, r->o.record.sandbox, "it refused its life time");
        r->lost = "sandbox_gone";
        discover(r);
    } else if (verdict != E2B_OK || r->look_verdict != E2B_OK) {
        fail_by(r, "The thread's sandbox could not be reached",
                verdict != E2B_OK ? verdict : r->look_verdict, r->why);
    } else if (!is_ours(r, r->looked)) {
        log_warn("E2B: the thread's record names sandbox %.24s, which is not the thread's",
                 r->o.record.sandbox);
        discover(r);
    } else if (actor != NULL && strcmp(actor, r->o.actor) != 0) {
        e2b_kill(r->e2b, r->o.record.sandbox, "the actor changed");
        r->lost = "actor_changed";
        create(r);
    } else {
        struct e2b_box *box = e2b_box_new(r->e2b, r->o.thread, r->o.actor, r->connected);
        if (box == NULL) {
            fail(r, DRIVER_END_NO_SANDBOX, "E2B's answer to connect is not usable.");
            return;
        }
        e2b_box_lives_until(box, r->o.ttl_s);
        found(r, box, true, r->connect_status == 201);
    }
}

static void named(struct e2b_resolve *r);

static void both_in(struct e2b_resolve *r)
{
    if (r->pending > 0)
        return;
    if (r->connect_verdict == E2B_FULL)
        wait_for_capacity(r, named);
    else
        judge_named(r);
}

static void on_named(void *data, const struct e2b_answer *a)
{
    struct e2b_resolve *r = data;
    r->pending--;
    if (over(r))
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
    if (over(r))
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
    connect_call(r, r->o.record.sandbox, on_named);
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
    if (over(r))
        return;
    struct e2b_box *box = r->box;
    if (a->verdict == E2B_OK) {
        r->box = NULL;
        e2b_box_update(box, a->body);
        e2b_box_lives_until(box, r->o.ttl_s);
        found(r, box, true, a->status == 201);
    } else if (a->verdict == E2B_FULL) {
        wait_for_capacity(r, reconnect);
    } else if (a->verdict == E2B_GONE || a->verdict == E2B_REFUSED) {
        if (a->verdict == E2B_REFUSED)
            e2b_kill(r->e2b, box->id, "it refused its life time");
        r->lost = "sandbox_gone";
        e2b_box_forget(box);
        discover(r);
    } else {
        fail_by(r, "The thread's sandbox could not be reached", a->verdict, a->message);
    }
}

static void reconnect(struct e2b_resolve *r)
{
    connect_call(r, r->box->id, on_reconnected);
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
        create(r);
    } else if (box != NULL && !box->asleep && box->end_ms > text_monotonic_ms() + 500) {
        found(r, e2b_box_ref(box), true, false);
    } else if (box != NULL) {
        r->box = e2b_box_ref(box);
        reconnect(r);
    } else if (id[0] != '\0' && e2b_is_plain(id)) {
        named(r);
    } else {
        discover(r);
    }
}

static void begin(struct e2b_resolve *r)
{
    if (r->o.thread == NULL)
        create(r);
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
        if (!over(r)) {
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
    later(r, 0, start_step);
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
