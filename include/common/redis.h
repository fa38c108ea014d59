/* One Redis connection on the loop: URL, sentinels, cluster, AUTH, deadlines, reconnect, scripts
 * with NOSCRIPT recovery. */
#ifndef SANDPIPER_COMMON_REDIS_H
#define SANDPIPER_COMMON_REDIS_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>

struct ev_loop;
struct redis;

/* Where and as whom. redis://[user][:password@]host[:port][/db], unix:///path[?db=N&...]
 * (also redis+unix://); user, password and path are percent-decoded. */
struct redis_url {
    bool tls;            /* rediss:// */
    char *host;          /* NULL for a unix socket; an IPv6 literal has no brackets here */
    int port;            /* default 6379 */
    char *unix_path;     /* NULL for TCP */
    char *user;          /* NULL: the default user */
    char *password;      /* NULL: no AUTH */
    int db;              /* default 0 */
    const char *setting; /* that the URL came from, for log lines; static; NULL: REDIS_URL */

    /* Not from the text; NULL or 0 unless the caller sets them (heap, theirs from then on). */
    struct redis_url
        *sentinels; /* asked for the master's address; then host and port are not used */
    size_t sentinel_count;
    char *sentinel_master; /* its name there */
    char *slot_key; /* what is used are keys of this one's slot: in a Redis Cluster the connection
                       goes to the node that owns it. No such key exists: see redis_script_call */
    struct redis_tls_files {
        char *ca, *cert, *key; /* PEM; NULL: the system's CAs, no client certificate */
    } tls_files;
};

/* Fills *out (free with redis_url_fini) and returns 0, or -1 with a one-line reason that names the
 * wrong part and never contains the password. rediss:// is refused when the linked hiredis has no
 * TLS. */
int redis_url_parse(const char *text, struct redis_url *out, char *err, size_t err_size);
void redis_url_fini(struct redis_url *url);
/* A deep copy, for redis_url_fini. */
void redis_url_copy(struct redis_url *to, const struct redis_url *from);
/* Adds sentinels from "host[:port],..." (default port 26379), all with this user and password (""
 * for none); 0, or -1 with a reason. */
int redis_url_add_sentinels(struct redis_url *url, const char *list, const char *user,
                            const char *password, bool tls, char *err, size_t err_size);

/* Runs from the loop after each attempt that did not come to ready. permanent: the server was
 * reached, and it or the settings must be changed before it can serve. As redis_state_fn, must not
 * redis_free. */
typedef void (*redis_failed_fn)(struct redis *r, const char *reason, bool permanent, void *data);

struct redis_options {
    const struct redis_url *url; /* copied */
    const char *label;           /* for log lines ("commands", "marker"); static string */
    const char *client_name;     /* CLIENT SETNAME after AUTH, or NULL; copied */
    int connect_timeout_ms;      /* DNS, TCP, AUTH, SELECT and SETNAME together; 0: 5000 */
    int command_timeout_ms;      /* default deadline of a command; 0: 10000 */
    int idle_ping_ms;            /* PING after that much silence; 0: never. A lost PONG closes */
    int backoff_min_ms;          /* 0: 50 */
    int backoff_max_ms;          /* 0: 5000; each wait is drawn between half and all of it */
    size_t max_pending_bytes;    /* queued or unanswered request bytes; 0: 64 MiB */
    int min_version;             /* an older server is refused (as redis_server_version); 0: none */
    redis_failed_fn on_failed;   /* or NULL */
    bool quiet;                  /* its comings and goings are logged as debug lines */
};

/* Runs from the loop. ready: after AUTH/SELECT/SETNAME, each time the connection is (re)made; false
 * when it is lost, with the reason. All commands under way have had their callback (NULL reply)
 * before the false call. May issue commands, redis_reopen; must not redis_free. */
typedef void (*redis_state_fn)(struct redis *r, bool ready, const char *reason, void *data);

