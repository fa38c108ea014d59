/* Settings: values parsed by the table, from environment and files, overlaid at run time. */
#include "common/settings.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/netaddr.h"
#include "common/settings_impl.h"
#include "common/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SECRET_FILE_MAX_BYTES 16384
#define QUOTED_MAX_BYTES      60 /* of a wrong value in an error text */

/* Where a reason goes. */
struct reason {
    char *text;
    size_t size;
};

/* Always -1. */
__attribute__((format(printf, 2, 3))) static int fail(const struct reason *reason, const char *fmt,
                                                      ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(reason->text, reason->size, fmt, args);
    va_end(args);
    return -1;
}

static void forget_overlay(struct settings *s);

static void secret_free(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

/* ---- parsing one value ---- */

/* The word in the space-separated list that equals value but for case; heap, or NULL. */
static char *enum_word(const char *words, const char *value)
{
    size_t len = strlen(value), n;

    for (; *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        if (n == len && strncasecmp(words, value, n) == 0)
            return mem_strndup(words, n);
    }
    return NULL;
}

static int parse_bool(const char *text, long long *out)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};

    for (int i = 0; i < 8; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2;
            return 0;
        }
    }
    return -1;
}

static bool is_address(const char *text)
{
    unsigned char address[sizeof(struct in6_addr)];

    return strcmp(text, "localhost") == 0 || inet_pton(AF_INET, text, address) == 1 ||
           inet_pton(AF_INET6, text, address) == 1;
}

static int parse_string(enum setting id, const char *text, const struct reason *reason)
{
    const struct setting_row *row = settings_row(id);

    if (id == SETTING_QUEUE_NAME && strchr(text, ':'))
        return fail(reason, "%s: a queue's name has no colon", row->name);
    if (id == SETTING_STATUS_HOST && !is_address(text))
        return fail(reason, "%s: \"%.*s\" is not an IP address", row->name, QUOTED_MAX_BYTES, text);
    if (id == SETTING_URL_ALLOW && !netaddr_list_valid(text))
        return fail(reason, "%s: not a list of host:port entries", row->name);
    return 0;
}

/* The typed forms of text into *value (text is its own copy then). */
static int parse_value(enum setting id, const char *text, struct setting_value *value,
                       const struct reason *reason)
{
    const struct setting_row *row = settings_row(id);
    char *word = NULL;

    switch (row->type) {
    case SETTING_TYPE_STRING:
        if (parse_string(id, text, reason))
            return -1;
        break;
    case SETTING_TYPE_INT:
        if (!text_parse_int(text, &value->number))
            return fail(reason, "%s: \"%.*s\" is not an integer", row->name, QUOTED_MAX_BYTES,
                        text);
        if (value->number < row->min || value->number > row->max)
            return fail(reason, "%s: %lld is not within %lld to %lld", row->name, value->number,
                        row->min, row->max);
        break;
    case SETTING_TYPE_BOOL:
        if (parse_bool(text, &value->number))
            return fail(reason, "%s: \"%.*s\" is neither true nor false", row->name,
                        QUOTED_MAX_BYTES, text);
        break;
    case SETTING_TYPE_ENUM:
        word = enum_word(row->values, text);
        if (!word)
            return fail(reason, "%s: \"%.*s\" is not one of: %s", row->name, QUOTED_MAX_BYTES, text,
                        row->values);
        break;
    }
    secret_free(value->text);
    value->text = word ? word : mem_strdup(text);
    return 0;
}

/* Sets a value given from outside; white space around it never means anything. */
static int set_value(struct settings *s, enum setting id, const char *given,
                     enum setting_origin origin, const struct reason *reason)
{
    static const char space[] = " \t\r\n";
    const char *start = given + strspn(given, space);
    size_t len = strlen(start);
    char *text;
    int rc = 0;

    while (len > 0 && strchr(space, start[len - 1]))
        len--;
    if (len == 0)
        return 0; /* empty is unset */
    text = mem_strndup(start, len);
    rc = parse_value(id, text, &s->values[id], reason);
    secret_free(text);
    if (rc)
        return -1;
    s->values[id].origin = origin;
    if (settings_row(id)->secret)
        settings_secret_register(id, s->values[id].text);
    return 0;
}

/* ---- secrets in files ---- */

