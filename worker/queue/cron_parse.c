/* Reads cron patterns in the dialect of npm's cron-parser 5: lists, ranges, steps, names, L, #, H.
 */
#include "worker/queue/cron.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PATTERN_MAX 1024
#define FIELD_MAX   2048 /* one field with its H written out */
#define VALUES_MAX  256

static const struct bounds {
    const char *name;
    int min, max;
    const char *letters; /* allowed beside digits and ?,*-/ */
} bounds[CRON_FIELDS] = {
    {"second", 0, 59, "H"},        {"minute", 0, 59, "H"}, {"hour", 0, 23, "H"},
    {"day of month", 1, 31, "LH"}, {"month", 1, 12, "H"},  {"day of week", 0, 7, "LH#"},
};

struct reader {
    struct cron *cron;
    enum cron_field field;
    const struct bounds *bounds;
    double random; /* of this field, for H; 0 to 1 */
    char text[FIELD_MAX];
    char *err;
    size_t err_size;
};

static int fail(struct reader *r, const char *why, const char *text)
{
    snprintf(r->err, r->err_size, "%s field: %s: %.60s", r->bounds->name, why, text);
    return -1;
}

static int put(struct reader *r, size_t *used, const char *text, size_t len)
{
    if (*used + len >= sizeof r->text)
        return fail(r, "too long", text);
    memcpy(r->text + *used, text, len);
    *used += len;
    r->text[*used] = '\0';
    return 0;
}

static int put_number(struct reader *r, size_t *used, const char *before, int n)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%s%d", before, n);
    return put(r, used, text, (size_t)len);
}

/* ---- names ---- */

static int number_of_name(const char *p)
{
    static const char names[] = "janfebmaraprmayjunjulaugsepoctnovdec";
    static const char days[] = "sunmontuewedthufrisat";
    for (int i = 0; i < 12; i++)
        if (strncasecmp(names + 3 * i, p, 3) == 0)
            return i + 1;
    for (int i = 0; i < 7; i++)
        if (strncasecmp(days + 3 * i, p, 3) == 0)
            return i;
    return -1;
}

