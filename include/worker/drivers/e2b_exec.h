/* One POST /execute: the code goes out once, the stream comes back line by line. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_EXEC_H
#define SANDPIPER_WORKER_DRIVERS_E2B_EXEC_H

#include "worker/drivers/e2b.h"

enum e2b_exec_result {
    EXEC_COMPLETE, /* the line end_of_execution came */
    /* Nothing was run: */
    EXEC_NOT_SENT, /* a passing trouble; may be tried again */
    EXEC_FULL,     /* 429 for the number of sandboxes, while waking it */
    EXEC_GONE,     /* no such sandbox, or it does not wake by itself */
    EXEC_PORT,     /* the sandbox runs, its server does not */
    EXEC_DENIED,   /* the tokens are wrong */
    EXEC_REFUSED,  /* the server will not run it: message is its text */
    /* It may have run: */
    EXEC_CUT,     /* the stream ended without its end line */
    EXEC_STALLED, /* silence; the connection was closed */
};

struct e2b_exec_end { /* borrowed */
    enum e2b_exec_result result;
    int status;
    long long retry_after_ms;
    const char *message; /* one sentence; "" for COMPLETE */
};

struct e2b_exec_options {
    const char *code; /* valid UTF-8, copied */
    size_t code_len;
    const char *context; /* id, or NULL: the default python context */
    long long stall_ms;  /* silence after the first line; four times that before it */
    size_t line_max;     /* bytes */
    bool wait_end;       /* report when the body has ended: its connection is free then */
    /* A line of the stream that is an object; borrowed. */
    void (*on_line)(void *data, const json_t *line);
    /* A line had to be left out: one sentence. May be NULL. */
    void (*on_loss)(void *data, const char *what);
    void (*on_done)(void *data, const struct e2b_exec_end *end); /* once, unless cancelled */
    void *data;
};

struct e2b_exec *e2b_exec_start(struct e2b_box *box, const struct e2b_exec_options *options);
/* Closes the connection: that interrupts the kernel. No callback after. Allowed in
 * the callbacks. */
void e2b_exec_cancel(struct e2b_exec *exec);
void e2b_exec_free_all(struct e2b *e2b); /* at dispose */

/* NDJSON: feeds pieces of any size; whole lines come out. Linear in the bytes fed. */
struct e2b_lines;
struct e2b_lines *e2b_lines_new(size_t line_max);
void e2b_lines_free(struct e2b_lines *lines);
/* on_line returns false to stop; lost: bytes of a line that was longer than line_max (line NULL).
 * False when stopped. */
bool e2b_lines_feed(struct e2b_lines *lines, const char *piece, size_t len,
                    bool (*on_line)(void *data, const char *line, size_t len, size_t lost),
                    void *data);
/* What has no newline behind it at the end of the stream. */
bool e2b_lines_end(struct e2b_lines *lines,
                   bool (*on_line)(void *data, const char *line, size_t len, size_t lost),
                   void *data);

/* --- settle.c: is the kernel of the context free? --- */

enum e2b_settled { SETTLED_FREE, SETTLED_RESTARTED, SETTLED_GONE, SETTLED_FAILED };
struct e2b_settle;
/* A probe cell must answer within a few seconds, else the context is restarted. context NULL:
 * python's. */
struct e2b_settle *e2b_settle_start(struct e2b_box *box, const char *context,
                                    void (*done)(void *data, enum e2b_settled how), void *data);
void e2b_settle_cancel(struct e2b_settle *settle);

#endif
