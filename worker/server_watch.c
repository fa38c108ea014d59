/* Looks after what an operator should know of the Redis server: eviction, memory, stock Workers. */
#include "worker/server_watch.h"

#include "common/log.h"
#include "common/mem.h"
#include "worker/queue/scripts.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_S       2.0  /* between two looks at the memory */
#define CLIENTS_S      60.0 /* and at the list of clients */
#define CLIENTS_SURE_S 10.0 /* a stranger may be a replica that has not introduced itself yet */
#define STRANGERS_MAX  64

struct server_watch {
    struct queue *q;
    const struct marker *marker;
    long long percent;
    struct ev_timer memory, clients;
    bool memory_asked, clients_asked;
    char policy[32];                 /* that was warned about */
    long long seen[STRANGERS_MAX];   /* named like a worker in the list under judgement */
    long long before[STRANGERS_MAX]; /* strangers of the look before */
    size_t seen_count, before_count;
    struct queue_call *known;
    bool warned_worker, warned_rights;
};

static struct ev_loop *loop_of(const struct server_watch *w)
{
    return queue_options(w->q)->loop;
}

/* ---- memory ---- */

static long long info_number(const char *info, const char *field)
{
    const char *at = strstr(info, field);
    return at != NULL ? strtoll(at + strlen(field), NULL, 10) : 0;
}

static void check_policy(struct server_watch *w, const char *info)
{
    static const char field[] = "maxmemory_policy:";
    char policy[32] = "";
    const char *at = strstr(info, field);
    if (at == NULL)
        return;
    snprintf(policy, sizeof policy, "%.*s", (int)strcspn(at + sizeof field - 1, "\r\n"),
             at + sizeof field - 1);
    if (strcmp(policy, w->policy) == 0)
        return;
    if (strcmp(policy, "noeviction") != 0)
        log_warn("Redis has maxmemory-policy %s and may drop jobs, locks and leases when it is "
                 "full; set it to noeviction",
                 policy);
    snprintf(w->policy, sizeof w->policy, "%s", policy);
}

static void check_memory(struct server_watch *w, const char *info)
{
    /* "\n": used_memory_rss and the like have other names before the colon, maxmemory_human too. */
    long long most = info_number(info, "\nmaxmemory:");
    long long used =
        info_number(info, "\nused_memory:") - info_number(info, "\nmem_not_counted_for_evict:");
    bool tight = w->percent > 0 && most > 0 && used / 100.0 >= (double)most / 10000.0 * w->percent;
    if (tight && !queue_is_tight(w->q))
        log_warn("Redis uses %lld of %lld bytes (maxmemory), over %lld percent "
                 "(REDIS_MEMORY_WATERMARK_PERCENT): files are refused, replies are short",
                 used, most, w->percent);
    else if (!tight && queue_is_tight(w->q))
        log_info("Redis has room again (%lld of %lld bytes): files and whole replies are stored",
                 used, most);
    queue_set_tight(w->q, tight);
}

/* A right we lack costs a warning, not the queue. */
static bool is_text(struct server_watch *w, const redisReply *reply, const char *what)
{
    if (reply != NULL && reply->type == REDIS_REPLY_ERROR && !redis_is_passing(reply) &&
        !w->warned_rights) {
        log_info("%s is not watched: Redis refuses %s", what, reply->str);
        w->warned_rights = true;
    }
    return reply != NULL && reply->type == REDIS_REPLY_STRING;
}

static void on_memory(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct server_watch *w = data;
    w->memory_asked = false;
    if (!is_text(w, reply, "Redis's memory"))
        return;
    check_policy(w, reply->str);
    check_memory(w, reply->str);
}

static void on_memory_timer(struct ev_loop *loop, struct ev_timer *t, int revents)
{
    static const char *const argv[] = {"INFO", "memory"};
    (void)loop;
    (void)revents;
    struct server_watch *w = t->data;
    if (w->memory_asked || !queue_is_ready(w->q))
        return;
    w->memory_asked =
        redis_command(queue_options(w->q)->redis, 2, argv, NULL, 0, on_memory, w) == 0;
}

/* ---- stock Workers ---- */

