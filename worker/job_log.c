/* What dashboards show of a running job beside its reply: its log and its progress. */
#include "worker/job_log.h"

#include "common/buf.h"
#include "common/mem.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW_MAX       (32 * 1024) /* a line without end is cut into rows of that */
#define HOLD_BACK     1.0         /* seconds */
#define LEFT_OUT_TEXT "(more output is left out of this log)"

struct job_log {
    struct queue *q;
    const struct claimed_job *job;
    double keep_rows;
    long long left; /* bytes that may still be added */
    struct buf pending;
    struct ev_timer timer;
};

static void add_row(struct job_log *log, const char *text, size_t len)
{
    struct queue_call *call = queue_call_new(log->q, &script_addLog, 2);
    queue_call_job_key(call, &log->job->id, "");
    queue_call_job_key(call, &log->job->id, ":logs");
    queue_call_bytes(call, log->job->id.data, log->job->id.len);
    queue_call_bytes(call, text, len);
    if (log->keep_rows >= 0)
        queue_call_int(call, (long long)log->keep_rows);
    else
        queue_call_str(call, "");
    queue_call_send(call, NULL, NULL);
}

/* The first len bytes that are pending, but for a newline at their end, as a row. */
static void send_pending(struct job_log *log, size_t len)
{
    size_t row = len > 0 && log->pending.data[len - 1] == '\n' ? len - 1 : len;
    if (len == 0 || log->left <= 0)
        return;
    log->left -= (long long)row + 1;
    if (log->left > 0)
        add_row(log, log->pending.data, row);
    else
        add_row(log, LEFT_OUT_TEXT, strlen(LEFT_OUT_TEXT));
    buf_consume(&log->pending, len);
}

static size_t whole_lines(const struct job_log *log)
{
    size_t len = log->pending.len;
    while (len > 0 && log->pending.data[len - 1] != '\n')
        len--;
    return len;
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct job_log *log = w->data;
    send_pending(log, whole_lines(log));
}

struct job_log *job_log_new(struct queue *q, const struct claimed_job *job, double keep_rows,
                            long long max_bytes)
{
    struct job_log *log = mem_alloc(sizeof *log);
    *log = (struct job_log){.q = q, .job = job, .keep_rows = keep_rows, .left = max_bytes};
    buf_init(&log->pending, ROW_MAX);
    ev_timer_init(&log->timer, on_timer, HOLD_BACK, 0);
    log->timer.data = log;
    return log;
}

void job_log_free(struct job_log *log)
{
    if (log == NULL)
        return;
    ev_timer_stop(queue_options(log->q)->loop, &log->timer);
    buf_fini(&log->pending);
    free(log);
}

void job_log_output(struct job_log *log, const char *text, size_t len)
{
    while (len > 0 && log->left > 0) {
        size_t room = ROW_MAX - log->pending.len, part = len < room ? len : room;
        /* Never through a character: its later bytes begin with 10. */
        while (part < len && part > 0 && ((unsigned char)text[part] & 0xc0) == 0x80)
            part--;
        if (part > 0 && buf_append(&log->pending, text, part) != 0)
            abort();
        text += part;
        len -= part;
        if (len > 0)
            send_pending(log, whole_lines(log) > 0 ? whole_lines(log) : log->pending.len);
    }
    if (log->pending.len > 0 && !ev_is_active(&log->timer)) {
        struct ev_loop *loop = queue_options(log->q)->loop;
        ev_now_update(loop);
        ev_timer_set(&log->timer, HOLD_BACK, 0);
        ev_timer_start(loop, &log->timer);
    }
}

void job_log_flush(struct job_log *log)
{
    if (log != NULL)
        send_pending(log, log->pending.len);
}

void job_progress(struct queue *q, const struct claimed_job *job, const char *state)
{
    char text[64];
    struct queue_call *call = queue_call_new(q, &script_updateProgress, 3);
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", state);
    queue_call_job_key(call, &job->id, "");
    queue_call_key(call, "events");
    queue_call_key(call, "meta");
    queue_call_bytes(call, job->id.data, job->id.len);
    queue_call_str(call, text);
    queue_call_send(call, NULL, NULL);
}
