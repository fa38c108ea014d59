/* Takes what a run left behind to where the job wants it: files and charts into Redis keys, uploads
 * or the result. */
#include "worker/outputs.h"

#include "common/b64.h"
#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mime.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/queue/scripts.h"
#include "worker/spool.h"
#include "worker/upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INLINE_MAX        (32 * 1024)  /* a file that output.inline puts into the result */
#define MESSAGE_VALUE_MAX (64 * 1024)  /* a MIME value that a message carries itself */
#define PIECE_BYTES       (256 * 1024) /* a script call */

struct chart {
    int fd;
    long long size;
    json_t *entry; /* of the result's `results`, where the chart's file is told; or NULL */
    json_t *ref;   /* {key, size} when it was stored while the code ran; else NULL */
};

struct outputs {
    struct outputs_options o;
    struct driver_run *run;
    const struct driver_file *files;
    size_t file_count;
    struct chart *charts;
    size_t chart_count;
    size_t next;        /* item: files first, then charts */
    size_t next_chart;  /* number tried for the next chart's name */
    unsigned key_count; /* of "<prefix>file:<job>:<n>" */
    long long total;    /* bytes taken */
    size_t taken;       /* files taken */
    /* The item under way. */
    char *name, *key, file_id[37];
    long long size, stored, at; /* bytes read, stored in the key, read from a chart's spool */
    struct buf piece;
    int spool; /* for uploads; -1 */
    struct queue_call *call;
    struct upload *upload;
    enum { TO_RESULT, TO_KEY, TO_UPLOAD } target;
    bool reading, is_fenced, freed;
};

static void next_item(struct outputs *s);
static void read_on(struct outputs *s);

struct outputs *outputs_new(const struct outputs_options *options)
{
    struct outputs *s = mem_alloc(sizeof *s);
    s->o = *options;
    s->spool = -1;
    buf_init(&s->piece, PIECE_BYTES + 65536);
    return s;
}

static void drop_item(struct outputs *s)
{
    free(s->name);
    free(s->key);
    s->name = s->key = NULL;
    buf_clear(&s->piece);
    if (s->spool >= 0)
        close(s->spool);
    s->spool = -1;
}

static void free_now(void *data)
{
    struct outputs *s = data;
    buf_fini(&s->piece);
    free(s->charts);
    free(s);
}

void outputs_free(struct outputs *s)
{
    if (s == NULL)
        return;
    if (s->call != NULL)
        queue_call_cancel(s->call);
    if (s->upload != NULL)
        upload_cancel(s->upload);
    for (size_t i = 0; i < s->chart_count; i++) {
        if (s->charts[i].fd >= 0)
            close(s->charts[i].fd);
        json_decref(s->charts[i].ref);
        json_decref(s->charts[i].entry);
    }
    drop_item(s);
    s->freed = true;
    reaper_defer(free_now, s);
}

static char *new_key(struct outputs *s)
{
    return mem_printf("%sfile:%s:%u", queue_prefix(s->o.queue), s->o.claimed->id.data,
                      s->key_count++);
}

static struct queue_call *piece_call(struct outputs *s, const char *key, long long offset,
                                     const char *data, size_t len)
{
    struct queue_call *call = queue_call_new(s->o.queue, &script_file, 4);
    queue_call_job_key(call, &s->o.claimed->id, ":lock");
    queue_call_key(call, key + strlen(queue_prefix(s->o.queue)));
    queue_call_job_key(call, &s->o.claimed->id, "");
    queue_call_key(call, "active");
    queue_call_bytes(call, s->o.claimed->id.data, s->o.claimed->id.len);
    queue_call_bytes(call, s->o.claimed->token.data, s->o.claimed->token.len);
    queue_call_int(call, settings_int(s->o.settings, SETTING_REPLY_TTL_MS));
    queue_call_int(call, offset);
    queue_call_bytes(call, data, len);
    return call;
}

/* ---- results while the code runs ---- */

