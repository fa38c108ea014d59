/* Sends one output file to where the job wants it: PUT, or POST as a multipart form, to a URL
 * template. */
#include "worker/upload.h"

#include "common/buf.h"
#include "common/http.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define FORM_MAX    (256 * 1024) /* the form around a file */
#define HEADERS_MAX 64

struct upload {
    struct http_request *request;
    struct upload_file file;
    upload_done_fn cb;
    void *data;
    char *url;
    struct buf before, after; /* the form's parts around the file; empty for PUT */
    long long at;             /* bytes of the body that were read */
    char *why;
    bool cancelled;
};

static void append_encoded(struct buf *out, const char *text)
{
    char *encoded = text_percent_encode(text, strlen(text));
    if (buf_append_str(out, encoded) != 0)
        abort();
    free(encoded);
}

char *upload_expand(const char *url_template, const struct upload_file *file)
{
    const struct {
        const char *name, *value;
    } parts[] = {
        {"{jobId}", file->job_id}, {"{fileId}", file->file_id}, {"{filename}", file->filename}};
    struct buf out;
    buf_init(&out, 16 << 20);
    for (const char *at = url_template; *at != '\0';) {
        size_t i = 0;
        while (i < 3 && strncmp(at, parts[i].name, strlen(parts[i].name)) != 0)
            i++;
        if (i < 3) {
            append_encoded(&out, parts[i].value);
            at += strlen(parts[i].name);
        } else if (buf_append(&out, at++, 1) != 0) {
            abort();
        }
    }
    return buf_steal(&out);
}

static void free_upload(void *data)
{
    struct upload *u = data;
    buf_fini(&u->before);
    buf_fini(&u->after);
    free(u->url);
    free(u->why);
    free(u);
}

static void report(void *data)
{
    struct upload *u = data;
    if (!u->cancelled)
        u->cb(u->why == NULL ? u->url : NULL, u->why, u->data);
    free_upload(u);
}

static long read_body(void *data, char *into, size_t size)
{
    struct upload *u = data;
    long long before = (long long)u->before.len, after = before + u->file.size;
    if (u->at < before) {
        size_t n = (size_t)(before - u->at) < size ? (size_t)(before - u->at) : size;
        memcpy(into, u->before.data + u->at, n);
        u->at += (long long)n;
        return (long)n;
    }
    if (u->at < after) {
        size_t want = (long long)size < after - u->at ? size : (size_t)(after - u->at);
        ssize_t n = pread(u->file.fd, into, want, (off_t)(u->at - before));
        if (n <= 0)
            return -1;
        u->at += n;
        return (long)n;
    }
    size_t rest = u->after.len - (size_t)(u->at - after);
    size_t n = rest < size ? rest : size;
    if (n > 0)
        memcpy(into, u->after.data + (u->at - after), n);
    u->at += (long long)n;
    return (long)n;
}

static void on_done(void *data, const struct http_answer *answer)
{
    struct upload *u = data;
    u->request = NULL;
    if (answer->result != HTTP_DONE)
        u->why = mem_strdup(answer->error);
    else if (answer->status < 200 || answer->status > 299)
        u->why = mem_printf("its server answered %d", answer->status);
    reaper_defer(report, u);
}

/* A parameter of a form part: quotes and line breaks as browsers escape them. */
static void append_parameter(struct buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        const char *safe = *text == '"'    ? "%22"
                           : *text == '\r' ? "%0D"
                           : *text == '\n' ? "%0A"
                                           : NULL;
        if (safe != NULL ? buf_append_str(out, safe) != 0 : buf_append(out, text, 1) != 0)
            abort();
    }
}

static int make_form(struct upload *u, const json_t *fields, const char *boundary)
{
    const char *name;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)fields, name, value)
    {
        rc |= buf_printf(&u->before, "--%s\r\nContent-Disposition: form-data; name=\"", boundary);
        append_parameter(&u->before, name);
        rc |= buf_printf(&u->before, "\"\r\n\r\n%s\r\n", json_string_value(value));
    }
    rc |= buf_printf(
        &u->before, "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"", boundary);
    append_parameter(&u->before, u->file.filename);
    rc |= buf_printf(&u->before, "\"\r\nContent-Type: %s\r\n\r\n", u->file.mime);
    rc |= buf_printf(&u->after, "\r\n--%s--\r\n", boundary);
    return rc;
}

/* The job's headers and the content type (taken); a NULL-terminated array of heap strings. A form's
 * type is ours alone, for it names the boundary. */
static char **make_headers(const struct job_upload *target, bool form, char *content_type)
{
    char **headers = mem_alloc((HEADERS_MAX + 2) * sizeof *headers);
    const char *name;
    json_t *value;
    size_t n = 0;
    bool typed = false;
    json_object_foreach((json_t *)target->headers, name, value)
    {
        if (n == HEADERS_MAX)
            break;
        bool is_type = strcasecmp(name, "Content-Type") == 0;
        typed = typed || is_type;
        if (is_type && form)
            continue;
        headers[n++] = mem_printf("%s: %s", name, json_string_value(value));
    }
    if (!typed || form)
        headers[n++] = content_type;
    else
        free(content_type);
    return headers;
}

struct upload *upload_start(struct http *http, const struct job_upload *target,
                            const struct upload_file *file, const struct settings *settings,
                            upload_done_fn done, void *data)
{
    struct upload *u = mem_alloc(sizeof *u);
    *u = (struct upload){.file = *file, .cb = done, .data = data};
    buf_init(&u->before, FORM_MAX);
    buf_init(&u->after, 256);
    char *url = upload_expand(target->url, file);
    u->url = mem_strndup(url, strcspn(url, "?#"));
    char boundary[37], err[200] = "the form is too large";
    text_uuid(boundary);
    bool form = strcmp(target->method, "POST") == 0;
    int rc = form ? make_form(u, target->fields, boundary) : 0;
    char **headers =
        make_headers(target, form,
                     form ? mem_printf("Content-Type: multipart/form-data; boundary=%s", boundary)
                          : mem_printf("Content-Type: %s", file->mime));
    struct http_options o = {
        .method = target->method,
        .url = url,
        .headers = (const char *const *)headers,
        .read_body = read_body,
        .read_body_len = (long long)u->before.len + file->size + (long long)u->after.len,
        .on_done = on_done,
        .data = u,
        .public_only = true,
        .allow_list = settings_str(settings, SETTING_URL_ALLOW),
    };
    u->request = rc == 0 ? http_start(http, &o, err, sizeof err) : NULL;
    for (size_t i = 0; headers[i] != NULL; i++)
        free(headers[i]);
    free(headers);
    free(url);
    if (u->request == NULL) {
        u->why = mem_strdup(err);
        reaper_defer(report, u);
    }
    return u;
}

void upload_cancel(struct upload *u)
{
    u->cancelled = true;
    if (u->request == NULL)
        return; /* report runs yet, and frees */
    http_cancel(u->request);
    reaper_defer(free_upload, u);
}
