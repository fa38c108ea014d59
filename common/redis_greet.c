/* The first words on a Redis connection: AUTH, SELECT, CLIENT SETNAME, INFO and PING, in one write.
 */
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
    if (begins(error, "WRONGPASS") ||
        (step == REDIS_STEP_AUTH && begins(error, "ERR invalid password")))
        what = "the server refused the user or password";
    else if (begins(error, "NOAUTH"))
        what = "the server wants a password and the URL has none";
    else if (begins(error, "LOADING"))
        what = "the server is still loading its data";
    else if (begins(error, "MASTERDOWN"))
        what = "the server is a replica without its master";
    else if (step == REDIS_STEP_AUTH)
        what = "AUTH with the URL's user and password failed";
    else if (step == REDIS_STEP_SELECT)
        what = "the URL's database cannot be selected";
    redis_drop(r, false, "%s (%s)", what, error);
}

static int greet_version(const redisReply *info)
{
    static const char field[] = "redis_version:";
    int major = 0, minor = 0, patch = 0;
    if (info->type != REDIS_REPLY_STRING)
        return 0;
    const char *line = strstr(info->str, field);
    if (!line || sscanf(line + strlen(field), "%3d.%2d.%2d", &major, &minor, &patch) < 1)
        return 0;
    return major * 10000 + minor * 100 + patch;
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
        r->server_version = greet_version(reply);
    }
    if (step == REDIS_STEP_PING && r->state == REDIS_STATE_GREETING)
        redis_become_ready(r);
}