/* Bytes of a MIME value as a file would hold them; heap. */
static char *value_bytes(const char *mime, const json_t *value, size_t *len)
{
    if (!json_is_string(value))
        return jsonx_dump(value, len);
    const char *text = json_string_value(value);
    *len = json_string_length(value);
    if (mime_is_base64_in_jupyter(mime)) {
        char *bytes = (char *)b64_decode(text, *len, len);
        if (bytes != NULL)
            return bytes;
    }
    return mem_dup(text, *len);
}

/* Puts a big value into a key of its own, unfollowed: calls are made in order, so the message comes
 * after it. */
static json_t *store_value(struct outputs *s, const char *bytes, size_t len)
{
    long long file_max = settings_int(s->o.settings, SETTING_FILE_MAX_BYTES);
    long long all_max = settings_int(s->o.settings, SETTING_FILES_MAX_BYTES);
    if ((long long)len > file_max || s->total + (long long)len > all_max ||
        s->o.job->upload.url != NULL || queue_is_tight(s->o.queue))
        return NULL;
    char *key = new_key(s);
    for (size_t at = 0; at < len || at == 0; at += PIECE_BYTES) {
        size_t n = len - at < PIECE_BYTES ? len - at : PIECE_BYTES;
        queue_call_send(piece_call(s, key, (long long)at, bytes + at, n), NULL, NULL);
    }
    s->total += (long long)len;
    json_t *ref = json_pack("{s:s,s:I}", "key", key, "size", (json_int_t)len);
    free(key);
    return ref;
}

static void keep_chart(struct outputs *s, const char *bytes, size_t len, json_t *ref)
{
    struct chart c = {-1, (long long)len, NULL, json_incref(ref)};
    if (ref == NULL) {
        c.fd = spool_open();
        if (c.fd < 0 || spool_write(c.fd, bytes, len) != 0) {
            result_warn(s->o.result, "a chart could not be kept: %s", strerror(errno));
            if (c.fd >= 0)
                close(c.fd);
            return;
        }
    }
    s->charts = mem_realloc(s->charts, (s->chart_count + 1) * sizeof *s->charts);
    s->charts[s->chart_count++] = c;
}

void outputs_add_result(struct outputs *s, const json_t *bundle, bool is_main)
{
    size_t most = (size_t)settings_int(s->o.settings, SETTING_FILES_MAX_COUNT),
           charts = s->chart_count;
    json_t *data = json_object(), *refs = json_object(), *omitted = json_object();
    const char *mime;
    json_t *value;
    json_object_foreach((json_t *)bundle, mime, value)
    {
        size_t text_len = 0, len = 0;
        free(jsonx_dump(value, &text_len));
        bool png = strcmp(mime, "image/png") == 0 && s->chart_count < most;
        bool big = text_len > MESSAGE_VALUE_MAX || jsonx_depth(value) > RESULT_DEPTH_MAX;
        char *bytes = big || png ? value_bytes(mime, value, &len) : NULL;
        json_t *ref = big && bytes != NULL ? store_value(s, bytes, len) : NULL;
        if (!big)
            json_object_set(data, mime, value);
        else if (ref != NULL)
            json_object_set(refs, mime, ref);
        else
            json_object_set_new(omitted, mime, json_integer((json_int_t)len));
        if (png)
            keep_chart(s, bytes, len, ref);
        json_decref(ref);
        free(bytes);
    }
    json_t *message = json_pack("{s:o,s:b}", "data", data, "main", is_main);
    if (json_object_size(refs) > 0)
        json_object_set(message, "refs", refs);
    if (json_object_size(omitted) > 0)
        json_object_set(message, "omitted", omitted);
    reply_message(s->o.reply, "result", message, false);
    json_t *entry = result_add_bundle(s->o.result, bundle, is_main, refs);
    if (s->chart_count > charts)
        s->charts[charts].entry = json_incref(entry);
    json_decref(refs);
    json_decref(omitted);
}

/* ---- files after the run ---- */

static bool is_chart(const struct outputs *s)
{
    return s->next >= s->file_count;
}

static struct chart *chart(struct outputs *s)
{
    return &s->charts[s->next - s->file_count];
}

