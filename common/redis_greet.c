/* The first words on a Redis connection: AUTH, SELECT, CLIENT SETNAME, INFO and PING, in one write;
 * in a cluster then which node has our slot. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/redis_impl.h"

static void greet_send(struct redis *r, enum redis_step step, int argc, const char *const *argv)
{
    if (r->state == REDIS_STATE_GREETING && redis_send(r, step, argc, argv, NULL, 0, NULL, NULL))
        redis_drop(r, false, "no memory for the greeting");
}

void redis_greet(struct redis *r)
{
    const struct redis_url *url = &r->url;
    if (url->password && url->user)
        greet_send(r, REDIS_STEP_AUTH, 3, (const char *const[]){"AUTH", url->user, url->password});
    else if (url->password)
        greet_send(r, REDIS_STEP_AUTH, 2, (const char *const[]){"AUTH", url->password});
    if (url->db) {
        char db[16];
        snprintf(db, sizeof(db), "%d", url->db);
        greet_send(r, REDIS_STEP_SELECT, 2, (const char *const[]){"SELECT", db});
    }
    if (r->options.client_name)
        greet_send(r, REDIS_STEP_NAME, 3,
                   (const char *const[]){"CLIENT", "SETNAME", r->options.client_name});
    greet_send(r, REDIS_STEP_INFO, 2, (const char *const[]){"INFO", "server"});
    if (url->sentinel_count) /* sentinels may be late to know, or name what became a replica */
        greet_send(r, REDIS_STEP_ROLE, 1, (const char *const[]){"ROLE"});
    /* PING last: unlike the others it says LOADING, MASTERDOWN and NOAUTH. */
    greet_send(r, REDIS_STEP_PING, 1, (const char *const[]){"PING"});
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* A refusal we can live with: one warning in the connection's life. */
static void greet_warn(const struct redis *r, bool *warned, const char *what, const char *why)
{
    if (!*warned)
        log_warn("redis (%s) %s, %s: %s: %s", r->options.label, r->where, redis_setting(r), what,
                 why);
    *warned = true;
}

/* Why the server will not have us; the log line names the setting to look at. */
static void greet_refused(struct redis *r, enum redis_step step, const char *error)
{
    const char *what = "the server refused the connection";
    bool sentinel = !strcmp(redis_setting(r), "REDIS_SENTINEL_PASSWORD");
    if (begins(error, "WRONGPASS") ||
        (step == REDIS_STEP_AUTH && begins(error, "ERR invalid password")))
        what = sentinel ? "the sentinel refused REDIS_SENTINEL_USER and REDIS_SENTINEL_PASSWORD"
                        : "the server refused the user or password";
    else if (begins(error, "NOAUTH"))
        what = sentinel ? "the sentinel wants a password, and REDIS_SENTINEL_PASSWORD is not set"
                        : "the server wants a password and the URL has none";
    else if (begins(error, "LOADING"))
        what = "the server is still loading its data";
    else if (begins(error, "MASTERDOWN"))
        what = "the server is a replica without its master";
    else if (begins(error, "MISCONF"))
        what = "the server cannot save to its disk and takes no writes";
    else if (step == REDIS_STEP_AUTH)
        what = "AUTH with the URL's user and password failed";
    else if (step == REDIS_STEP_SELECT)
        what = "the URL's database cannot be selected";
    else if (step == REDIS_STEP_MYID || step == REDIS_STEP_SLOTS)
        what = "the server is part of a cluster and does not say which node has the queue's slot";
    const char *more = strstr(error, ". "); /* its first sentence will do */
    redis_drop(r, false, "%s (%.*s)", what, (int)(more ? more - error : (long)strlen(error)),
               error);
}

static int greet_version(const redisReply *info)
{
    static const char field[] = "redis_version:";
    int major = 0, minor = 0, patch = 0;
    const char *line = strstr(info->str, field);
    if (!line || sscanf(line + strlen(field), "%3d.%2d.%2d", &major, &minor, &patch) < 1)
        return 0;
    return major * 10000 + minor * 100 + patch;
}

