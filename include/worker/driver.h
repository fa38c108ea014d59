/* What a code-interpreter driver is: it prepares a thread's sandbox, runs code in it and hands back
 * what came out. */
#ifndef SANDPIPER_WORKER_DRIVER_H
#define SANDPIPER_WORKER_DRIVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct ev_loop;
struct settings;
struct driver;     /* one driver object; several may live while an old one finishes its runs */
struct driver_run; /* one execution in it */

/* A run's life, all on the loop:
 *
 *   driver_start -> [on_ready] -> driver_deliver -> [on_output|on_result|on_error]* -> [on_end]
 *                -> driver_file_read* -> driver_close
 *
 * on_end comes exactly once for each started run that was not closed before; also instead of
 * on_ready when the sandbox cannot be had. Between on_ready and driver_deliver nothing of the
 * user's code has left the worker; after driver_deliver it may have run, whatever happens.
 * driver_close is the caller's last word and allowed at any time, also inside the callbacks: it
 * frees the run (through the reaper), stops code that is still going, gives a session's sandbox
 * back for the next run, and kills a sessionless one. No callback of the run comes after it. */

struct driver_input {
    const char *filename; /* safe, relative to /home/user, '/' between parts */
    int fd; /* open for reading from offset 0, owned by the caller, valid until driver_close */
    long long size; /* bytes */
};

/* What Redis remembers of a thread's sandbox (hash "thread:<T>"); each "" when absent. */
struct driver_record {
    const char *sandbox;   /* the driver's name for it */
    const char *creation;  /* unique key of the create call that made (or may have made) it */
    const char *actor;     /* digest of whose state is in it */
    const char *unsettled; /* the sandbox in which a run was not seen to end */
};

struct driver_request {       /* borrowed until on_ready or on_end, but for inputs' fds */
    const char *job_id;       /* for log lines */
    const char *execution_id; /* UUID of this run */
    const char *thread; /* thread key T; NULL: no session, a fresh sandbox killed after the run */
    const char *actor;  /* a session's sandbox is discarded when it changes; NULL is an actor too */
    const char *language; /* "python" by default, never NULL */
    const char *code;
    size_t code_len;   /* bytes; the code may contain NUL */
    const json_t *env; /* object of strings (checked names, no NUL in values); may be empty */
    const struct driver_input *inputs;
    size_t input_count;
    const char *trace;    /* for log lines (struct log_ctx), or NULL */
    int attempt;          /* of the job, from 1 */
    long long timeout_ms; /* so that the sandbox outlives the run; the caller keeps the clock */
    struct driver_record record;     /* of a thread, as it was at the claim */
    bool other_replica_before;       /* the thread last ran on another replica */
    const struct settings *settings; /* of this run */
};

enum driver_stream { DRIVER_STDOUT, DRIVER_STDERR };

struct driver_ready {
    bool reused;            /* a warm sandbox of the thread */
    bool resumed;           /* it was paused before */
    const char *state_lost; /* NULL, or why earlier state is gone: "other_replica", "actor_changed",
                             * "idle", "kernel_died", "killed_after_timeout", "sandbox_gone",
                             * "disk_full" */
};

enum driver_end_kind {
    DRIVER_END_OK,              /* the code ran to its end */
    DRIVER_END_CODE_ERROR,      /* exception, syntax error or non-zero exit of the user's code */
    DRIVER_END_INTERRUPTED,     /* ended because driver_interrupt was called */
    DRIVER_END_KERNEL_DIED,     /* the interpreter went away by itself */
    DRIVER_END_OOM,             /* the same, with evidence that memory ran out */
    DRIVER_END_SANDBOX_LOST,    /* after delivery, the sandbox is gone */
    DRIVER_END_OUTCOME_UNKNOWN, /* after delivery, nobody can tell what became of it */
    /* before delivery: */
    DRIVER_END_NO_SANDBOX,   /* none could be had; worth another attempt */
    DRIVER_END_NO_CAPACITY,  /* limits; worth another attempt */
    DRIVER_END_DRIVER_ERROR, /* anything else of ours; worth another attempt */
    DRIVER_END_DISABLED,     /* never to be tried again; message is the sentence for the user */
    DRIVER_END_BAD_JOB, /* the request itself cannot be served (unknown language, bad file name) */
};

struct driver_file {
    const char *path; /* relative to /home/user/output, valid UTF-8, '/' between parts */
    long long size;   /* bytes */
};

struct driver_end { /* borrowed for the call, but for files (until driver_close) */
    enum driver_end_kind kind;
    int exit_code; /* OK: 0; CODE_ERROR: SystemExit's, else 1; died: 128+signal or the status */
    const char *message;    /* one sentence when not OK; NULL when error_name says it all */
    const char *error_name; /* exception class, or NULL */
    const char *error_value;
    const char *traceback;  /* without ANSI escapes; may be "" */
    const char *state_lost; /* NULL, or why the session's state is gone after this run */
    bool anew; /* it was gone before the code began, so on_ready's `reused` no longer holds */
    const struct driver_file *files; /* what is in the output folder, sorted by path */
    size_t file_count;
    const json_t *warnings; /* array of strings (files skipped and why, ...), or NULL */
};

struct driver_events {
    void (*on_ready)(void *data, const struct driver_ready *ready);
    /* text: valid UTF-8, whole characters, len > 0. */
    void (*on_output)(void *data, enum driver_stream stream, const char *text, size_t len);
    /* bundle: object MIME type -> value as Jupyter gives it (base64 text for binary types),
     * borrowed. is_main: the value of the last expression (execute_result), not a display call. */
    void (*on_result)(void *data, const json_t *bundle, bool is_main);
    void (*on_end)(void *data, const struct driver_end *end);
};