/* The result that showed the chart says which file it is. */
static void link_chart(struct outputs *s)
{
    json_t *entry = chart(s)->entry, *refs = json_object_get(entry, "refs");
    json_t *omitted = json_object_get(entry, "omitted");
    if (entry == NULL || json_object_get(json_object_get(entry, "data"), "image/png") != NULL)
        return;
    if (refs == NULL)
        json_object_set_new(entry, "refs", refs = json_object());
    json_object_set_new(refs, "image/png",
                        json_pack("{s:s,s:s,s:I}", "fileId", s->file_id, "filename", s->name,
                                  "size", (json_int_t)s->size));
    json_object_del(omitted, "image/png");
    if (omitted != NULL && json_object_size(omitted) == 0)
        json_object_del(entry, "omitted");
}

/* The item is where it belongs (members: url, key or content; reference stolen): told to reply and
 * result. */
static void item_done(struct outputs *s, json_t *where)
{
    json_t *file = json_pack("{s:s,s:o,s:s,s:I}", "fileId", s->file_id, "filename",
                             jsonx_string(s->name, strlen(s->name)), "mimeType",
                             mime_from_filename(s->name), "size", (json_int_t)s->size);
    json_object_update(file, where);
    json_decref(where);
    result_add_file(s->o.result, json_incref(file));
    reply_message(s->o.reply, "file", json_pack("{s:o}", "file", file), true);
    if (is_chart(s))
        link_chart(s);
    s->taken++;
    drop_item(s);
    s->next++;
    next_item(s);
}

static void item_failed(struct outputs *s, const char *why)
{
    result_warn(s->o.result, "file %.200s is missing: %s", s->name, why);
    drop_item(s);
    s->next++;
    next_item(s);
}

static void on_piece_stored(redisReply *reply, void *data)
{
    struct outputs *s = data;
    s->call = NULL;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 0) {
        s->stored += (long long)s->piece.len;
        buf_clear(&s->piece);
        if (s->reading)
            read_on(s);
        else
            item_done(s, json_pack("{s:s}", "key", s->key));
    } else if (reply->type == REDIS_REPLY_INTEGER &&
               (reply->integer == -2 || reply->integer == -6)) {
        s->is_fenced = true;
        s->o.fenced(false, s->o.data);
    } else {
        item_failed(s, "its key was changed by another client");
    }
}

static void store_piece(struct outputs *s)
{
    s->call =
        piece_call(s, s->key, s->stored, s->piece.data != NULL ? s->piece.data : "", s->piece.len);
    queue_call_send(s->call, on_piece_stored, s);
}

static void on_uploaded(const char *url, const char *why, void *data)
{
    struct outputs *s = data;
    s->upload = NULL;
    if (url != NULL)
        item_done(s, json_pack("{s:s}", "url", url));
    else
        item_failed(s, why);
}

/* All bytes are read. */
static void item_read(struct outputs *s)
{
    s->reading = false;
    if (s->target == TO_RESULT) {
        char *text = b64_encode(s->piece.data != NULL ? s->piece.data : "", s->piece.len);
        item_done(s, json_pack("{s:s}", "content", text));
        free(text);
    } else if (s->target == TO_UPLOAD) {
        struct upload_file file = {s->spool,   s->size, s->o.claimed->id.data,
                                   s->file_id, s->name, mime_from_filename(s->name)};
        s->upload =
            upload_start(s->o.http, &s->o.job->upload, &file, s->o.settings, on_uploaded, s);
    } else {
        store_piece(s);
    }
}

static void take_piece(struct outputs *s, const char *piece, long len, const char *why)
{
    long long most =
        s->target == TO_RESULT ? INLINE_MAX : settings_int(s->o.settings, SETTING_FILE_MAX_BYTES);
    if (len < 0) {
        item_failed(s, why != NULL ? why : "it cannot be read");
        return;
    }
    s->at += len;
    if (len > 0 && s->at > most) { /* it grew since it was listed */
        item_failed(s, "it grew while it was read");
        return;
    }
    if (len == 0) {
        s->size = s->at;
        item_read(s);
        return;
    }
    if (s->target == TO_UPLOAD) {
        if (spool_write(s->spool, piece, (size_t)len) != 0)
            item_failed(s, strerror(errno));
        else
            read_on(s);
        return;
    }
    if (buf_append(&s->piece, piece, (size_t)len) != 0)
        abort(); /* it is emptied below before it is full */
    if (s->target == TO_KEY && s->piece.len >= PIECE_BYTES)
        store_piece(s);
    else
        read_on(s);
}

