/* Lists sandboxes by metadata: the filter's encoding, all pages, and exact looks at what came. */
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"

#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 200 /* of 100 sandboxes */

struct e2b_list {
    struct e2b *e2b;
    char *query;
    json_t *found;
    size_t pages;
    e2b_list_fn done;
    void *data;
};

/* Key and value are encoded on their own, as a form, and the whole as a query value. */
static char *encode_metadata(const char *const *metadata)
{
    char *all = mem_strdup("");
    for (size_t i = 0; metadata[i] != NULL; i += 2) {
        char *part[2];
        for (size_t j = 0; j < 2; j++) {
            char *once = text_percent_encode(metadata[i + j], strlen(metadata[i + j]));
            part[j] = text_percent_encode(once, strlen(once));
            free(once);
        }
        char *longer = mem_printf("%s%s%s=%s", all, i > 0 ? "&" : "", part[0], part[1]);
        free(part[0]);
        free(part[1]);
        free(all);
        all = longer;
    }
    char *encoded = text_percent_encode(all, strlen(all));
    free(all);
    return encoded;
}

static void next_page(struct e2b_list *list, const char *token);

static void finish(struct e2b_list *list, const struct e2b_answer *failed)
{
    struct e2b *e2b = list->e2b;
    list->done(list->data, failed != NULL ? NULL : list->found, failed);
    json_decref(list->found);
    free(list->query);
    free(list);
    e2b_work_end(e2b);
}

static void on_page(void *data, const struct e2b_answer *answer)
{
    struct e2b_list *list = data;
    if (answer->verdict != E2B_OK) {
        finish(list, answer);
        return;
    }
    json_array_extend(list->found, (json_t *)answer->body);
    if (answer->next != NULL && answer->next[0] != '\0' && ++list->pages < PAGES_MAX)
        next_page(list, answer->next);
    else
        finish(list, NULL);
}

static void next_page(struct e2b_list *list, const char *token)
{
    char *encoded = token != NULL ? text_percent_encode(token, strlen(token)) : NULL;
    char *path = encoded != NULL ? mem_printf("%s&nextToken=%s", list->query, encoded)
                                 : mem_strdup(list->query);
    e2b_call_start(list->e2b, &(struct e2b_call_options){
                                  .method = "GET", .path = path, .done = on_page, .data = list});
    free(encoded);
    free(path);
}

struct e2b_list *e2b_list_start(struct e2b *e2b, const char *const *metadata, const char *states,
                                e2b_list_fn done, void *data)
{
    struct e2b_list *list = mem_alloc(sizeof *list);
    char *filter = encode_metadata(metadata);
    *list = (struct e2b_list){.e2b = e2b, .found = json_array(), .done = done, .data = data};
    list->query = mem_printf("/v2/sandboxes?state=%s&limit=100&metadata=%s", states, filter);
    free(filter);
    e2b_work_begin(e2b);
    next_page(list, NULL);
    return list;
}

const char *e2b_meta(const json_t *entry, const char *key)
{
    return jsonx_get_str(json_object_get(entry, "metadata"), key, NULL);
}
