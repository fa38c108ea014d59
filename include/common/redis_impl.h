/* What the files of the Redis connection share; nobody else includes this. */
#ifndef SANDPIPER_COMMON_REDIS_IMPL_H
#define SANDPIPER_COMMON_REDIS_IMPL_H

#include <ev.h>

#include "common/redis.h"
#include "common/resolve.h"

/* hiredis serves here as socket, TLS, buffers and protocol reader (its synchronous API on a
 * non-blocking socket). Its async API is left out: there a callback may not free the context, a
 * refused connect frees it unasked, redisAsyncFree calls back from inside, and nothing has a
 * deadline (hiredis#931, #335, #1128). */

enum redis_state {
    REDIS_STATE_WAITING,    /* no socket; the timer ends the pause before the next attempt */
    REDIS_STATE_LOCATING,   /* no socket; sentinels are asked for the master's address */
    REDIS_STATE_RESOLVING,  /* no socket; a look-up is under way */
    REDIS_STATE_CONNECTING, /* socket, not yet connected */
    REDIS_STATE_GREETING,   /* AUTH ... PING under way */
    REDIS_STATE_READY,      /* commands are accepted */
    REDIS_STATE_CLOSED,     /* redis_free was called */
};

/* Whose a call is. The greeting's steps are in the order they are sent. */
enum redis_step {
    REDIS_STEP_USER,
    REDIS_STEP_IDLE_PING,
    REDIS_STEP_AUTH,
    REDIS_STEP_SELECT,
    REDIS_STEP_NAME,
    REDIS_STEP_INFO,
    REDIS_STEP_ROLE,
    REDIS_STEP_PING,
    REDIS_STEP_MYID, /* these two in a cluster, once that is known */
    REDIS_STEP_SLOTS
};

/* The question to the sentinels who the master is, for an attempt to connect and again and again
 * while the connection lives; outlives it, for its callbacks. */
struct redis_locating {
    struct redis *owner; /* NULL: nobody wants the answer any more */
    struct redis *sentinel;
    size_t tried;
    bool found, asking;
    struct ev_timer again;
};

enum { REDIS_MAX_NODES = 64, REDIS_MAX_HOPS = 8 };

/* Where a server is. */
struct redis_node {
    char *host;
    int port;
};

struct redis_call {
    struct redis_call *next;
    enum redis_step step;
    char *bytes; /* the request; freed once handed to hiredis, for a script once answered */
    size_t len;  /* of bytes; counted in pending_bytes until the answer */
    const struct redis_script *script; /* sent by its SHA1: may need EVAL; else NULL */
    size_t tail;        /* with script: where in bytes the arguments behind the SHA1 begin */
    int argc;           /* with script: number of those arguments, key count included */
    long long deadline; /* ms, redis_now_ms */
    int timeout_ms;     /* what the deadline was made from, for the log line */
    char name[16];      /* the command's name, for log lines */
    redis_reply_fn cb;  /* or NULL */
    void *data;
};

struct redis_calls {
    struct redis_call *head, *tail;
};

struct redis {
    struct ev_loop *loop;
    enum redis_state state;       /* changed by redis_set_state only */
    struct redis_options options; /* url and client_name point to our copies */
    struct redis_url url;
    struct redis_node target;        /* where the next attempt goes; host NULL: the socket path */
    char *where;                     /* "host:port" or the socket path, for log lines */
    struct redis_locating *locating; /* with sentinels; NULL while waiting */
    size_t sentinel_next;            /* the one that is asked first */
    bool cluster;                    /* the server is part of one */
    char my_id[48];                  /* of the node that we are connected to */
    int slot;                        /* of slot_key; -1: it has no hash tag */
    struct redis_node nodes[REDIS_MAX_NODES]; /* of the cluster, as last told */
    size_t node_count, node_next;
    int hops; /* redirections in a row */
    redis_state_fn on_state;
    void *data;

    struct redisContext *ctx; /* NULL without a socket */
    struct ev_io readable, writable;
    struct ev_timer timer; /* what it means depends on the state */
    long long timer_at;    /* ms; when it fires */
    long long deadline;    /* ms; of the connection attempt or the pause, for states before READY */
    struct resolve *lookup;
    char addresses[RESOLVE_MAX_ADDRESSES][RESOLVE_ADDRESS_SIZE];
    int address_count, address_next, address_tries;

