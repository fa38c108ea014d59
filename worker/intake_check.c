/* Judges an entry of the intake stream: a job that BullMQ's own clients could have added, or a dead
 * letter. */
#include "worker/intake_check.h"

#include "common/jsonx.h"
#include "common/mem.h"
#include "common/utf8.h"

#include <stdlib.h>
#include <string.h>

#define ID_MAX_BYTES 512
#define PRIORITY_MAX 2097151 /* BullMQ: 2^21 - 1 */

bool intake_id_reserved(const char *id)
{
    static const char *const names[] = {
        "wait", "active", "prioritized", "pc", "delayed", "waiting-children", "completed", "failed",
        "paused", "stalled", "stalled-check", "limiter", "marker", "meta", "events", "id", "repeat",
        "metrics", "de",
        /* endings of a job's own keys: "<prefix>lock" and so on would be read as such */
        "lock", "logs", "dependencies", "processed", "unsuccessful"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(id, names[i]) == 0)
            return true;
    /* BullMQ lets no client choose an id with a colon (but its schedulers'), for keys are made with
     * them; and a number would collide with the ids it gives itself. */
    return strchr(id, ':') != NULL || id[strspn(id, "0123456789")] == '\0';
}

static bool is(const struct str *s, const char *word)
{
    return s->len == strlen(word) && memcmp(s->data, word, s->len) == 0;
}

static char *check_options(const json_t *opts)
{
    static const char *const numbers[] = {"attempts", "delay",           "priority", "timestamp",
                                          "keepLogs", "stackTraceLimit", "sizeLimit"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *v = json_object_get(opts, numbers[i]);
        if (v != NULL && (!json_is_number(v) || json_number_value(v) < 0))
            return mem_printf("opts.%s is not a number of 0 or more", numbers[i]);
    }
    const json_t *priority = json_object_get(opts, "priority");
    if (priority != NULL &&
        (!json_is_integer(priority) || json_integer_value(priority) > PRIORITY_MAX))
        return mem_printf("opts.priority is not a whole number from 0 to %d", PRIORITY_MAX);
    const json_t *lifo = json_object_get(opts, "lifo");
    if (lifo != NULL && !json_is_boolean(lifo))
        return mem_strdup("opts.lifo is not true or false");
    static const char *const foreign[] = {"repeat", "parent", "de",   "deduplication",
                                          "fpof",   "cpof",   "idof", "rdof"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (json_object_get(opts, foreign[i]) != NULL)
            return mem_printf(
                "opts.%s is not supported for stream entries; add such jobs with BullMQ",
                foreign[i]);
    return NULL;
}

static char *check_texts(const struct intake_entry *e, size_t data_max_bytes)
{
    char err[160];
    if (e->data.data == NULL)
        return mem_strdup("it has no field data");
    if (e->data.len > data_max_bytes)
        return mem_printf("data has %zu bytes, the limit is %zu", e->data.len, data_max_bytes);
    json_t *data = jsonx_parse(e->data.data, e->data.len, err, sizeof err);
    if (data == NULL)
        return mem_printf("data is not JSON: %s", err);
    json_decref(data);
    json_t *opts = jsonx_parse(e->opts.data, e->opts.len, err, sizeof err);
    char *why = opts == NULL            ? mem_printf("opts is not JSON: %s", err)
                : !json_is_object(opts) ? mem_strdup("opts is not a JSON object")
                                        : check_options(opts);
    json_decref(opts);
    return why;
}

char *intake_check(const struct str *fields, size_t count, const char *entry_id,
                   size_t data_max_bytes, struct intake_entry *out, struct str *id_storage)
{
    *out = (struct intake_entry){.name = {(char *)"execute", 7}, .opts = {(char *)"{}", 2}};
    for (size_t i = 0; i < count; i++) {
        const struct str *name = &fields[2 * i], *value = &fields[2 * i + 1];
        if (is(name, "data"))
            out->data = *value;
        else if (is(name, "name"))
            out->name = *value;
        else if (is(name, "id"))
            out->id = *value;
        else if (is(name, "opts"))
            out->opts = *value;
    }
    if (out->id.len == 0) {
        char *made = mem_printf("s-%s", entry_id);
        *id_storage = (struct str){made, strlen(made)};
        out->id = *id_storage;
    }
    if (out->id.len > ID_MAX_BYTES || memchr(out->id.data, '\0', out->id.len) != NULL ||
        !utf8_valid(out->id.data, out->id.len))
        return mem_printf("id is not UTF-8 text of at most %d bytes", ID_MAX_BYTES);
    if (intake_id_reserved(out->id.data))
        return mem_strdup("id is the name of a key of the queue, a number, or has a colon in it");
    if (out->name.len == 0 || out->name.len > ID_MAX_BYTES ||
        !utf8_valid(out->name.data, out->name.len))
        return mem_printf("name is not UTF-8 text of 1 to %d bytes", ID_MAX_BYTES);
    return check_texts(out, data_max_bytes);
}
