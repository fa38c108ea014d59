/* Makes a sandbox exactly once: a unique key goes into the record and its metadata, so a lost
 * answer is found. */
#include "worker/drivers/e2b_create.h"

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX        4     /* create calls */
#define LOOKUP_LAG_MS     10000 /* a list may lag behind so far */
#define LOOKUP_FIRST_MS   200
#define LOOKUP_LONGEST_MS 2000

struct e2b_create {
    struct e2b *e2b;
    struct e2b_create_options o;
    char key[64];
    int rounds, lookups;
    long long lost_ms; /* monotonic: when the answer was given up */
    bool maybe_made;   /* no answer at all: a sandbox may be there */
    struct e2b_wait wait;
    ev_timer timer;
    void (*step)(struct e2b_create *c);
    char *why;
    char *found_id;
    bool unwanted;
};

static void finish(struct e2b_create *c, struct e2b_box *box, enum driver_end_kind kind,
                   const char *message)
{
    struct e2b *e2b = c->e2b;
    ev_timer_stop(e2b->host->loop, &c->timer);
    e2b_wait_stop(e2b, &c->wait);
    if (box != NULL) {
        e2b_box_lives_until(box, c->o.ttl_s);
        box->fresh = true;
    }
    c->o.done(c->o.data, &(struct e2b_created){box, kind, message});
    free(c->why);
    free(c->found_id);
    free(c);
    e2b_work_end(e2b);
}

static void fail(struct e2b_create *c, enum driver_end_kind kind, const char *what)
{
    char message[500];
    snprintf(message, sizeof message, "%s: %.300s.", what, c->why != NULL ? c->why : "no answer");
    finish(c, NULL, kind, message);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b_create *c = w->data;
    (void)loop, (void)revents;
    c->step(c);
}

static void later(struct e2b_create *c, long long ms, void (*step)(struct e2b_create *c))
{
    c->step = step;
    ev_now_update(c->e2b->host->loop);
    ev_timer_stop(c->e2b->host->loop, &c->timer);
    ev_timer_set(&c->timer, (double)ms / 1000, 0);
    ev_timer_start(c->e2b->host->loop, &c->timer);
}

static void send_create(struct e2b_create *c);

/* ---- looking for a sandbox whose answer was lost ---- */

static void on_adopted(void *data, const struct e2b_answer *a)
{
    struct e2b_create *c = data;
    struct e2b_box *box = NULL;
    if (a->verdict == E2B_OK)
        box = e2b_box_new(c->e2b, c->o.thread, c->o.actor, a->body);
    if (box != NULL) {
        log_info("E2B: a sandbox whose creation was not answered was found: %.24s", box->id);
        finish(c, box, DRIVER_END_OK, "");
        return;
    }
    free(c->why);
    c->why = mem_strdup(a->message);
    if (a->verdict == E2B_GONE && c->rounds < ROUNDS_MAX)
        send_create(c);
    else
        fail(c, DRIVER_END_NO_SANDBOX, "The new sandbox could not be reached");
}

static void adopt(struct e2b_create *c)
{
    char *path = mem_printf("/sandboxes/%s/connect", c->found_id);
    e2b_call_start(c->e2b, &(struct e2b_call_options){
                               .method = "POST",
                               .path = path,
                               .body = json_pack("{s:I}", "timeout", (json_int_t)c->o.ttl_s),
                               .done = on_adopted,
                               .data = c});
    free(path);
}

static void look_up(struct e2b_create *c);

static void on_list(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct e2b_create *c = data;
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)list, i, entry)
    {
        const char *key = e2b_meta(entry, E2B_META_CREATION);
        const char *id = jsonx_get_str(entry, "sandboxID", "");
        if (key == NULL || strcmp(key, c->key) != 0 || !e2b_is_plain(id))
            continue;
        if (c->found_id == NULL)
            c->found_id = mem_strdup(id);
        else
            e2b_kill(c->e2b, id, "it was made twice");
    }
    if (c->found_id != NULL) {
        adopt(c);
        return;
    }
    bool wait = c->maybe_made && text_monotonic_ms() - c->lost_ms < LOOKUP_LAG_MS && !c->unwanted;
    if (failed != NULL || wait) {
        long long ms = (long long)LOOKUP_FIRST_MS << (c->lookups < 5 ? c->lookups : 5);
        if (failed != NULL && (c->lookups > 3 || failed->verdict != E2B_TRANSIENT || c->unwanted)) {
            fail(c, DRIVER_END_NO_SANDBOX, "No sandbox could be made");
            return;
        }
        c->lookups++;
        later(c, ms > LOOKUP_LONGEST_MS ? LOOKUP_LONGEST_MS : ms, look_up);
    } else if (c->rounds < ROUNDS_MAX && !c->unwanted) {
        later(c, e2b_backoff_ms(c->rounds, -1), send_create);
    } else {
        fail(c, DRIVER_END_NO_SANDBOX, "No sandbox could be made");
    }
}

static void look_up(struct e2b_create *c)
{
    const char *metadata[] = {E2B_META_CREATION, c->key, NULL};
    e2b_list_start(c->e2b, metadata, "running,paused", on_list, c);
}

/* ---- the call ---- */

static void on_turn(void *data, bool in_time)
{
    struct e2b_create *c = data;
    if (in_time)
        send_create(c);
    else
        finish(c, NULL, DRIVER_END_NO_CAPACITY,
               "The account's number of E2B sandboxes is reached and none came free in time "
               "(E2B_CAPACITY_WAIT_MS); retry later.");
}

