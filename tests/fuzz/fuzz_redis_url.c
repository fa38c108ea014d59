/* Fuzzes Redis URLs: each gives a place to connect to, or a reason; the log knows its password. */
#include "common/log.h"
#include "common/mem.h"
#include "common/redis.h"
#include "common/settings_impl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_parsed(const struct redis_url *url)
{
    check(!url->host != !url->unix_path);
    check(url->port > 0 && url->port < 65536 && url->db >= 0);
    check(!url->unix_path || url->unix_path[0] == '/');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    char err[200] = "";
    struct redis_url url;

    if (redis_url_parse(text, &url, err, sizeof(err)) == 0) {
        check_parsed(&url);
        settings_secret_register(SETTING_REDIS_URL, text);
        if (url.password && strlen(url.password) >= 4) { /* the log knows it as we send it */
            char *clean = log_redact(url.password);
            check(strcmp(clean, url.password) != 0 || strcmp(clean, "***") == 0);
            free(clean);
        }
        redis_url_fini(&url);
    } else {
        check(*err != '\0');
    }
    free(settings_secret_mask(SETTING_REDIS_URL, text));
    log_secrets_clear();
    free(text);
    return 0;
}
