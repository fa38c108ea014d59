/* Output files on their way out: the next few are fetched side by side into unnamed files, and read
 * from there. */
#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_files.h"
#include "worker/spool.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AHEAD      6                  /* fetched side by side */
#define PIECE_SIZE ((size_t)64 << 10) /* handed on at a time */
#define TRIES_MAX  4

struct fetch {
    struct e2b_reads *reads;
    size_t index;
    int fd;
    long long got, size; /* bytes in the spool; as listed */
    struct http_request *request;
    ev_timer timer;
    int tries;
    bool started, done;
    char why[200]; /* not "": it cannot be read */
};

struct e2b_reads {
    struct e2b_box *box;
    const struct e2b_listing *listing;
    long long max_bytes; /* a larger file is not fetched ahead */
    struct fetch *fetches;
    size_t current; /* file being read; count: none yet */
    long long at;   /* bytes of it handed on */
    driver_piece_fn cb;
    void *data;
    bool wanted, due, freed;
};

static void deliver(void *arg);

static void schedule(struct e2b_reads *r)
{
    if (r->due)
        return;
    r->due = true;
    reaper_defer(deliver, r);
}

/* The reader may go on, if it waits for this file. */
static void tell(struct fetch *f)
{
    if (f->reads->wanted && f->reads->current == f->index)
        schedule(f->reads);
}

static void fetch_stop(struct fetch *f)
{
    ev_timer_stop(f->reads->box->e2b->host->loop, &f->timer);
    if (f->request != NULL)
        http_cancel(f->request);
    f->request = NULL;
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static void fetch_failed(struct fetch *f, const char *why)
{
    char *clean = e2b_box_redact(f->reads->box, why);
    snprintf(f->why, sizeof f->why, "%s", clean[0] != '\0' ? clean : "it cannot be read");
    free(clean);
    tell(f);
}

static int on_data(void *data, const char *piece, size_t len)
{
    struct fetch *f = data;
    if (http_status(f->request) != 200)
        return 0;
    if (f->got + (long long)len > f->size) {
        fetch_failed(f, "it grew while it was read");
        return -1;
    }
    if (spool_write(f->fd, piece, len) != 0) {
        fetch_failed(f, strerror(errno));
        return -1;
    }
    f->got += (long long)len;
    tell(f);
    return 0;
}

static void fetch_send(struct fetch *f);

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    fetch_send(w->data);
}

static void again_later(struct fetch *f, long long ms)
{
    struct ev_loop *loop = f->reads->box->e2b->host->loop;
    ev_now_update(loop);
    ev_timer_set(&f->timer, (double)ms / 1000, 0);
    ev_timer_start(loop, &f->timer);
}

static void on_done(void *data, const struct http_answer *a)
{
    struct fetch *f = data;
    char text[200];
    f->request = NULL;
    if (f->why[0] != '\0')
        return;
    if (a->result == HTTP_DONE && a->status == 200) {
        f->done = true;
        tell(f);
        return;
    }
    snprintf(text, sizeof text, "it cannot be read (HTTP %d)", a->status);
    if (a->status == 404)
        fetch_failed(f, "it is gone");
    else if ((a->status >= 400 && a->status < 500 && a->status != 429) || ++f->tries >= TRIES_MAX)
        fetch_failed(f, a->status != 0 && a->status != 200 ? text : a->error);
    else
        again_later(f, e2b_backoff_ms(f->tries, a->retry_after_ms));
}

