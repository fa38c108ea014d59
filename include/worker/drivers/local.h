/* Inside the LOCAL driver: its boxes (a folder and the kernel in it) and its runs. */
#ifndef SANDPIPER_WORKER_DRIVERS_LOCAL_H
#define SANDPIPER_WORKER_DRIVERS_LOCAL_H

#include "worker/driver.h"
#include "worker/drivers/local_files.h"
#include "worker/drivers/local_folder.h"

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

struct local_host;
struct local_run;

enum local_box_state {
    BOX_EMPTY,    /* no kernel; one is started when a run or the spare setting wants it */
    BOX_STARTING, /* the host was told to start one */
    BOX_READY,    /* idle */
    BOX_RUNNING,  /* code runs in it: box->run's, or an orphan's when that run was closed */
    BOX_DYING,    /* the host was told to kill it */
};

struct local_waiter { /* someone who waits until a box has settled */
    driver_done_fn cb;
    void *data;
    bool for_death; /* until the kernel is gone, not only idle */
    struct local_waiter *next;
};

/* A folder and at most one kernel. It belongs to a thread (a session), to one run without a
 * thread, or to nobody (spare); once discarded only its end is awaited. */
struct local_box {
    struct local *local;
    struct local_box *next;
    char *thread;  /* NULL: not a session's */
    char *actor;   /* of the session; may be NULL */
    char name[24]; /* of its folder under the base */
    long user;     /* whom it belongs to; 0: the worker's */
    int home_fd;
    enum local_box_state state;
    long long kernel; /* id of the current kernel */
    bool spare;
    bool discarded;
    bool disk_full;         /* its files are over the cap: they go when no run reads them */
    bool was_ready;         /* the current kernel has been BOX_READY */
    int failed_starts;      /* in a row */
    const char *why_killed; /* what the next run is told when it was we who killed; NULL */
    const char *state_lost; /* for the next run's on_ready; NULL */
    double used_at;         /* ev_now of the last use */
    double retry_at;        /* ev_now before which no kernel is started (after a failed start) */
    struct local_run *run;  /* the run that has it */
    struct local_waiter *waiters;
    ev_timer kill_timer; /* an interrupt that does not help; then a kill that does not */
};

struct local {
    struct driver base;
    const struct driver_host *host;
    struct settings *settings;
    struct local_folder folder;
    struct local_host *process;
    struct local_box *boxes;
    struct local_run *runs;
    struct local_waiter *done; /* waiters to be called when the loop turns */
    ev_timer done_timer;
    ev_timer tick;
    unsigned ticks;
    unsigned serial; /* of this driver in the process, for answers that may come too late */
    long long next_box, next_kernel;
    driver_done_fn disposed;
    void *disposed_data;
    struct local *next; /* live drivers of this process */
};

enum local_run_state {
    RUN_QUEUED,    /* driver_start was called */
    RUN_WAITING,   /* another run still has the thread's box */
    RUN_PREPARING, /* kernel and input files */
    RUN_READY,     /* on_ready was called */
    RUN_CODE,      /* delivered */
    RUN_ENDED,     /* on_end was called */
    RUN_CLOSED,    /* waits for the reaper */
};

struct local_run {
    struct driver_run base;
    struct local *local;
    struct local_run *next;
    struct driver_events events;
    void *data;
    enum local_run_state state;
    struct local_box *box;
    char *job_id, *thread, *actor, *language, *code, *nonce;
    size_t code_len;
    json_t *env;
    const struct driver_input *inputs; /* the array is the caller's, as its descriptors */
    size_t input_count, input_at;      /* input_at: files already copied */
    int input_fd;                      /* being written; -1 */
    long long input_offset;
    bool other_replica_before;
    bool reused;
    const char *new_reason; /* why a fresh box was made although the thread had state; or NULL */
    size_t max_files;
    bool interrupted;
    ev_timer timer; /* the next step from the loop */
    void (*step)(struct local_run *run);
    json_t *warnings;
    struct local_listing listing;
    int read_fd; /* file under way; -1 */
    size_t read_index;
    long long read_left;
    driver_piece_fn read_cb;
    void *read_data;
};

/* --- boxes (box.c) --- */

/* Its files go, for they are over the cap; its thread gets an empty box and is told. */
void local_box_empty(struct local_box *box);
/* A fresh box with a folder; NULL when the folder cannot be made (errno). */
struct local_box *local_box_new(struct local *local);
struct local_box *local_box_of_thread(struct local *local, const char *thread);
/* A ready or starting spare, no longer one; else a fresh box; else NULL (errno). */
struct local_box *local_box_take(struct local *local);
/* No longer anyone's: its kernel is killed, then folder and box go. The run that has it is
 * ended first. */
void local_box_discard(struct local_box *box, const char *reason);
/* The run that had it is closed; a box without a thread goes with it. */
void local_box_give_back(struct local_box *box);
/* Kill the kernel; lost is what the next run is told. */
void local_box_kill(struct local_box *box, const char *lost, const char *reason);
/* Interrupt the code that runs; the kernel is killed when that does not help in time. */
void local_box_interrupt(struct local_box *box);
/* The host has a message about the box's kernel: ready, end, dead. */
void local_box_ready(struct local_box *box);
void local_box_end_of_code(struct local_box *box);
void local_box_code_sent(struct local_box *box);
void local_box_dead(struct local_box *box);
/* Starts the kernels that are wanted, as many at a time as the machine can bear; keeps the
 * spares. */
void local_boxes_start(struct local *local);
void local_boxes_tick(struct local *local); /* idle kernels and old folders go */
/* Calls cb from the loop once the box has settled. */
void local_box_wait(struct local_box *box, bool for_death, driver_done_fn cb, void *data);
void local_box_free(struct local_box *box);
bool local_box_wants_kernel(const struct local_box *box);

/* --- runs (run.c, output.c) --- */

struct driver_run *local_run_start(struct driver *d, const struct driver_request *request,
                                   const struct driver_events *events, void *data);
void local_run_deliver(struct driver_run *run);
void local_run_interrupt(struct driver_run *run);
void local_run_close(struct driver_run *run);
void local_run_file_read(struct driver_run *run, size_t index, driver_piece_fn cb, void *data);

void local_run_later(struct local_run *run, void (*step)(struct local_run *run));
void local_run_attach(struct local_run *run); /* its turn to have the thread's box */
void local_run_kernel_ready(struct local_run *run);
/* The kernel of the run's box is gone: event is the host's "dead" message, NULL when the host
 * itself died. */
void local_run_kernel_dead(struct local_run *run, const json_t *event, const char *reason);
void local_run_event(struct local_run *run, const char *name, const json_t *event);
void local_run_copy_inputs(struct local_run *run);
void local_run_begin(struct local_run *run); /* or waits on, for the check of the isolation */
/* Ends the run once; fields that the end does not set are zero. */
void local_run_end(struct local_run *run, const struct driver_end *end);
void local_run_fail(struct local_run *run, enum driver_end_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* --- the driver (local.c) --- */

void local_call_later(struct local *local, driver_done_fn cb, void *data);

#endif
