/* The table of settings: the only place that knows their names, types, defaults and sources. */
#include "common/settings.h"

#include <assert.h>

#define ENVIRONMENT SETTING_SOURCE_ENVIRONMENT
#define RUNTIME     SETTING_SOURCE_RUNTIME

#define KIB    1024LL
#define MIB    (1024 * KIB)
#define GIB    (1024 * MIB)
#define MINUTE 60000LL
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)

#define STRING(name_, source_, default_, help_)                                                    \
    {                                                                                              \
        .name = name_, .type = SETTING_TYPE_STRING, .source = source_, .fallback = default_,       \
        .help = help_                                                                              \
    }
#define SECRET(name_, source_, default_, help_)                                                    \
    {                                                                                              \
        .name = name_, .type = SETTING_TYPE_STRING, .source = source_, .secret = true,             \
        .fallback = default_, .help = help_                                                        \
    }
#define INT(name_, source_, default_, min_, max_, unit_, help_)                                    \
    {                                                                                              \
        .name = name_, .type = SETTING_TYPE_INT, .source = source_, .fallback = default_,          \
        .min = min_, .max = max_, .unit = unit_, .help = help_                                     \
    }
#define BOOL(name_, source_, default_, help_)                                                      \
    {                                                                                              \
        .name = name_, .type = SETTING_TYPE_BOOL, .source = source_, .fallback = default_,         \
        .help = help_                                                                              \
    }
#define ENUM(name_, source_, default_, values_, help_)                                             \
    {                                                                                              \
        .name = name_, .type = SETTING_TYPE_ENUM, .source = source_, .fallback = default_,         \
        .values = values_, .help = help_                                                           \
    }

