/* Inside the E2B driver: the driver object, its handles of sandboxes, and its runs. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_H
#define SANDPIPER_WORKER_DRIVERS_E2B_H

#include "worker/driver.h"

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

struct http;
struct e2b_call;
struct e2b_exec;
struct e2b_resolve;
struct e2b_wait;
struct e2b_sweep;

/* Metadata of our sandboxes, beside the session tag (a setting). */
#define E2B_META_DEPLOYMENT "sandpiperDeployment"
#define E2B_META_ACTOR      "sandpiperActor"
#define E2B_META_CREATION   "sandpiperCreation"

#define E2B_HOME   "/home/user"
#define E2B_OUTPUT "/home/user/output"

/* A sandbox this process can talk to: id, tokens, and what it knows of it. Counted: the cache (by
 * thread), each run and each piece of background work hold it. */
struct e2b_box {
    struct e2b *e2b;
    struct e2b_box *next; /* in e2b->boxes, while cached */
    size_t refs;
    char *thread; /* NULL: not a session's */
    char *actor;  /* digest */
    char *id, *envd_token, *traffic_token, *domain;
    long long end_ms;           /* monotonic: known end of its life; 0 unknown */
    long long used_ms;          /* monotonic: end of its last run */
    bool cached, busy;          /* busy: a run has it */
    bool fresh;                 /* made for this run: scripts are not in it yet */
    bool asleep;                /* paused, as far as we know */
    bool prepared;              /* the python kernel has our hooks, put there by this process */
    char key_name[37], key[37]; /* of the hooks last sent: seals the settings of runs */
    bool unsettled;             /* an earlier run may still be going in it */
    bool restarted;             /* its python kernel has started anew: not in the home folder */
    bool ttl_under_way;
    long long cells;  /* execution count of the python kernel, as last seen */
    json_t *contexts; /* language -> context id */
};

struct e2b {
    struct driver base;
    const struct driver_host *host;
    struct settings *settings; /* the latest */
    struct http *http;
    char *api_key, *api_url, *sandbox_url, *domain, *template, *tag;
    char *deployment;    /* NULL until known */
    long long ttl_max_s; /* what the plan allows, once E2B has said it; 0: not known */
    bool asking_deployment;
    struct e2b_resolve *deployment_waiters;
    struct e2b_box *boxes; /* cached handles */
    struct e2b_run *runs;
    struct e2b_call *calls; /* under way */
    struct e2b_exec *execs;
    struct e2b_wait *waits; /* for capacity, first come first */
    ev_timer wait_timer;
    bool freeing; /* a sandbox is being paused to make room */
    struct e2b_sweep *sweep;
    ev_timer sweep_timer;
    size_t work; /* background work under way that dispose waits for */
    driver_done_fn disposed;
    void *disposed_data;
    ev_timer dispose_timer;
    bool disposing;
};

/* --- the driver (e2b.c) --- */

void e2b_work_begin(struct e2b *e2b);
void e2b_work_end(struct e2b *e2b); /* may let a dispose go on, from the loop */

/* --- handles (box.c) --- */

/* A new handle from the answer of create or connect; NULL when it is not usable. One reference, the
 * caller's. */
struct e2b_box *e2b_box_new(struct e2b *e2b, const char *thread, const char *actor,
                            const json_t *answer);
/* Takes id, tokens and domain from the answer of a connect. */
void e2b_box_update(struct e2b_box *box, const json_t *answer);
struct e2b_box *e2b_box_ref(struct e2b_box *box);
void e2b_box_unref(struct e2b_box *box);                                /* NULL is fine */
struct e2b_box *e2b_box_of_thread(struct e2b *e2b, const char *thread); /* borrowed, or NULL */
void e2b_box_cache(struct e2b_box *box);  /* in place of another of its thread */
void e2b_box_forget(struct e2b_box *box); /* out of the cache */
void e2b_box_lives_until(struct e2b_box *box, long long ttl_s); /* from now */
/* Is this a text that may be put into a path or a host name? */
bool e2b_is_plain(const char *text);
/* The text without known secrets and without the sandbox's tokens; heap, caller frees. */
char *e2b_box_redact(const struct e2b_box *box, const char *text);

/* NULL-terminated "Name: value" lines for the data plane. */
struct e2b_headers {
    char *lines[9];
    size_t count;
};
void e2b_headers_init(struct e2b_headers *headers, const struct e2b_box *box, int port,
                      const char *content_type);
void e2b_headers_fini(struct e2b_headers *headers);
/* URL of a service in the sandbox: heap, caller frees. */
char *e2b_box_url(const struct e2b_box *box, int port, const char *path);

#define E2B_PORT_ENVD        49983
#define E2B_PORT_INTERPRETER 49999

/* --- life time (ttl.c) --- */

/* Seconds a sandbox is to live from now for a run with this limit. */
long long e2b_ttl_for(const struct settings *settings, long long timeout_ms, bool session);
/* As much of it as the plan is known to allow. */
long long e2b_ttl_allowed(const struct e2b *e2b, long long ttl_s);
/* Beside a run: extends the life where its known end is too near. */
void e2b_ttl_cover(struct e2b_box *box, const struct settings *settings, long long timeout_ms);
/* During a run that may go on so long: the same, without the idle window. */
void e2b_ttl_keep(struct e2b_box *box, long long left_of_run_ms);
/* After a run of a session: the idle window begins. */
void e2b_ttl_idle(struct e2b_box *box, const struct settings *settings);
/* Kills a sandbox in the background, with retries. */
void e2b_kill(struct e2b *e2b, const char *id, const char *why);

/* --- sweeper (sweeper.c) --- */

void e2b_sweeper_init(struct e2b *e2b);
void e2b_sweeper_fini(struct e2b *e2b);

/* --- release and settle (session.c) --- */

/* A run was not seen to end in the thread's sandbox (id), or is known to be over (""): in the
 * record, for whichever replica comes next. While the thread is held. */
void e2b_session_unsettled(struct e2b *e2b, const char *thread, const char *id);

void e2b_session_release(struct e2b *e2b, const char *thread, driver_done_fn cb, void *data);
void e2b_session_settle(struct e2b *e2b, const char *thread, driver_done_fn cb, void *data);

/* --- the line before a run's code (guard.c) --- */

/* New key for the hooks that go out next, and the line that takes it there; heap. */
char *e2b_guard_key_line(struct e2b_box *box);
/* The line that only a kernel with these hooks and this key takes off: any other refuses the whole
 * cell, naming the nonce, and runs nothing of it. Carries the settings, sealed; heap, ends in
 * "\n". */
char *e2b_guard_line(const struct e2b_box *box, const char *nonce, const json_t *settings);

/* --- SHA-256 in hex (digest.c) --- */

void e2b_digest(const char *text, char out[65]);

#endif
