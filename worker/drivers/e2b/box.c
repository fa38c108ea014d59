/* Handles of sandboxes: ids and tokens, the cache by thread, addresses and headers of the data
 * plane. */
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"
#include "worker/drivers/e2b.h"

#include <stdlib.h>
#include <string.h>

bool e2b_is_plain(const char *text)
{
    size_t len = strlen(text);
    return len > 0 && len < 128 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:") ==
               len;
}

static void take(char **slot, const json_t *answer, const char *name)
{
    const char *value = jsonx_get_str(answer, name, NULL);
    if (value == NULL || value[0] == '\0')
        return;
    free(*slot);
    *slot = mem_strdup(value);
}

void e2b_box_update(struct e2b_box *box, const json_t *answer)
{
    take(&box->envd_token, answer, "envdAccessToken");
    take(&box->traffic_token, answer, "trafficAccessToken");
    const char *domain = jsonx_get_str(answer, "domain", NULL);
    if (domain != NULL && e2b_is_plain(domain))
        take(&box->domain, answer, "domain");
}

struct e2b_box *e2b_box_new(struct e2b *e2b, const char *thread, const char *actor,
                            const json_t *answer)
{
    const char *id = jsonx_get_str(answer, "sandboxID", "");
    if (!e2b_is_plain(id))
        return NULL;
    struct e2b_box *box = mem_alloc(sizeof *box);
    box->e2b = e2b;
    box->refs = 1;
    box->id = mem_strdup(id);
    box->thread = mem_strdup(thread);
    box->actor = mem_strdup(actor);
    box->contexts = json_object();
    box->used_ms = text_monotonic_ms();
    e2b_box_update(box, answer);
    return box;
}

static void box_free(void *arg)
{
    struct e2b_box *box = arg;
    free(box->thread);
    free(box->actor);
    free(box->id);
    free(box->envd_token);
    free(box->traffic_token);
    free(box->domain);
    json_decref(box->contexts);
    free(box);
}

struct e2b_box *e2b_box_ref(struct e2b_box *box)
{
    box->refs++;
    return box;
}

void e2b_box_unref(struct e2b_box *box)
{
    if (box != NULL && --box->refs == 0)
        reaper_defer(box_free, box);
}

struct e2b_box *e2b_box_of_thread(struct e2b *e2b, const char *thread)
{
    struct e2b_box *box = e2b->boxes;
    while (box != NULL && strcmp(box->thread, thread) != 0)
        box = box->next;
    return box;
}

void e2b_box_forget(struct e2b_box *box)
{
    struct e2b_box **at = &box->e2b->boxes;
    if (!box->cached)
        return;
    while (*at != box)
        at = &(*at)->next;
    *at = box->next;
    box->cached = false;
    e2b_box_unref(box);
}

void e2b_box_cache(struct e2b_box *box)
{
    if (box->cached || box->thread == NULL)
        return;
    struct e2b_box *other = e2b_box_of_thread(box->e2b, box->thread);
    if (other != NULL)
        e2b_box_forget(other);
    box->cached = true;
    box->next = box->e2b->boxes;
    box->e2b->boxes = e2b_box_ref(box);
}

static char *without(char *text, const char *secret)
{
    char *at;
    if (secret == NULL || secret[0] == '\0' || strcmp(secret, "***") == 0)
        return text;
    while ((at = strstr(text, secret)) != NULL) {
        char *shorter = mem_printf("%.*s***%s", (int)(at - text), text, at + strlen(secret));
        free(text);
        text = shorter;
    }
    return text;
}

/* Not by log_secret_add: it keeps a few dozen secrets, and the tokens of many sandboxes would push
 * out the keys. */
char *e2b_box_redact(const struct e2b_box *box, const char *text)
{
    return without(without(log_redact(text), box->envd_token), box->traffic_token);
}

void e2b_box_lives_until(struct e2b_box *box, long long ttl_s)
{
    box->end_ms = text_monotonic_ms() + e2b_ttl_allowed(box->e2b, ttl_s) * 1000;
}

void e2b_headers_init(struct e2b_headers *headers, const struct e2b_box *box, int port,
                      const char *content_type)
{
    *headers = (struct e2b_headers){.count = 0};
    headers->lines[headers->count++] = mem_printf("E2b-Sandbox-Id: %s", box->id);
    headers->lines[headers->count++] = mem_printf("E2b-Sandbox-Port: %d", port);
    headers->lines[headers->count++] = mem_strdup("Accept: application/json");
    if (content_type != NULL)
        headers->lines[headers->count++] = mem_printf("Content-Type: %s", content_type);
    if (box->envd_token != NULL)
        headers->lines[headers->count++] = mem_printf("X-Access-Token: %s", box->envd_token);
    if (box->traffic_token != NULL && port != E2B_PORT_ENVD)
        headers->lines[headers->count++] =
            mem_printf("E2B-Traffic-Access-Token: %s", box->traffic_token);
}

void e2b_headers_fini(struct e2b_headers *headers)
{
    for (size_t i = 0; i < headers->count; i++)
        free(headers->lines[i]);
    headers->count = 0;
}

/* Domains whose edge routes by headers: one name and one pool of connections for all sandboxes. */
static bool has_shared_host(const char *domain)
{
    static const char *const known[] = {"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(domain, known[i]) == 0)
            return true;
    return false;
}

char *e2b_box_url(const struct e2b_box *box, int port, const char *path)
{
    const char *domain = box->domain != NULL ? box->domain : box->e2b->domain;
    if (box->e2b->sandbox_url[0] != '\0')
        return mem_printf("%s%s", box->e2b->sandbox_url, path);
    if (port == E2B_PORT_ENVD && has_shared_host(domain))
        return mem_printf("https://sandbox.%s%s", domain, path);
    return mem_printf("https://%d-%s.%s%s", port, box->id, domain, path);
}
