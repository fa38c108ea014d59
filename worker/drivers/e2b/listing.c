/* What is in the output folder: as the hooks said it, or as envd lists it. Names are the sandbox's
 * word. */
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_files.h"
#include "worker/safe_path.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH        16
#define MAX_WARNINGS 20

struct e2b_list_files {
    struct e2b_rpc *rpc;
    struct e2b_listing *into;
    size_t max_files;
    json_t *warnings;
    void (*done)(void *data, bool ok);
    void *data;
};

void e2b_listing_fini(struct e2b_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free((char *)listing->files[i].path);
    free(listing->files);
    *listing = (struct e2b_listing){0};
}

static void warn(json_t *warnings, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void warn(json_t *warnings, const char *fmt, ...)
{
    char text[500];
    va_list args;
    if (json_array_size(warnings) >= MAX_WARNINGS)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(warnings, jsonx_string(text, strlen(text)));
}

/* A file of ours in a folder of ours, and nothing else. */
static const char *check_path(const char *path)
{
    char *below = mem_printf("o/%s", path);
    const char *why = safe_path_check(below);
    free(below);
    return why;
}

static void add(struct e2b_listing *listing, const char *path, long long size, size_t max_files,
                size_t *left_out, json_t *warnings)
{
    const char *why = check_path(path);
    if (why != NULL || size < 0) {
        warn(warnings, "output/%.200s: skipped, its name %s", path,
             why != NULL ? why : "has no size");
        return;
    }
    if (listing->count >= max_files) {
        ++*left_out;
        return;
    }
    listing->files = mem_realloc(listing->files, (listing->count + 1) * sizeof *listing->files);
    listing->files[listing->count++] = (struct driver_file){mem_strdup(path), size};
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct driver_file *)a)->path, ((const struct driver_file *)b)->path);
}

static void finish(struct e2b_listing *listing, size_t left_out, json_t *warnings)
{
    if (listing->count > 1)
        qsort(listing->files, listing->count, sizeof *listing->files, by_path);
    size_t kept = 0; /* a name told twice is one file */
    for (size_t i = 0; i < listing->count; i++) {
        if (kept > 0 && strcmp(listing->files[kept - 1].path, listing->files[i].path) == 0)
            free((char *)listing->files[i].path);
        else
            listing->files[kept++] = listing->files[i];
    }
    listing->count = kept;
    if (left_out > 0)
        warn(warnings, "output: %zu more files are left out (FILES_MAX_COUNT)", left_out);
}

void e2b_listing_from_hooks(struct e2b_listing *listing, const json_t *message, size_t max_files,
                            json_t *warnings)
{
    const json_t *files = json_object_get(message, "files");
    const json_t *skipped = json_object_get(message, "skipped");
    size_t i, left_out = 0;
    json_t *item;
    json_array_foreach(files, i, item)
    {
        const json_t *path = json_object_get(item, "path");
        if (json_is_string(path) && strlen(json_string_value(path)) == json_string_length(path))
            add(listing, json_string_value(path), jsonx_get_int(item, "size", -1), max_files,
                &left_out, warnings);
    }
    json_array_foreach(skipped, i, item) if (json_is_string(item))
        warn(warnings, "output/%.300s", json_string_value(item));
    if (jsonx_get_bool(message, "cut", false))
        warn(warnings, "output: more files than can be listed; the others are left out");
    finish(listing, left_out, warnings);
}

/* --- through envd --- */

static void add_entry(struct e2b_list_files *list, const json_t *entry, size_t *left_out)
{
    const char *type = jsonx_get_str(entry, "type", "");
    const char *path = jsonx_get_str(entry, "path", "");
    const char *size = jsonx_get_str(entry, "size", "0");
    long long bytes = -1;
    size_t root = strlen(E2B_OUTPUT "/");
    if (strncmp(path, E2B_OUTPUT "/", root) != 0 || strcmp(type, "FILE_TYPE_DIRECTORY") == 0)
        return;
    if (strcmp(type, "FILE_TYPE_FILE") != 0 || json_object_get(entry, "symlinkTarget") != NULL) {
        warn(list->warnings, "output/%.200s: skipped, it is not a regular file", path + root);
        return;
    }
    if (json_is_integer(json_object_get(entry, "size")))
        bytes = jsonx_get_int(entry, "size", -1);
    else if (!text_parse_int(size, &bytes))
        bytes = -1;
    add(list->into, path + root, bytes, list->max_files, left_out, list->warnings);
}

static void on_listed(void *data, enum e2b_file_result result, const json_t *body, const char *code)
{
    struct e2b_list_files *list = data;
    void (*done)(void *, bool) = list->done;
    void *done_data = list->data;
    size_t i, left_out = 0;
    json_t *entry;
    bool ok = result == FILE_OK || strcmp(code, "not_found") == 0;
    json_array_foreach(json_object_get(body, "entries"), i, entry)
        add_entry(list, entry, &left_out);
    finish(list->into, left_out, list->warnings);
    free(list);
    done(done_data, ok);
}

struct e2b_list_files *e2b_list_files_start(struct e2b_box *box, struct e2b_listing *into,
                                            size_t max_files, json_t *warnings,
                                            void (*done)(void *data, bool ok), void *data)
{
    struct e2b_list_files *list = mem_alloc(sizeof *list);
    *list = (struct e2b_list_files){NULL, into, max_files, warnings, done, data};
    list->rpc =
        e2b_rpc_start(box, "filesystem.Filesystem/ListDir",
                      json_pack("{s:s,s:i}", "path", E2B_OUTPUT, "depth", DEPTH), on_listed, list);
    return list;
}

void e2b_list_files_cancel(struct e2b_list_files *list)
{
    if (list == NULL)
        return;
    e2b_rpc_cancel(list->rpc);
    free(list);
}
