/* Reads a Redis URL: where to connect and as whom. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "common/mem.h"
#include "common/redis.h"
#include "common/redis_impl.h"

#define REDIS_DEFAULT_PORT    6379
#define SENTINEL_DEFAULT_PORT 26379
#define ENCODE_HINT                                                                                \
    " (a password with \"/\", \"?\", \"#\", \"@\" or \":\" in it must be percent-encoded)"

/* Always -1. Texts never quote the URL: any part of a mistyped one may be the password. */
__attribute__((format(printf, 3, 4))) static int fail(char *err, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, size, fmt, args);
    va_end(args);
    return -1;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The decoded copy of a part, or NULL when a "%" is not followed by two hex digits or gives a NUL.
 */
static char *percent_decode(const char *from, size_t len)
{
    char *out = mem_alloc(len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = from[i];
        if (c == '%') {
            int high = i + 1 < len ? hex_value(from[i + 1]) : -1;
            int low = i + 2 < len ? hex_value(from[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0) {
                free(out);
                return NULL;
            }
            c = (char)(high * 16 + low);
            i += 2;
        }
        out[n++] = c;
    }
    return out;
}

/* Decimal digits only, at most max; -1 otherwise. */
static long parse_number(const char *text, size_t len, long max)
{
    long value = 0;
    if (len == 0 || len > 9)
        return -1;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value <= max ? value : -1;
}

static int take_decoded(char **slot, const char *from, size_t len)
{
    char *text = percent_decode(from, len);
    if (!text)
        return -1;
    free(*slot);
    *slot = *text ? text : NULL; /* an empty part is an absent one */
    if (!*slot)
        free(text);
    return 0;
}

static int parse_userinfo(struct redis_url *out, const char *from, size_t len, char *err,
                          size_t size)
{
    const char *colon = memchr(from, ':', len);
    size_t user_len = colon ? (size_t)(colon - from) : len;
    if (take_decoded(&out->user, from, user_len))
        return fail(err, size, "the user has a bad percent-encoding");
    if (colon && take_decoded(&out->password, colon + 1, len - user_len - 1))
        return fail(err, size, "the password has a bad percent-encoding");
    return 0;
}

static int parse_host_port(struct redis_url *out, const char *from, size_t len, char *err,
                           size_t size)
{
    const char *host = from, *end = from + len, *port = NULL;
    size_t host_len;
    if (len && *from == '[') {
        const char *close = memchr(from, ']', len);
        if (!close || (close + 1 < end && close[1] != ':'))
            return fail(err, size, "the IPv6 address in brackets is not well-formed");
        host++;
        host_len = (size_t)(close - host);
        port = close + 1 < end ? close + 2 : NULL;
        if (!memchr(host, ':', host_len))
            return fail(err, size, "only an IPv6 address may stand in brackets");
    } else {
        const char *colon = memchr(from, ':', len);
        host_len = colon ? (size_t)(colon - from) : len;
        port = colon ? colon + 1 : NULL;
    }
    if (host_len == 0)
        return fail(err, size, "the host is missing" ENCODE_HINT);
    if (take_decoded(&out->host, host, host_len) || !out->host || strpbrk(out->host, " \t\r\n"))
        return fail(err, size, "the host is not well-formed");
    if (port && port < end) {
        long number = parse_number(port, (size_t)(end - port), 65535);
        if (number <= 0)
            return fail(err, size, "the port is not a number from 1 to 65535" ENCODE_HINT);
        out->port = (int)number;
    }
    return 0;
}

static int parse_db(struct redis_url *out, const char *from, size_t len, char *err, size_t size)
{
    long db = parse_number(from, len, 999999);
    if (db < 0)
        return fail(err, size, "the database is not a number");
    out->db = (int)db;
    return 0;
}

/* db, user (or username) and password as parameters, as ioredis takes them; others are not ours. */
static int parse_query(struct redis_url *out, const char *query, char *err, size_t size)
{
    while (*query) {
        size_t len = strcspn(query, "&");
        const char *equals = memchr(query, '=', len);
        size_t name_len = equals ? (size_t)(equals - query) : len;
        const char *value = equals ? equals + 1 : query + len;
        size_t value_len = (size_t)(query + len - value);
        char *name = mem_strndup(query, name_len);
        int rc = 0;
        if (!strcmp(name, "db"))
            rc = parse_db(out, value, value_len, err, size);
        else if (!strcmp(name, "user") || !strcmp(name, "username"))
            rc = take_decoded(&out->user, value, value_len)
                     ? fail(err, size, "the user has a bad percent-encoding")
                     : 0;
        else if (!strcmp(name, "password"))
            rc = take_decoded(&out->password, value, value_len)
                     ? fail(err, size, "the password has a bad percent-encoding")
                     : 0;
        free(name);
        if (rc)
            return rc;
        query += len + (query[len] == '&');
    }
    return 0;
}

static int parse_scheme(const char *text, struct redis_url *out, bool *is_unix, size_t *len,
                        char *err, size_t size)
{
    static const struct {
        const char *prefix;
        bool is_unix, tls;
    } schemes[] = {{"redis://", false, false},
                   {"rediss://", false, true},
                   {"unix://", true, false},
                   {"redis+unix://", true, false}};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        *len = strlen(schemes[i].prefix);
        if (strncasecmp(text, schemes[i].prefix, *len))
            continue;
        *is_unix = schemes[i].is_unix;
        out->tls = schemes[i].tls;
        if (out->tls && !redis_tls_available())
            return fail(err, size,
                        "rediss:// needs TLS, which this build lacks (hiredis 1.0 or later "
                        "with hiredis_ssl)");
        return 0;
    }
    return fail(err, size, "the scheme is not redis://, rediss://, unix:// or redis+unix://");
}

