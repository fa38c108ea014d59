/* The one way of freeing things that die inside a callback: later, when the loop turns. */
#include "common/reaper.h"

#include <ev.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/mem.h"

struct reaper_entry {
    struct reaper_entry *next;
    void (*fn)(void *arg);
    void *arg;
};

#define SPARE_ENTRIES 1024 /* kept for the next turns, a few for each job that runs */

static struct {
    struct reaper_entry *spare;
    size_t spare_count;
    struct ev_loop *loop; /* NULL before reaper_init and after reaper_fini */
    struct ev_prepare prepare;
    struct reaper_entry *head, *tail; /* in the order of reaper_defer */
    bool holding;                     /* entries pending: the loop must not end before they ran */
} reaper;

/* The watcher itself never keeps the loop alive; what waits to be reaped does. */
static void reaper_hold(void)
{
    bool want = reaper.head != NULL;
    if (!reaper.loop || want == reaper.holding)
        return;
    reaper.holding = want;
    if (want)
        ev_ref(reaper.loop);
    else
        ev_unref(reaper.loop);
}

static void reaper_run(void)
{
    while (reaper.head) {
        struct reaper_entry *entry = reaper.head;
        reaper.head = entry->next;
        if (!reaper.head)
            reaper.tail = NULL;
        entry->fn(entry->arg);
        if (reaper.spare_count < SPARE_ENTRIES) {
            entry->next = reaper.spare;
            reaper.spare = entry;
            reaper.spare_count++;
        } else {
            free(entry);
        }
    }
    reaper_hold();
}

static void reaper_on_prepare(struct ev_loop *loop, struct ev_prepare *watcher, int events)
{
    (void)loop;
    (void)watcher;
    (void)events;
    reaper_run();
}

void reaper_init(struct ev_loop *loop)
{
    reaper.loop = loop;
    ev_prepare_init(&reaper.prepare, reaper_on_prepare);
    /* Last of all prepare watchers, so that what the others defer does not sleep through the poll.
     */
    ev_set_priority(&reaper.prepare, EV_MINPRI);
    ev_prepare_start(loop, &reaper.prepare);
    ev_unref(loop);
    reaper_hold();
}

void reaper_defer(void (*fn)(void *arg), void *arg)
{
    struct reaper_entry *entry = reaper.spare;
    if (entry) {
        reaper.spare = entry->next;
        reaper.spare_count--;
    } else {
        entry = mem_alloc(sizeof(*entry));
    }
    *entry = (struct reaper_entry){NULL, fn, arg};
    if (reaper.tail)
        reaper.tail->next = entry;
    else
        reaper.head = entry;
    reaper.tail = entry;
    reaper_hold();
}

void reaper_fini(void)
{
    reaper_run();
    for (struct reaper_entry *next; reaper.spare; reaper.spare = next) {
        next = reaper.spare->next;
        free(reaper.spare);
    }
    reaper.spare_count = 0;
    if (!reaper.loop)
        return;
    ev_ref(reaper.loop);
    ev_prepare_stop(reaper.loop, &reaper.prepare);
    reaper.loop = NULL;
}