static void on_driver_piece(void *data, const char *piece, long len, const char *why)
{
    struct outputs *s = data;
    if (!s->is_fenced)
        take_piece(s, piece, len, why);
}

static void read_chart(void *data)
{
    struct outputs *s = data;
    char piece[65536];
    if (s->freed || s->is_fenced)
        return;
    ssize_t n = pread(chart(s)->fd, piece, sizeof piece, (off_t)s->at);
    take_piece(s, piece, (long)n, n < 0 ? strerror(errno) : NULL);
}

static void read_on(struct outputs *s)
{
    if (is_chart(s))
        reaper_defer(read_chart, s); /* a turn of the loop a piece, as with a driver */
    else
        driver_file_read(s->run, s->next, on_driver_piece, s);
}

static bool name_taken(const struct outputs *s, const char *name)
{
    for (size_t i = 0; i < s->file_count; i++)
        if (strcmp(s->files[i].path, name) == 0)
            return true;
    return false;
}

static char *chart_name(struct outputs *s)
{
    for (;;) {
        char *name = mem_printf("chart-%zu.png", s->next_chart++);
        if (!name_taken(s, name))
            return name;
        free(name);
    }
}

/* NULL, or why the next item is not taken. */
static const char *over_limits(const struct outputs *s)
{
    if ((long long)s->taken >= settings_int(s->o.settings, SETTING_FILES_MAX_COUNT))
        return "the run has more files than FILES_MAX_COUNT";
    if (s->size > settings_int(s->o.settings, SETTING_FILE_MAX_BYTES))
        return "it is larger than FILE_MAX_BYTES";
    if (s->total + s->size > settings_int(s->o.settings, SETTING_FILES_MAX_BYTES))
        return "the run's files are larger than FILES_MAX_BYTES together";
    return NULL;
}

static void report_done(void *data)
{
    struct outputs *s = data;
    if (!s->is_fenced)
        s->o.done(s->o.data);
}

static void next_item(struct outputs *s)
{
    if (s->next == s->file_count + s->chart_count) {
        report_done(s);
        return;
    }
    text_uuid(s->file_id);
    s->name = is_chart(s) ? chart_name(s) : mem_strdup(s->files[s->next].path);
    s->size = is_chart(s) ? chart(s)->size : s->files[s->next].size;
    s->at = s->stored = 0;
    if (is_chart(s) && chart(s)->ref != NULL) { /* it is in a key already, and counted */
        item_done(s, json_pack("{s:O}", "key", json_object_get(chart(s)->ref, "key")));
        return;
    }
    const char *why = over_limits(s);
    bool uploads = s->o.job->upload.url != NULL;
    if (why == NULL && !uploads && queue_is_tight(s->o.queue))
        why = "Redis is short of memory (REDIS_MEMORY_WATERMARK_PERCENT)";
    if (why != NULL) {
        item_failed(s, why);
        return;
    }
    s->total += s->size;
    bool in_result = s->o.job->inline_files && s->size <= INLINE_MAX && !queue_is_tight(s->o.queue);
    s->target = in_result ? TO_RESULT : uploads ? TO_UPLOAD : TO_KEY;
    if (s->target == TO_UPLOAD && (s->spool = spool_open()) < 0) {
        item_failed(s, strerror(errno));
        return;
    }
    if (s->target == TO_KEY)
        s->key = new_key(s);
    s->reading = true;
    read_on(s);
}

void outputs_collect(struct outputs *s, struct driver_run *run, const struct driver_file *files,
                     size_t count)
{
    s->run = run;
    s->files = files;
    s->file_count = count;
    next_item(s);
}