/* Fills text with the file; -1 with errno set. O_NONBLOCK: a FIFO must not hang the worker. */
static int read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t len = 0;
    ssize_t n = 0;
    int error;

    if (fd < 0)
        return -1;
    while (len < size - 1 && (n = read(fd, text + len, size - 1 - len)) > 0)
        len += (size_t)n;
    error = n < 0 ? errno : len == size - 1 ? EFBIG : memchr(text, '\0', len) ? EINVAL : 0;
    close(fd);
    text[len] = '\0';
    errno = error;
    return error ? -1 : 0;
}

static int set_from_file(struct settings *s, enum setting id, const char *path,
                         const struct reason *reason)
{
    char text[SECRET_FILE_MAX_BYTES];
    int rc = read_file(path, text, sizeof(text));

    if (rc)
        /* without the path: it may be the secret itself, given to the wrong variable */
        fail(reason, "%s_FILE: cannot read the file: %s", settings_row(id)->name, strerror(errno));
    else
        rc = set_value(s, id, text, ORIGIN_FILE, reason);
    explicit_bzero(text, sizeof(text));
    if (rc)
        return -1;
    if (s->values[id].file != path) {
        free(s->values[id].file);
        s->values[id].file = mem_strdup(path);
        s->has_files = true;
    }
    return 0;
}

/* ---- whole sets ---- */

/* What no row can say alone. */
static int check_together(const struct settings *s, const struct reason *reason)
{
    const char *prefix = settings_str(s, SETTING_QUEUE_PREFIX);

    if (settings_int(s, SETTING_LOCK_RENEW_MS) * 2 > settings_int(s, SETTING_LOCK_DURATION_MS))
        return fail(reason, "LOCK_RENEW_MS: more than half of LOCK_DURATION_MS, so that locks "
                            "would be lost to one slow renewal");
    if (strchr(prefix, '{') && !strchr(prefix, '}'))
        return fail(reason, "QUEUE_PREFIX: a hash tag is opened but not closed");
    return 0;
}

static struct settings *settings_new(void)
{
    struct settings *s = mem_alloc(sizeof(*s));
    char text[128] = "";
    struct reason reason = {text, sizeof(text)};

    s->references = 1;
    for (int id = 0; id < SETTING_COUNT; id++) {
        const char *fallback = settings_row((enum setting)id)->fallback;

        if (parse_value((enum setting)id, fallback, &s->values[id], &reason))
            abort(); /* the table is wrong; its test says where */
    }
    return s;
}

static int take_environment(struct settings *s, enum setting id, const struct reason *reason)
{
    const struct setting_row *row = settings_row(id);
    const char *given = getenv(row->name), *path;
    char file_name[80];

    if (given && set_value(s, id, given, ORIGIN_ENVIRONMENT, reason))
        return -1;
    if (!row->secret)
        return 0;
    snprintf(file_name, sizeof(file_name), "%s_FILE", row->name);
    path = getenv(file_name);
    return path && *path ? set_from_file(s, id, path, reason) : 0;
}

struct settings *settings_from_environment(char *err, size_t err_size)
{
    struct settings *s = settings_new();
    struct reason reason = {err, err_size};
    int rc = 0;

    for (int id = 0; id < SETTING_COUNT && rc == 0; id++)
        rc = take_environment(s, (enum setting)id, &reason);
    if (rc == 0)
        rc = check_together(s, &reason);
    if (rc == 0)
        return s;
    settings_free(s);
    return NULL;
}

static struct settings *settings_copy(const struct settings *base)
{
    struct settings *s = mem_alloc(sizeof(*s));

    s->references = 1;
    s->has_files = base->has_files;
    for (int id = 0; id < SETTING_COUNT; id++) {
        s->values[id] = base->values[id];
        s->values[id].text = mem_strdup(base->values[id].text);
        s->values[id].file = mem_strdup(base->values[id].file);
    }
    return s;
}

static int overlay_field(struct settings *s, const char *name, const char *given,
                         const struct reason *reason)
{
    if (!*name) /* there is no hash to read: what Redis says */
        return fail(reason, "settings:runtime: %.160s", given);
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);

        if (strcmp(row->name, name) != 0)
            continue;
        if (row->source == SETTING_SOURCE_RUNTIME)
            return set_value(s, (enum setting)id, given, ORIGIN_RUNTIME, reason);
        log_debug("runtime settings: %s can only be set in the environment", name);
        return 0;
    }
    log_debug("runtime settings: unknown field %.100s", name);
    return 0;
}

