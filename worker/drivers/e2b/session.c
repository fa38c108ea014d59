/* Threads without a run: their sandboxes are released, or proven free after a lost run. */
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_exec.h"
#include "worker/metrics.h"

#include <stdlib.h>
#include <string.h>

#define SETTLE_TTL_S 60

struct session {
    struct e2b *e2b;
    char *thread;
    driver_done_fn cb;
    void *data;
    size_t pending;
    char *sandbox; /* of the record */
    struct e2b_box *box;
    int tries;
};

static struct session *session_new(struct e2b *e2b, const char *thread, driver_done_fn cb,
                                   void *data)
{
    struct session *s = mem_alloc(sizeof *s);
    *s = (struct session){.e2b = e2b, .cb = cb, .data = data};
    s->thread = mem_strdup(thread);
    e2b_work_begin(e2b);
    return s;
}

static void session_end(struct session *s)
{
    struct e2b *e2b = s->e2b;
    s->cb(s->data);
    e2b_box_unref(s->box);
    free(s->thread);
    free(s->sandbox);
    free(s);
    e2b_work_end(e2b);
}

/* --- release --- */

static void on_forgotten(void *data, bool ok)
{
    struct session *s = data;
    struct log_ctx ctx = {.thread = s->thread};
    if (!ok)
        log_write(LOG_LEVEL_WARN, &ctx,
                  "E2B: the record of a released thread could not be cleared");
    session_end(s);
}

static void all_killed(struct session *s)
{
    const char *fields[] = {"sandbox", "", "creation", "", "actor", "", "unsettled", ""};
    s->e2b->host->record_set(s->e2b->host->data, s->thread, fields, 4, on_forgotten, s);
}

static void on_killed(void *data, const struct e2b_answer *a)
{
    struct session *s = data;
    struct log_ctx ctx = {.thread = s->thread};
    if (a->verdict == E2B_OK)
        metrics_count(METRIC_SANDBOXES_KILLED, 1, "E2B", NULL);
    if (a->verdict != E2B_OK && a->verdict != E2B_GONE)
        log_write(LOG_LEVEL_WARN, &ctx, "E2B: a released thread's sandbox could not be killed: %s",
                  a->message);
    if (--s->pending == 0)
        all_killed(s);
}

static void kill_one(struct session *s, const char *id)
{
    char *path = mem_printf("/sandboxes/%s", id);
    s->pending++;
    e2b_call_start(s->e2b, &(struct e2b_call_options){
                               .method = "DELETE", .path = path, .done = on_killed, .data = s});
    free(path);
}

static bool is_ours(const struct session *s, const json_t *entry)
{
    const char *tag = e2b_meta(entry, s->e2b->tag);
    const char *deployment = e2b_meta(entry, E2B_META_DEPLOYMENT);
    if (tag == NULL || strcmp(tag, s->thread) != 0)
        return false;
    if (deployment == NULL)
        return settings_bool(s->e2b->settings, SETTING_E2B_ADOPT_FOREIGN);
    return strcmp(deployment, s->e2b->deployment) == 0;
}

static void on_list(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct session *s = data;
    size_t i;
    json_t *entry;
    struct log_ctx ctx = {.thread = s->thread};
    if (failed != NULL)
        log_write(LOG_LEVEL_WARN, &ctx,
                  "E2B: the sandboxes of a released thread could not be listed: %s",
                  failed->message);
    s->pending = 1;
    json_array_foreach((json_t *)list, i, entry)
    {
        const char *id = jsonx_get_str(entry, "sandboxID", "");
        if (e2b_is_plain(id) && is_ours(s, entry) &&
            (s->sandbox == NULL || strcmp(id, s->sandbox) != 0))
            kill_one(s, id);
    }
    /* The list lags; what the record names may be missing in it. */
    if (s->sandbox != NULL && e2b_is_plain(s->sandbox))
        kill_one(s, s->sandbox);
    if (--s->pending == 0)
        all_killed(s);
}

