/* What is secret in a secret setting: all of it, or of a Redis URL the password. */
#include "common/log.h"
#include "common/mem.h"
#include "common/settings_impl.h"
#include "common/text.h"

#include <stdio.h>
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

/* The value of the next parameter "password" at or behind from; false when there is none. */
static bool password_parameter(const char *url, size_t from, struct span *span)
{
    static const char name[] = "password=";
    const char *found = strstr(url + from, name);

    if (!found)
        return false;
    span->from = (size_t)(found - url) + strlen(name);
    span->to = span->from + strcspn(url + span->from, "&#");
    return true;
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
    struct span span = {start, start};

    if (!settings_secret_is_url(id)) {
        log_secret_add(value);
        return;
    }
    register_span(value, password_before_at(value, start, end));
    /* A password with a raw "/" makes the URL wrong, which is when it is likely to be logged. */
    register_span(value, password_before_at(value, start, strlen(value)));
    while (password_parameter(value, span.from, &span))
        register_span(value, span);
}

/* Marks the span's bytes as hidden. */
static void hide(char *hidden, struct span span)
{
    memset(hidden + span.from, 1, span.to - span.from);
}

char *settings_secret_mask(enum setting id, const char *value)
{
    size_t start = authority_start(value), len = strlen(value), used = 0;
    struct span span = {start, start};
    char *hidden, *out;

    if (!settings_secret_is_url(id))
        return mem_strdup(*value ? "***" : "");
    hidden = mem_alloc(len + 1);
    hide(hidden, password_before_at(value, start, len));
    while (password_parameter(value, span.from, &span))
        hide(hidden, span);
    out = mem_alloc(len * 3 + 1); /* at worst each byte is a password of its own */
    for (size_t i = 0; i < len; i++) {
        if (!hidden[i])
            out[used++] = value[i];
        else if (i == 0 || !hidden[i - 1])
            used += (size_t)sprintf(out + used, "***");
    }
    free(hidden);
    return out;
}
