/* Where Redis is, from the settings. */
#ifndef SANDPIPER_COMMON_REDIS_SETTINGS_H
#define SANDPIPER_COMMON_REDIS_SETTINGS_H

#include "common/redis.h"

struct settings;

/* Fills *out from REDIS_URL (or REDIS_QUEUE_URL), REDIS_SENTINELS..., REDIS_TLS_... and, for a
 * cluster, the queue's name; free it with redis_url_fini. 0, or -1 with one line that names the
 * setting and holds no secret. */
int redis_settings_parse(const struct settings *s, struct redis_url *out, char *err,
                         size_t err_size);

#endif
