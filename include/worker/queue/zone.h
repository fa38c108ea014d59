/* Time zones from the system's tzdata: the offset from UTC at a moment. */
#ifndef SANDPIPER_WORKER_QUEUE_ZONE_H
#define SANDPIPER_WORKER_QUEUE_ZONE_H

#include <stddef.h>

struct zone;

/* name: an IANA name (any case), "utc", "utc+2", "utc-3:30"; NULL or "": the system's own zone (TZ,
 * else /etc/localtime, else UTC). NULL with a one-line reason when it is not known. The caller
 * frees it. */
struct zone *zone_load(const char *name, char *err, size_t err_size);
void zone_free(struct zone *zone); /* NULL is fine */

/* Seconds east of UTC at that moment (seconds since the epoch). */
long zone_offset(const struct zone *zone, long long at);

/* Days since 1970-01-01 of a day of the Gregorian calendar; month 1 to 12, day may be any number.
 */
long long zone_days(long long year, int month, long long day);

#endif