static bool has_file(const struct settings *s, enum setting id)
{
    return s->values[id].file && settings_row(id)->source == SETTING_SOURCE_RUNTIME;
}

static struct settings *overlay(const struct settings *base, const char *const *fields,
                                size_t count, const struct reason *reason)
{
    struct settings *s = settings_copy(base);
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = overlay_field(s, fields[2 * i], fields[2 * i + 1], reason);
    /* A file has the last word, and is read again: rotated secrets need no restart. */
    for (int id = 0; id < SETTING_COUNT && rc == 0; id++)
        if (has_file(s, (enum setting)id))
            rc = set_from_file(s, (enum setting)id, s->values[id].file, reason);
    if (rc == 0)
        rc = check_together(s, reason);
    if (rc == 0)
        return s;
    settings_free(s);
    return NULL;
}

static void forget_overlay(struct settings *s)
{
    settings_free(s->overlaid);
    for (size_t i = 0; i < s->field_count * 2; i++)
        secret_free(s->fields[i]);
    free(s->fields);
    s->overlaid = NULL;
    s->fields = NULL;
    s->field_count = 0;
}

static void keep_overlay(struct settings *base, struct settings *overlaid,
                         const char *const *fields, size_t count)
{
    forget_overlay(base);
    base->fields = mem_alloc((count * 2 + 1) * sizeof(*base->fields));
    for (size_t i = 0; i < count * 2; i++)
        base->fields[i] = mem_strdup(fields[i]);
    base->field_count = count;
    base->overlaid = settings_ref(overlaid);
}

static bool is_kept(const struct settings *base, const char *const *fields, size_t count)
{
    bool same = base->overlaid && count == base->field_count;

    for (size_t i = 0; same && i < count * 2; i++)
        same = strcmp(fields[i], base->fields[i]) == 0;
    return same;
}

struct settings *settings_overlay(struct settings *base, const char *const *fields, size_t count,
                                  char *err, size_t err_size)
{
    struct reason reason = {err, err_size};

    if (!base->has_files && count == 0)
        return settings_ref(base);
    if (!base->has_files && is_kept(base, fields, count))
        return settings_ref(base->overlaid);
    struct settings *s = overlay(base, fields, count, &reason);
    if (s && !base->has_files)
        keep_overlay(base, s, fields, count);
    return s;
}

struct settings *settings_ref(struct settings *s)
{
    s->references++;
    return s;
}

void settings_free(struct settings *s)
{
    if (!s || --s->references > 0)
        return;
    forget_overlay(s);
    for (int id = 0; id < SETTING_COUNT; id++) {
        secret_free(s->values[id].text);
        free(s->values[id].file);
    }
    free(s);
}

/* ---- reading ---- */

static const struct setting_value *value_of(const struct settings *s, enum setting id, bool as_text,
                                            enum setting_type type)
{
    enum setting_type is = settings_row(id)->type;

    if (as_text ? is != SETTING_TYPE_STRING && is != SETTING_TYPE_ENUM : is != type)
        abort();
    return &s->values[id];
}

const char *settings_str(const struct settings *s, enum setting id)
{
    return value_of(s, id, true, SETTING_TYPE_STRING)->text;
}

long long settings_int(const struct settings *s, enum setting id)
{
    return value_of(s, id, false, SETTING_TYPE_INT)->number;
}

bool settings_bool(const struct settings *s, enum setting id)
{
    return value_of(s, id, false, SETTING_TYPE_BOOL)->number != 0;
}

bool settings_is_set(const struct settings *s, enum setting id)
{
    return s->values[id].origin != ORIGIN_DEFAULT;
}

const char *settings_redis_url(const struct settings *s)
{
    const char *queue = settings_str(s, SETTING_REDIS_QUEUE_URL);

    return *queue ? queue : settings_str(s, SETTING_REDIS_URL);
}

bool settings_is_development(const struct settings *s)
{
    return strcmp(settings_str(s, SETTING_NODE_ENV), "development") == 0;
}