    struct redis_calls calls;  /* sent or queued, answered in this order */
    struct redis_call *unsent; /* first of calls not wholly handed to hiredis; NULL: none */
    size_t unsent_offset;      /* bytes of it already handed over */
    bool slice_left;           /* hiredis holds bytes the socket did not take */
    bool socket_full;          /* the write watcher runs; do not write before it fires */
    size_t pending_bytes;
    long long last_heard; /* ms; last reply or the connect */

    struct redis_calls lost; /* of a dropped connection: their NULL callbacks are due */
    bool tell_lost;          /* on_state(false) is due, after those */
    char lost_reason[256];
    bool tell_failed, permanent; /* on_failed is due, with last_failure */
    bool slot_moves;             /* said so; the next good answer to a script takes it back */

    bool turn_pending; /* redis_turn is on the reaper's list */
    bool in_callback;  /* of the owner's, for the assertion in redis_free */
    bool flapping;     /* the last connection became ready but gave no good answer */
    int failures; /* attempts or connections in a row without one good answer to a user's call */
    char last_failure[256];                     /* logged already; the same again is not */
    bool warned_name, warned_info, warned_auth; /* tolerated refusals, each logged once */
    long long times_ready;
    int server_version;
};

/* redis.c: the state machine. */
const char *redis_setting(const struct redis *r); /* "REDIS_URL", for log lines */
long long redis_now_ms(void);                     /* monotonic */
/* Drops the connection (or attempt): frees the socket, puts the calls on the lost list and has the
 * rest done by redis_turn. at_once: no pause before the next attempt. */
void redis_drop(struct redis *r, bool at_once, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same because another server is the one to talk to: at once, not a failure. */
void redis_redirect(struct redis *r, const char *host, int port, const char *why);
/* redis_drop for what only an operator can change. */
void redis_refuse(struct redis *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void redis_become_ready(struct redis *r);
/* The address of the attempt under way is known: resolve and connect. */
void redis_connect_target(struct redis *r);
void redis_schedule_turn(struct redis *r);
void redis_timer_before(struct redis *r,
                        long long at); /* the timer fires at `at` (ms) or earlier */

/* redis_call.c: requests and replies. */
int redis_send(struct redis *r, enum redis_step step, int argc, const char *const *argv,
               const size_t *lens, int timeout_ms, redis_reply_fn cb, void *data);
void redis_flush(struct redis *r);
void redis_read(struct redis *r);          /* takes what has arrived and runs its callbacks */
void redis_calls_abandon(struct redis *r); /* calls -> lost */
void redis_lost_deliver(struct redis *r);  /* NULL callbacks of the lost list */
long long redis_next_deadline(const struct redis *r, const struct redis_call **whose);

/* redis_greet.c: from a connected socket to ready. */
void redis_greet(struct redis *r);
void redis_greet_reply(struct redis *r, enum redis_step step, const redisReply *reply);

/* redis_route.c: which server. */
void redis_route_init(struct redis *r);
void redis_route_fini(struct redis *r);
void redis_route_set(struct redis *r, const char *host, int port);
void redis_route_failed(struct redis *r); /* the next attempt goes to another node of the cluster */
void redis_locate(struct redis *r);       /* asks the sentinels, then redis_connect_target */
void redis_locate_cancel(struct redis *r);
/* Is this the node of our slot (CLUSTER SLOTS)? Then ready, else to that one. */
void redis_route_take_slots(struct redis *r, const redisReply *slots);
void redis_route_moved(struct redis *r, const char *error); /* "MOVED <slot> <host>:<port>" */
/* The slot of a key; -1 when it has no hash tag. */
int redis_slot(const char *key);

/* redis.c: what to look at when a TLS connection fails before it is ready and nobody says why;
 * else "". */
const char *redis_greeting_hint(const struct redis *r);

/* redis_tls.c */
bool redis_tls_available(void);
/* Starts TLS on a connected socket, checking certificate and host name; -1 with c->errstr set or a
 * text in err. */
int redis_tls_start(struct redisContext *c, const char *host, const struct redis_tls_files *files,
                    char *err, size_t err_size);
/* What TLS last found wrong, or otherwise when it was something else (hiredis says "Success"). */
const char *redis_tls_error(const char *otherwise);

#endif
