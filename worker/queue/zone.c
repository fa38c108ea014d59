/* Time zones from the system's tzdata (TZif, RFC 8536): the offset from UTC at a moment. */
#include "worker/queue/zone.h"

#include "common/mem.h"
#include "common/text.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FOLDER    "/usr/share/zoneinfo"
#define FILE_MAX  (256 * 1024)
#define DAY       86400LL
#define HEADER    44
#define NAME_MAX_ 64

enum rule_kind { RULE_NONE, RULE_MONTH, RULE_JULIAN, RULE_DAY };

/* When daylight saving begins or ends in each year, as the footer of a TZif file says it. */
struct rule {
    enum rule_kind kind;
    int month, week, day; /* RULE_MONTH: M<month>.<week>.<day>; else day */
    long time;            /* seconds after local midnight */
};

struct zone {
    size_t count; /* of transitions */
    long long *at;
    long *after; /* offset from at[i] on */
    long before; /* offset before the first transition */
    bool has_footer;
    long standard, saving; /* of the footer */
    struct rule begin, end;
};

long long zone_days(long long year, int month, long long day)
{
    long long y = month <= 2 ? year - 1 : year;
    long long era = (y >= 0 ? y : y - 399) / 400;
    long long of_era = y - era * 400;
    long long of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year + day - 1 - 719468;
}

/* ---- the footer: a POSIX TZ string ---- */

static const char *skip_name(const char *p)
{
    if (*p == '<') {
        const char *end = strchr(p, '>');
        return end != NULL ? end + 1 : p + strlen(p);
    }
    while (isalpha((unsigned char)*p))
        p++;
    return p;
}

/* [+-]hh[:mm[:ss]] in seconds */
static const char *take_time(const char *p, long *seconds)
{
    long sign = *p == '-' ? -1 : 1, unit = 3600;
    if (*p == '-' || *p == '+')
        p++;
    *seconds = 0;
    while (isdigit((unsigned char)*p) && unit > 0) {
        char *end;
        *seconds += strtol(p, &end, 10) * unit;
        unit = unit == 3600 ? 60 : unit == 60 ? 1 : 0;
        p = *end == ':' ? end + 1 : end;
    }
    *seconds *= sign;
    return p;
}

static const char *take_rule(const char *p, struct rule *rule)
{
    char *end;
    *rule = (struct rule){.time = 7200};
    if (*p == ',')
        p++;
    if (*p == 'M') {
        rule->kind = RULE_MONTH;
        rule->month = (int)strtol(p + 1, &end, 10);
        rule->week = *end == '.' ? (int)strtol(end + 1, &end, 10) : 1;
        rule->day = *end == '.' ? (int)strtol(end + 1, &end, 10) : 0;
        if (rule->month < 1 || rule->month > 12)
            rule->kind = RULE_NONE;
    } else {
        rule->kind = *p == 'J' ? RULE_JULIAN : RULE_DAY;
        rule->day = (int)strtol(*p == 'J' ? p + 1 : p, &end, 10);
    }
    return *end == '/' ? take_time(end + 1, &rule->time) : end;
}

static void take_footer(struct zone *z, const char *p)
{
    long west;
    p = skip_name(p);
    p = take_time(p, &west);
    z->has_footer = true;
    z->standard = z->saving = -west;
    if (*p == '\0')
        return;
    p = skip_name(p);
    z->saving = z->standard + 3600;
    if (*p != ',' && *p != '\0') {
        p = take_time(p, &west);
        z->saving = -west;
    }
    p = take_rule(p, &z->begin);
    take_rule(p, &z->end);
}

static bool is_leap(long long y)
{
    return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
}

/* The moment at which a rule acts in a year, where the local time before it has that offset. */
static long long rule_moment(const struct rule *rule, long long year, long offset)
{
    long long days;
    if (rule->kind == RULE_MONTH) {
        long long first = zone_days(year, rule->month, 1);
        long long next =
            rule->month == 12 ? zone_days(year + 1, 1, 1) : zone_days(year, rule->month + 1, 1);
        long long weekday = ((first + 4) % 7 + 7) % 7;
        days = first + (rule->day - weekday + 7) % 7 + 7LL * (rule->week - 1);
        while (days >= next)
            days -= 7;
    } else {
        bool after_february = rule->kind == RULE_JULIAN && is_leap(year) && rule->day >= 60;
        days = zone_days(year, 1, 1) + rule->day - (rule->kind == RULE_JULIAN ? 1 : 0) +
               (after_february ? 1 : 0);
    }
    return days * DAY + rule->time - offset;
}

static long footer_offset(const struct zone *z, long long at)
{
    if (z->begin.kind == RULE_NONE || z->end.kind == RULE_NONE)
        return z->standard;
    /* Near enough: no rule acts within a day of the new year where the guess could be wrong. */
    long long local = at + z->standard;
    long long year = 1970 + (long long)((double)local / (365.2425 * (double)DAY));
    while (zone_days(year + 1, 1, 1) * DAY <= local)
        year++;
    while (zone_days(year, 1, 1) * DAY > local)
        year--;
    long long begin = rule_moment(&z->begin, year, z->standard);
    long long end = rule_moment(&z->end, year, z->saving);
    bool saving = begin < end ? at >= begin && at < end : at >= begin || at < end;
    return saving ? z->saving : z->standard;
}

