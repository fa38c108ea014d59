/* Counters, gauges and histograms of this process, and their text in Prometheus' format 0.0.4. */
#ifndef SANDPIPER_COMMON_METRICS_H
#define SANDPIPER_COMMON_METRICS_H

#include "common/buf.h"

#include <stddef.h>

enum { METRIC_LABELS = 2, METRIC_BOUNDS_MAX = 16 };
/* Combinations of label values that one metric keeps; what comes after them counts as "other", so
 * that no input can make the memory or the scrape grow. */
enum { METRIC_SERIES_MAX = 200 };

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric_series;

struct metric {       /* static; series is NULL at first */
    const char *name; /* with its unit, and _total for a counter */
    const char *help; /* one line */
    enum metric_kind kind;
    const char *labels[METRIC_LABELS]; /* names; NULL from the first that is not used */
    /* HISTOGRAM: upper bounds, ascending; zero ends them. Alike for all its series. */
    double bounds[METRIC_BOUNDS_MAX];
    struct metric_series *series;
    size_t series_count;
};

/* Values of labels are copied; those that the metric does not have are ignored, NULL is "". */
void metric_add(struct metric *m, double n, const char *value1, const char *value2);
void metric_set(struct metric *m, double value, const char *value1, const char *value2);
/* HISTOGRAM: one observation. */
void metric_observe(struct metric *m, double value, const char *value1, const char *value2);
/* What was added or set so far; of a histogram the number of observations. 0 when there is none. */
double metric_value(const struct metric *m, const char *value1, const char *value2);

/* Appends the metric's lines. A metric without labels is always there, if only with a zero; one
 * with labels has at least its HELP and TYPE. 0, or -1 when out is full. */
int metric_print(const struct metric *m, struct buf *out);
void metric_clear(struct metric *m); /* frees the series */

#endif
