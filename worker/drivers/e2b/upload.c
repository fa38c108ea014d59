/* Puts files into a sandbox through envd: one multipart request, its files streamed from where they
 * are. */
#include "worker/drivers/e2b_files.h"

#include "common/http.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIES_MAX 5

struct piece { /* head of a part, its bytes, or the closing line */
    char *text;
    const char *bytes;
    int fd; /* -1: text or bytes */
    long long size;
};

struct e2b_upload {
    struct e2b_box *box;
    struct piece *pieces;
    size_t count;
    long long total;
    size_t at; /* piece being sent */
    long long offset;
    char boundary[40], *target;
    struct http_request *request;
    ev_timer timer;
    int tries;
    char local[200]; /* what went wrong on our side */
    e2b_file_fn done;
    void *data;
};

static void upload_free(struct e2b_upload *u)
{
    ev_timer_stop(u->box->e2b->host->loop, &u->timer);
    if (u->request != NULL)
        http_cancel(u->request);
    for (size_t i = 0; i < u->count; i++)
        free(u->pieces[i].text);
    free(u->pieces);
    free(u->target);
    e2b_box_unref(u->box);
    free(u);
}

void e2b_upload_cancel(struct e2b_upload *u)
{
    if (u != NULL)
        upload_free(u);
}

static void finish(struct e2b_upload *u, enum e2b_file_result result, const char *message)
{
    e2b_file_fn done = u->done;
    void *data = u->data;
    char *text = e2b_box_redact(u->box, message);
    upload_free(u);
    done(data, result, text);
    free(text);
}

static long read_piece(struct e2b_upload *u, const struct piece *p, char *into, size_t size)
{
    long long left = p->size - u->offset;
    size_t n = left < (long long)size ? (size_t)left : size;
    if (p->fd < 0) {
        memcpy(into, (p->text != NULL ? p->text : p->bytes) + u->offset, n);
        return (long)n;
    }
    ssize_t got = pread(p->fd, into, n, (off_t)u->offset);
    if (got <= 0) {
        snprintf(u->local, sizeof u->local, "%s",
                 got < 0 ? strerror(errno) : "it became shorter while it was sent");
        return -1;
    }
    return (long)got;
}

static long read_body(void *data, char *into, size_t size)
{
    struct e2b_upload *u = data;
    while (u->at < u->count && u->offset == u->pieces[u->at].size) {
        u->at++;
        u->offset = 0;
    }
    if (u->at == u->count)
        return 0;
    long got = read_piece(u, &u->pieces[u->at], into, size);
    if (got > 0)
        u->offset += got;
    return got;
}

static void send_upload(struct e2b_upload *u);

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    send_upload(w->data);
}

static void arm(struct e2b_upload *u, long long ms)
{
    ev_now_update(u->box->e2b->host->loop);
    ev_timer_set(&u->timer, (double)ms / 1000, 0);
    ev_timer_start(u->box->e2b->host->loop, &u->timer);
}

static void on_done(void *data, const struct http_answer *a)
{
    struct e2b_upload *u = data;
    char text[400], err[100];
    u->request = NULL;
    json_t *body =
        a->body_len > 0 ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err) : NULL;
    snprintf(text, sizeof text, "HTTP %d: %.300s", a->status,
             jsonx_get_str(body, "message", a->error != NULL ? a->error : "no explanation"));
    bool gone = a->status == 502 && json_object_get(body, "port") == NULL &&
                json_object_get(body, "sandboxId") != NULL;
    bool is_list = json_is_array(body); /* of what was written; else it came from a proxy */
    json_decref(body);
    if (u->local[0] != '\0')
        finish(u, FILE_REFUSED, u->local);
    else if (a->result == HTTP_DONE && a->status >= 200 && a->status < 300 && is_list)
        finish(u, FILE_OK, "");
    else if (gone || a->status == 401 || a->status == 403)
        finish(u, gone ? FILE_GONE : FILE_DENIED, text);
    else if (a->status == 507)
        finish(u, FILE_TRANSIENT, "the sandbox's disk is full");
    else if (a->status >= 400 && a->status < 500 && a->status != 429 && a->status != 409 &&
             a->status != 408)
        finish(u, FILE_REFUSED, text);
    else if (++u->tries < TRIES_MAX)
        arm(u, e2b_backoff_ms(u->tries, a->retry_after_ms));
    else
        finish(u, FILE_TRANSIENT, a->error != NULL ? a->error : text);
}

static void send_upload(struct e2b_upload *u)
{
    struct e2b_headers headers;
    char err[200], *type = mem_printf("multipart/form-data; boundary=%s", u->boundary);
    char *url = e2b_box_url(u->box, E2B_PORT_ENVD, u->target);
    u->at = 0;
    u->offset = 0;
    e2b_headers_init(&headers, u->box, E2B_PORT_ENVD, type);
    u->request = http_start(u->box->e2b->http,
                            &(struct http_options){.method = "POST",
                                                   .kind = "upload",
                                                   .url = url,
                                                   .headers = (const char *const *)headers.lines,
                                                   .read_body = read_body,
                                                   .read_body_len = u->total,
                                                   .on_done = on_done,
                                                   .data = u},
                            err, sizeof err);
    e2b_headers_fini(&headers);
    free(type);
    free(url);
    if (u->request == NULL)
        finish(u, FILE_REFUSED, err);
}

static void add_text(struct e2b_upload *u, char *text)
{
    u->pieces[u->count++] = (struct piece){text, NULL, -1, (long long)strlen(text)};
}

/* As browsers do it: what would end the quoted name is percent-encoded. */
static char *part_head(const struct e2b_upload *u, const char *path, bool first)
{
    char *name = text_percent_encode_set(path, strlen(path), "\"\r\n");
    char *head = mem_printf("%s--%s\r\nContent-Disposition: form-data; name=\"file\"; "
                            "filename=\"%s\"\r\nContent-Type: application/octet-stream\r\n\r\n",
                            first ? "" : "\r\n", u->boundary, name);
    free(name);
    return head;
}

struct e2b_upload *e2b_upload_start(struct e2b_box *box, const struct e2b_part *parts, size_t count,
                                    e2b_file_fn done, void *data)
{
    struct e2b_upload *u = mem_alloc(sizeof *u);
    char uuid[37];
    u->box = e2b_box_ref(box);
    u->done = done;
    u->data = data;
    text_uuid(uuid);
    snprintf(u->boundary, sizeof u->boundary, "sp%s", uuid);
    u->pieces = mem_alloc((2 * count + 1) * sizeof *u->pieces);
    for (size_t i = 0; i < count; i++) {
        add_text(u, part_head(u, count == 1 ? "file" : parts[i].path, i == 0));
        u->pieces[u->count++] = (struct piece){NULL, parts[i].bytes, parts[i].fd, parts[i].size};
    }
    add_text(u, mem_printf("\r\n--%s--\r\n", u->boundary));
    for (size_t i = 0; i < u->count; i++)
        u->total += u->pieces[i].size;
    if (count == 1) {
        char *path = text_percent_encode(parts[0].path, strlen(parts[0].path));
        u->target = mem_printf("/files?path=%s&username=user", path);
        free(path);
    } else {
        u->target = mem_strdup("/files?username=user");
    }
    ev_timer_init(&u->timer, on_timer, 0, 0);
    u->timer.data = u;
    arm(u, 0);
    return u;
}
