/* The account's number of sandboxes is reached: idle ones are paused, and who waits goes on in
 * turn. */
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_resolve.h"

#include <stdlib.h>
#include <string.h>

#define POLL_MS     700   /* room may come from elsewhere: other replicas, other users */
#define LEASE_MS    90000 /* a pause of a sandbox takes seconds a GiB */
#define VICTIMS_MAX 100   /* looked at in one search */

struct victim {
    char *id, *thread;
    long long used_ms; /* wall clock of its last claim */
};

/* One search for a sandbox to pause. */
struct search {
    struct e2b *e2b;
    struct victim *victims;
    size_t count, at, asked;
    char *token;
};

static void search_next(struct search *s);

static void arm(struct e2b *e2b, long long ms)
{
    ev_now_update(e2b->host->loop);
    ev_timer_stop(e2b->host->loop, &e2b->wait_timer);
    ev_timer_set(&e2b->wait_timer, (double)ms / 1000, 0);
    ev_timer_start(e2b->host->loop, &e2b->wait_timer);
}

/* The first in the queue tries again. */
static void let_first_go(struct e2b *e2b)
{
    struct e2b_wait *wait = e2b->waits;
    if (wait == NULL)
        return;
    e2b->waits = wait->next;
    wait->waiting = false;
    wait->turn(wait->data, true);
}

static void expire(struct e2b *e2b)
{
    long long now = text_monotonic_ms();
    struct e2b_wait **at = &e2b->waits;
    while (*at != NULL) {
        struct e2b_wait *wait = *at;
        if (now < wait->give_up_ms) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        wait->waiting = false;
        wait->turn(wait->data, false);
        at = &e2b->waits; /* it may have changed the list */
    }
}

static void search_end(struct search *s, bool freed)
{
    struct e2b *e2b = s->e2b;
    for (size_t i = 0; i < s->count; i++) {
        free(s->victims[i].id);
        free(s->victims[i].thread);
    }
    free(s->victims);
    free(s->token);
    free(s);
    e2b->freeing = false;
    if (freed)
        let_first_go(e2b);
    if (e2b->waits != NULL)
        arm(e2b, freed ? 0 : POLL_MS / 2 + random() % POLL_MS);
    e2b_work_end(e2b);
}

static void on_paused(void *data, const struct e2b_answer *a)
{
    struct search *s = data;
    struct victim *v = &s->victims[s->at];
    bool paused = a->verdict == E2B_OK || a->verdict == E2B_CONFLICT || a->verdict == E2B_GONE;
    struct e2b_box *box = e2b_box_of_thread(s->e2b, v->thread);
    if (box != NULL && strcmp(box->id, v->id) == 0)
        box->asleep = true; /* also when the pause is in doubt: the next run looks */
    s->e2b->host->sweep_release(s->e2b->host->data, v->thread, s->token);
    free(s->token);
    s->token = NULL;
    if (paused) {
        log_info("E2B: idle sandbox %.24s was paused to make room", v->id);
        search_end(s, true);
        return;
    }
    s->at++;
    search_next(s);
}

static void on_taken(void *ctx, const char *token)
{
    struct search *s = ctx;
    struct victim *v = &s->victims[s->at];
    if (token == NULL) {
        s->at++;
        search_next(s);
        return;
    }
    s->token = mem_strdup(token);
    char *path = mem_printf("/sandboxes/%s/pause", v->id);
    e2b_call_start(s->e2b, &(struct e2b_call_options){.method = "POST",
                                                      .path = path,
                                                      .body = json_object(),
                                                      .conflict_is_final = true,
                                                      .done = on_paused,
                                                      .data = s});
    free(path);
}

static void search_next(struct search *s)
{
    if (s->at == s->count || s->e2b->disposing) {
        search_end(s, false);
        return;
    }
    s->e2b->host->sweep_take(s->e2b->host->data, s->victims[s->at].thread, LEASE_MS, on_taken, s);
}

