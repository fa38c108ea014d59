/* The settings: one table of names, types, defaults and sources, read from the environment and
 * overlaid at run time. */
#ifndef SANDPIPER_COMMON_SETTINGS_H
#define SANDPIPER_COMMON_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* One id a row of the table in settings.c, where each is explained. */
enum setting {
    SETTING_REDIS_URL,
    SETTING_REDIS_QUEUE_URL,
    SETTING_REDIS_SENTINELS,
    SETTING_REDIS_SENTINEL_MASTER,
    SETTING_REDIS_SENTINEL_USER,
    SETTING_REDIS_SENTINEL_PASSWORD,
    SETTING_REDIS_SENTINEL_TLS,
    SETTING_REDIS_TLS_CA_FILE,
    SETTING_REDIS_TLS_CERT_FILE,
    SETTING_REDIS_TLS_KEY_FILE,
    SETTING_REDIS_MEMORY_WATERMARK_PERCENT,
    SETTING_NODE_ENV,
    SETTING_QUEUE_PREFIX,
    SETTING_QUEUE_NAME,
    SETTING_WORKER_NAME,
    SETTING_WORKER_CONCURRENCY,
    SETTING_LOCK_DURATION_MS,
    SETTING_LOCK_RENEW_MS,
    SETTING_STALLED_INTERVAL_MS,
    SETTING_MAX_STALLED_COUNT,
    SETTING_MAX_STARTED_ATTEMPTS,
    SETTING_LIMITER_MAX,
    SETTING_LIMITER_DURATION_MS,
    SETTING_METRICS_MAX_DATA_POINTS,
    SETTING_REMOVE_ON_COMPLETE,
    SETTING_REMOVE_ON_FAIL,
    SETTING_JOB_LOG,
    SETTING_JOB_PROGRESS,
    SETTING_DRAIN_DELAY_MS,
    SETTING_DRAIN_TIMEOUT_MS,
    SETTING_MARK_WAIT_REPLICAS,
    SETTING_MARK_WAIT_TIMEOUT_MS,
    SETTING_STREAM_INTAKE,
    SETTING_STREAM_BACKLOG_MAX,
    SETTING_JOB_DATA_MAX_BYTES,
    SETTING_REPLY_MAX_BYTES,
    SETTING_REPLY_TTL_MS,
    SETTING_REPLY_FLUSH_MS,
    SETTING_REPLY_FLUSH_BYTES,
    SETTING_REPLY_HEARTBEAT_MS,
    SETTING_RESULT_MAX_BYTES,
    SETTING_FILE_MAX_BYTES,
    SETTING_FILES_MAX_BYTES,
    SETTING_FILES_MAX_COUNT,
    SETTING_INPUT_MAX_BYTES,
    SETTING_URL_ALLOW,
    SETTING_CODE_INTERPRETER_TYPE,
    SETTING_CODE_INTERPRETER_TIMEOUT_MS,
    SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS,
    SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS,
    SETTING_CODE_INTERPRETER_LOCAL_ISOLATION,
    SETTING_CODE_INTERPRETER_LOCAL_PYTHON,
    SETTING_CODE_INTERPRETER_LOCAL_DIR,
    SETTING_CODE_INTERPRETER_LOCAL_NETWORK,
    SETTING_CODE_INTERPRETER_LOCAL_SPARE_KERNELS,
    SETTING_CODE_INTERPRETER_LOCAL_MEMORY_MB,
    SETTING_CODE_INTERPRETER_LOCAL_MAX_PROCESSES,
    SETTING_CODE_INTERPRETER_LOCAL_FILE_MB,
    SETTING_CODE_INTERPRETER_LOCAL_DISK_MB,
    SETTING_CODE_INTERPRETER_LOCAL_CPU_S,
    SETTING_E2B_API_KEY,
    SETTING_E2B_DOMAIN,
    SETTING_E2B_API_URL,
    SETTING_E2B_SANDBOX_URL,
    SETTING_E2B_TEMPLATE,
    SETTING_E2B_SESSION_TAG,
    SETTING_E2B_DEPLOYMENT_ID,
    SETTING_E2B_ADOPT_FOREIGN,
    SETTING_E2B_ALLOW_INTERNET,
    SETTING_E2B_ALLOW_OUT,
    SETTING_E2B_DENY_OUT,
    SETTING_E2B_SCRIPTS_DIR,
    SETTING_E2B_REQUEST_TIMEOUT_MS,
    SETTING_E2B_STALL_TIMEOUT_MS,
    SETTING_E2B_LINE_MAX_BYTES,
    SETTING_E2B_CAPACITY_WAIT_MS,
    SETTING_E2B_MAX_PAUSED,
    SETTING_E2B_SWEEP_INTERVAL_MS,
    SETTING_STATUS_HOST,
    SETTING_STATUS_PORT,
    SETTING_LOG_LEVEL,
    SETTING_LOG_FORMAT,
    SETTING_COUNT
};

