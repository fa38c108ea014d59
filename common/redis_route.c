/* Finds the server of a connection: the master that sentinels name, or a cluster's node of our
 * slot. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/redis_impl.h"

#define SENTINEL_ASK_S      1.0  /* while connected, they are asked that often */
#define SENTINEL_TIMEOUT_MS 1000 /* for one sentinel's connect and its answer, each */

/* ---- Slots ---- */

/* CRC16 of the cluster specification (XMODEM). */
static uint16_t crc16(const char *data, size_t len)
{
    uint16_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc = (uint16_t)(crc ^ (uint16_t)((unsigned char)data[i] << 8));
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
    return crc;
}

int redis_slot(const char *key)
{
    const char *open = strchr(key, '{');
    const char *close = open ? strchr(open, '}') : NULL;
    if (!close || close == open + 1)
        return -1;
    return crc16(open + 1, (size_t)(close - open - 1)) % 16384;
}

/* ---- The target ---- */

static void set_where(struct redis *r)
{
    free(r->where);
    const char *host = r->target.host;
    r->where = host ? mem_printf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, r->target.port)
                    : mem_strdup(r->url.unix_path);
}

void redis_route_set(struct redis *r, const char *host, int port)
{
    char *copy = mem_strdup(host); /* it may be the target's own */
    free(r->target.host);
    r->target = (struct redis_node){copy, port};
    set_where(r);
}

void redis_route_init(struct redis *r)
{
    r->slot = r->url.slot_key ? redis_slot(r->url.slot_key) : -1;
    if (r->url.sentinel_count) /* until they have named one */
        redis_route_set(r, r->url.sentinels[0].host, r->url.sentinels[0].port);
    else
        redis_route_set(r, r->url.host, r->url.port);
}

static void forget_nodes(struct redis *r)
{
    for (size_t i = 0; i < r->node_count; i++)
        free(r->nodes[i].host);
    r->node_count = 0;
}

void redis_route_fini(struct redis *r)
{
    forget_nodes(r);
    free(r->target.host);
    free(r->where);
}

/* Any node of a cluster can say where a slot is: REDIS_URL's, or one that was named before. */
void redis_route_failed(struct redis *r)
{
    if (!r->cluster || !r->node_count)
        return;
    size_t at = r->node_next++ % (r->node_count + 1);
    if (at < r->node_count)
        redis_route_set(r, r->nodes[at].host, r->nodes[at].port);
    else
        redis_route_set(r, r->url.host, r->url.port);
}

/* ---- Cluster ---- */

/* The host of a node as CLUSTER SLOTS and MOVED give it; none: that of the node which says so. */
static const char *host_or_own(const struct redis *r, const char *host)
{
    return host && *host && strcmp(host, "?") != 0 ? host : r->target.host;
}

static bool is_node(const redisReply *node)
{
    return node->type == REDIS_REPLY_ARRAY && node->elements >= 2 &&
           (node->element[0]->type == REDIS_REPLY_STRING ||
            node->element[0]->type == REDIS_REPLY_NIL) &&
           node->element[1]->type == REDIS_REPLY_INTEGER;
}

static void note_node(struct redis *r, const redisReply *node)
{
    const char *host = is_node(node) ? host_or_own(r, node->element[0]->str) : NULL;
    if (!host || r->node_count == REDIS_MAX_NODES)
        return;
    int port = (int)node->element[1]->integer;
    for (size_t i = 0; i < r->node_count; i++)
        if (r->nodes[i].port == port && !strcmp(r->nodes[i].host, host))
            return;
    r->nodes[r->node_count++] = (struct redis_node){mem_strdup(host), port};
}

void redis_route_take_slots(struct redis *r, const redisReply *slots)
{
    const redisReply *owner = NULL;
    forget_nodes(r);
    for (size_t i = 0; slots->type == REDIS_REPLY_ARRAY && i < slots->elements; i++) {
        const redisReply *range = slots->element[i];
        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || !is_node(range->element[2]))
            continue;
        for (size_t k = 2; k < range->elements; k++)
            note_node(r, range->element[k]);
        if (range->element[0]->integer <= r->slot && r->slot <= range->element[1]->integer)
            owner = range->element[2];
    }
    if (!owner) {
        redis_drop(r, false, "no node of the cluster has slot %d, of QUEUE_PREFIX", r->slot);
        return;
    }
    const char *id = owner->elements > 2 ? owner->element[2]->str : NULL;
    if (id && !strcmp(id, r->my_id)) {
        redis_become_ready(r);
        return;
    }
    char why[64];
    snprintf(why, sizeof(why), "slot %d is at another node of the cluster", r->slot);
    redis_redirect(r, host_or_own(r, owner->element[0]->str), (int)owner->element[1]->integer, why);
}