/* clang-format off */
static const struct setting_row rows[SETTING_COUNT] = {
    [SETTING_REDIS_URL] = SECRET("REDIS_URL", ENVIRONMENT, "redis://127.0.0.1:6379",
        "Redis of the queue: redis://[user][:password@]host[:port][/db], rediss://, unix:///path"),
    [SETTING_REDIS_QUEUE_URL] = SECRET("REDIS_QUEUE_URL", ENVIRONMENT, "",
        "Redis of the queue where it is not the one of REDIS_URL; has precedence"),
    [SETTING_REDIS_SENTINELS] = STRING("REDIS_SENTINELS", ENVIRONMENT, "",
        "host:port,... of sentinels that name the master; the URL then gives user, password, db"),
    [SETTING_REDIS_SENTINEL_MASTER] = STRING("REDIS_SENTINEL_MASTER", ENVIRONMENT, "mymaster",
        "The master's name for the sentinels"),
    [SETTING_REDIS_SENTINEL_USER] = STRING("REDIS_SENTINEL_USER", ENVIRONMENT, "",
        "User for the sentinels themselves, where they have users"),
    [SETTING_REDIS_SENTINEL_PASSWORD] = SECRET("REDIS_SENTINEL_PASSWORD", ENVIRONMENT, "",
        "Password for the sentinels themselves"),
    [SETTING_REDIS_SENTINEL_TLS] = BOOL("REDIS_SENTINEL_TLS", ENVIRONMENT, "false",
        "TLS to the sentinels (to the master: a rediss:// URL)"),
    [SETTING_REDIS_TLS_CA_FILE] = STRING("REDIS_TLS_CA_FILE", ENVIRONMENT, "",
        "CA certificates (PEM) that Redis's certificate is checked by; unset: the system's"),
    [SETTING_REDIS_TLS_CERT_FILE] = STRING("REDIS_TLS_CERT_FILE", ENVIRONMENT, "",
        "Client certificate (PEM) for a Redis that asks for one"),
    [SETTING_REDIS_TLS_KEY_FILE] = STRING("REDIS_TLS_KEY_FILE", ENVIRONMENT, "",
        "Key (PEM) of REDIS_TLS_CERT_FILE"),
    [SETTING_REDIS_MEMORY_WATERMARK_PERCENT] = INT("REDIS_MEMORY_WATERMARK_PERCENT", ENVIRONMENT,
        "80", 0, 100, "", "Redis this full of its maxmemory: no files, replies shrink; 0: never"),
    [SETTING_NODE_ENV] = STRING("NODE_ENV", ENVIRONMENT, "",
        "development makes LOCAL the default type and allows it without isolation"),
    [SETTING_QUEUE_PREFIX] = STRING("QUEUE_PREFIX", ENVIRONMENT, "bull",
        "First part of every key; {bull} puts a queue on one slot of a Redis Cluster"),
    [SETTING_QUEUE_NAME] = STRING("QUEUE_NAME", ENVIRONMENT, "code-interpreter",
        "Name of the queue, without colon"),
    [SETTING_WORKER_NAME] = STRING("WORKER_NAME", ENVIRONMENT, "",
        "Name of this replica in dashboards and logs; unset: host name and process id"),
    [SETTING_WORKER_CONCURRENCY] = INT("WORKER_CONCURRENCY", ENVIRONMENT, "0", 0, 10000, "",
        "Jobs run at a time; 0: 100 for E2B, from cores and memory for LOCAL"),
    [SETTING_LOCK_DURATION_MS] = INT("LOCK_DURATION_MS", ENVIRONMENT, "15000", 1000, HOUR, "ms",
        "Life of a job's lock; a killed worker's jobs are taken over after it"),
    [SETTING_LOCK_RENEW_MS] = INT("LOCK_RENEW_MS", ENVIRONMENT, "5000", 200, HOUR, "ms",
        "Time between renewals of the locks; at most half of LOCK_DURATION_MS"),
    [SETTING_STALLED_INTERVAL_MS] = INT("STALLED_INTERVAL_MS", ENVIRONMENT, "5000", 200, HOUR, "ms",
        "Time between passes that look for jobs of dead workers and stuck threads"),
    [SETTING_MAX_STALLED_COUNT] = INT("MAX_STALLED_COUNT", ENVIRONMENT, "1", 0, 1000, "",
        "How often a job may be taken from a dead worker before its start until it fails"),
    [SETTING_MAX_STARTED_ATTEMPTS] = INT("MAX_STARTED_ATTEMPTS", ENVIRONMENT, "0", 0, 1000000, "",
        "Starts of a job, retries and takeovers counted, after which it fails; 0: no limit"),
    [SETTING_LIMITER_MAX] = INT("LIMITER_MAX", ENVIRONMENT, "0", 0, 1000000000, "",
        "Jobs started at most in LIMITER_DURATION_MS, over all replicas; 0: no limit"),
    [SETTING_LIMITER_DURATION_MS] = INT("LIMITER_DURATION_MS", ENVIRONMENT, "1000", 1, DAY, "ms",
        "The time that LIMITER_MAX counts in"),
    [SETTING_METRICS_MAX_DATA_POINTS] = INT("METRICS_MAX_DATA_POINTS", ENVIRONMENT, "0", 0,
        1000000, "", "Minutes for which queue.getMetrics counts ended jobs; 0: it counts none"),
    [SETTING_REMOVE_ON_COMPLETE] = STRING("REMOVE_ON_COMPLETE", ENVIRONMENT, "",
        "For jobs that do not say: true, false, a number, {\"age\":s,\"count\":n,\"limit\":n}"),
    [SETTING_REMOVE_ON_FAIL] = STRING("REMOVE_ON_FAIL", ENVIRONMENT, "",
        "The same for failed jobs"),
    [SETTING_JOB_LOG] = BOOL("JOB_LOG", RUNTIME, "false",
        "Output of code is also put into the job's log, which dashboards show"),
    [SETTING_JOB_PROGRESS] = BOOL("JOB_PROGRESS", RUNTIME, "false",
        "The job's progress says what is being done: preparing, running, collecting"),
    [SETTING_DRAIN_DELAY_MS] = INT("DRAIN_DELAY_MS", ENVIRONMENT, "5000", 100, 10 * MINUTE, "ms",
        "Longest wait for a job in one blocking call"),
    [SETTING_DRAIN_TIMEOUT_MS] = INT("DRAIN_TIMEOUT_MS", ENVIRONMENT, "25000", 0, DAY, "ms",
        "After SIGTERM: how long runs may go on before they are interrupted"),
    [SETTING_MARK_WAIT_REPLICAS] = INT("MARK_WAIT_REPLICAS", ENVIRONMENT, "0", 0, 16, "",
        "Redis replicas that must have a run's mark before its code is delivered; 0: no WAIT"),
    [SETTING_MARK_WAIT_TIMEOUT_MS] = INT("MARK_WAIT_TIMEOUT_MS", ENVIRONMENT, "1000", 1, MINUTE,
        "ms", "How long to wait for MARK_WAIT_REPLICAS"),
    [SETTING_STREAM_INTAKE] = BOOL("STREAM_INTAKE", ENVIRONMENT, "true",
        "Take jobs from the Redis Stream too"),
    [SETTING_STREAM_BACKLOG_MAX] = INT("STREAM_BACKLOG_MAX", ENVIRONMENT, "10000", 0, 1000000000,
        "", "Entries stay in the stream while so many jobs wait in the queue; 0: no limit"),
    [SETTING_JOB_DATA_MAX_BYTES] = INT("JOB_DATA_MAX_BYTES", ENVIRONMENT, "1048576", 1024,
        64 * MIB, "bytes", "Largest data of a job; a larger one fails unread"),
    [SETTING_REPLY_MAX_BYTES] = INT("REPLY_MAX_BYTES", RUNTIME, "4194304", 4096, GIB, "bytes",
        "Largest reply stored for a job; beyond it output is no longer stored"),
    [SETTING_REPLY_TTL_MS] = INT("REPLY_TTL_MS", RUNTIME, "3600000", 1000, 30 * DAY, "ms",
        "Life of replies and files in Redis after the last write"),
    [SETTING_REPLY_FLUSH_MS] = INT("REPLY_FLUSH_MS", RUNTIME, "30", 0, 10000, "ms",
        "Longest time that output is held back to be sent together"),
    [SETTING_REPLY_FLUSH_BYTES] = INT("REPLY_FLUSH_BYTES", RUNTIME, "16384", 256, 4 * MIB, "bytes",
        "Output is sent at once when so much has gathered"),
    [SETTING_REPLY_HEARTBEAT_MS] = INT("REPLY_HEARTBEAT_MS", RUNTIME, "10000", 1000, HOUR, "ms",
        "A heartbeat is published after so much silence"),
    [SETTING_RESULT_MAX_BYTES] = INT("RESULT_MAX_BYTES", RUNTIME, "65536", 4096, 16 * MIB, "bytes",
        "Largest return value of a job; what is too long in it is cut"),
    [SETTING_FILE_MAX_BYTES] = INT("FILE_MAX_BYTES", RUNTIME, "16777216", 0, 512 * MIB, "bytes",
        "Largest output file; a Redis value holds 512 MiB at most"),
    [SETTING_FILES_MAX_BYTES] = INT("FILES_MAX_BYTES", RUNTIME, "67108864", 0, 64 * GIB, "bytes",
        "Output files of a job, together"),
    [SETTING_FILES_MAX_COUNT] = INT("FILES_MAX_COUNT", RUNTIME, "100", 0, 10000, "",
        "Output files of a job, at most"),
    [SETTING_INPUT_MAX_BYTES] = INT("INPUT_MAX_BYTES", RUNTIME, "268435456", 0, 64 * GIB, "bytes",
        "Input files of a job, together"),
    [SETTING_URL_ALLOW] = STRING("URL_ALLOW", ENVIRONMENT, "",
        "host:port entries that files and uploads may use although the address is not public"),
    [SETTING_CODE_INTERPRETER_TYPE] = STRING("CODE_INTERPRETER_TYPE", RUNTIME, "",
        "LOCAL, E2B (or E_2_B) or DISABLED; unset: LOCAL in development, else DISABLED"),
    [SETTING_CODE_INTERPRETER_TIMEOUT_MS] = INT("CODE_INTERPRETER_TIMEOUT_MS", RUNTIME, "300000",
        1, DAY, "ms", "Longest run of a job's code; a job may ask for less"),
    [SETTING_CODE_INTERPRETER_IDLE_TIMEOUT_MS] = INT("CODE_INTERPRETER_IDLE_TIMEOUT_MS", RUNTIME,
        "300000", 1, DAY, "ms", "How long a thread's sandbox is kept warm after its last run"),
    [SETTING_CODE_INTERPRETER_SESSION_MAX_AGE_MS] = INT("CODE_INTERPRETER_SESSION_MAX_AGE_MS",
        RUNTIME, "86400000", 1, 365 * DAY, "ms",
        "Age, since its last use, at which a thread's sandbox is deleted"),
    [SETTING_CODE_INTERPRETER_LOCAL_ISOLATION] = ENUM("CODE_INTERPRETER_LOCAL_ISOLATION",
        ENVIRONMENT, "bwrap", "bwrap none",
        "LOCAL: each kernel in bubblewrap, or (only in development) not isolated"),
    [SETTING_CODE_INTERPRETER_LOCAL_PYTHON] = STRING("CODE_INTERPRETER_LOCAL_PYTHON", ENVIRONMENT,
        "/usr/bin/python3", "LOCAL: the Python that has jupyter_client and ipykernel"),
    [SETTING_CODE_INTERPRETER_LOCAL_DIR] = STRING("CODE_INTERPRETER_LOCAL_DIR", ENVIRONMENT, "",
        "LOCAL: folder of the sessions' folders; unset: a private one under the temp folder"),
    [SETTING_CODE_INTERPRETER_LOCAL_NETWORK] = ENUM("CODE_INTERPRETER_LOCAL_NETWORK", ENVIRONMENT,
        "auto", "auto none internet host",
        "LOCAL: no network; the internet without private addresses; or (only in development) the "
        "machine's. auto: host in development, else none"),
    [SETTING_CODE_INTERPRETER_LOCAL_SPARE_KERNELS] = INT("CODE_INTERPRETER_LOCAL_SPARE_KERNELS",
        RUNTIME, "1", 0, 100, "", "LOCAL: kernels started ahead, for new threads"),
    [SETTING_CODE_INTERPRETER_LOCAL_MEMORY_MB] = INT("CODE_INTERPRETER_LOCAL_MEMORY_MB", RUNTIME,
        "2048", 64, 1024 * KIB, "MiB", "LOCAL: memory of a session, all its processes together"),
    [SETTING_CODE_INTERPRETER_LOCAL_MAX_PROCESSES] = INT("CODE_INTERPRETER_LOCAL_MAX_PROCESSES",
        RUNTIME, "256", 8, 100000, "", "LOCAL: processes and threads of a session"),
    [SETTING_CODE_INTERPRETER_LOCAL_FILE_MB] = INT("CODE_INTERPRETER_LOCAL_FILE_MB", RUNTIME,
        "1024", 1, 1024 * KIB, "MiB", "LOCAL: largest file that code may write"),
    [SETTING_CODE_INTERPRETER_LOCAL_DISK_MB] = INT("CODE_INTERPRETER_LOCAL_DISK_MB", RUNTIME,
        "2048", 0, 1024 * KIB, "MiB", "LOCAL: a session's files together; 0: no limit"),
    [SETTING_CODE_INTERPRETER_LOCAL_CPU_S] = INT("CODE_INTERPRETER_LOCAL_CPU_S", RUNTIME, "3600", 0,
        365 * 86400, "s", "LOCAL: processor time of one process of a session; 0: no limit"),
    [SETTING_E2B_API_KEY] = SECRET("E2B_API_KEY", RUNTIME, "", "The key for E2B"),
    [SETTING_E2B_DOMAIN] = STRING("E2B_DOMAIN", ENVIRONMENT, "e2b.app",
        "E2B: domain of the control API (api.<domain>) and of the sandboxes"),
    [SETTING_E2B_API_URL] = STRING("E2B_API_URL", ENVIRONMENT, "",
        "E2B: address of the control API where it is not https://api.<E2B_DOMAIN>"),
    [SETTING_E2B_SANDBOX_URL] = STRING("E2B_SANDBOX_URL", ENVIRONMENT, "",
        "E2B: one address for all sandboxes, told apart by headers; unset: a host name each"),
    [SETTING_E2B_TEMPLATE] = STRING("E2B_TEMPLATE", RUNTIME, "code-interpreter-v1",
        "E2B: template of new sandboxes; it must run the code-interpreter server"),
    [SETTING_E2B_SESSION_TAG] = STRING("E2B_SESSION_TAG", ENVIRONMENT, "twentySessionId",
        "E2B: metadata key that names a sandbox's thread"),
    [SETTING_E2B_DEPLOYMENT_ID] = STRING("E2B_DEPLOYMENT_ID", ENVIRONMENT, "",
        "E2B: whose sandboxes these are, where deployments share a key; unset: kept in Redis"),
    [SETTING_E2B_ADOPT_FOREIGN] = BOOL("E2B_ADOPT_FOREIGN", ENVIRONMENT, "false",
        "E2B: use a thread's sandbox that was made without a deployment id (by Twenty's driver)"),
    [SETTING_E2B_ALLOW_INTERNET] = BOOL("E2B_ALLOW_INTERNET", ENVIRONMENT, "true",
        "E2B: may code in a sandbox reach the internet"),
    [SETTING_E2B_ALLOW_OUT] = STRING("E2B_ALLOW_OUT", ENVIRONMENT, "",
        "E2B: addresses, networks and domains that code may reach, separated by commas"),
    [SETTING_E2B_DENY_OUT] = STRING("E2B_DENY_OUT", ENVIRONMENT, "",
        "E2B: addresses and networks that code may not reach, separated by commas"),
    [SETTING_E2B_SCRIPTS_DIR] = STRING("E2B_SCRIPTS_DIR", ENVIRONMENT, "",
        "E2B: folder whose files are put at /home/user/scripts in each new sandbox"),
    [SETTING_E2B_REQUEST_TIMEOUT_MS] = INT("E2B_REQUEST_TIMEOUT_MS", RUNTIME, "60000", 100, HOUR,
        "ms", "E2B: longest wait for the answer to one call of the control API"),
    [SETTING_E2B_STALL_TIMEOUT_MS] = INT("E2B_STALL_TIMEOUT_MS", RUNTIME, "20000", 200, HOUR, "ms",
        "E2B: a run whose stream is silent so long has lost its sandbox (signs come every 5 s)"),
    [SETTING_E2B_LINE_MAX_BYTES] = INT("E2B_LINE_MAX_BYTES", RUNTIME, "33554432", 4096, GIB,
        "bytes", "E2B: largest result or piece of output; a larger one is left out"),
    [SETTING_E2B_CAPACITY_WAIT_MS] = INT("E2B_CAPACITY_WAIT_MS", RUNTIME, "300000", 0, DAY, "ms",
        "E2B: how long a job waits where the account's number of sandboxes is reached"),
    [SETTING_E2B_MAX_PAUSED] = INT("E2B_MAX_PAUSED", RUNTIME, "0", 0, 1000000, "",
        "E2B: paused sandboxes kept at most, the longest unused are deleted; 0: no limit"),
    [SETTING_E2B_SWEEP_INTERVAL_MS] = INT("E2B_SWEEP_INTERVAL_MS", RUNTIME, "600000", 200, DAY,
        "ms", "E2B: time between two sweeps of old paused sandboxes, by one replica"),
    [SETTING_STATUS_HOST] = STRING("STATUS_HOST", ENVIRONMENT, "127.0.0.1",
        "Address of the status port: an IPv4 or IPv6 address; 0.0.0.0 or :: for every one"),
    [SETTING_STATUS_PORT] = INT("STATUS_PORT", ENVIRONMENT, "9464", -1, 65535, "",
        "Port of /healthz, /readyz and /metrics; 0: none, -1: any free one, which the log names"),
    [SETTING_LOG_LEVEL] = ENUM("LOG_LEVEL", ENVIRONMENT, "info", "debug info warn error",
        "Least level of lines that are logged"),
    [SETTING_LOG_FORMAT] = ENUM("LOG_FORMAT", ENVIRONMENT, "auto", "auto json pretty",
        "JSON lines, or pretty ones; auto: pretty on a terminal"),
};
/* clang-format on */

const struct setting_row *settings_row(enum setting id)
{
    assert((unsigned)id < SETTING_COUNT);
    return &rows[id];
}