static void on_release_record(void *ctx, const struct driver_record *record, long long claim_ms)
{
    struct session *s = ctx;
    (void)claim_ms;
    struct e2b_box *box = e2b_box_of_thread(s->e2b, s->thread);
    if (record != NULL && record->sandbox[0] != '\0')
        s->sandbox = mem_strdup(record->sandbox);
    if (box != NULL)
        e2b_box_forget(box);
    const char *metadata[] = {s->e2b->tag, s->thread, E2B_META_DEPLOYMENT, s->e2b->deployment,
                              NULL};
    if (settings_bool(s->e2b->settings, SETTING_E2B_ADOPT_FOREIGN))
        metadata[2] = NULL;
    e2b_list_start(s->e2b, metadata, "running,paused", on_list, s);
}

static void on_deployment(void *ctx, const char *value)
{
    struct session *s = ctx;
    if (value != NULL && s->e2b->deployment == NULL)
        s->e2b->deployment = mem_strdup(value);
    if (s->e2b->deployment == NULL)
        session_end(s); /* Redis is away: the job's end will say so too */
    else
        s->e2b->host->record_get(s->e2b->host->data, s->thread, on_release_record, s);
}

void e2b_session_release(struct e2b *e2b, const char *thread, driver_done_fn cb, void *data)
{
    struct session *s = session_new(e2b, thread, cb, data);
    char uuid[37];
    text_uuid(uuid);
    if (e2b->deployment != NULL)
        e2b->host->record_get(e2b->host->data, s->thread, on_release_record, s);
    else
        e2b->host->shared_value(e2b->host->data, "e2b:deployment", uuid, on_deployment, s);
}

/* --- settle --- */

static void on_noted(void *ctx, bool ok)
{
    (void)ctx;
    if (!ok)
        log_warn("E2B: a thread's record could not be written");
}

/* Nobody waits for it: the job's end follows on the same connection. */
void e2b_session_unsettled(struct e2b *e2b, const char *thread, const char *id)
{
    const char *fields[] = {"unsettled", id};
    e2b->host->record_set(e2b->host->data, thread, fields, 1, on_noted, NULL);
}

static void on_settled(void *data, enum e2b_settled how)
{
    struct session *s = data;
    if (how == SETTLED_FAILED)
        e2b_session_unsettled(s->e2b, s->thread, s->sandbox);
    session_end(s);
}

static void on_connected(void *data, const struct e2b_answer *a)
{
    struct session *s = data;
    if (a->verdict == E2B_OK)
        s->box = e2b_box_new(s->e2b, s->thread, "", a->body);
    if (s->box != NULL)
        e2b_settle_start(s->box, NULL, on_settled, s);
    else if (a->verdict == E2B_GONE)
        session_end(s);
    else
        on_settled(s, SETTLED_FAILED); /* out of reach: the next run looks before it runs */
}

static void on_looked(void *data, const struct e2b_answer *a)
{
    struct session *s = data;
    if (a->verdict != E2B_OK && a->verdict != E2B_GONE) {
        on_settled(s, SETTLED_FAILED);
        return;
    }
    /* A paused one runs nothing; who resumes it prepares it first, and sees then. */
    if (a->verdict != E2B_OK || strcmp(jsonx_get_str(a->body, "state", ""), "running") != 0) {
        session_end(s);
        return;
    }
    char *path = mem_printf("/sandboxes/%s/connect", s->sandbox);
    e2b_call_start(s->e2b,
                   &(struct e2b_call_options){.method = "POST",
                                              .path = path,
                                              .body = json_pack("{s:i}", "timeout", SETTLE_TTL_S),
                                              .done = on_connected,
                                              .data = s});
    free(path);
}

static void on_settle_record(void *ctx, const struct driver_record *record, long long claim_ms)
{
    struct session *s = ctx;
    (void)claim_ms;
    if (record == NULL || !e2b_is_plain(record->sandbox)) {
        session_end(s);
        return;
    }
    s->sandbox = mem_strdup(record->sandbox);
    char *path = mem_printf("/sandboxes/%s", s->sandbox);
    e2b_call_start(s->e2b, &(struct e2b_call_options){
                               .method = "GET", .path = path, .done = on_looked, .data = s});
    free(path);
}

void e2b_session_settle(struct e2b *e2b, const char *thread, driver_done_fn cb, void *data)
{
    struct session *s = session_new(e2b, thread, cb, data);
    struct e2b_box *box = e2b_box_of_thread(e2b, thread);
    if (box != NULL)
        box->unsettled = true; /* whatever comes of this, its next run looks first */
    e2b->host->record_get(e2b->host->data, thread, on_settle_record, s);
}
