/* Log lines: JSON objects or, on a terminal, pretty text; secrets are replaced before a byte
 * leaves. */
#ifndef SANDPIPER_COMMON_LOG_H
#define SANDPIPER_COMMON_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_JSON, LOG_FORMAT_PRETTY };

/* What a line is about; members may be NULL. Borrowed for the call. */
struct log_ctx {
    const char *job;    /* job id */
    const char *thread; /* thread key T */
    const char *trace;  /* W3C traceparent, well-formed ("00-<trace id>-<span id>-<flags>") */
};

/* AUTO: pretty when stderr is a terminal, else JSON. Lines go to stderr. */
void log_init(enum log_level min_level, enum log_format format);

/* Parse the words of LOG_LEVEL and LOG_FORMAT; false (and *out untouched) when unknown. */
bool log_level_parse(const char *word, enum log_level *out);
bool log_format_parse(const char *word, enum log_format *out);
const char *log_level_word(enum log_level level);

/* From now on `secret` (copied; ignored when NULL or shorter than 4 bytes) appears as "***" in
 * every line, also in its percent-encoded and JSON-escaped spelling. */
void log_secret_add(const char *secret);
/* A copy of text with the known secrets replaced; the caller frees. For error texts that leave the
 * process. */
char *log_redact(const char *text);
void log_secrets_clear(void);

/* One line. Control characters and invalid UTF-8 in the text are escaped; a line is cut at 8 KiB.
 * Warnings and errors that are about no job are written 10 times a minute at most for each fmt;
 * then one line says how many were left out. */
void log_write(enum log_level level, const struct log_ctx *ctx, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool log_enabled(enum log_level level); /* worth asking before a text is made with effort */
/* Says what was left out since; at the end of the process. */
void log_flush(void);
/* So far: lines written of a level; lines left out. */
unsigned long long log_lines(enum log_level level);
unsigned long long log_lines_suppressed(void);

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, NULL, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)

#endif
