/* What is secret in a secret setting: all of it, or of a Redis URL the password. */
#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings_impl.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

struct span {
    size_t from, to; /* byte offsets into the URL */
};

bool settings_secret_is_url(enum setting id)
{
    return id == SETTING_REDIS_URL || id == SETTING_REDIS_QUEUE_URL;
}

/* Where the user part begins. A URL without its scheme is wrong, but may hold a password too. */
static size_t authority_start(const char *url)
{
    const char *slashes = strstr(url, "://");

    return slashes ? (size_t)(slashes - url) + 3 : 0;
}

/* The password before the last "@" of url[start..end); an empty span when there is none. */
static struct span password_before_at(const char *url, size_t start, size_t end)
{
    const char *at = memrchr(url + start, '@', end - start);
    const char *colon = at ? memchr(url + start, ':', (size_t)(at - url) - start) : NULL;

    if (!colon)
        return (struct span){start, start};
    return (struct span){(size_t)(colon - url) + 1, (size_t)(at - url)};
}

/* The value of the parameter "password" at or behind from. */
static struct span password_parameter(const char *url, size_t from)
{
    static const char name[] = "password=";
    const char *found = strstr(url + from, name);
    size_t start;

    if (!found)
        return (struct span){from, from};
    start = (size_t)(found - url) + strlen(name);
    return (struct span){start, start + strcspn(url + start, "&#")};
}

static void register_span(const char *url, struct span span)
{
    char *raw = mem_strndup(url + span.from, span.to - span.from);
    char *decoded = text_percent_decode(raw, strlen(raw));

    log_secret_add(raw);
    log_secret_add(decoded);
    free(decoded);
    free(raw);
}

void settings_secret_register(enum setting id, const char *value)
{
    size_t start = authority_start(value);
    size_t end = start + strcspn(value + start, "/?#");

    if (!settings_secret_is_url(id)) {
        log_secret_add(value);
        return;
    }
    register_span(value, password_before_at(value, start, end));
    /* A password with a raw "/" makes the URL wrong, which is when it is likely to be logged. */
    register_span(value, password_before_at(value, start, strlen(value)));
    register_span(value, password_parameter(value, start));
}

char *settings_secret_mask(enum setting id, const char *value)
{
    size_t start, shown = 0;
    struct span spans[2];
    struct buf out;
    int rc = 0;

    if (!settings_secret_is_url(id))
        return mem_strdup(*value ? "***" : "");
    start = authority_start(value);
    spans[0] = password_before_at(value, start, strlen(value));
    spans[1] = password_parameter(value, spans[0].to);
    buf_init(&out, strlen(value) + 16);
    for (int i = 0; i < 2; i++) {
        if (spans[i].to == spans[i].from)
            continue;
        rc |= buf_append(&out, value + shown, spans[i].from - shown);
        rc |= buf_append_str(&out, "***");
        shown = spans[i].to;
    }
    rc |= buf_append_str(&out, value + shown);
    if (rc)
        abort(); /* the bound above holds the value and two masks */
    return buf_steal(&out);
}
