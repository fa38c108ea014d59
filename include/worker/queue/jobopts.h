/* The BullMQ options of a job that decide what becomes of it: attempts, backoff, what is kept. */
#ifndef SANDPIPER_WORKER_QUEUE_JOBOPTS_H
#define SANDPIPER_WORKER_QUEUE_JOBOPTS_H

#include <jansson.h>
#include <stdbool.h>

struct str;

/* How many finished jobs stay (BullMQ's KeepJobs). */
struct jobopts_keep {
    double count; /* 0: remove this one at once; -1 (with has_count): all */
    bool has_count;
    double age; /* seconds; the whole set is trimmed by it */
    bool has_age;
    double limit; /* most removed by age in one call */
    bool has_limit;
    bool given; /* false: the job does not say; the worker's own default holds, else all are kept */
};

enum jobopts_backoff {
    JOBOPTS_BACKOFF_NONE,
    JOBOPTS_BACKOFF_FIXED,
    JOBOPTS_BACKOFF_EXPONENTIAL,
    JOBOPTS_BACKOFF_UNKNOWN
};

struct jobopts {
    double attempts; /* as JavaScript would compare it: "3" is 3, junk is NaN */
    bool lifo;
    enum jobopts_backoff backoff;
    double delay_ms;
    double jitter;            /* 0 to 1 */
    double stack_trace_limit; /* how many failures' texts are kept; -1: all */
    double keep_logs;         /* rows of its log that are kept; -1: all */
    struct jobopts_keep on_complete, on_fail;
    /* OpenTelemetry's context as the producer's BullMQ gave it (telemetry metadata): W3C
     * traceparent and tracestate, well-formed, or NULL. They live as long as the struct. */
    const char *traceparent, *tracestate;
    const json_t *group; /* opts.group, or NULL; lives as long as the struct */
    json_t *root, *carrier;
};

/* From the hash field; text that is no JSON object gives the defaults. */
void jobopts_init(struct jobopts *o, const struct str *opts_json);
void jobopts_fini(struct jobopts *o);

/* The same from a setting's text: "" (not given), true, false, a number or a JSON object. -1: it is
 * none of these. */
int jobopts_keep_parse(const char *text, struct jobopts_keep *keep);

/* BullMQ's decision after a failure that may be retried (Job.shouldRetryJob,
 * Backoffs.calculate, 6.7.0): true, with the delay in ms (0: at once), when attempts are left.
 * attempts_made: before this one. random01 in [0,1) feeds the jitter. An unknown strategy waits
 * like a fixed one. */
bool jobopts_retry(const struct jobopts *o, long long attempts_made, double random01,
                   long long *delay_ms);

#endif
