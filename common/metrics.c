/* Counters, gauges and histograms of this process, and their text in Prometheus' format 0.0.4. */
#include "common/metrics.h"

#include "common/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct metric_series {
    struct metric_series *next;
    char *values[METRIC_LABELS];
    double value; /* HISTOGRAM: the sum */
    unsigned long long count;
    unsigned long long buckets[]; /* HISTOGRAM: observations up to each bound and above the one
                                     before it */
};

static size_t label_count(const struct metric *m)
{
    size_t n = 0;
    while (n < METRIC_LABELS && m->labels[n] != NULL)
        n++;
    return n;
}

static size_t bound_count(const struct metric *m)
{
    size_t n = 0;
    while (n < METRIC_BOUNDS_MAX && m->bounds[n] > 0)
        n++;
    return n;
}

/* Where the series is linked from; *result is NULL when there is none. */
static struct metric_series **find(struct metric *m, const char *const *values)
{
    size_t labels = label_count(m);
    struct metric_series **at = &m->series;
    for (; *at != NULL; at = &(*at)->next) {
        size_t i = 0;
        while (i < labels && strcmp((*at)->values[i], values[i]) == 0)
            i++;
        if (i == labels)
            break;
    }
    return at;
}

static struct metric_series *series_of(struct metric *m, const char *value1, const char *value2)
{
    const char *given[METRIC_LABELS] = {value1 != NULL ? value1 : "", value2 != NULL ? value2 : ""};
    const char *other[METRIC_LABELS] = {"other", "other"};
    const char **values = given;
    struct metric_series **at = find(m, values);
    if (*at == NULL && m->series_count >= METRIC_SERIES_MAX)
        at = find(m, values = other);
    if (*at != NULL)
        return *at;
    struct metric_series *s = mem_alloc(sizeof *s + bound_count(m) * sizeof s->buckets[0]);
    for (size_t i = 0; i < label_count(m); i++)
        s->values[i] = mem_strdup(values[i]);
    m->series_count++;
    *at = s; /* at the end: lines keep their order from scrape to scrape */
    return s;
}

void metric_add(struct metric *m, double n, const char *value1, const char *value2)
{
    series_of(m, value1, value2)->value += n;
}

void metric_set(struct metric *m, double value, const char *value1, const char *value2)
{
    series_of(m, value1, value2)->value = value;
}

void metric_observe(struct metric *m, double value, const char *value1, const char *value2)
{
    struct metric_series *s = series_of(m, value1, value2);
    size_t i = 0;
    while (i < METRIC_BOUNDS_MAX && m->bounds[i] > 0 && value > m->bounds[i])
        i++;
    if (i < METRIC_BOUNDS_MAX && m->bounds[i] > 0)
        s->buckets[i]++;
    s->count++;
    s->value += value;
}

double metric_value(const struct metric *m, const char *value1, const char *value2)
{
    const char *values[METRIC_LABELS] = {value1 != NULL ? value1 : "",
                                         value2 != NULL ? value2 : ""};
    const struct metric_series *s = *find((struct metric *)m, values);
    if (s == NULL)
        return 0;
    return m->kind == METRIC_HISTOGRAM ? (double)s->count : s->value;
}

static int print_escaped(struct buf *out, const char *value)
{
    int rc = 0;
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            rc |= buf_append(out, "\\n", 2);
        else if (*value == '"' || *value == '\\')
            rc |= buf_printf(out, "\\%c", *value);
        else
            rc |= buf_append(out, value, 1);
    }
    return rc;
}

/* {label="value",...,le="..."}; nothing when there is no label. */
static int print_labels(const struct metric *m, const struct metric_series *s, const char *le,
                        struct buf *out)
{
    size_t labels = label_count(m);
    int rc = 0;
    if (labels == 0 && le == NULL)
        return 0;
    for (size_t i = 0; i < labels; i++) {
        rc |= buf_printf(out, "%s%s=\"", i == 0 ? "{" : ",", m->labels[i]);
        rc |= print_escaped(out, s != NULL ? s->values[i] : "");
        rc |= buf_append(out, "\"", 1);
    }
    if (le != NULL)
        rc |= buf_printf(out, "%sle=\"%s\"", labels == 0 ? "{" : ",", le);
    return rc | buf_append(out, "}", 1);
}

static int print_number(struct buf *out, double value)
{
    if (isnan(value))
        return buf_append_str(out, " NaN\n");
    if (fabs(value) < 1e15 && value == floor(value))
        return buf_printf(out, " %.0f\n", value);
    return buf_printf(out, " %.12g\n", value);
}

static int print_line(const struct metric *m, const struct metric_series *s, const char *ending,
                      const char *le, double value, struct buf *out)
{
    int rc = buf_printf(out, "%s%s", m->name, ending);
    rc |= print_labels(m, s, le, out);
    return rc | print_number(out, value);
}

static int print_histogram(const struct metric *m, const struct metric_series *s, struct buf *out)
{
    unsigned long long upto = 0;
    int rc = 0;
    for (size_t i = 0; i < bound_count(m); i++) {
        char le[32];
        snprintf(le, sizeof le, "%g", m->bounds[i]);
        upto += s != NULL ? s->buckets[i] : 0;
        rc |= print_line(m, s, "_bucket", le, (double)upto, out);
    }
    rc |= print_line(m, s, "_bucket", "+Inf", s != NULL ? (double)s->count : 0, out);
    rc |= print_line(m, s, "_sum", NULL, s != NULL ? s->value : 0, out);
    return rc | print_line(m, s, "_count", NULL, s != NULL ? (double)s->count : 0, out);
}

static int print_series(const struct metric *m, const struct metric_series *s, struct buf *out)
{
    if (m->kind == METRIC_HISTOGRAM)
        return print_histogram(m, s, out);
    return print_line(m, s, "", NULL, s != NULL ? s->value : 0, out);
}

int metric_print(const struct metric *m, struct buf *out)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    int rc =
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, kinds[m->kind]);
    if (m->series == NULL && label_count(m) == 0)
        rc |= print_series(m, NULL, out);
    for (const struct metric_series *s = m->series; s != NULL; s = s->next)
        rc |= print_series(m, s, out);
    return rc == 0 ? 0 : -1;
}

void metric_clear(struct metric *m)
{
    while (m->series != NULL) {
        struct metric_series *s = m->series;
        m->series = s->next;
        for (size_t i = 0; i < METRIC_LABELS; i++)
            free(s->values[i]);
        free(s);
    }
    m->series_count = 0;
}
