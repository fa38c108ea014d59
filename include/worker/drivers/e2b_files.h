/* Files of an E2B sandbox through envd: put there, listed, read. */
#ifndef SANDPIPER_WORKER_DRIVERS_E2B_FILES_H
#define SANDPIPER_WORKER_DRIVERS_E2B_FILES_H

#include "worker/drivers/e2b.h"

enum e2b_file_result {
    FILE_OK,
    FILE_GONE,      /* the sandbox is gone */
    FILE_DENIED,    /* it refuses its token */
    FILE_REFUSED,   /* this file cannot be put there; worth no other attempt */
    FILE_TRANSIENT, /* no definitive answer within the bounds */
};
typedef void (*e2b_file_fn)(void *data, enum e2b_file_result result, const char *message);

struct e2b_part {     /* one file of an upload: bytes, or a descriptor */
    const char *path; /* absolute */
    int fd;           /* -1: bytes */
    const char *bytes;
    long long size;
};
struct e2b_upload;
/* One request for all parts; parts' strings copied, bytes and descriptors stay the caller's until
 * done. */
struct e2b_upload *e2b_upload_start(struct e2b_box *box, const struct e2b_part *parts, size_t count,
                                    e2b_file_fn done, void *data);
void e2b_upload_cancel(struct e2b_upload *upload);

/* One Connect RPC of envd (JSON in, JSON out), retried. done's body is borrowed, NULL unless OK;
 * code is Connect's ("not_found", ...) or "". */
struct e2b_rpc;
typedef void (*e2b_rpc_fn)(void *data, enum e2b_file_result result, const json_t *body,
                           const char *code);
struct e2b_rpc *e2b_rpc_start(struct e2b_box *box, const char *method, json_t *body,
                              e2b_rpc_fn done, void *data); /* body stolen */
void e2b_rpc_cancel(struct e2b_rpc *rpc);

struct e2b_listing {
    struct driver_file *files; /* sorted by path; paths are heap */
    size_t count;
};
void e2b_listing_fini(struct e2b_listing *listing);
/* From the hooks' message. warnings: array that is added to. */
void e2b_listing_from_hooks(struct e2b_listing *listing, const json_t *message, size_t max_files,
                            json_t *warnings);

/* Lists the output folder through envd. ok false: it could not be listed. */
struct e2b_list_files *e2b_list_files_start(struct e2b_box *box, struct e2b_listing *into,
                                            size_t max_files, json_t *warnings,
                                            void (*done)(void *data, bool ok), void *data);
void e2b_list_files_cancel(struct e2b_list_files *list);

/* Reads of a run's output files: the next few are fetched side by side into unnamed files. */
struct e2b_reads *e2b_reads_new(struct e2b_box *box, const struct e2b_listing *listing,
                                long long max_file_bytes);
void e2b_reads_next(struct e2b_reads *reads, size_t index, driver_piece_fn cb, void *data);
void e2b_reads_free(struct e2b_reads *reads);

#endif