static int by_use(const void *a, const void *b)
{
    const struct victim *x = a, *y = b;
    return x->used_ms < y->used_ms ? -1 : x->used_ms > y->used_ms;
}

static void add_victim(struct search *s, const char *id, const char *thread)
{
    struct e2b_box *box = e2b_box_of_thread(s->e2b, thread);
    if (s->count >= VICTIMS_MAX || !e2b_is_plain(id) || (box != NULL && box->busy))
        return;
    s->victims = mem_realloc(s->victims, (s->count + 1) * sizeof *s->victims);
    s->victims[s->count++] = (struct victim){mem_strdup(id), mem_strdup(thread), 0};
}

/* --- the least recently used of the whole deployment --- */

struct use_question {
    struct search *search;
    size_t index;
};

static void on_use(void *ctx, const struct driver_record *record, long long last_claim_ms)
{
    struct use_question *q = ctx;
    struct search *s = q->search;
    if (record != NULL)
        s->victims[q->index].used_ms = last_claim_ms;
    free(q);
    if (--s->asked > 0)
        return;
    qsort(s->victims, s->count, sizeof *s->victims, by_use);
    search_next(s);
}

static void on_running(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct search *s = data;
    size_t i;
    json_t *entry;
    if (failed == NULL)
        json_array_foreach((json_t *)list, i, entry)
        {
            const char *deployment = e2b_meta(entry, E2B_META_DEPLOYMENT);
            const char *thread = e2b_meta(entry, s->e2b->tag);
            if (deployment != NULL && thread != NULL &&
                strcmp(deployment, s->e2b->deployment) == 0 &&
                strcmp(jsonx_get_str(entry, "state", ""), "running") == 0)
                add_victim(s, jsonx_get_str(entry, "sandboxID", ""), thread);
        }
    if (s->count == 0) {
        search_end(s, false);
        return;
    }
    s->asked = s->count;
    for (i = 0; i < s->count; i++) {
        struct use_question *q = mem_alloc(sizeof *q);
        *q = (struct use_question){s, i};
        s->e2b->host->record_get(s->e2b->host->data, s->victims[i].thread, on_use, q);
    }
}

static void search_start(struct e2b *e2b)
{
    struct search *s = mem_alloc(sizeof *s);
    const char *metadata[] = {E2B_META_DEPLOYMENT, e2b->deployment, NULL};
    s->e2b = e2b;
    e2b->freeing = true;
    e2b_work_begin(e2b);
    e2b_list_start(e2b, metadata, "running", on_running, s);
}

/* --- the queue --- */

static void on_poll(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b *e2b = w->data;
    (void)loop, (void)revents;
    expire(e2b);
    if (e2b->waits == NULL || e2b->freeing || e2b->disposing)
        return;
    let_first_go(e2b); /* comes back to the queue when there is no room yet */
    if (e2b->deployment != NULL)
        search_start(e2b);
}

void e2b_wait_start(struct e2b *e2b, struct e2b_wait *wait)
{
    struct e2b_wait **at = &e2b->waits;
    while (*at != NULL && (*at)->since_ms <= wait->since_ms)
        at = &(*at)->next;
    wait->next = *at;
    *at = wait;
    wait->waiting = true;
    if (e2b->wait_timer.cb == NULL || !ev_is_active(&e2b->wait_timer)) {
        ev_timer_init(&e2b->wait_timer, on_poll, 0, 0);
        e2b->wait_timer.data = e2b;
        arm(e2b, 0);
    }
}

void e2b_wait_stop(struct e2b *e2b, struct e2b_wait *wait)
{
    struct e2b_wait **at = &e2b->waits;
    if (!wait->waiting)
        return;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    wait->waiting = false;
}

void e2b_wait_kick(struct e2b *e2b)
{
    if (e2b->waits != NULL && !e2b->freeing)
        arm(e2b, 0);
}
