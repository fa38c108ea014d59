/* Gathers what an execution gave and makes its result: the job's return value, small enough to live
 * in Redis twice. */
#ifndef SANDPIPER_WORKER_RESULT_H
#define SANDPIPER_WORKER_RESULT_H

#include "worker/capture.h"
#include "worker/driver.h"
#include "worker/outcome.h"

/* Deepest MIME value that a result or a message carries: what is around it must not make it too
 * deep for JSON. */
#define RESULT_DEPTH_MAX 100

struct result {
    const char *execution_id; /* borrowed */
    const char *language;     /* borrowed */
    struct capture out, err;
    /* Own, NULL when empty. */
    json_t *results;  /* [{data, main, refs?}], each value small */
    json_t *files;    /* [{fileId, filename, mimeType, size, key|url|content}] */
    json_t *warnings; /* [string] */
    char *error;      /* one sentence or the exception in one line; NULL none */
    char *error_name, *error_value, *traceback;
    int exit_code; /* as the code ended; used where the outcome says so */
    bool reused, resumed;
    bool results_full; /* it was said that no more results are kept */
    char *state_lost;
    long long queued_ms, sandbox_ms, run_ms, files_ms;
};

void result_init(struct result *r, const char *execution_id, const char *language);
void result_fini(struct result *r);

/* Keeps a result of the code: values up to a few KiB as they are, of bigger ones the MIME type and
 * the size
 * (`omitted`), or what `refs` says of them ({mime: {...}}, borrowed, may be NULL). The kept entry,
 * borrowed, so that refs can be added later; NULL when there are too many. */
json_t *result_add_bundle(struct result *r, const json_t *bundle, bool is_main, const json_t *refs);
/* Lists a file (stolen). */
void result_add_file(struct result *r, json_t *file);
void result_warn(struct result *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Takes error, exit code and lost state from a driver's end. */
void result_take_end(struct result *r, const struct driver_end *end);

/* The JSON text, at most max bytes whatever was gathered (output, results, files and traceback are
 * cut until it fits). Heap, caller frees. */
char *result_dump(const struct result *r, enum outcome outcome, size_t max, size_t *len);

/* The exit code that the result shows; OUTCOME_NO_EXIT_CODE for none. */
int result_exit_code(const struct result *r, enum outcome outcome);

#endif
