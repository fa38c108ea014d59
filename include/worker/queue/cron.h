/* Cron patterns as BullMQ's job schedulers take them (those of npm's cron-parser 5): the next time
 * a pattern names. */
#ifndef SANDPIPER_WORKER_QUEUE_CRON_H
#define SANDPIPER_WORKER_QUEUE_CRON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zone;

enum cron_field {
    CRON_SECOND,
    CRON_MINUTE,
    CRON_HOUR,
    CRON_DAY,
    CRON_MONTH,
    CRON_WEEKDAY,
    CRON_FIELDS
};

struct cron {
    uint64_t values[CRON_FIELDS]; /* bit n: value n is named; weekday 0 is Sunday */
    bool any_day, any_weekday;    /* the field is * or ? */
    bool last_day;                /* L in the field of days */
    bool has_last_weekday;        /* an L among the weekdays */
    unsigned last_weekdays;       /* bit n: weekday n counts as last of its month (5L) */
    int nth_weekday;              /* 5#3: 3; 0 none */
};

/* Six fields (five: second 0; fewer: the missing ones are in front) or @hourly and the like. seed
 * chooses what H stands for (NULL: at random). -1 with a one-line reason when it is no pattern. */
int cron_parse(struct cron *cron, const char *pattern, const char *seed, char *err,
               size_t err_size);

/* The first time after `after` (both ms since the epoch) that the pattern names in that zone; where
 * clocks jump, as cron-parser decides: an hour that is left out runs in the hour after the gap, one
 * that comes twice runs the first time. -1 when there is none within reach. */
long long cron_next(const struct cron *cron, const struct zone *zone, long long after);

#endif
