/* How long a sandbox lives: a run is covered, an idle one has its window, and neither costs a run a
 * wait. */
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_resolve.h"
#include "worker/metrics.h"

#include <stdlib.h>

#define COVER_MARGIN_MS 30000   /* for what comes after the run: its files */
#define AHEAD_MAX_MS    3600000 /* a longer run is extended in time instead: plans have limits */
#define SESSIONLESS_MS  60000

static long long max_ll(long long a, long long b)
{
    return a > b ? a : b;
}

static long long cover_ms(long long timeout_ms)
{
    long long ms = timeout_ms + COVER_MARGIN_MS;
    return ms > AHEAD_MAX_MS ? AHEAD_MAX_MS : ms;
}

static long long idle_ms(const struct settings *settings)
{
    return settings_int(settings, SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS);
}

long long e2b_ttl_for(const struct settings *settings, long long timeout_ms, bool session)
{
    long long ms = max_ll(cover_ms(timeout_ms), session ? idle_ms(settings) : SESSIONLESS_MS);
    return (ms + 999) / 1000;
}

long long e2b_ttl_allowed(const struct e2b *e2b, long long ttl_s)
{
    return e2b->ttl_max_s > 0 && ttl_s > e2b->ttl_max_s ? e2b->ttl_max_s : ttl_s;
}

struct ttl_call {
    struct e2b_box *box;
    long long ttl_s;
    long long asked_ms;
};

static void on_ttl(void *data, const struct e2b_answer *answer)
{
    struct ttl_call *t = data;
    struct e2b_box *box = t->box;
    struct log_ctx ctx = {.thread = box->thread};
    box->ttl_under_way = false;
    if (answer->verdict == E2B_OK)
        box->end_ms = t->asked_ms + e2b_ttl_allowed(box->e2b, t->ttl_s) * 1000;
    else if (answer->verdict == E2B_GONE) /* paused meanwhile, or gone: the next run looks */
        box->asleep = !box->busy;
    else
        log_write(LOG_LEVEL_WARN, &ctx, "E2B: the life of sandbox %.24s could not be set: %s",
                  box->id, answer->message);
    struct e2b *e2b = box->e2b;
    e2b_box_unref(box);
    free(t);
    e2b_work_end(e2b);
}

static void set_ttl(struct e2b_box *box, long long ttl_s)
{
    struct ttl_call *t = mem_alloc(sizeof *t);
    char *path = mem_printf("/sandboxes/%s/timeout", box->id);
    *t = (struct ttl_call){e2b_box_ref(box), ttl_s, text_monotonic_ms()};
    box->ttl_under_way = true;
    e2b_work_begin(box->e2b);
    e2b_call_start(box->e2b, &(struct e2b_call_options){
                                 .method = "POST",
                                 .path = path,
                                 .body = json_pack("{s:I}", "timeout", (json_int_t)ttl_s),
                                 .done = on_ttl,
                                 .data = t,
                             });
    free(path);
}

void e2b_ttl_cover(struct e2b_box *box, const struct settings *settings, long long timeout_ms)
{
    long long left = box->end_ms - text_monotonic_ms();
    long long want = max_ll(cover_ms(timeout_ms), box->thread != NULL ? idle_ms(settings) : 0);
    want = e2b_ttl_allowed(box->e2b, (want + 999) / 1000) * 1000;
    /* A known end within a tenth of what is wanted is far enough: long runs are extended
     * in time. */
    if (!box->ttl_under_way && left < want - want / 10)
        set_ttl(box, (want + 999) / 1000);
}

void e2b_ttl_keep(struct e2b_box *box, long long left_of_run_ms)
{
    long long left = box->end_ms - text_monotonic_ms(), want = cover_ms(left_of_run_ms);
    if (!box->ttl_under_way && left < want - want / 10)
        set_ttl(box, (want + 999) / 1000);
}

void e2b_ttl_idle(struct e2b_box *box, const struct settings *settings)
{
    long long want = e2b_ttl_allowed(box->e2b, idle_ms(settings) / 1000) * 1000;
    long long left = box->end_ms - text_monotonic_ms(), slack = want / 10;
    /* Too long costs money, too short a warm session. */
    if (box->thread == NULL || box->asleep || (left > want - slack && left < want + slack))
        return;
    set_ttl(box, (want + 999) / 1000);
}

static void on_killed(void *data, const struct e2b_answer *answer)
{
    struct e2b *e2b = data;
    if (answer->verdict == E2B_OK)
        metrics_count(METRIC_SANDBOXES_KILLED, 1, "E2B", NULL);
    if (answer->verdict != E2B_OK && answer->verdict != E2B_GONE)
        log_warn("E2B: a sandbox could not be killed: %s", answer->message);
    e2b_wait_kick(e2b);
    e2b_work_end(e2b);
}

void e2b_kill(struct e2b *e2b, const char *id, const char *why)
{
    char *path = mem_printf("/sandboxes/%s", id);
    log_info("E2B: sandbox %.24s is killed: %s", id, why);
    e2b_work_begin(e2b);
    e2b_call_start(e2b, &(struct e2b_call_options){
                            .method = "DELETE", .path = path, .done = on_killed, .data = e2b});
    free(path);
}