long zone_offset(const struct zone *z, long long at)
{
    if (z->count == 0 || at < z->at[0])
        return z->count == 0 && z->has_footer ? footer_offset(z, at) : z->before;
    if (at >= z->at[z->count - 1] && z->has_footer)
        return footer_offset(z, at);
    size_t low = 0, high = z->count; /* at[low] <= at < at[high] */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (z->at[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return z->after[low];
}

/* ---- the file ---- */

static uint32_t be32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static long long be64(const unsigned char *p)
{
    return (long long)((uint64_t)be32(p) << 32 | be32(p + 4));
}

/* Numbers of a header: isutc, isstd, leap, time, type, char. */
static size_t body_size(const unsigned char *header, size_t time_size)
{
    size_t n[6];
    for (size_t i = 0; i < 6; i++) {
        n[i] = be32(header + 20 + 4 * i);
        if (n[i] > FILE_MAX)
            return FILE_MAX;
    }
    return n[3] * (time_size + 1) + n[4] * 6 + n[5] + n[2] * (time_size + 4) + n[1] + n[0];
}

static bool is_header(const unsigned char *p, size_t left)
{
    return left >= HEADER && memcmp(p, "TZif", 4) == 0 && p[4] >= '2';
}

static bool parse(struct zone *z, const unsigned char *p, size_t len)
{
    if (!is_header(p, len))
        return false;
    size_t skip = HEADER + body_size(p, 4);
    if (skip > len || !is_header(p + skip, len - skip))
        return false;
    p += skip;
    len -= skip;
    size_t size = body_size(p, 8), times = be32(p + 32), types = be32(p + 36);
    if (HEADER + size > len || types == 0)
        return false;
    const unsigned char *at = p + HEADER, *index = at + times * 8, *type = index + times;
    z->count = times;
    z->at = mem_alloc((times + 1) * sizeof *z->at);
    z->after = mem_alloc((times + 1) * sizeof *z->after);
    z->before = (int32_t)be32(type);
    for (size_t i = 0; i < times; i++) {
        if (index[i] >= types)
            return false;
        z->at[i] = be64(at + i * 8);
        z->after[i] = (int32_t)be32(type + index[i] * 6);
    }
    size_t footer = HEADER + size + 1; /* after its newline */
    if (footer < len && p[footer] != '\n') {
        const unsigned char *end = memchr(p + footer, '\n', len - footer);
        if (end == NULL)
            return false;
        char *text = mem_strndup((const char *)p + footer, (size_t)(end - p) - footer);
        take_footer(z, text);
        free(text);
    }
    return true;
}

static bool load_file(struct zone *z, const char *path)
{
    FILE *f = fopen(path, "rbe");
    if (f == NULL)
        return false;
    unsigned char *data = mem_alloc(FILE_MAX);
    size_t len = fread(data, 1, FILE_MAX, f);
    fclose(f);
    bool fine = parse(z, data, len);
    free(data);
    return fine;
}

/* ---- names ---- */

/* Appends the entry of the folder `path` that is `name` in some case; false when there is none. */
static bool find_entry(char *path, size_t size, const char *name, size_t name_len)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(dir)) != NULL;) {
        if (strlen(e->d_name) != name_len || strncasecmp(e->d_name, name, name_len) != 0)
            continue;
        size_t used = strlen(path);
        found = (size_t)snprintf(path + used, size - used, "/%s", e->d_name) < size - used;
    }
    closedir(dir);
    return found;
}

static bool load_named(struct zone *z, const char *name)
{
    char path[sizeof FOLDER + 2 * NAME_MAX_] = FOLDER;
    if (strlen(name) >= NAME_MAX_ || *name == '\0')
        return false;
    for (const char *p = name; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("_+-/", *p) == NULL)
            return false;
    snprintf(path, sizeof path, FOLDER "/%s", name);
    if (load_file(z, path))
        return true;
    snprintf(path, sizeof path, FOLDER);
    for (const char *p = name; *p != '\0';) {
        size_t len = strcspn(p, "/");
        if (!find_entry(path, sizeof path, p, len))
            return false;
        p += p[len] == '/' ? len + 1 : len;
    }
    return load_file(z, path);
}

/* "utc", "gmt", "utc+2", "UTC-03:30" */
static bool is_fixed(const char *name, long *offset)
{
    *offset = 0;
    if (strcasecmp(name, "gmt") == 0 || strcasecmp(name, "utc") == 0)
        return true;
    if (strncasecmp(name, "utc", 3) != 0 || (name[3] != '+' && name[3] != '-') ||
        !isdigit((unsigned char)name[4]))
        return false;
    const char *end = take_time(name + 3, offset);
    return *end == '\0';
}

static bool load_system(struct zone *z)
{
    const char *tz = getenv("TZ");
    if (tz != NULL && *tz != '\0')
        return load_named(z, *tz == ':' ? tz + 1 : tz);
    return load_file(z, "/etc/localtime");
}

struct zone *zone_load(const char *name, char *err, size_t err_size)
{
    struct zone *z = mem_alloc(sizeof *z);
    if (name == NULL || *name == '\0') {
        if (!load_system(z)) { /* no zone at all is UTC, as everywhere */
            zone_free(z);
            z = mem_alloc(sizeof *z);
        }
        return z;
    }
    if (is_fixed(name, &z->before) || load_named(z, name))
        return z;
    zone_free(z);
    snprintf(err, err_size, "the time zone %.60s is not known here (is tzdata installed?)", name);
    return NULL;
}

void zone_free(struct zone *z)
{
    if (z == NULL)
        return;
    free(z->at);
    free(z->after);
    free(z);
}
