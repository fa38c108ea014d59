/* Name resolution off the loop: getaddrinfo_a, whose end a short timer looks for. */
#include "common/resolve.h"

#include <errno.h>
#include <ev.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

/* The pause between looks grows, so that a fast answer costs a millisecond and a slow one few
 * wake-ups. */
#define RESOLVE_FIRST_PAUSE 0.001
#define RESOLVE_LAST_PAUSE  0.025

struct resolve {
    struct ev_loop *loop;
    struct ev_timer timer;
    double pause; /* s, of the running timer */
    struct gaicb query;
    struct addrinfo hints;
    char *host;
    int started; /* 0, or why getaddrinfo_a refused (EAI_*) */
    resolve_fn fn;
    void *data;
    struct resolve *next; /* of abandoned */
};

/* Cancelled, but the query is glibc's until it says otherwise: kept until a later call finds it
 * done. */
static struct resolve *abandoned;

static void resolve_release(struct resolve *lookup)
{
    if (lookup->query.ar_result)
        freeaddrinfo(lookup->query.ar_result);
    free(lookup->host);
    free(lookup);
}

static int resolve_collect(const struct addrinfo *found, char out[][RESOLVE_ADDRESS_SIZE])
{
    int count = 0;
    for (; found && count < RESOLVE_MAX_ADDRESSES; found = found->ai_next)
        if (!getnameinfo(found->ai_addr, found->ai_addrlen, out[count], RESOLVE_ADDRESS_SIZE, NULL,
                         0, NI_NUMERICHOST))
            count++;
    return count;
}

static void resolve_finish(struct resolve *lookup, int code)
{
    char addresses[RESOLVE_MAX_ADDRESSES][RESOLVE_ADDRESS_SIZE];
    int count = code ? 0 : resolve_collect(lookup->query.ar_result, addresses);
    const char *error = NULL;
    if (!count)
        error = code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code ? code : EAI_NONAME);
    resolve_fn fn = lookup->fn;
    void *data = lookup->data;
    resolve_release(lookup);
    fn(addresses, count, error, data);
}

static void resolve_on_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct resolve *lookup = timer->data;
    (void)events;
    int code = lookup->started ? lookup->started : gai_error(&lookup->query);
    if (code != EAI_INPROGRESS) {
        resolve_finish(lookup, code);
        return;
    }
    lookup->pause = lookup->pause * 2 < RESOLVE_LAST_PAUSE ? lookup->pause * 2 : RESOLVE_LAST_PAUSE;
    ev_timer_set(timer, lookup->pause, 0);
    ev_timer_start(loop, timer);
}

/* Frees the abandoned look-ups that glibc is done with. */
static void resolve_sweep(void)
{
    for (struct resolve **at = &abandoned; *at;) {
        struct resolve *lookup = *at;
        if (gai_error(&lookup->query) == EAI_INPROGRESS) {
            at = &lookup->next;
            continue;
        }
        *at = lookup->next;
        resolve_release(lookup);
    }
}

struct resolve *resolve_start(struct ev_loop *loop, const char *host, resolve_fn fn, void *data)
{
    resolve_sweep();
    struct resolve *lookup = mem_alloc(sizeof(*lookup));
    lookup->loop = loop;
    lookup->host = mem_strdup(host);
    lookup->fn = fn;
    lookup->data = data;
    lookup->hints.ai_socktype = SOCK_STREAM;
    lookup->hints.ai_flags = AI_ADDRCONFIG;
    lookup->query.ar_name = lookup->host;
    lookup->query.ar_request = &lookup->hints;
    lookup->pause = RESOLVE_FIRST_PAUSE;

    /* A literal needs no thread (and AI_ADDRCONFIG would refuse ::1 where only loopback has IPv6).
     */
    struct addrinfo literal = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(host, NULL, &literal, &lookup->query.ar_result) == 0) {
        lookup->pause = 0;
    } else {
        struct gaicb *list[] = {&lookup->query};
        lookup->query.ar_result = NULL;
        lookup->started = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
    }
    ev_timer_init(&lookup->timer, resolve_on_timer, lookup->pause, 0);
    lookup->timer.data = lookup;
    ev_timer_start(loop, &lookup->timer);
    return lookup;
}

void resolve_cancel(struct resolve *lookup)
{
    ev_timer_stop(lookup->loop, &lookup->timer);
    resolve_sweep();
    if (lookup->pause == 0 || lookup->started || gai_cancel(&lookup->query) != EAI_NOTCANCELED) {
        resolve_release(lookup);
        return;
    }
    lookup->next = abandoned;
    abandoned = lookup;
}
