/* The driver that runs nothing: each execution fails with the sentence it was made with. */
#include "worker/driver.h"

#include "common/mem.h"
#include "common/reaper.h"

#include <ev.h>
#include <stdlib.h>

struct disabled {
    struct driver base;
    struct ev_loop *loop;
    char *message;
};

struct disabled_run {
    struct driver_run base;
    const struct driver_events *events;
    void *data;
    struct ev_timer soon; /* no callback inside driver_start */
};

static void on_soon(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct disabled_run *run = w->data;
    struct driver_end end = {.kind = DRIVER_END_DISABLED,
                             .message = ((struct disabled *)run->base.driver)->message};
    run->events->on_end(run->data, &end);
}

static struct driver_run *disabled_start(struct driver *d, const struct driver_request *request,
                                         const struct driver_events *events, void *data)
{
    (void)request;
    struct disabled_run *run = mem_alloc(sizeof *run);
    run->base.driver = d;
    run->events = events;
    run->data = data;
    ev_timer_init(&run->soon, on_soon, 0, 0);
    run->soon.data = run;
    ev_timer_start(((struct disabled *)d)->loop, &run->soon);
    return &run->base;
}

static void disabled_nothing(struct driver_run *run)
{
    (void)run;
}

static void disabled_file_read(struct driver_run *run, size_t index, driver_piece_fn cb, void *data)
{
    (void)run;
    (void)index;
    cb(data, NULL, -1, "there are no files"); /* never asked for: on_end names none */
}

static void disabled_close(struct driver_run *base)
{
    struct disabled_run *run = (struct disabled_run *)base;
    ev_timer_stop(((struct disabled *)base->driver)->loop, &run->soon);
    reaper_defer(free, run);
}

static void disabled_release(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    (void)d;
    (void)thread;
    reaper_defer(cb, data);
}

static void disabled_dispose(struct driver *base, driver_done_fn cb, void *data)
{
    struct disabled *d = (struct disabled *)base;
    reaper_defer(cb, data);
    reaper_defer(free, d->message);
    reaper_defer(free, d);
}

static const struct driver_ops disabled_ops = {
    .name = "DISABLED",
    .start = disabled_start,
    .deliver = disabled_nothing,
    .interrupt = disabled_nothing,
    .file_read = disabled_file_read,
    .close = disabled_close,
    .release = disabled_release,
    .settle = disabled_release,
    .dispose = disabled_dispose,
};

struct driver *driver_disabled_new(const struct driver_host *host, const char *message)
{
    struct disabled *d = mem_alloc(sizeof *d);
    d->base.ops = &disabled_ops;
    d->loop = host->loop;
    d->message = mem_strdup(message);
    return &d->base;
}
