/* A job's data, parsed and checked: the contract of include/contract/v1.schema.json. */
#ifndef SANDPIPER_WORKER_JOB_H
#define SANDPIPER_WORKER_JOB_H

#include "worker/queue/claim.h"
#include "worker/queue/jobopts.h"

#include <jansson.h>
#include <stdbool.h>

struct settings;

enum job_kind { JOB_EXECUTE, JOB_RELEASE };
enum job_file_source { JOB_FILE_CONTENT, JOB_FILE_KEY, JOB_FILE_URL };

struct job_file {         /* strings borrowed from the job's JSON */
    const char *filename; /* safe: relative, no "..", no empty part */
    enum job_file_source source;
    const char *value; /* base64 text, key (beginning with "<prefix>:<queue>:file:"), or URL */
    size_t value_len;
};

struct job_upload {
    const char *url;                /* template; NULL: no upload */
    const char *method;             /* "PUT": the bytes, "POST": a multipart form (fields first) */
    const json_t *headers, *fields; /* objects of strings, or NULL */
};

struct job {
    enum job_kind kind;
    json_t *root; /* owns the strings below */
    const char *code;
    size_t code_len;
    const char *language;
    char *thread;            /* T, computed here as the claim script does; NULL none */
    const char *actor;       /* or NULL */
    json_t *env;             /* own object of strings */
    const char *secrets_key; /* full key, or NULL */
    long long timeout_ms;
    long long start_by; /* ms since the epoch; 0 none */
    bool idempotent, reply, force, inline_files;
    struct job_file *files;
    size_t file_count;
    struct job_upload upload;
    json_t *warnings; /* own array of strings */
};

/* Checks everything that can be checked before anything is done. Returns NULL when fine; else one
 * sentence that names the field (heap, caller frees); then the job holds what was understood so far
 * (reply). Either way job_fini is due. */
char *job_parse(struct job *job, const struct claimed_job *claimed, const struct jobopts *opts,
                const char *queue_prefix, const struct settings *settings);
void job_fini(struct job *job);

/* Adds one env entry (checked name and value); NULL, or what is wrong with it (heap). `where` names
 * the source. */
char *job_env_add(json_t *env, const char *where, const char *name, const char *value,
                  size_t value_len);

/* True for ids under which no reply can be kept, for BullMQ ends its own keys with them. */
bool job_id_is_key_ending(const char *id);

#endif
