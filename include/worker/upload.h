/* Sends one output file to where the job wants it: PUT, or POST as a multipart form, to a URL
 * template. */
#ifndef SANDPIPER_WORKER_UPLOAD_H
#define SANDPIPER_WORKER_UPLOAD_H

#include "worker/job.h"

struct http;
struct settings;
struct upload;

struct upload_file {
    int fd; /* read from offset 0; outlives the upload */
    long long size;
    const char *job_id, *file_id, *filename, *mime;
};

/* Runs once, from the loop. url: where it is, without the query; NULL when it failed, `why` says
 * it. */
typedef void (*upload_done_fn)(const char *url, const char *why, void *data);

/* target borrowed until done. */
struct upload *upload_start(struct http *http, const struct job_upload *target,
                            const struct upload_file *file, const struct settings *settings,
                            upload_done_fn done, void *data);
void upload_cancel(struct upload *u); /* no callback after */

/* {jobId}, {fileId}, {filename} replaced by their percent-encoded values; heap, caller frees. */
char *upload_expand(const char *url_template, const struct upload_file *file);

#endif
