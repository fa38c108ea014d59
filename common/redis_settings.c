/* Where Redis is, from the settings: URL, sentinels, certificates, the slot in a cluster. */
#include "common/redis_settings.h"

#include "common/mem.h"
#include "common/settings.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *text_or_null(const struct settings *s, enum setting id)
{
    const char *text = settings_str(s, id);
    return *text ? mem_strdup(text) : NULL;
}

/* Said at the start; later on an unreadable file only costs attempts to connect. */
static int check_file(enum setting id, const char *path, char *err, size_t err_size)
{
    if (!path || access(path, R_OK) == 0)
        return 0;
    snprintf(err, err_size, "%s: the file cannot be read: %m", settings_row(id)->name);
    return -1;
}

static int take_tls_files(const struct settings *s, struct redis_url *out, char *err,
                          size_t err_size)
{
    struct redis_tls_files *files = &out->tls_files;
    files->ca = text_or_null(s, SETTING_REDIS_TLS_CA_FILE);
    files->cert = text_or_null(s, SETTING_REDIS_TLS_CERT_FILE);
    files->key = text_or_null(s, SETTING_REDIS_TLS_KEY_FILE);
    if (!files->cert != !files->key) {
        snprintf(err, err_size, "%s: %s is given without it",
                 files->cert ? "REDIS_TLS_KEY_FILE" : "REDIS_TLS_CERT_FILE",
                 files->cert ? "REDIS_TLS_CERT_FILE" : "REDIS_TLS_KEY_FILE");
        return -1;
    }
    return check_file(SETTING_REDIS_TLS_CA_FILE, files->ca, err, err_size) ||
                   check_file(SETTING_REDIS_TLS_CERT_FILE, files->cert, err, err_size) ||
                   check_file(SETTING_REDIS_TLS_KEY_FILE, files->key, err, err_size)
               ? -1
               : 0;
}

static int take_sentinels(const struct settings *s, struct redis_url *out, char *err,
                          size_t err_size)
{
    char why[200];
    const char *list = settings_str(s, SETTING_REDIS_SENTINELS);
    if (!*list)
        return 0;
    out->sentinel_master = mem_strdup(settings_str(s, SETTING_REDIS_SENTINEL_MASTER));
    if (redis_url_add_sentinels(out, list, settings_str(s, SETTING_REDIS_SENTINEL_USER),
                                settings_str(s, SETTING_REDIS_SENTINEL_PASSWORD),
                                settings_bool(s, SETTING_REDIS_SENTINEL_TLS), why, sizeof why) == 0)
        return 0;
    snprintf(err, err_size, "REDIS_SENTINELS: %s", why);
    return -1;
}

int redis_settings_parse(const struct settings *s, struct redis_url *out, char *err,
                         size_t err_size)
{
    char why[200];
    if (redis_url_parse(settings_redis_url(s), out, why, sizeof why) != 0) {
        bool queue = settings_is_set(s, SETTING_REDIS_QUEUE_URL);
        snprintf(err, err_size, "%s: %s", queue ? "REDIS_QUEUE_URL" : "REDIS_URL", why);
        return -1;
    }
    if (settings_is_set(s, SETTING_REDIS_QUEUE_URL))
        out->setting = "REDIS_QUEUE_URL";
    out->slot_key = mem_printf("%s:%s:slot:guard", settings_str(s, SETTING_QUEUE_PREFIX),
                               settings_str(s, SETTING_QUEUE_NAME));
    if (take_tls_files(s, out, err, err_size) == 0 && take_sentinels(s, out, err, err_size) == 0)
        return 0;
    redis_url_fini(out);
    return -1;
}