static void wait_for_capacity(struct e2b_create *c)
{
    if (c->unwanted) {
        fail(c, DRIVER_END_NO_CAPACITY, "No sandbox was made");
        return;
    }
    c->rounds = 0;
    c->wait.since_ms = c->o.since_ms;
    c->wait.give_up_ms = c->o.give_up_ms;
    c->wait.turn = on_turn;
    c->wait.data = c;
    e2b_wait_start(c->e2b, &c->wait);
}

static void on_created(void *data, const struct e2b_answer *a)
{
    struct e2b_create *c = data;
    struct e2b_box *box = NULL;
    if (a->verdict == E2B_OK) {
        box = e2b_box_new(c->e2b, c->o.thread, c->o.actor, a->body);
        metrics_count(METRIC_SANDBOXES_CREATED, 1, "E2B", NULL);
    }
    if (box != NULL) {
        finish(c, box, DRIVER_END_OK, "");
        return;
    }
    free(c->why);
    c->why = mem_strdup(a->message != NULL ? a->message : "the answer is not usable");
    switch (a->verdict) {
    case E2B_FULL:
        wait_for_capacity(c);
        break;
    case E2B_DENIED:
        fail(c, DRIVER_END_NO_SANDBOX, "E2B did not accept the API key (check E2B_API_KEY)");
        break;
    case E2B_GONE:
        fail(c, DRIVER_END_NO_SANDBOX, "E2B does not know the template (check E2B_TEMPLATE)");
        break;
    case E2B_REFUSED:
        fail(c, DRIVER_END_NO_SANDBOX, "E2B refused to make a sandbox");
        break;
    default:
        if (a->status == 429) {
            fail(c, DRIVER_END_NO_SANDBOX, "E2B limits the rate of new sandboxes");
            return;
        }
        c->maybe_made = a->status < 500 || a->status == 504;
        c->lost_ms = text_monotonic_ms();
        c->lookups = 0;
        look_up(c);
    }
}

static json_t *list_of(const char *text)
{
    json_t *list = json_array();
    while (*text != '\0') {
        text += strspn(text, ", \t");
        size_t n = strcspn(text, ", \t");
        if (n > 0)
            json_array_append_new(list, jsonx_string(text, n));
        text += n;
    }
    return list;
}

static void add_network(json_t *body, const struct settings *s)
{
    json_t *network = json_pack("{s:b}", "allowPublicTraffic", 0);
    json_t *allow = list_of(settings_str(s, SETTING_E2B_ALLOW_OUT));
    json_t *deny = list_of(settings_str(s, SETTING_E2B_DENY_OUT));
    if (json_array_size(allow) > 0)
        json_object_set(network, "allowOut", allow);
    if (json_array_size(deny) > 0)
        json_object_set(network, "denyOut", deny);
    json_object_set_new(body, "network", network);
    json_object_set_new(body, "allow_internet_access",
                        json_boolean(settings_bool(s, SETTING_E2B_ALLOW_INTERNET)));
    json_decref(allow);
    json_decref(deny);
}

static json_t *request_body(const struct e2b_create *c)
{
    json_t *metadata =
        json_pack("{s:s,s:s}", E2B_META_DEPLOYMENT, c->e2b->deployment, E2B_META_CREATION, c->key);
    json_t *body = json_pack("{s:s,s:I,s:b}", "templateID", c->e2b->template, "timeout",
                             (json_int_t)c->o.ttl_s, "secure", 1);
    if (c->o.thread != NULL) {
        json_object_set_new(metadata, c->e2b->tag, json_string(c->o.thread));
        json_object_set_new(metadata, E2B_META_ACTOR, json_string(c->o.actor));
        json_object_set_new(body, "autoPause", json_true());
        json_object_set_new(body, "autoResume", json_pack("{s:b}", "enabled", 1));
    }
    json_object_set_new(body, "metadata", metadata);
    add_network(body, c->o.settings);
    return body;
}

static void send_create(struct e2b_create *c)
{
    c->rounds++;
    if (c->unwanted) {
        fail(c, DRIVER_END_NO_SANDBOX, "No sandbox was made");
        return;
    }
    e2b_call_start(c->e2b, &(struct e2b_call_options){.method = "POST",
                                                      .path = "/sandboxes",
                                                      .body = request_body(c),
                                                      .once = true,
                                                      .done = on_created,
                                                      .data = c});
}

static void on_key_recorded(void *ctx, bool ok)
{
    struct e2b_create *c = ctx;
    if (ok)
        send_create(c);
    else
        fail(c, DRIVER_END_DRIVER_ERROR, "The thread's record could not be written to Redis");
}

static void begin(struct e2b_create *c)
{
    if (c->o.thread == NULL) {
        send_create(c);
        return;
    }
    /* Before the call: who comes after us must be able to find what it made. */
    const char *fields[] = {"sandbox", "", "creation", c->key, "actor", c->o.actor};
    c->e2b->host->record_set(c->e2b->host->data, c->o.thread, fields, 3, on_key_recorded, c);
}

struct e2b_create *e2b_create_start(struct e2b *e2b, const struct e2b_create_options *options)
{
    struct e2b_create *c = mem_alloc(sizeof *c);
    char uuid[37];
    c->e2b = e2b;
    c->o = *options;
    text_uuid(uuid);
    snprintf(c->key, sizeof c->key, "%llx-%s", (unsigned long long)text_now_ms(), uuid);
    ev_timer_init(&c->timer, on_timer, 0, 0);
    c->timer.data = c;
    e2b_work_begin(e2b);
    later(c, 0, begin);
    return c;
}

void e2b_create_stop_waiting(struct e2b_create *c)
{
    c->unwanted = true;
    if (!c->wait.waiting)
        return;
    e2b_wait_stop(c->e2b, &c->wait);
    later(c, 0, send_create);
}