/* Exactly once per accepted command, from the loop (never inside redis_command itself). reply is
 * borrowed and NULL when the connection was lost or the deadline passed: the outcome is then
 * UNKNOWN. One command past its deadline costs the whole connection. May issue commands and
 * redis_reopen; must not redis_free. */
typedef void (*redis_reply_fn)(struct redis *r, redisReply *reply, void *data);

/* Starts connecting and stays at it for ever. Never NULL. DNS runs off the loop. */
struct redis *redis_new(struct ev_loop *loop, const struct redis_options *options,
                        redis_state_fn on_state, void *data);

/* Closes and frees; commands under way get their NULL callback first. Safe from any of our
 * callbacks except this connection's own (use reaper_defer there). */
void redis_free(struct redis *r);

bool redis_ready(const struct redis *r);
bool redis_is_cluster(const struct redis *r);
long long redis_reconnects(const struct redis *r); /* times it became ready after the first */
/* major*10000 + minor*100 + patch, from INFO; 0 unknown. */
int redis_server_version(const struct redis *r);

/* Drop this connection now (log the reason) and connect again at once: for UNBLOCKED, READONLY, a
 * blocking command past its own deadline. Pending callbacks run with NULL from the reaper. Without
 * effect while not ready; with backoff when nothing was answered since the last time. */
void redis_reopen(struct redis *r, const char *reason);

/* Send a command; argv and lens are copied at once (lens NULL: strlen). timeout_ms 0: the default;
 * for a blocking command pass its server-side time plus a margin. 0, or -1 when not ready or
 * max_pending_bytes would be passed (the callback then never runs). A reply that says the server
 * cannot serve this client as master (UNBLOCKED, READONLY, MASTERDOWN, LOADING, CLUSTERDOWN) is
 * still given to the callback, and READONLY, UNBLOCKED and MASTERDOWN also make the connection
 * reopen (with backoff); MOVED makes it go to the node that is named. ASK and TRYAGAIN are never
 * followed. cb may be NULL. */
int redis_command(struct redis *r, int argc, const char *const *argv, const size_t *lens,
                  int timeout_ms, redis_reply_fn cb, void *data);

/* A Lua script and the SHA1 of its exact bytes. Borrowed until the callback of each call with it.
 */
struct redis_script {
    const char *name;
    const char *text;
    size_t text_len;
    const char *sha1; /* 40 hex digits */
};

/* Writes "$<len>\r\n", what goes before an argument of len bytes (and "\r\n" behind it); returns
 * its length. out has room for 24 bytes. */
int redis_frame_head(char *out, size_t len);

/* Does this error speak of the server's present state, so that the same call may well succeed later
 * (LOADING, BUSY, OOM, READONLY, ASK, TRYAGAIN, MOVED ...)? */
bool redis_is_passing(const redisReply *reply);

/* Has the connection's user not the rights (NOPERM, or what a script is told)? The connection has
 * said so, in one line that names the setting. */
bool redis_is_denied(const redisReply *reply);

/* Passing, or denied as a whole: nothing of the call was carried out, and the same call may be made
 * again. */
bool redis_is_unrun(const redisReply *reply);

/* EVALSHA; on NOSCRIPT the same call again as EVAL, invisible to the caller. The argv given are
 * KEYS then ARGV; framed: as they go to Redis, len bytes of argc arguments. In a cluster slot_key
 * is added to KEYS: as it never exists, a script is refused (ASK, TRYAGAIN) before its first line
 * while the slot moves, instead of failing half-way at a key that has gone. Otherwise as
 * redis_command. */
int redis_script_call_framed(struct redis *r, const struct redis_script *script, int nkeys,
                             int argc, const char *args, size_t len, int timeout_ms,
                             redis_reply_fn cb, void *data);
int redis_script_call(struct redis *r, const struct redis_script *script, int nkeys, int argc,
                      const char *const *argv, const size_t *lens, int timeout_ms,
                      redis_reply_fn cb, void *data);

#endif