static int replace_names(struct reader *r, const char *field)
{
    size_t used = 0;
    bool named = r->field == CRON_MONTH || r->field == CRON_WEEKDAY;
    r->text[0] = '\0';
    for (const char *p = field; *p != '\0';) {
        if (named && isalpha((unsigned char)p[0]) && isalpha((unsigned char)p[1]) &&
            isalpha((unsigned char)p[2])) {
            int n = number_of_name(p);
            if (n < 0)
                return fail(r, "no such name", p);
            if (put_number(r, &used, "", n) != 0)
                return -1;
            p += 3;
        } else if (put(r, &used, p++, 1) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- H: a value that the seed chooses ---- */

static uint32_t seed_of(const char *text)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* mulberry32, which cron-parser uses: the same seed must give the same times. */
static double next_random(uint32_t *state)
{
    uint32_t t = *state += 0x6d2b79f5u;
    t = (t ^ (t >> 15)) * (t | 1);
    t ^= t + (t ^ (t >> 7)) * (t | 61);
    return (double)(t ^ (t >> 14)) / 4294967296.0;
}

static int put_hashed(struct reader *r, size_t *used, int min, int max, int step)
{
    if (step == 0)
        return put_number(r, used, "", (int)floor(r->random * (max - min + 1)) + min);
    bool some = false;
    for (int i = min / step * step + (int)floor(r->random * step); i <= max; i += step) {
        if (i < min)
            continue;
        if (put_number(r, used, some ? "," : "", i) != 0)
            return -1;
        some = true;
    }
    return some ? 0 : put_hashed(r, used, min, max, 0);
}

static const char *take_number(const char *p, int *n)
{
    char *end;
    if (!isdigit((unsigned char)*p))
        return NULL;
    long v = strtol(p, &end, 10);
    *n = v > 100000 ? 100000 : (int)v;
    return end;
}

/* "H", "H(1-5)", "H/2", "H(1-5)/2" at *p; *p moves behind it. */
static int replace_hash(struct reader *r, size_t *used, const char **p)
{
    int min = r->bounds->min, max = r->bounds->max, step = 0, low, high;
    const char *q = *p + 1;
    if (*q == '(') {
        const char *end = take_number(q + 1, &low);
        if (end != NULL && *end == '-' && (end = take_number(end + 1, &high)) != NULL &&
            *end == ')') {
            if (low > high || low > max || high < min)
                return fail(r, "no value in the range", *p);
            min = low > min ? low : min;
            max = high < max ? high : max;
            q = end + 1;
        }
    }
    if (*q == '/' && isdigit((unsigned char)q[1])) {
        q = take_number(q + 1, &step);
        if (step <= 0)
            return fail(r, "the step is not positive", *p);
    }
    *p = q;
    return put_hashed(r, used, min, max, step);
}

/* Writes out *, ? and H. */
static int expand(struct reader *r)
{
    char before[FIELD_MAX];
    memcpy(before, r->text, sizeof before);
    size_t used = 0;
    r->text[0] = '\0';
    for (const char *p = before; *p != '\0';) {
        int rc;
        if (*p == '*' || *p == '?') {
            rc = put_number(r, &used, "", r->bounds->min);
            rc = rc != 0 ? rc : put_number(r, &used, "-", r->bounds->max);
            p++;
        } else if (*p == 'H') {
            rc = replace_hash(r, &used, &p);
        } else {
            rc = put(r, &used, p++, 1);
        }
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* ---- values ---- */

static int add_value(struct reader *r, int n)
{
    uint64_t *values = &r->cron->values[r->field], bit = 1ULL << n;
    if (*values & bit)
        return fail(r, "a value comes twice", r->text);
    *values |= bit;
    return 0;
}

static int add_range(struct reader *r, const char *text, long step)
{
    char *end;
    long min = strtol(text, &end, 10);
    if (end == text || !isdigit((unsigned char)*text))
        return fail(r, "no range", text);
    const char *second = strchr(text, '-') + 1;
    long max = strtol(second, &end, 10);
    if (end == second || !isdigit((unsigned char)*second))
        return fail(r, "no range", text);
    if (min < r->bounds->min || max > r->bounds->max || min > max)
        return fail(r, "no range within its bounds", text);
    if (step <= 0)
        return fail(r, "no step", text);
    bool sunday = r->field == CRON_WEEKDAY && max % 7 == 0 && (max - min) % step == 0;
    if (sunday && min > 0 && add_value(r, 0) != 0) /* "5-7" has Sunday in it */
        return -1;
    if (sunday && min == 0 && max == 0)
        return add_value(r, 0);
    for (long n = min; n <= max; n += step)
        if (add_value(r, (int)n) != 0)
            return -1;
    return 0;
}

/* "L", "5L" */
static int add_last(struct reader *r, const char *text)
{
    size_t digits = strspn(text, "0123456789");
    if (digits > 2 || strcmp(text + digits, "L") != 0 || (r->field == CRON_WEEKDAY && digits == 0))
        return fail(r, "no value", text);
    if (r->field == CRON_DAY) {
        r->cron->last_day = true;
    } else {
        r->cron->has_last_weekday = true;
        r->cron->last_weekdays |= 1u << ((*text - '0') % 7);
    }
    return 0;
}

static int add_single(struct reader *r, const char *text)
{
    char *end;
    if (strchr(text, 'L') != NULL)
        return add_last(r, text);
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || n < r->bounds->min || n > r->bounds->max)
        return fail(r, "no value within its bounds", text);
    if (r->field == CRON_WEEKDAY) {
        n %= 7;
        r->cron->last_weekdays |= 1u << n; /* counts only where an L is in the list, too */
    }
    return add_value(r, (int)n);
}

static int add_item(struct reader *r, char *item)
{
    char ranged[FIELD_MAX + 16];
    char *slash = strchr(item, '/');
    long step = 1;
    if (*item == '\0' || (slash != NULL && strchr(slash + 1, '/') != NULL))
        return fail(r, "no value", r->text);
    if (slash != NULL) {
        *slash = '\0';
        char *end;
        step = strtol(slash + 1, &end, 10);
        if (end == slash + 1)
            step = 0;
        if (strchr(item, '-') == NULL) {
            snprintf(ranged, sizeof ranged, "%s-%d", item, r->bounds->max);
            return add_range(r, ranged, step);
        }
    }
    return strchr(item, '-') != NULL ? add_range(r, item, step) : add_single(r, item);
}

static int read_field(struct reader *r, const char *field)
{
    if (replace_names(r, field) != 0)
        return -1;
    bool hashed = strchr(r->text, 'H') != NULL;
    for (const char *p = r->text; *p != '\0'; p++) {
        bool known = isdigit((unsigned char)*p) || strchr("?,*-/", *p) != NULL ||
                     strchr(r->bounds->letters, *p) != NULL;
        if (!known && !(hashed && strchr("()", *p) != NULL))
            return fail(r, "a character that means nothing there", r->text);
    }
    if (expand(r) != 0)
        return -1;
    size_t count = 0;
    for (char *p = r->text, *comma; p != NULL; p = comma) {
        comma = strchr(p, ',');
        if (comma != NULL)
            *comma++ = '\0';
        if (++count > VALUES_MAX)
            return fail(r, "too many values", p);
        if (add_item(r, p) != 0)
            return -1;
    }
    return 0;
}

/* "5#3": the third Friday. Cuts the text at the #. */
static int read_nth(struct reader *r, char *field)
{
    char *hash = strchr(field, '#');
    if (hash == NULL)
        return 0;
    char *end;
    long n = strtol(hash + 1, &end, 10);
    if (strpbrk(field, ",-/") != NULL || *end != '\0' || end == hash + 1 || n < 1 || n > 5)
        return fail(r, "# takes one day and a number from 1 to 5", field);
    *hash = '\0';
    r->cron->nth_weekday = (int)n;
    return 0;
}

static const char *predefined(const char *pattern)
{
    static const char *const rows[][2] = {
        {"@yearly", "0 0 0 1 1 *"},    {"@annually", "0 0 0 1 1 *"}, {"@monthly", "0 0 0 1 * *"},
        {"@weekly", "0 0 0 * * 0"},    {"@daily", "0 0 0 * * *"},    {"@hourly", "0 0 * * * *"},
        {"@minutely", "0 * * * * *"},  {"@secondly", "* * * * * *"}, {"@weekdays", "0 0 0 * * 1-5"},
        {"@weekends", "0 0 0 * * 0,6"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i][0], pattern) == 0)
            return rows[i][1];
    return *pattern == '\0' ? "0 * * * * *" : pattern;
}

/* Cuts the pattern into its fields; missing ones in front are "0 * * * * *"'s. */
static int cut(char *text, const char *fields[CRON_FIELDS])
{
    static const char *const blanks = " \t\n\r\f\v";
    static char star[] = "*", zero[] = "0";
    char *found[CRON_FIELDS] = {NULL}, *rest;
    int count = 0;
    for (char *p = strtok_r(text, blanks, &rest); p != NULL; p = strtok_r(NULL, blanks, &rest)) {
        if (count == CRON_FIELDS)
            return -1;
        found[count++] = p;
    }
    for (int i = 0; i < CRON_FIELDS; i++)
        fields[i] =
            i < CRON_FIELDS - count ? (i == 0 ? zero : star) : found[i - (CRON_FIELDS - count)];
    return count == 0 ? -1 : 0;
}

/* One month, and only days that it never has, as 30 February. */
static bool never_comes(const struct cron *cron)
{
    static const int days[] = {0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    uint64_t months = cron->values[CRON_MONTH], day = cron->values[CRON_DAY];
    if (__builtin_popcountll(months) != 1 || cron->last_day || !cron->any_weekday || day == 0)
        return false;
    return __builtin_ctzll(day) > days[__builtin_ctzll(months)];
}

int cron_parse(struct cron *cron, const char *pattern, const char *seed, char *err, size_t err_size)
{
    /* In the order in which cron-parser draws its random numbers. */
    static const enum cron_field order[CRON_FIELDS] = {CRON_SECOND, CRON_MINUTE, CRON_HOUR,
                                                       CRON_MONTH,  CRON_DAY,    CRON_WEEKDAY};
    char text[PATTERN_MAX + 1], weekday[PATTERN_MAX + 1];
    const char *fields[CRON_FIELDS];
    struct reader r = {.cron = cron, .err = err, .err_size = err_size};
    uint32_t state = seed != NULL && *seed != '\0' ? seed_of(seed) : (uint32_t)random();
    *cron = (struct cron){.nth_weekday = 0};
    pattern = predefined(pattern);
    if (strlen(pattern) > PATTERN_MAX) {
        snprintf(err, err_size, "the pattern is longer than %d characters", PATTERN_MAX);
        return -1;
    }
    memcpy(text, pattern, strlen(pattern) + 1);
    if (cut(text, fields) != 0) {
        snprintf(err, err_size, "the pattern has no field, or more than six: %.60s", pattern);
        return -1;
    }
    cron->any_day = strcmp(fields[CRON_DAY], "*") == 0 || strcmp(fields[CRON_DAY], "?") == 0;
    cron->any_weekday =
        strcmp(fields[CRON_WEEKDAY], "*") == 0 || strcmp(fields[CRON_WEEKDAY], "?") == 0;
    memcpy(weekday, fields[CRON_WEEKDAY], strlen(fields[CRON_WEEKDAY]) + 1);
    fields[CRON_WEEKDAY] = weekday;
    for (size_t i = 0; i < CRON_FIELDS; i++) {
        r.field = order[i];
        r.bounds = &bounds[order[i]];
        r.random = next_random(&state);
        if (order[i] == CRON_WEEKDAY && read_nth(&r, weekday) != 0)
            return -1;
        if (read_field(&r, fields[order[i]]) != 0)
            return -1;
    }
    if (never_comes(cron)) {
        snprintf(err, err_size, "the pattern's month never has its day: %.60s", pattern);
        return -1;
    }
    cron->values[CRON_WEEKDAY] &= 0x7f; /* "5-7" names 7 and, above, Sunday as 0 */
    return 0;
}
