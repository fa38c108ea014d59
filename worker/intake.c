/* The second door: entries of the Redis Stream "<prefix>:<queue>:stream:jobs" become BullMQ jobs,
 * once each and in the stream's order. */
#include "worker/intake.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/metrics.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP      "workers"
#define BATCH      100   /* entries that one call admits */
#define DEAD_KEPT  10000 /* dead letters kept */
#define BLOCK_MS   5000  /* longest wait for the bell; then what dead replicas left is looked for */
#define MARGIN_MS  1000  /* past it the connection is not to be trusted */
#define HELD_S     0.25  /* between two looks at a queue that is too full */
#define PAUSE_S    1.0   /* after an error */
#define LEAVE_S    1.0   /* how long Redis has to hear that we leave */
#define CREDIT_MAX 200   /* jobs that have ended and let others in */

/* Entries are admitted by one script, which takes them off the stream itself: so it is only there
 * that their order, their acknowledgement and their becoming jobs meet. The blocking read is no
 * more than a bell: it brings one entry, which the script then finds among the pending ones. */
struct intake {
    struct queue *q;
    struct redis *bell; /* NULL once stopped */
    struct ev_timer pause, leave_timer;
    bool ringing, calling, stopped, held;
    bool leaving; /* the call under way is the last one */
    long long backlog_max;
    int ended; /* jobs, not yet turned into entries beyond the limit */
    char state[256];
    void (*changed)(void *data);
    void *changed_data;
    void (*left)(void *data);
    void *left_data;
};

static void call_admit(struct intake *in);

/* Where the state changes; said once. */
static void set_state(struct intake *in, enum log_level level, bool held, const char *state)
{
    bool same = held ? in->held : !in->held && strcmp(in->state, state) == 0;
    in->held = held;
    snprintf(in->state, sizeof in->state, "%s", state);
    if (same)
        return;
    log_write(level, NULL, "stream:jobs: %s", in->state);
    in->changed(in->changed_data);
}

static void pause_then_call(struct intake *in, double seconds)
{
    if (in->stopped)
        return;
    ev_timer_stop(queue_options(in->q)->loop, &in->pause);
    ev_timer_set(&in->pause, seconds, 0);
    ev_timer_start(queue_options(in->q)->loop, &in->pause);
}

static void on_pause_over(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    call_admit(w->data);
}

static void on_bell(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct intake *in = data;
    in->ringing = false;
    if (reply == NULL || in->stopped) /* on_state goes on */
        return;
    if (redis_is_passing(reply)) { /* a slot that moves, say: said once, as for scripts */
        queue_say_refused(in->q, "a wait on stream:jobs", reply);
        pause_then_call(in, PAUSE_S);
    } else if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "NOGROUP", 7) != 0) {
        set_state(in, redis_is_denied(reply) ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, false, reply->str);
        pause_then_call(in, PAUSE_S);
    } else {
        call_admit(in); /* also when nothing came: a replica may have died with an entry in hand */
    }
}

static void ring(struct intake *in)
{
    struct str key = queue_key(in->q, "stream:jobs", 11);
    char block[16];
    snprintf(block, sizeof block, "%d", BLOCK_MS);
    const char *argv[] = {"XREADGROUP", "GROUP",  GROUP,   queue_options(in->q)->replica_id,
                          "COUNT",      "1",      "BLOCK", block,
                          "STREAMS",    key.data, ">"};
    in->ringing = redis_command(in->bell, 11, argv, NULL, BLOCK_MS + MARGIN_MS, on_bell, in) == 0;
    if (!in->ringing)
        pause_then_call(in, PAUSE_S);
    str_fini(&key);
}

static void has_left(struct intake *in)
{
    ev_timer_stop(queue_options(in->q)->loop, &in->leave_timer);
    void (*left)(void *) = in->left;
    in->left = NULL;
    if (left != NULL)
        left(in->left_data);
}

