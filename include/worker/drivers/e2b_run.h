/* Runs of the E2B driver: from the request over sandbox, inputs and code to the end and
 * the files. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_RUN_H
#define SANDPIPER_WORKER_DRIVERS_E2B_RUN_H

#include "common/log.h"
#include "worker/drivers/e2b.h"
#include "worker/drivers/e2b_exec.h"
#include "worker/drivers/e2b_files.h"
#include "worker/drivers/e2b_resolve.h"

enum e2b_run_state {
    RUN_QUEUED,    /* driver_start was called */
    RUN_RESOLVING, /* its sandbox is looked for or made */
    RUN_PREPARING, /* kernel, input files, scripts */
    RUN_READY,     /* on_ready was called */
    RUN_SENDING,   /* delivered to us; the code goes out, or waits to be sent again */
    RUN_CODE,      /* the stream has begun */
    RUN_STOPPING,  /* the connection was closed; is the kernel free? */
    RUN_LISTING,   /* the code is over; its files are listed */
    RUN_ENDED,     /* on_end was called */
    RUN_CLOSED,    /* waits for the reaper */
};

struct e2b_prepare;

/* What the stream has said so far (outcome.c). */
struct e2b_outcome {
    bool has_error;
    char *name, *value, *traceback;
    json_t *listing; /* of the hooks, or NULL */
    bool anew;    /* the kernel counts from the start again: it is another one than we prepared */
    bool refused; /* it did not know our line: nothing of the code was run */
    bool spoke;   /* something came that is no refusal */
};

struct e2b_run {
    struct driver_run base;
    struct e2b *e2b;
    struct e2b_run *next;
    struct driver_events events;
    void *data;
    enum e2b_run_state state;
    struct settings *settings;
    char *job_id, *trace, *thread, *actor, *language, *code;
    char actor_digest[65];
    size_t code_len;
    json_t *env;
    const struct driver_input *inputs; /* the array is the caller's, as its descriptors */
    size_t input_count;
    long long timeout_ms;
    char *record_sandbox, *record_creation, *record_actor, *record_unsettled;
    char nonce[37];
    bool python;

    struct e2b_box *box;
    struct e2b_resolve *resolve;
    struct e2b_prepare *prepare;
    struct e2b_exec *exec;
    struct e2b_settle *settle;
    struct e2b_call *look; /* is the sandbox still there? */
    struct e2b_list_files *list;
    struct e2b_wait wait;
    struct e2b_reads *reads;

    bool reused, resumed, delivered, interrupted, begun; /* begun: a byte of the stream came */
    bool uncertain;                                      /* after delivery nobody saw the end */
    const char *state_lost;                              /* for on_ready, or after it for on_end */
    bool denied;                                         /* it has refused its token once */
    int tries, renewals; /* sends of the code that came to nothing; sandboxes looked for again */
    int refusals;        /* by kernels without our hooks */
    bool awaits_hooks;   /* refused: goes out again when run->prepare is done */
    bool sent_prepared;  /* the hooks were known to be in place when the code went out */
    bool uploaded;       /* the inputs are in the sandbox */
    char *why;           /* of the loss */
    ev_timer timer;
    void (*step)(struct e2b_run *run);
    struct e2b_outcome outcome;
    struct driver_end end; /* while its files are listed */
    char *end_message, *end_trace;
    struct e2b_listing listing;
    json_t *warnings;
};

/* --- run.c --- */

struct driver_run *e2b_run_start(struct driver *d, const struct driver_request *request,
                                 const struct driver_events *events, void *data);
void e2b_run_deliver(struct driver_run *run);
void e2b_run_interrupt(struct driver_run *run);
void e2b_run_close(struct driver_run *run);
void e2b_run_file_read(struct driver_run *run, size_t index, driver_piece_fn cb, void *data);

struct log_ctx e2b_run_ctx(const struct e2b_run *run);
void e2b_run_warn(struct e2b_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* After ms (0: when the loop turns) step runs, unless another is set. */
void e2b_run_later(struct e2b_run *run, long long ms, void (*step)(struct e2b_run *run));
void e2b_run_resolve(struct e2b_run *run);
/* The sandbox is no more, before the code was started in it: looks for another one. */
void e2b_run_renew(struct e2b_run *run, const char *why);
/* It refuses its token: connecting brings the one of now, once; the second time ends the run. */
void e2b_run_denied(struct e2b_run *run, const char *why);
/* Before the code was started: ends the run. */
void e2b_run_fail(struct e2b_run *run, enum driver_end_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void e2b_run_finish(struct e2b_run *run); /* run->end is complete but for the files: on_end */

/* A run may still be going in the session's sandbox, as the thread's record says from now on. */
void e2b_run_unsettled(struct e2b_run *run);
/* It is over: the record says so no longer, if it did. */
void e2b_run_seen_free(struct e2b_run *run);

/* --- prepare.c --- */

/* Kernel hooks or context, inputs, scripts: side by side. Ends in e2b_run_prepared, _fail or
 * _renew. */
void e2b_prepare_start(struct e2b_run *run);
void e2b_prepare_cancel(struct e2b_prepare *prepare);
/* The code has run, so the hooks are in place, whatever of their answer is still under way. */
void e2b_prepare_proven(struct e2b_run *run);
/* All that the code waits for is done; hooks may still be under way (run->prepare), their kernel
 * refuses the code until then. */
void e2b_run_prepared(struct e2b_run *run);

/* --- code.c: the code goes out and ends --- */

void e2b_code_send(struct e2b_run *run);
void e2b_code_stop(struct e2b_run *run); /* interrupted */

/* --- outcome.c --- */

void e2b_outcome_line(struct e2b_run *run, const json_t *line);
/* Fills run->end by what the complete stream said; true when the hooks listed the files. */
bool e2b_outcome_judge(struct e2b_run *run);
void e2b_outcome_fini(struct e2b_outcome *outcome);

/* --- language.c: what other languages than python need --- */

/* A cell that sets (or removes) the variables; heap, or NULL when the language has no way
 * we know. */
char *e2b_language_env(const char *language, const json_t *env, bool remove);

#endif