static int parse_unix_path(struct redis_url *out, const char *path, size_t len, char *err,
                           size_t size)
{
    if (take_decoded(&out->unix_path, path, len))
        return fail(err, size, "the socket path has a bad percent-encoding");
    if (!out->unix_path || out->unix_path[0] != '/')
        return fail(err, size, "the socket path is missing");
    if (strlen(out->unix_path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return fail(err, size, "the socket path is longer than the system allows");
    return 0;
}

static int parse_parts(const char *text, struct redis_url *out, char *err, size_t size)
{
    bool is_unix = false;
    size_t scheme_len = 0;
    if (parse_scheme(text, out, &is_unix, &scheme_len, err, size))
        return -1;
    const char *authority = text + scheme_len;
    size_t authority_len = strcspn(authority, "/?#");
    const char *path = authority + authority_len;
    size_t path_len = strcspn(path, "?#");
    const char *query = path + path_len;

    /* The last "@": a password may hold one that was not encoded. */
    const char *at = memrchr(authority, '@', authority_len);
    const char *host = at ? at + 1 : authority;
    size_t host_len = (size_t)(path - host);
    if (at && parse_userinfo(out, authority, (size_t)(at - authority), err, size))
        return -1;
    if (is_unix) {
        if (host_len)
            return fail(err, size, "a socket path begins with a slash (unix:///path)");
        if (parse_unix_path(out, path, path_len, err, size))
            return -1;
    } else {
        if (parse_host_port(out, host, host_len, err, size))
            return -1;
        if (path_len > 1 && parse_db(out, path + 1, path_len - 1, err, size))
            return -1;
    }
    if (*query != '?')
        return 0;
    char *parameters = mem_strndup(query + 1, strcspn(query + 1, "#"));
    int rc = parse_query(out, parameters, err, size);
    free(parameters);
    return rc;
}

int redis_url_parse(const char *text, struct redis_url *out, char *err, size_t err_size)
{
    *out = (struct redis_url){.port = REDIS_DEFAULT_PORT};
    if (!text || !*text)
        return fail(err, err_size, "the URL is empty");
    int rc = parse_parts(text, out, err, err_size);
    if (rc)
        redis_url_fini(out);
    return rc;
}

void redis_url_copy(struct redis_url *to, const struct redis_url *from)
{
    *to = *from;
    to->host = mem_strdup(from->host);
    to->unix_path = mem_strdup(from->unix_path);
    to->user = mem_strdup(from->user);
    to->password = mem_strdup(from->password);
    to->sentinel_master = mem_strdup(from->sentinel_master);
    to->slot_key = mem_strdup(from->slot_key);
    to->tls_files.ca = mem_strdup(from->tls_files.ca);
    to->tls_files.cert = mem_strdup(from->tls_files.cert);
    to->tls_files.key = mem_strdup(from->tls_files.key);
    if (from->sentinel_count)
        to->sentinels = mem_alloc(from->sentinel_count * sizeof(*to->sentinels));
    for (size_t i = 0; i < from->sentinel_count; i++)
        redis_url_copy(&to->sentinels[i], &from->sentinels[i]);
}

static int add_sentinel(struct redis_url *url, const char *from, size_t len, char *err, size_t size)
{
    struct redis_url one = {.port = SENTINEL_DEFAULT_PORT};
    if (parse_host_port(&one, from, len, err, size)) {
        redis_url_fini(&one);
        return -1;
    }
    url->sentinels =
        mem_realloc(url->sentinels, (url->sentinel_count + 1) * sizeof(*url->sentinels));
    url->sentinels[url->sentinel_count++] = one;
    return 0;
}

int redis_url_add_sentinels(struct redis_url *url, const char *list, const char *user,
                            const char *password, bool tls, char *err, size_t err_size)
{
    if (tls && !redis_tls_available())
        return fail(err, err_size, "TLS is not in this build (hiredis 1.0 or later needed)");
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        size_t len = strcspn(at, ", ");
        if (len && add_sentinel(url, at, len, err, err_size))
            return -1;
        at += len;
    }
    for (size_t i = 0; i < url->sentinel_count; i++) {
        struct redis_url *one = &url->sentinels[i];
        one->tls = tls;
        one->setting = "REDIS_SENTINEL_PASSWORD";
        one->user = *user ? mem_strdup(user) : NULL;
        one->password = *password ? mem_strdup(password) : NULL;
        one->tls_files.ca = mem_strdup(url->tls_files.ca);
        one->tls_files.cert = mem_strdup(url->tls_files.cert);
        one->tls_files.key = mem_strdup(url->tls_files.key);
    }
    return 0;
}

void redis_url_fini(struct redis_url *url)
{
    for (size_t i = 0; i < url->sentinel_count; i++)
        redis_url_fini(&url->sentinels[i]);
    free(url->sentinels);
    free(url->sentinel_master);
    free(url->slot_key);
    free(url->tls_files.ca);
    free(url->tls_files.cert);
    free(url->tls_files.key);
    free(url->host);
    free(url->unix_path);
    free(url->user);
    if (url->password)
        explicit_bzero(url->password, strlen(url->password));
    free(url->password);
    *url = (struct redis_url){0};
}