/* Next piece of a file: len 0 is its end; len < 0: it cannot be read, `why` says it in a few words.
 * The piece is borrowed for the call. Runs from the loop, never inside driver_file_read. */
typedef void (*driver_piece_fn)(void *data, const char *piece, long len, const char *why);
typedef void (*driver_done_fn)(void *data);

struct driver_host { /* what the worker gives every driver; outlives it */
    struct ev_loop *loop;
    const char *replica_id;
    /* Ask (asynchronously) whether these threads' last run was on another replica; moved(ctx,
     * thread) runs for each that was, from the loop. May be NULL in tests. */
    void (*check_moved)(void *data, const char *const *threads, size_t count,
                        void (*moved)(void *ctx, const char *thread), void *ctx);
    /* Writes fields (name, value, ...; pairs of them) of a thread's record; "" removes one.
     * done(ctx, ok) from the loop once Redis has answered (a lost connection is waited out). For a
     * thread that the caller holds. */
    void (*record_set)(void *data, const char *thread, const char *const *fields, size_t pairs,
                       void (*done)(void *ctx, bool ok), void *ctx);
    /* Reads a thread's record and its last claim (ms since the epoch; 0 none). NULL record: Redis
     * was not reached. */
    void (*record_get)(void *data, const char *thread,
                       void (*got)(void *ctx, const struct driver_record *record,
                                   long long last_claim_ms),
                       void *ctx);
    /* A value that all replicas of the queue share: the stored one, or `mine`, stored by whoever
     * comes first. NULL when Redis was not reached. name: "<word>:<word>", a key under the queue's
     * prefix. */
    void (*shared_value)(void *data, const char *name, const char *mine,
                         void (*got)(void *ctx, const char *value), void *ctx);
    /* Takes a thread that no job holds or waits for, for ms at the most (lease "sweep:<token>"):
     * its token, or NULL when it is not to be had. sweep_release gives it back. */
    void (*sweep_take)(void *data, const char *thread, long long ms,
                       void (*got)(void *ctx, const char *token), void *ctx);
    void (*sweep_release)(void *data, const char *thread, const char *token);
    /* Is this the one replica that may do `name` during the next ms? false also when Redis was not
     * reached. */
    void (*turn_take)(void *data, const char *name, long long ms, void (*got)(void *ctx, bool mine),
                      void *ctx);
    void *data;
    long long lock_duration_ms; /* a run must be killed when the worker gives no sign of life for
                                   that long */
};

struct driver_ops {
    const char *name; /* "LOCAL", "E2B", ... as shown to ops */
    struct driver_run *(*start)(struct driver *d, const struct driver_request *request,
                                const struct driver_events *events, void *data);
    void (*deliver)(struct driver_run *run);
    /* Stop the code after deliver: on_end follows within a few seconds even if the code resists.
     * Twice is once. */
    void (*interrupt)(struct driver_run *run);
    /* After on_end; one file_read at a time. index is into driver_end.files. A call after a piece
     * gives the next piece of the same file; another index starts that file at its beginning. */
    void (*file_read)(struct driver_run *run, size_t index, driver_piece_fn cb, void *data);
    void (*close)(struct driver_run *run);
    /* Kill the thread's sandbox and forget its state; cb when it is gone (also when there was
     * none). */
    void (*release)(struct driver *d, const char *thread, driver_done_fn cb, void *data);
    /* Make sure no earlier run of the thread is still going in a sandbox this driver can reach:
     * wait for a free interpreter or restart it; cb(data) then. Before the lease of a lost run is
     * given up. */
    void (*settle)(struct driver *d, const char *thread, driver_done_fn cb, void *data);
    /* New values of the settings that just apply (time limits, caps). May be NULL. */
    void (*apply)(struct driver *d, const struct settings *settings);
    /* No run is left or will come; free everything, cb when done. Never kills what another replica
     * may use. */
    void (*dispose)(struct driver *d, driver_done_fn cb, void *data);
};

struct driver { /* embedded first in each driver's own struct */
    const struct driver_ops *ops;
};
struct driver_run { /* embedded first in each driver's own run struct */
    struct driver *driver;
};

static inline struct driver_run *driver_start(struct driver *d,
                                              const struct driver_request *request,
                                              const struct driver_events *events, void *data)
{
    return d->ops->start(d, request, events, data); /* never NULL; no callback inside */
}
static inline void driver_deliver(struct driver_run *run)
{
    run->driver->ops->deliver(run);
}
static inline void driver_interrupt(struct driver_run *run)
{
    run->driver->ops->interrupt(run);
}
static inline void driver_file_read(struct driver_run *run, size_t index, driver_piece_fn cb,
                                    void *data)
{
    run->driver->ops->file_read(run, index, cb, data);
}
static inline void driver_close(struct driver_run *run)
{
    run->driver->ops->close(run);
}

/* Constructors. NULL with a one-line reason in err when it cannot be made (fails jobs, tried
 * again). */
struct driver *driver_disabled_new(const struct driver_host *host, const char *message);
struct driver *driver_local_new(const struct driver_host *host, const struct settings *settings,
                                char *err, size_t err_size);
struct driver *driver_e2b_new(const struct driver_host *host, const struct settings *settings,
                              char *err, size_t err_size);
#ifdef SANDPIPER_TEST_BUILD
struct driver *driver_scripted_new(const struct driver_host *host);
#endif

#endif