void redis_route_moved(struct redis *r, const char *error)
{
    char host[256] = "";
    const char *colon = strrchr(error, ':');
    const char *start = colon ? memrchr(error, ' ', (size_t)(colon - error)) : NULL;
    int port = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
    if (!start || port <= 0 || (size_t)(colon - start) > sizeof(host)) {
        redis_drop(r, false, "%s", error);
        return;
    }
    r->cluster = true;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - start - 1), start + 1);
    redis_redirect(r, host_or_own(r, host), port, error);
}

/* ---- Sentinels ---- */

static void ask_next(struct redis_locating *l, const char *why);

static void locating_free(void *data)
{
    struct redis_locating *l = data;
    redis_free(l->sentinel);
    free(l);
}

static void sentinel_free(void *data)
{
    redis_free(data);
}

void redis_locate_cancel(struct redis *r)
{
    if (!r->locating)
        return;
    r->locating->owner = NULL;
    ev_timer_stop(r->loop, &r->locating->again);
    reaper_defer(locating_free, r->locating); /* we may be in a callback of its connection */
    r->locating = NULL;
}

static void take_master(struct redis_locating *l, const char *host, int port)
{
    struct redis *r = l->owner;
    bool same = r->target.port == port && !strcmp(r->target.host, host);
    if (l->found && !same) {
        redis_redirect(r, host, port, "the sentinels name another master");
    } else if (!l->found) {
        l->found = true;
        ev_timer_start(r->loop, &l->again);
        redis_route_set(r, host, port);
        redis_connect_target(r);
    }
}

static void on_named(struct redis *sentinel, redisReply *reply, void *data)
{
    struct redis_locating *l = data;
    struct redis *r = l->owner;
    char why[200];
    if (!r || sentinel != l->sentinel)
        return;
    l->asking = false;
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2) {
        take_master(l, reply->element[0]->str, (int)strtol(reply->element[1]->str, NULL, 10));
        return;
    }
    if (l->found)
        return;
    if (reply && reply->type == REDIS_REPLY_ERROR)
        snprintf(why, sizeof(why), "%s", reply->str);
    else
        snprintf(why, sizeof(why),
                 reply ? "it knows no master %s (REDIS_SENTINEL_MASTER)" : "no answer about %s",
                 r->url.sentinel_master);
    ask_next(l, why);
}

static void put_question(struct redis_locating *l)
{
    const char *const argv[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME",
                                l->owner->url.sentinel_master};
    l->asking = redis_command(l->sentinel, 3, argv, NULL, 0, on_named, l) == 0;
    if (!l->asking && !l->found)
        ask_next(l, "it cannot be asked");
}

/* A failover by hand leaves the old master serving for seconds, and what is written there is lost.
 */
static void on_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct redis_locating *l = timer->data;
    (void)loop;
    (void)events;
    if (!l->asking && redis_ready(l->sentinel))
        put_question(l);
}

static void on_sentinel_state(struct redis *sentinel, bool ready, const char *reason, void *data)
{
    struct redis_locating *l = data;
    (void)reason;
    if (ready && l->owner && sentinel == l->sentinel && !l->found)
        put_question(l); /* a loss answers it by NULL */
}

static void on_sentinel_failed(struct redis *sentinel, const char *reason, bool permanent,
                               void *data)
{
    struct redis_locating *l = data;
    (void)permanent;
    if (l->owner && sentinel == l->sentinel && !l->found)
        ask_next(l, reason);
}

static void ask(struct redis_locating *l)
{
    struct redis *r = l->owner;
    const struct redis_url *url = &r->url.sentinels[r->sentinel_next];
    l->tried++;
    l->sentinel = redis_new(r->loop,
                            &(struct redis_options){.url = url,
                                                    .label = "sentinel",
                                                    .connect_timeout_ms = SENTINEL_TIMEOUT_MS,
                                                    .command_timeout_ms = SENTINEL_TIMEOUT_MS,
                                                    .on_failed = on_sentinel_failed,
                                                    .quiet = true},
                            on_sentinel_state, l);
}

/* The one that answered is asked first the next time; so one that did not is passed over. */
static void ask_next(struct redis_locating *l, const char *why)
{
    struct redis *r = l->owner;
    const struct redis_url *url = &r->url.sentinels[r->sentinel_next];
    log_debug("redis (%s): sentinel %s:%d: %s", r->options.label, url->host, url->port, why);
    r->sentinel_next = (r->sentinel_next + 1) % r->url.sentinel_count;
    if (l->tried == r->url.sentinel_count) {
        redis_drop(r, false, "no sentinel of REDIS_SENTINELS names the master; %s:%d: %s",
                   url->host, url->port, why);
        return;
    }
    reaper_defer(sentinel_free, l->sentinel);
    ask(l);
}

void redis_locate(struct redis *r)
{
    r->locating = mem_alloc(sizeof(*r->locating));
    r->locating->owner = r;
    ev_timer_init(&r->locating->again, on_again, SENTINEL_ASK_S, SENTINEL_ASK_S);
    r->locating->again.data = r->locating;
    ask(r->locating);
}
