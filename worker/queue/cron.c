/* The next time a cron pattern names, in a time zone whose clocks jump. */
#include "worker/queue/cron.h"

#include "worker/queue/zone.h"

#define STEPS_MAX 10000 /* as many as cron-parser tries */
#define SECOND    1000LL
#define HOUR      (3600 * SECOND)
#define NOT       (-1)

/* A moment and what clocks in the zone show at it. */
struct moment {
    const struct zone *zone;
    long long at;     /* ms since the epoch */
    long long offset; /* ms */
    long long year;
    int month, day, hour, minute, second, ms, weekday;
};

/* A search in progress. What is remembered of jumping clocks decides whether an hour counts. */
struct search {
    const struct cron *cron;
    struct moment now;
    bool every_hour;      /* jumps do not matter then */
    int gap_from, gap_to; /* hours left out: gap_from up to, not including, gap_to */
    int repeated;         /* the hour that has begun for the second time */
};

static long long offset_at(const struct zone *zone, long long at)
{
    long long seconds = at >= 0 ? at / SECOND : -((-at + SECOND - 1) / SECOND);
    return zone_offset(zone, seconds) * SECOND;
}

static void moment_set(struct moment *m, long long at)
{
    m->at = at;
    m->offset = offset_at(m->zone, at);
    long long local = at + m->offset, days = local / (24 * HOUR), rest = local % (24 * HOUR);
    if (rest < 0) {
        rest += 24 * HOUR;
        days--;
    }
    m->hour = (int)(rest / HOUR);
    m->minute = (int)(rest / (60 * SECOND) % 60);
    m->second = (int)(rest / SECOND % 60);
    m->ms = (int)(rest % SECOND);
    m->weekday = (int)(((days + 4) % 7 + 7) % 7);
    m->year = 1970 + days / 366;
    while (zone_days(m->year, 1, 1) > days)
        m->year--;
    while (zone_days(m->year + 1, 1, 1) <= days)
        m->year++;
    m->month = 12;
    while (zone_days(m->year, m->month, 1) > days)
        m->month--;
    m->day = (int)(days - zone_days(m->year, m->month, 1)) + 1;
}

/* The moment at which clocks show that; the offset of now is tried first. Within a gap clocks are
 * taken as if they had not jumped. (The rule of the date library that cron-parser uses.) */
static void moment_set_local(struct moment *m, long long days, int hour, int minute, int second)
{
    long long local = days * 24 * HOUR + hour * HOUR + minute * 60 * SECOND + second * SECOND;
    long long first = offset_at(m->zone, local - m->offset);
    if (first == m->offset) {
        moment_set(m, local - first);
        return;
    }
    long long second_try = offset_at(m->zone, local - first);
    if (second_try == first)
        moment_set(m, local - first);
    else
        moment_set(m, local - (first < second_try ? first : second_try));
}

static long long moment_days(const struct moment *m)
{
    return zone_days(m->year, m->month, m->day);
}

static int days_in_month(long long year, int month)
{
    return (int)((month == 12 ? zone_days(year + 1, 1, 1) : zone_days(year, month + 1, 1)) -
                 zone_days(year, month, 1));
}

static void to_next_month(struct moment *m)
{
    long long year = m->month == 12 ? m->year + 1 : m->year;
    int month = m->month == 12 ? 1 : m->month + 1;
    int day = m->day < days_in_month(year, month) ? m->day : days_in_month(year, month);
    moment_set_local(m, zone_days(year, month, day), m->hour, m->minute, m->second);
    moment_set_local(m, zone_days(m->year, m->month, 1), 0, 0, 0);
}

static void to_next_day(struct moment *m)
{
    moment_set_local(m, moment_days(m) + 1, m->hour, m->minute, m->second);
    moment_set_local(m, moment_days(m), 0, 0, 0);
}

enum step { STEP_HOUR, STEP_MINUTE, STEP_SECOND };

/* Moves on by one unit, to its beginning, and takes note of clocks that jumped meanwhile. */
static void step(struct search *s, enum step unit)
{
    struct moment *m = &s->now;
    int hour = m->hour;
    long long offset = m->offset;
    static const long long lengths[] = {HOUR, 60 * SECOND, SECOND};
    moment_set(m, m->at + lengths[unit]);
    if (unit == STEP_HOUR)
        moment_set_local(m, moment_days(m), m->hour, 0, 0);
    else if (unit == STEP_MINUTE)
        moment_set_local(m, moment_days(m), m->hour, m->minute, 0);
    if (s->every_hour)
        return;
    int crossed = (m->hour - hour + 24) % 24;
    if (m->offset > offset && crossed >= 2) {
        s->gap_from = (hour + 1) % 24;
        s->gap_to = m->hour;
    } else if (crossed == 0 && m->minute == 0 && m->second == 0) {
        s->repeated = m->hour;
    }
}

