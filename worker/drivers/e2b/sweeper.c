/* Deletes paused sandboxes of this deployment that nobody has used for long, one replica at
 * a time. */
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
#include <time.h>

#define SIDE_BY_SIDE       4
#define LEASE_MS           60000
#define HANDLE_MAX_IDLE_MS 3600000

struct swept {
    struct e2b_sweep *sweep;
    char *id, *thread, *token;
    long long used_ms; /* wall clock: last claim, else when it was paused; 0: unknown, left alone */
    bool over;
};

struct e2b_sweep {
    struct e2b *e2b;
    struct swept **found;
    size_t count, next, busy, asked, keep; /* keep: how many may stay, by the cap */
    size_t deleted;
};

static void work_on(struct e2b_sweep *sweep);

static void sweep_end(struct e2b_sweep *sweep)
{
    struct e2b *e2b = sweep->e2b;
    if (sweep->deleted > 0)
        log_info("E2B: %zu paused sandboxes were deleted by the sweeper", sweep->deleted);
    for (size_t i = 0; i < sweep->count; i++) {
        free(sweep->found[i]->id);
        free(sweep->found[i]->thread);
        free(sweep->found[i]->token);
        free(sweep->found[i]);
    }
    free(sweep->found);
    free(sweep);
    e2b->sweep = NULL;
    e2b_work_end(e2b);
}

static void one_over(struct swept *s)
{
    struct e2b_sweep *sweep = s->sweep;
    if (s->token != NULL)
        sweep->e2b->host->sweep_release(sweep->e2b->host->data, s->thread, s->token);
    sweep->busy--;
    work_on(sweep);
}

static void on_forgotten(void *ctx, bool ok)
{
    (void)ok;
    one_over(ctx);
}

static void on_deleted(void *data, const struct e2b_answer *a)
{
    struct swept *s = data;
    if (a->verdict != E2B_OK) {
        one_over(s);
        return;
    }
    const char *fields[] = {"sandbox", "", "creation", ""};
    s->sweep->deleted++;
    metrics_count(METRIC_SANDBOXES_SWEPT, 1, "E2B", NULL);
    struct e2b_box *box = e2b_box_of_thread(s->sweep->e2b, s->thread);
    if (box != NULL && strcmp(box->id, s->id) == 0)
        e2b_box_forget(box);
    s->sweep->e2b->host->record_set(s->sweep->e2b->host->data, s->thread, fields, 2, on_forgotten,
                                    s);
}

/* Under the thread's lease: is it still paused? Asking does not wake it. */
static void on_looked(void *data, const struct e2b_answer *a)
{
    struct swept *s = data;
    if (a->verdict != E2B_OK || strcmp(jsonx_get_str(a->body, "state", ""), "paused") != 0) {
        one_over(s);
        return;
    }
    char *path = mem_printf("/sandboxes/%s", s->id);
    e2b_call_start(s->sweep->e2b,
                   &(struct e2b_call_options){
                       .method = "DELETE", .path = path, .done = on_deleted, .data = s});
    free(path);
}

static bool too_old(const struct e2b_sweep *sweep, const struct swept *s)
{
    long long max_age =
        settings_int(sweep->e2b->settings, SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS);
    return s->used_ms > 0 && text_now_ms() - s->used_ms > max_age;
}

static void on_last_use(void *ctx, const struct driver_record *record, long long last_claim_ms)
{
    struct swept *s = ctx;
    if (record == NULL || last_claim_ms > s->used_ms) { /* used since it was judged */
        one_over(s);
        return;
    }
    char *path = mem_printf("/sandboxes/%s", s->id);
    e2b_call_start(s->sweep->e2b, &(struct e2b_call_options){
                                      .method = "GET", .path = path, .done = on_looked, .data = s});
    free(path);
}

static void on_taken(void *ctx, const char *token)
{
    struct swept *s = ctx;
    if (token == NULL) {
        one_over(s);
        return;
    }
    s->token = mem_strdup(token);
    s->sweep->e2b->host->record_get(s->sweep->e2b->host->data, s->thread, on_last_use, s);
}

static void work_on(struct e2b_sweep *sweep)
{
    while (sweep->busy < SIDE_BY_SIDE && sweep->next < sweep->count && !sweep->e2b->disposing) {
        struct swept *s = sweep->found[sweep->next++];
        size_t left = sweep->count - sweep->next + 1; /* this one and the more recently used */
        bool surplus = sweep->keep > 0 && left > sweep->keep && s->used_ms > 0;
        if (!too_old(sweep, s) && !surplus)
            continue;
        sweep->busy++;
        sweep->e2b->host->sweep_take(sweep->e2b->host->data, s->thread, LEASE_MS, on_taken, s);
    }
    if (sweep->busy == 0)
        sweep_end(sweep);
}

static int by_use(const void *a, const void *b)
{
    const struct swept *x = *(struct swept *const *)a, *y = *(struct swept *const *)b;
    return x->used_ms < y->used_ms ? -1 : x->used_ms > y->used_ms;
}

static void on_use(void *ctx, const struct driver_record *record, long long last_claim_ms)
{
    struct swept *s = ctx;
    struct e2b_sweep *sweep = s->sweep;
    if (record == NULL)
        s->used_ms = 0; /* Redis is away: nothing is known */
    else if (last_claim_ms > 0)
        s->used_ms = last_claim_ms;
    if (--sweep->asked > 0)
        return;
    qsort(sweep->found, sweep->count, sizeof *sweep->found, by_use);
    work_on(sweep);
}