static void greet_info(struct redis *r, const redisReply *info)
{
    if (info->type != REDIS_REPLY_STRING)
        return;
    r->server_version = greet_version(info);
    /* Redis says the one, Valkey the other. */
    if (strstr(info->str, "redis_mode:cluster") || strstr(info->str, "server_mode:cluster"))
        r->cluster = true;
    if (r->server_version && r->server_version < r->options.min_version)
        redis_refuse(r, "the server is Redis %d.%d.%d; %d.%d or later is needed",
                     r->server_version / 10000, r->server_version / 100 % 100,
                     r->server_version % 100, r->options.min_version / 10000,
                     r->options.min_version / 100 % 100);
}

static void greet_role(struct redis *r, const redisReply *role)
{
    const redisReply *what =
        role->type == REDIS_REPLY_ARRAY && role->elements ? role->element[0] : NULL;
    if (!what || what->type != REDIS_REPLY_STRING || strcmp(what->str, "master") != 0)
        redis_drop(r, false, "the sentinels named a server that is not the master (its role: %s)",
                   what && what->str ? what->str : "unknown");
}

/* PING was answered: ready, or in a cluster once it is known that this node has our keys. */
static void greet_ponged(struct redis *r)
{
    if (!r->cluster || !r->url.slot_key) {
        redis_become_ready(r);
        return;
    }
    if (r->slot < 0) {
        redis_refuse(r, "the server is part of a Redis Cluster, where all keys of a "
                        "queue must be on one slot: QUEUE_PREFIX needs a hash tag, such as {bull}");
        return;
    }
    r->my_id[0] = '\0';
    greet_send(r, REDIS_STEP_MYID, 2, (const char *const[]){"CLUSTER", "MYID"});
    greet_send(r, REDIS_STEP_SLOTS, 2, (const char *const[]){"CLUSTER", "SLOTS"});
}

/* Redis 5 and 6+ say differently that there is no password to give. */
static bool greet_needless_auth(const struct redis *r, const char *error)
{
    return (!r->url.user || !strcmp(r->url.user, "default")) &&
           (strstr(error, "without any password") || strstr(error, "no password is set"));
}

/* What only this command was refused for, unlike "max number of clients" or DENIED. */
static bool greet_tolerable(const char *error)
{
    return begins(error, "NOPERM") ||
           (begins(error, "ERR") && !strstr(error, "max number of clients"));
}

static void greet_error(struct redis *r, enum redis_step step, const char *error)
{
    if (step == REDIS_STEP_AUTH && greet_needless_auth(r, error))
        greet_warn(r, &r->warned_auth, "it has a password the server does not ask for", error);
    else if (step == REDIS_STEP_NAME && greet_tolerable(error))
        greet_warn(r, &r->warned_name, "CLIENT SETNAME refused, going on without a name", error);
    else if (step == REDIS_STEP_INFO && greet_tolerable(error))
        greet_warn(r, &r->warned_info, "INFO refused, server version unknown", error);
    else if (step == REDIS_STEP_ROLE && begins(error, "NOPERM"))
        log_debug("redis (%s) %s: ROLE refused: %s", r->options.label, r->where, error);
    else if (step != REDIS_STEP_PING || !begins(error, "NOPERM"))
        greet_refused(r, step, error);
}

void redis_greet_reply(struct redis *r, enum redis_step step, const redisReply *reply)
{
    if (r->state != REDIS_STATE_GREETING)
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        /* "unknown command" quotes the arguments, the password among them. */
        char *arguments = strstr(reply->str, ", with args");
        if (arguments)
            *arguments = '\0';
        greet_error(r, step, reply->str);
    } else if (step == REDIS_STEP_INFO) {
        greet_info(r, reply);
    } else if (step == REDIS_STEP_ROLE) {
        greet_role(r, reply);
    } else if (step == REDIS_STEP_MYID && reply->type == REDIS_REPLY_STRING) {
        snprintf(r->my_id, sizeof(r->my_id), "%s", reply->str);
    } else if (step == REDIS_STEP_SLOTS) {
        redis_route_take_slots(r, reply);
    }
    if (step == REDIS_STEP_PING && r->state == REDIS_STATE_GREETING)
        greet_ponged(r);
}
