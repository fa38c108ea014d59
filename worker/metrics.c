/* What this replica counts and measures: one table, shown by the status port. */
#include "worker/metrics.h"

#include "common/metrics.h"

/* From a millisecond (a script call) or 10 of them (a run) to the longest that is usual. */
#define CALL_BOUNDS                                                                                \
    {                                                                                              \
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10             \
    }
#define RUN_BOUNDS                                                                                 \
    {                                                                                              \
        0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900                           \
    }

/* clang-format off */
#define COUNTER(named, text, ...) \
    {.name = "sandpiper_" named, .help = text, \
     .kind = METRIC_COUNTER, .labels = {__VA_ARGS__}}
#define GAUGE(named, text, ...) \
    {.name = "sandpiper_" named, .help = text, .kind = METRIC_GAUGE, .labels = {__VA_ARGS__}}
#define CALL(named, text) \
    {.name = "sandpiper_" named, .help = text, \
     .kind = METRIC_HISTOGRAM, .bounds = CALL_BOUNDS}
#define RUN(named, text) \
    {.name = "sandpiper_" named, .help = text, .kind = METRIC_HISTOGRAM, .bounds = RUN_BOUNDS}
/* The names that every client library of Prometheus uses. */
#define PROCESS(named, text, of)  {.name = "process_" named, .help = text, .kind = of}

