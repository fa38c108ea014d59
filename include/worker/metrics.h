/* What this replica counts and measures: one table, shown by the status port. */
#ifndef SANDPIPER_WORKER_METRICS_H
#define SANDPIPER_WORKER_METRICS_H

#include "common/buf.h"

/* One id a row of the table in metrics.c, where each is explained. Labels in brackets. */
enum metric_id {
    METRIC_BUILD_INFO,  /* version, bullmq */
    METRIC_DRIVER_INFO, /* driver */
    METRIC_JOBS_CLAIMED,
    METRIC_JOBS_ENDED, /* end, reason */
    METRIC_JOBS_STALLED,
    METRIC_LOCKS_LOST,
    METRIC_STREAM_ENTRIES, /* result */
    METRIC_JOB_WAIT,
    METRIC_CLAIM_DURATION,
    METRIC_FINISH_DURATION,
    METRIC_SANDBOX_WAIT,
    METRIC_FIRST_OUTPUT,
    METRIC_RUN_DURATION,
    METRIC_SANDBOXES_ACQUIRED, /* driver, how */
    METRIC_SANDBOXES_CREATED,  /* driver */
    METRIC_SANDBOXES_KILLED,   /* driver */
    METRIC_SANDBOXES_SWEPT,    /* driver */
    METRIC_E2B_REQUESTS,       /* kind, status */
    METRIC_REPLY_BYTES,
    METRIC_REPLY_MESSAGES,
    METRIC_REDIS_CONNECTED,
    METRIC_REDIS_RECONNECTS,
    METRIC_READY,
    METRIC_DRAINING,
    METRIC_SLOTS,
    METRIC_JOBS_RUNNING,
    METRIC_QUEUE_JOBS, /* state */
    METRIC_QUEUE_RUNNABLE,
    METRIC_QUEUE_OLDEST_RUNNABLE,
    METRIC_QUEUE_PAUSED,
    METRIC_QUEUE_STREAM_ENTRIES,
    METRIC_QUEUE_STATS_AGE,
    METRIC_LOG_LINES, /* level */
    METRIC_LOG_LINES_SUPPRESSED,
    METRIC_PROCESS_CPU,
    METRIC_PROCESS_MEMORY,
    METRIC_PROCESS_START,
    METRIC_ID_COUNT
};

/* Values of labels: NULL where the metric has none. Of few kinds only; never an id of anything. */
void metrics_count(enum metric_id id, double n, const char *value1, const char *value2);
void metrics_set(enum metric_id id, double value, const char *value1, const char *value2);
/* A duration in ms, kept in seconds. */
void metrics_observe_ms(enum metric_id id, double ms);
double metrics_value(enum metric_id id, const char *value1, const char *value2);

/* Appends all of them; 0, or -1 when out is full. */
int metrics_print(struct buf *out);
void metrics_clear(void);

#endif
