/* Finds a thread's sandboxes by their metadata: one is kept, the others go. */
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_resolve_impl.h"

#include <stdlib.h>
#include <string.h>

#define LOOKUP_TRUST_MS 20000 /* a sandbox made longer ago is in the list, if it is anywhere */
#define LOOKUP_FIRST_MS 250
#define LOOKUP_MAX_MS   2000

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
    if (e2b_resolve_over(r))
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
        e2b_resolve_remember(r, box->id);
        e2b_resolve_found(r, box, true, a->status == 201);
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
        e2b_resolve_wait(r, connect_next);
    } else {
        e2b_resolve_fail_by(r, "The thread's sandbox could not be reached", a->verdict,
                            a->message != NULL ? a->message : "an odd answer");
    }
}

static void connect_next(struct e2b_resolve *r)
{
    if (r->at < r->count)
        e2b_resolve_connect(r, r->candidates[r->at].id, on_candidate);
    else
        e2b_resolve_create(r);
}

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    int order = strcmp(x->started, y->started);
    return order != 0 ? order : strcmp(x->id, y->id);
}

bool e2b_resolve_is_ours(const struct e2b_resolve *r, const json_t *entry)
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
    if (!e2b_is_plain(id) || !e2b_resolve_is_ours(r, entry))
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
    e2b_resolve_later(r, ms > LOOKUP_MAX_MS ? LOOKUP_MAX_MS : ms, e2b_resolve_discover);
    return true;
}

static void on_list(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct e2b_resolve *r = data;
    size_t i;
    json_t *entry;
    r->pending--;
    if (e2b_resolve_over(r))
        return;
    if (failed != NULL) {
        e2b_resolve_fail_by(r, "E2B's list of sandboxes could not be had", failed->verdict,
                            failed->message);
        return;
    }
    json_array_foreach((json_t *)list, i, entry) add_candidate(r, entry);
    if (r->count > 1)
        qsort(r->candidates, r->count, sizeof *r->candidates, by_rank);
    if (r->count == 0 && look_again(r))
        return;
    connect_next(r);
}

void e2b_resolve_discover(struct e2b_resolve *r)
{
    const char *metadata[] = {r->e2b->tag, r->o.thread, E2B_META_DEPLOYMENT, r->e2b->deployment,
                              NULL};
    if (settings_bool(r->o.settings, SETTING_E2B_ADOPT_FOREIGN))
        metadata[2] = NULL;
    r->pending++;
    e2b_list_start(r->e2b, metadata, "running,paused", on_list, r);
}