enum setting_type { SETTING_TYPE_STRING, SETTING_TYPE_INT, SETTING_TYPE_BOOL, SETTING_TYPE_ENUM };
enum setting_source {
    SETTING_SOURCE_ENVIRONMENT, /* environment (or NAME_FILE, for secrets) only */
    SETTING_SOURCE_RUNTIME,     /* the environment, overlaid by the runtime hash in Redis */
};

struct setting_row {
    const char *name; /* of the environment variable and of the hash field */
    enum setting_type type;
    enum setting_source source;
    bool secret;          /* never shown; NAME_FILE is accepted too */
    const char *fallback; /* default, as text; "" is unset */
    const char *values;   /* ENUM: the words, separated by spaces (matched case-insensitively) */
    long long min, max;   /* INT: inclusive bounds */
    const char *unit;     /* INT: "ms", "bytes", "MiB" or "" */
    const char *help;     /* one line */
};

const struct setting_row *settings_row(enum setting id);

/* One immutable set of values. */
struct settings;

/* From this process's environment. NULL with a one-line reason naming the variable (never its value
 * if secret) when one does not parse or a *_FILE cannot be read. Its secrets are told to
 * log_secret_add. */
struct settings *settings_from_environment(char *err, size_t err_size);

/* A set: base overlaid with field/value pairs (fields[2i], fields[2i+1]) of the runtime hash.
 * Unknown and environment-only fields are skipped (a debug line). NULL with a reason when a value
 * does not parse, or a field has no name: its value then says why the hash cannot be read. A
 * reference, of the caller's: the same set again where nothing has changed. */
struct settings *settings_overlay(struct settings *base, const char *const *fields, size_t count,
                                  char *err, size_t err_size);
struct settings *settings_ref(struct settings *s); /* counted: each ref needs a settings_free */
void settings_free(struct settings *s);

/* Values. STRING: never NULL ("" is unset); ENUM: the word as spelled in the table's `values`.
 * Asking with the wrong type is a programmer's error and aborts. */
const char *settings_str(const struct settings *s, enum setting id);
long long settings_int(const struct settings *s, enum setting id);
bool settings_bool(const struct settings *s, enum setting id);
bool settings_is_set(const struct settings *s, enum setting id); /* given, not the default */

/* REDIS_QUEUE_URL, else REDIS_URL; "development" when NODE_ENV says so. */
const char *settings_redis_url(const struct settings *s);
bool settings_is_development(const struct settings *s);

/* The table's part of --help. */
void settings_print_help(FILE *out);
/* --check-config: NAME=value (source), secrets masked. */
void settings_print(const struct settings *s, FILE *out);
/* The table in README (hidden option). */
void settings_print_markdown(FILE *out);
/* Its part of the man page (hidden option). */
void settings_print_man(FILE *out);

#endif