long long server_watch_next_client(const char **at, const char *name)
{
    size_t len = strlen(name);
    for (const char *line = *at; *line != '\0';) {
        size_t line_len = strcspn(line, "\n");
        const char *next = line + line_len + (line[line_len] == '\n');
        const char *found = memmem(line, line_len, " name=", 6);
        *at = next;
        if (found != NULL && strncmp(line, "id=", 3) == 0 && strncmp(found + 6, name, len) == 0 &&
            (found[6 + len] == ' ' || strncmp(found + 6 + len, ":w:", 3) == 0))
            return strtoll(line + 3, NULL, 10);
        line = next;
    }
    return 0;
}

static bool is_among(long long id, const long long *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void next_look(struct server_watch *w, double seconds)
{
    w->clients_asked = false;
    ev_timer_stop(loop_of(w), &w->clients);
    ev_timer_set(&w->clients, seconds, 0);
    ev_timer_start(loop_of(w), &w->clients);
}

static bool is_replica(long long id, const redisReply *known)
{
    for (size_t i = 0; known->type == REDIS_REPLY_ARRAY && i < known->elements; i++)
        if (known->element[i]->type == REDIS_REPLY_STRING &&
            strtoll(known->element[i]->str, NULL, 10) == id)
            return true;
    return false;
}

static void on_known(redisReply *reply, void *data)
{
    struct server_watch *w = data;
    size_t strangers = 0;
    w->known = NULL;
    for (size_t i = 0; i < w->seen_count; i++) {
        if (is_replica(w->seen[i], reply))
            continue;
        if (is_among(w->seen[i], w->before, w->before_count) && !w->warned_worker) {
            log_warn("another Worker takes jobs of this queue (Redis client %lld): a stock BullMQ "
                     "Worker knows no leases and cannot run these jobs",
                     w->seen[i]);
            w->warned_worker = true;
        }
        w->seen[strangers++] = w->seen[i];
    }
    if (strangers == 0)
        w->warned_worker = false;
    bool fresh = strangers > 0 && !w->warned_worker;
    memcpy(w->before, w->seen, sizeof w->seen);
    w->before_count = strangers;
    next_look(w, fresh ? CLIENTS_SURE_S : CLIENTS_S);
}

static void on_clients(struct redis *r, redisReply *reply, void *data)
{
    (void)r;
    struct server_watch *w = data;
    if (!is_text(w, reply, "who else takes jobs")) {
        next_look(w, CLIENTS_S);
        return;
    }
    const char *at = reply->str;
    w->seen_count = 0;
    for (long long id; w->seen_count < STRANGERS_MAX &&
                       (id = server_watch_next_client(&at, marker_name(w->marker))) != 0;)
        if (id != marker_client(w->marker))
            w->seen[w->seen_count++] = id;
    /* Replicas are asked for after the list was made: one that comes between is known already. */
    w->known = queue_call_new(w->q, &script_others, 1);
    queue_call_key(w->known, "index:replicas");
    queue_call_str(w->known, queue_prefix(w->q));
    queue_call_send(w->known, on_known, w);
}

static void on_clients_timer(struct ev_loop *loop, struct ev_timer *t, int revents)
{
    static const char *const argv[] = {"CLIENT", "LIST", "TYPE", "normal"};
    (void)loop;
    (void)revents;
    struct server_watch *w = t->data;
    bool may = !w->clients_asked && queue_is_ready(w->q) && marker_client(w->marker) != 0;
    if (may && redis_command(queue_options(w->q)->redis, 4, argv, NULL, 0, on_clients, w) == 0)
        w->clients_asked = true;
    else if (!w->clients_asked)
        next_look(w, MEMORY_S);
}

/* ---- life ---- */

struct server_watch *server_watch_new(struct queue *q, const struct marker *m,
                                      long long watermark_percent)
{
    struct server_watch *w = mem_alloc(sizeof *w);
    w->q = q;
    w->marker = m;
    w->percent = watermark_percent;
    ev_timer_init(&w->memory, on_memory_timer, 0.1, MEMORY_S);
    ev_timer_init(&w->clients, on_clients_timer, MEMORY_S, 0);
    w->memory.data = w->clients.data = w;
    ev_timer_start(loop_of(w), &w->memory);
    ev_timer_start(loop_of(w), &w->clients);
    return w;
}

void server_watch_free(struct server_watch *w)
{
    ev_timer_stop(loop_of(w), &w->memory);
    ev_timer_stop(loop_of(w), &w->clients);
    if (w->known != NULL)
        queue_call_cancel(w->known);
    free(w);
}