static bool names(const struct search *s, enum cron_field field, int value)
{
    return s->cron->values[field] >> value & 1;
}

static int lowest(const struct search *s, enum cron_field field)
{
    return __builtin_ctzll(s->cron->values[field]);
}

/* The next named value above, or NOT. */
static int above(const struct search *s, enum cron_field field, int value)
{
    uint64_t rest = s->cron->values[field] >> (value + 1);
    return rest == 0 ? NOT : value + 1 + __builtin_ctzll(rest);
}

static void set_time(struct search *s, int hour, int minute, int second)
{
    moment_set_local(&s->now, moment_days(&s->now), hour, minute, second);
}

static bool day_matches(const struct search *s)
{
    const struct cron *c = s->cron;
    const struct moment *m = &s->now;
    int last = days_in_month(m->year, m->month);
    bool day = names(s, CRON_DAY, m->day) || (c->last_day && m->day == last);
    bool nth = c->nth_weekday == 0 || (m->day + 6) / 7 == c->nth_weekday;
    bool weekday =
        (names(s, CRON_WEEKDAY, m->weekday) && nth) ||
        (c->has_last_weekday && m->day > last - 7 && (c->last_weekdays >> m->weekday & 1));
    if (!c->any_day && !c->any_weekday)
        return day || weekday;
    return c->any_weekday ? day : weekday;
}

/* Do clocks jump on this day? */
static bool is_jump_day(const struct moment *m)
{
    struct moment begin = *m, end;
    moment_set_local(&begin, moment_days(m), 0, 0, 0);
    end = begin;
    to_next_day(&end);
    return begin.offset != offset_at(m->zone, end.at - 1);
}

static bool gap_has_named_hour(const struct search *s)
{
    if (s->gap_from == NOT || s->gap_to != s->now.hour)
        return false;
    for (int hour = s->gap_from; hour != s->now.hour; hour = (hour + 1) % 24)
        if (names(s, CRON_HOUR, hour))
            return true;
    return false;
}

/* True when the hour counts; else the search has moved on. */
static bool hour_matches(struct search *s)
{
    int hour = s->now.hour;
    if (gap_has_named_hour(s))
        return true;
    if (s->repeated == hour) { /* it ran, or could have, when the hour came first */
        s->repeated = NOT;
        step(s, STEP_HOUR);
        return false;
    }
    if (names(s, CRON_HOUR, hour))
        return true;
    s->gap_from = s->gap_to = NOT;
    int next = above(s, CRON_HOUR, hour);
    if (next == NOT) {
        to_next_day(&s->now);
        return false;
    }
    if (is_jump_day(&s->now)) /* hour by hour, so that the jump is seen */
        for (int i = hour; i < next && s->now.hour < next; i++)
            step(s, STEP_HOUR);
    else
        set_time(s, next, s->now.minute, s->now.second);
    set_time(s, s->now.hour, lowest(s, CRON_MINUTE), s->now.second);
    set_time(s, s->now.hour, s->now.minute, lowest(s, CRON_SECOND));
    return false;
}

static void to_next_minute(struct search *s)
{
    int next = above(s, CRON_MINUTE, s->now.minute);
    if (next == NOT) {
        step(s, STEP_HOUR);
        next = lowest(s, CRON_MINUTE);
    }
    set_time(s, s->now.hour, next, s->now.second);
    set_time(s, s->now.hour, s->now.minute, lowest(s, CRON_SECOND));
}

static void to_next_second(struct search *s)
{
    int next = above(s, CRON_SECOND, s->now.second);
    if (next == NOT) {
        step(s, STEP_MINUTE);
        next = lowest(s, CRON_SECOND);
    }
    set_time(s, s->now.hour, s->now.minute, next);
}

long long cron_next(const struct cron *cron, const struct zone *zone, long long after)
{
    struct search s = {.cron = cron,
                       .now = {.zone = zone},
                       .every_hour = cron->values[CRON_HOUR] == 0xffffff,
                       .gap_from = NOT,
                       .gap_to = NOT,
                       .repeated = NOT};
    moment_set(&s.now, after);
    if (s.now.ms > 0) {
        set_time(&s, s.now.hour, s.now.minute, s.now.second);
        step(&s, STEP_SECOND);
    }
    for (int i = 1; i < STEPS_MAX; i++) {
        if (!names(&s, CRON_MONTH, s.now.month))
            to_next_month(&s.now);
        else if (!day_matches(&s))
            to_next_day(&s.now);
        else if (!hour_matches(&s))
            continue;
        else if (!names(&s, CRON_MINUTE, s.now.minute))
            to_next_minute(&s);
        else if (!names(&s, CRON_SECOND, s.now.second))
            to_next_second(&s);
        else if (s.now.at == after)
            step(&s, STEP_SECOND);
        else
            return s.now.at;
    }
    return -1;
}