/* The script's answer: {admitted, letters, beyond the limit, held, waiting, more, wrong}. */
static void go_on(struct intake *in, const redisReply *reply)
{
    long long letters = reply->element[1]->integer, waiting = reply->element[4]->integer;
    bool held = reply->element[3]->len > 0, more = reply->element[5]->len > 0;
    const char *wrong = reply->element[6]->str;
    char text[160];
    in->ended -= 2 * (int)reply->element[2]->integer;
    metrics_count(METRIC_STREAM_ENTRIES, (double)reply->element[0]->integer, "admitted", NULL);
    metrics_count(METRIC_STREAM_ENTRIES, (double)letters, "dead", NULL);
    if (letters > 0)
        log_warn("%lld stream entries went to stream:dead, each with its reason", letters);
    if (wrong[0] != '\0') {
        set_state(in, LOG_LEVEL_WARN, false, wrong);
        pause_then_call(in, PAUSE_S);
    } else if (held) {
        snprintf(text, sizeof text,
                 "entries are held back: %lld jobs wait in the queue, STREAM_BACKLOG_MAX is %lld",
                 waiting, in->backlog_max);
        set_state(in, LOG_LEVEL_INFO, true, text);
        pause_then_call(in, HELD_S);
    } else {
        set_state(in, LOG_LEVEL_INFO, false, "open");
        if (more)
            call_admit(in);
        else
            ring(in);
    }
}

static void on_admitted(redisReply *reply, void *data)
{
    struct intake *in = data;
    in->calling = false;
    if (in->stopped) {
        if (in->leaving)
            has_left(in);
        else
            call_admit(in);
    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 7) {
        go_on(in, reply);
    } else {
        set_state(in, redis_is_denied(reply) ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, false,
                  reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected answer");
        pause_then_call(in, PAUSE_S);
    }
}

static void call_admit(struct intake *in)
{
    static const char *const keys[] = {"stream:jobs", "stream:dead", "wait",   "prioritized",
                                       "delayed",     "meta",        "id",     "events",
                                       "marker",      "pc",          "active", "paused"};
    if (in->calling || in->ringing)
        return;
    const struct queue_options *o = queue_options(in->q);
    struct queue_call *call = queue_call_new(in->q, &script_admit, 12);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        queue_call_key(call, keys[i]);
    queue_call_str(call, queue_prefix(in->q));
    queue_call_str(call, GROUP);
    queue_call_str(call, o->replica_id);
    queue_call_int(call, text_now_ms());
    queue_call_int(call, BATCH);
    queue_call_int(call, o->data_max_bytes);
    queue_call_int(call, in->backlog_max);
    queue_call_int(call, in->ended / 2);
    queue_call_int(call, DEAD_KEPT);
    queue_call_str(call, in->stopped ? "1" : "");
    in->calling = true;
    in->leaving = in->stopped;
    queue_call_send(call, on_admitted, in);
}

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    (void)r;
    (void)reason;
    struct intake *in = data;
    in->ringing = false;
    if (ready && !in->stopped)
        call_admit(in);
}

static void on_leave_late(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    has_left(w->data);
}

struct intake *intake_new(struct queue *q, const struct redis_url *url, long long backlog_max,
                          void (*changed)(void *data), void *data)
{
    struct intake *in = mem_alloc(sizeof *in);
    in->q = q;
    in->backlog_max = backlog_max;
    in->changed = changed;
    in->changed_data = data;
    strcpy(in->state, "open");
    ev_timer_init(&in->pause, on_pause_over, PAUSE_S, 0);
    ev_timer_init(&in->leave_timer, on_leave_late, LEAVE_S, 0);
    in->pause.data = in->leave_timer.data = in;
    in->bell = redis_new(queue_options(q)->loop,
                         &(struct redis_options){.url = url, .label = "stream"}, on_state, in);
    return in;
}

void intake_job_ended(struct intake *in)
{
    if (in->ended < CREDIT_MAX)
        in->ended++;
}

const char *intake_describe(const struct intake *in)
{
    return in->state;
}

void intake_stop(struct intake *in, void (*left)(void *data), void *data)
{
    if (in->stopped)
        return;
    struct ev_loop *loop = queue_options(in->q)->loop;
    in->stopped = true;
    in->left = left;
    in->left_data = data;
    ev_timer_stop(loop, &in->pause);
    redis_free(in->bell); /* what it may bring still is admitted below, or by another replica */
    in->bell = NULL;
    in->ringing = false;
    ev_timer_start(loop, &in->leave_timer);
    call_admit(in);
}

void intake_free(struct intake *in)
{
    struct ev_loop *loop = queue_options(in->q)->loop;
    in->stopped = true;
    if (in->bell != NULL)
        redis_free(in->bell);
    ev_timer_stop(loop, &in->pause);
    ev_timer_stop(loop, &in->leave_timer);
    free(in);
}