static void fetch_send(struct fetch *f)
{
    struct e2b_reads *r = f->reads;
    struct e2b_headers headers;
    char err[200], *path = mem_printf(E2B_OUTPUT "/%s", r->listing->files[f->index].path);
    char *encoded = text_percent_encode(path, strlen(path));
    char *target = mem_printf("/files?path=%s&username=user", encoded);
    char *url = e2b_box_url(r->box, E2B_PORT_ENVD, target);
    /* From the start again: what the reader has had stays had. */
    f->got = 0;
    if (f->fd < 0)
        f->fd = spool_open();
    if (f->fd < 0 || ftruncate(f->fd, 0) != 0 || lseek(f->fd, 0, SEEK_SET) < 0) {
        fetch_failed(f, strerror(errno));
    } else {
        e2b_headers_init(&headers, r->box, E2B_PORT_ENVD, NULL);
        f->request =
            http_start(r->box->e2b->http,
                       &(struct http_options){.method = "GET",
                                              .kind = "download",
                                              .url = url,
                                              .headers = (const char *const *)headers.lines,
                                              .on_data = on_data,
                                              .on_done = on_done,
                                              .data = f,
                                              .max_body_bytes = SIZE_MAX / 2},
                       err, sizeof err);
        e2b_headers_fini(&headers);
        if (f->request == NULL)
            fetch_failed(f, err);
    }
    free(path);
    free(encoded);
    free(target);
    free(url);
}

static void fetch_start(struct fetch *f)
{
    if (f->started)
        return;
    f->started = true;
    f->fd = -1;
    ev_timer_init(&f->timer, on_timer, 0, 0);
    f->timer.data = f;
    fetch_send(f);
}

struct e2b_reads *e2b_reads_new(struct e2b_box *box, const struct e2b_listing *listing,
                                long long max_file_bytes)
{
    struct e2b_reads *r = mem_alloc(sizeof *r);
    r->box = e2b_box_ref(box);
    r->listing = listing;
    r->max_bytes = max_file_bytes;
    r->current = listing->count;
    r->fetches = mem_alloc(listing->count * sizeof *r->fetches);
    for (size_t i = 0; i < listing->count; i++) {
        r->fetches[i] =
            (struct fetch){.reads = r, .index = i, .fd = -1, .size = listing->files[i].size};
        ev_timer_init(&r->fetches[i].timer, on_timer, 0, 0);
        r->fetches[i].timer.data = &r->fetches[i];
    }
    return r;
}

static void piece(struct e2b_reads *r, const char *bytes, long len, const char *why)
{
    r->wanted = false;
    r->cb(r->data, bytes, len, why);
}

static void deliver(void *arg)
{
    static char bytes[PIECE_SIZE]; /* one loop, one thread */
    struct e2b_reads *r = arg;
    r->due = false;
    if (r->freed) {
        free(r->fetches);
        free(r);
        return;
    }
    if (!r->wanted)
        return;
    struct fetch *f = &r->fetches[r->current];
    long long ready = f->got - r->at;
    if (f->why[0] != '\0') {
        piece(r, NULL, -1, f->why);
    } else if (ready > 0) {
        size_t want = ready < (long long)PIECE_SIZE ? (size_t)ready : PIECE_SIZE;
        ssize_t n = pread(f->fd, bytes, want, (off_t)r->at);
        if (n > 0)
            r->at += n;
        if (n > 0)
            piece(r, bytes, (long)n, NULL);
        else
            piece(r, NULL, -1, n < 0 ? strerror(errno) : "its copy was cut");
    } else if (f->done && r->at > f->got) {
        piece(r, NULL, -1, "it became shorter while it was read");
    } else if (f->done) {
        piece(r, bytes, 0, NULL);
    } /* else: told when there is more */
}

void e2b_reads_next(struct e2b_reads *r, size_t index, driver_piece_fn cb, void *data)
{
    if (index != r->current) {
        r->current = index;
        r->at = 0;
    }
    r->cb = cb;
    r->data = data;
    r->wanted = true;
    for (size_t i = 0; i < index; i++) /* the reader has left these */
        if (r->fetches[i].started)
            fetch_stop(&r->fetches[i]);
    fetch_start(&r->fetches[index]);
    for (size_t i = index + 1; i < r->listing->count && i < index + AHEAD; i++)
        if (r->fetches[i].size <= r->max_bytes)
            fetch_start(&r->fetches[i]);
    schedule(r);
}

void e2b_reads_free(struct e2b_reads *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->listing->count; i++)
        if (r->fetches[i].started)
            fetch_stop(&r->fetches[i]);
    e2b_box_unref(r->box);
    r->freed = true;
    schedule(r);
}