/* RFC 3339 in ms since the epoch; 0 when it is anything else. */
static long long parse_time(const char *text)
{
    struct tm tm = {0};
    const char *rest = text != NULL ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    int hours = 0, minutes = 0;
    char sign = 0;
    if (rest == NULL)
        return 0;
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    long long ms = (long long)timegm(&tm) * 1000;
    if (strcmp(rest, "Z") == 0)
        return ms;
    if (sscanf(rest, "%c%2d:%2d", &sign, &hours, &minutes) != 3 || (sign != '+' && sign != '-'))
        return 0;
    long long shift = (hours * 60LL + minutes) * 60000;
    return sign == '+' ? ms - shift : ms + shift;
}

static void add(struct e2b_sweep *sweep, const json_t *entry)
{
    const char *id = jsonx_get_str(entry, "sandboxID", "");
    const char *thread = e2b_meta(entry, sweep->e2b->tag);
    const char *deployment = e2b_meta(entry, E2B_META_DEPLOYMENT);
    if (!e2b_is_plain(id) || thread == NULL || deployment == NULL ||
        strcmp(deployment, sweep->e2b->deployment) != 0 ||
        strcmp(jsonx_get_str(entry, "state", ""), "paused") != 0)
        return;
    struct swept *s = mem_alloc(sizeof *s);
    s->sweep = sweep;
    s->id = mem_strdup(id);
    s->thread = mem_strdup(thread);
    s->used_ms = parse_time(jsonx_get_str(entry, "endAt", NULL)); /* when it was paused */
    sweep->found = mem_realloc(sweep->found, (sweep->count + 1) * sizeof(struct swept *));
    sweep->found[sweep->count++] = s;
}

static void on_list(void *data, const json_t *list, const struct e2b_answer *failed)
{
    struct e2b_sweep *sweep = data;
    size_t i;
    json_t *entry;
    if (failed != NULL)
        log_warn("E2B: the sweeper could not list sandboxes: %s", failed->message);
    json_array_foreach((json_t *)list, i, entry) add(sweep, entry);
    sweep->asked = sweep->count;
    if (sweep->count == 0) {
        sweep_end(sweep);
        return;
    }
    for (i = 0; i < sweep->count; i++)
        sweep->e2b->host->record_get(sweep->e2b->host->data, sweep->found[i]->thread, on_use,
                                     sweep->found[i]);
}

static void start(struct e2b_sweep *sweep)
{
    const char *metadata[] = {E2B_META_DEPLOYMENT, sweep->e2b->deployment, NULL};
    sweep->keep = (size_t)settings_int(sweep->e2b->settings, SETTING_E2B_MAX_PAUSED);
    e2b_list_start(sweep->e2b, metadata, "paused", on_list, sweep);
}

static void on_deployment(void *ctx, const char *value)
{
    struct e2b_sweep *sweep = ctx;
    if (value != NULL && sweep->e2b->deployment == NULL)
        sweep->e2b->deployment = mem_strdup(value);
    if (sweep->e2b->deployment == NULL)
        sweep_end(sweep);
    else
        start(sweep);
}

static void on_turn(void *ctx, bool mine)
{
    struct e2b_sweep *sweep = ctx;
    struct e2b *e2b = sweep->e2b;
    char uuid[37];
    if (!mine || e2b->disposing) {
        sweep_end(sweep);
        return;
    }
    text_uuid(uuid);
    if (e2b->deployment != NULL)
        start(sweep);
    else
        e2b->host->shared_value(e2b->host->data, "e2b:deployment", uuid, on_deployment, sweep);
}

static void arm(struct e2b *e2b)
{
    long long ms = settings_int(e2b->settings, SETTING_E2B_SWEEP_INTERVAL_MS);
    ev_timer_stop(e2b->host->loop, &e2b->sweep_timer);
    ev_timer_set(&e2b->sweep_timer, (double)(ms / 2 + random() % (ms / 2 + 1)) / 1000, 0);
    ev_timer_start(e2b->host->loop, &e2b->sweep_timer);
}

/* Handles that have not been used for long only cost memory: the record finds their sandboxes. */
static void drop_old_handles(struct e2b *e2b)
{
    long long now = text_monotonic_ms();
    struct e2b_box *next;
    for (struct e2b_box *box = e2b->boxes; box != NULL; box = next) {
        next = box->next;
        if (!box->busy && now - box->used_ms > HANDLE_MAX_IDLE_MS)
            e2b_box_forget(box);
    }
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct e2b *e2b = w->data;
    (void)loop, (void)revents;
    arm(e2b);
    drop_old_handles(e2b);
    if (e2b->sweep != NULL || e2b->host->turn_take == NULL)
        return;
    e2b->sweep = mem_alloc(sizeof *e2b->sweep);
    e2b->sweep->e2b = e2b;
    e2b_work_begin(e2b);
    e2b->host->turn_take(e2b->host->data, "e2b-sweep",
                         settings_int(e2b->settings, SETTING_E2B_SWEEP_INTERVAL_MS) / 2 + 1,
                         on_turn, e2b->sweep);
}

void e2b_sweeper_init(struct e2b *e2b)
{
    ev_timer_init(&e2b->sweep_timer, on_timer, 0, 0);
    e2b->sweep_timer.data = e2b;
    arm(e2b);
}

void e2b_sweeper_fini(struct e2b *e2b)
{
    ev_timer_stop(e2b->host->loop, &e2b->sweep_timer);
}
