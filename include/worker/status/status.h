/* The status port: a few plain pages over HTTP, on the loop. */
#ifndef SANDPIPER_WORKER_STATUS_STATUS_H
#define SANDPIPER_WORKER_STATUS_STATUS_H

#include "common/buf.h"

struct ev_loop;
struct status;

struct status_page {
    const char *path; /* "/metrics" */
    const char *type; /* Content-Type */
    /* Writes the page; its HTTP status. Called from the loop, for each GET and HEAD. */
    int (*write)(struct buf *out, void *data);
};

struct status_options {
    struct ev_loop *loop;
    const char *host;                /* IPv4 or IPv6 address, or "localhost" */
    int port;                        /* 0: any free one, which the log names */
    const struct status_page *pages; /* ended by a NULL path; static */
    void *data;                      /* of the pages */
};

/* A port that cannot be had now is said in one line, which names the setting, and tried again for
 * ever: jobs are worth more than this. host must have passed the settings' check. */
struct status *status_new(const struct status_options *options);
void status_free(struct status *s);

#endif
