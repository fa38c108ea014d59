/* Keeps the locks of running jobs, and tells who lost one. */
#include "worker/queue/locks.h"

#include "common/log.h"
#include "common/mem.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 500 /* locks a script call: about 3 ms of Redis */

struct lock {
    struct locks *owner;
    struct lock *prev, *next;
    const struct str *id, *token; /* the run's */
    lock_lost_fn lost;
    void *data;
};

struct locks {
    struct queue *q;
    struct lock *first;
    struct ev_timer timer;
    size_t calls; /* renewals under way */
    bool failed;  /* one of them got no answer */
    void (*done)(bool ok, void *data);
    void *done_data;
};

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    struct locks *l = w->data;
    if (l->calls == 0 && queue_is_ready(l->q))
        locks_renew_now(l, NULL, NULL);
}

struct locks *locks_new(struct queue *q, long long renew_ms)
{
    struct locks *l = mem_alloc(sizeof *l);
    l->q = q;
    double every = (double)renew_ms / 1000.0;
    ev_timer_init(&l->timer, on_timer, every, every);
    l->timer.data = l;
    ev_timer_start(queue_options(q)->loop, &l->timer);
    return l;
}

void locks_free(struct locks *l)
{
    ev_timer_stop(queue_options(l->q)->loop, &l->timer);
    while (l->first != NULL)
        lock_remove(l->first);
    free(l);
}

struct lock *lock_add(struct locks *l, const struct str *id, const struct str *token,
                      lock_lost_fn lost, void *data)
{
    struct lock *lock = mem_alloc(sizeof *lock);
    *lock = (struct lock){l, NULL, l->first, id, token, lost, data};
    if (l->first != NULL)
        l->first->prev = lock;
    l->first = lock;
    return lock;
}

void lock_remove(struct lock *lock)
{
    if (lock == NULL)
        return;
    *(lock->prev != NULL ? &lock->prev->next : &lock->owner->first) = lock->next;
    if (lock->next != NULL)
        lock->next->prev = lock->prev;
    free(lock);
}

static struct lock *find(struct locks *l, const char *id, size_t len)
{
    for (struct lock *k = l->first; k != NULL; k = k->next)
        if (k->id->len == len && memcmp(k->id->data, id, len) == 0)
            return k;
    return NULL;
}

static void on_renewed(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct locks *l = data;
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY) {
        l->failed = true;
        if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
            queue_say_refused(l->q, "the renewal of locks", reply);
    } else {
        for (size_t i = 0; i < reply->elements; i++) {
            /* A job that ended meanwhile is not in the list any more. */
            struct lock *k = find(l, reply->element[i]->str, reply->element[i]->len);
            if (k != NULL)
                k->lost(k->data);
        }
    }
    if (--l->calls == 0 && l->done != NULL) {
        void (*done)(bool, void *) = l->done;
        l->done = NULL;
        done(!l->failed, l->done_data);
    }
}

/* Sends the renewal of up to CHUNK locks from `from` on; returns where the next chunk starts. */
static struct lock *send_chunk(struct locks *l, struct lock *from)
{
    const char *argv[4 + 2 * CHUNK];
    size_t lens[4 + 2 * CHUNK];
    int argc = 0;
    char duration[32];
    snprintf(duration, sizeof duration, "%lld", queue_options(l->q)->lock_duration_ms);
    struct str stalled = queue_key(l->q, "stalled", 7), active = queue_key(l->q, "active", 6);
    const struct str head[] = {stalled,
                               active,
                               {(char *)queue_prefix(l->q), strlen(queue_prefix(l->q))},
                               {duration, strlen(duration)}};
    for (; argc < 4; argc++)
        argv[argc] = head[argc].data, lens[argc] = head[argc].len;
    for (; from != NULL && argc < 4 + 2 * CHUNK; from = from->next) {
        argv[argc] = from->id->data, lens[argc++] = from->id->len;
        argv[argc] = from->token->data, lens[argc++] = from->token->len;
    }
    if (redis_script_call(queue_options(l->q)->redis, &script_locks, 2, argc, argv, lens, 0,
                          on_renewed, l) == 0)
        l->calls++;
    else
        l->failed = true;
    str_fini(&stalled);
    str_fini(&active);
    return from;
}

void locks_renew_now(struct locks *l, void (*done)(bool ok, void *data), void *data)
{
    l->failed = false;
    l->done = done;
    l->done_data = data;
    for (struct lock *k = l->first; k != NULL;)
        k = send_chunk(l, k);
    if (l->calls == 0 && done != NULL) {
        l->done = NULL;
        done(!l->failed, data);
    }
}
