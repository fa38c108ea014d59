/* Asks the status port of the worker on this machine whether it is healthy: for a container's
 * HEALTHCHECK. */
#include "worker/status/health.h"

#include "common/mem.h"
#include "common/settings.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_MS 2000L

static char *url_of(const struct settings *settings)
{
    const char *host = settings_str(settings, SETTING_STATUS_HOST);
    long long port = settings_int(settings, SETTING_STATUS_PORT);
    if (strcmp(host, "0.0.0.0") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "::") == 0)
        host = "::1";
    return strchr(host, ':') != NULL ? mem_printf("http://[%s]:%lld/healthz", host, port)
                                     : mem_printf("http://%s:%lld/healthz", host, port);
}

/* The page is for people who ask by hand. */
static size_t drop(char *data, size_t size, size_t count, void *user)
{
    (void)data, (void)user;
    return size * count;
}

int health_ask(const struct settings *settings)
{
    if (settings_int(settings, SETTING_STATUS_PORT) <= 0) {
        fprintf(stderr, "sandpiper: STATUS_PORT names no port to ask\n");
        return 1;
    }
    char why[CURL_ERROR_SIZE] = "out of memory", *url = url_of(settings);
    long status = 0;
    CURL *curl = curl_easy_init();
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    if (curl != NULL) {
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* whatever the environment says */
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, LIMIT_MS);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
        rc = curl_easy_perform(curl);
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(curl);
    }
    if (rc != CURLE_OK)
        fprintf(stderr, "sandpiper: %s: %s\n", url, why);
    else if (status != 200)
        fprintf(stderr, "sandpiper: %s: status %ld\n", url, status);
    free(url);
    return rc == CURLE_OK && status == 200 ? 0 : 1;
}