static struct metric table[METRIC_ID_COUNT] = {
    [METRIC_BUILD_INFO] = GAUGE("build_info",
        "Always 1; the version of the worker and of the BullMQ whose Lua it runs.",
        "version", "bullmq"),
    [METRIC_DRIVER_INFO] = GAUGE("driver_info",
        "1 for the driver that the environment's settings name.", "driver"),
    [METRIC_JOBS_CLAIMED] = COUNTER("jobs_claimed_total", "Jobs taken from the queue.", NULL),
    [METRIC_JOBS_ENDED] = COUNTER("jobs_ended_total",
        "Jobs that left this replica: completed, failed, retried, returned (to the queue) or "
        "lost (its lock, or the job).",
        "end", "reason"),
    [METRIC_JOBS_STALLED] = COUNTER("jobs_stalled_total",
        "Jobs of dead workers that passes of this replica put back.", NULL),
    [METRIC_LOCKS_LOST] = COUNTER("locks_lost_total",
        "Running jobs whose lock was found lost.", NULL),
    [METRIC_STREAM_ENTRIES] = COUNTER("stream_entries_total",
        "Entries of stream:jobs: admitted, or dead (put into stream:dead).",
        "result"),
    [METRIC_JOB_WAIT] = RUN("job_wait_seconds",
        "Time from a job's adding to its claim, delays and parking included."),
    [METRIC_CLAIM_DURATION] = CALL("claim_duration_seconds",
        "Time of a call to Redis that brought a job."),
    [METRIC_FINISH_DURATION] = CALL("finish_duration_seconds",
        "Time of the calls to Redis that ended a job."),
    [METRIC_SANDBOX_WAIT] = RUN("sandbox_wait_seconds",
        "Time from a job's claim to the delivery of its code."),
    [METRIC_FIRST_OUTPUT] = RUN("first_output_seconds",
        "Time from the delivery of the code to its first output."),
    [METRIC_RUN_DURATION] = RUN("run_duration_seconds",
        "Time from the delivery of the code to its end."),
    [METRIC_SANDBOXES_ACQUIRED] = COUNTER("sandboxes_acquired_total",
        "Sandboxes that runs of threads got: warm, resumed (from a pause) or fresh.", "driver",
        "how"),
    [METRIC_SANDBOXES_CREATED] = COUNTER("sandboxes_created_total",
        "Sandboxes (LOCAL: kernels) made.", "driver"),
    [METRIC_SANDBOXES_KILLED] = COUNTER("sandboxes_killed_total",
        "Sandboxes (LOCAL: kernels) killed.", "driver"),
    [METRIC_SANDBOXES_SWEPT] = COUNTER("sandboxes_swept_total",
        "Paused sandboxes deleted by the sweeper.", "driver"),
    [METRIC_E2B_REQUESTS] = COUNTER("e2b_requests_total",
        "Requests to E2B by kind and HTTP status, or how they failed: refused, failed, cut, "
        "timed_out.",
        "kind", "status"),
    [METRIC_REPLY_BYTES] = COUNTER("reply_bytes_total", "Bytes of reply messages.", NULL),
    [METRIC_REPLY_MESSAGES] = COUNTER("reply_messages_total", "Reply messages.", NULL),
    [METRIC_REDIS_CONNECTED] = GAUGE("redis_connected",
        "1 while commands can be sent to Redis.", NULL),
    [METRIC_REDIS_RECONNECTS] = COUNTER("redis_reconnects_total",
        "Times that the connection for commands was made again.", NULL),
    [METRIC_READY] = GAUGE("ready", "What /readyz says, as 1 or 0.", NULL),
    [METRIC_DRAINING] = GAUGE("draining", "1 from SIGTERM on.", NULL),
    [METRIC_SLOTS] = GAUGE("slots", "Jobs that this replica runs at a time.", NULL),
    [METRIC_JOBS_RUNNING] = GAUGE("jobs_running", "Jobs that this replica holds.", NULL),
    [METRIC_QUEUE_JOBS] = GAUGE("queue_jobs",
        "Jobs of the whole queue: waiting, prioritized, due, delayed (parked ones not counted), "
        "parked, running.", "state"),
    [METRIC_QUEUE_RUNNABLE] = GAUGE("queue_runnable_jobs",
        "Jobs that another replica could start now: waiting, prioritized and due ones; 0 while "
        "the queue is paused.", NULL),
    [METRIC_QUEUE_OLDEST_RUNNABLE] = GAUGE("queue_oldest_runnable_seconds",
        "How long the first of them can have been runnable.", NULL),
    [METRIC_QUEUE_PAUSED] = GAUGE("queue_paused", "1 while the queue is paused.", NULL),
    [METRIC_QUEUE_STREAM_ENTRIES] = GAUGE("queue_stream_entries",
        "Entries of stream:jobs that are not admitted yet.", NULL),
    [METRIC_QUEUE_STATS_AGE] = GAUGE("queue_stats_age_seconds",
        "Age of the queue's figures.", NULL),
    [METRIC_LOG_LINES] = COUNTER("log_lines_total", "Lines logged.", "level"),
    [METRIC_LOG_LINES_SUPPRESSED] = COUNTER("log_lines_suppressed_total",
        "Repeated lines that were counted and not logged.", NULL),
    [METRIC_PROCESS_CPU] = PROCESS("cpu_seconds_total",
        "Total user and system CPU time spent in seconds.", METRIC_COUNTER),
    [METRIC_PROCESS_MEMORY] = PROCESS("resident_memory_bytes",
        "Resident memory size in bytes.", METRIC_GAUGE),
    [METRIC_PROCESS_START] = PROCESS("start_time_seconds",
        "Start time of the process since unix epoch in seconds.", METRIC_GAUGE),
};
/* clang-format on */

void metrics_count(enum metric_id id, double n, const char *value1, const char *value2)
{
    metric_add(&table[id], n, value1, value2);
}

void metrics_set(enum metric_id id, double value, const char *value1, const char *value2)
{
    metric_set(&table[id], value, value1, value2);
}

void metrics_observe_ms(enum metric_id id, double ms)
{
    metric_observe(&table[id], ms / 1000.0, NULL, NULL);
}

double metrics_value(enum metric_id id, const char *value1, const char *value2)
{
    return metric_value(&table[id], value1, value2);
}

int metrics_print(struct buf *out)
{
    int rc = 0;
    for (int i = 0; i < METRIC_ID_COUNT && rc == 0; i++)
        rc = metric_print(&table[i], out);
    return rc;
}

void metrics_clear(void)
{
    for (int i = 0; i < METRIC_ID_COUNT; i++)
        metric_clear(&table[i]);
}
