/* Log lines: built in one buffer, cleaned of secrets and control characters, sent by one write. */
#include "common/log.h"

#include "common/log_impl.h"
#include "common/mem.h"
#include "common/text.h"
#include "common/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192
#define ID_MAX_BYTES   512 /* of a job id or thread key in a line */

static const char *const level_words[] = {"debug", "info", "warn", "error"};
static const char *const format_words[] = {"auto", "json", "pretty"};
static const char *const level_colours[] = {"\033[2m", "\033[32m", "\033[33m", "\033[31m"};

/* The defaults hold until log_init: what goes wrong before it must be readable too. */
static enum log_level min_level = LOG_LEVEL_INFO;
static bool pretty;
static bool colour;
static unsigned long long lines_written[4], lines_left_out;

struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
};

static bool word_parse(const char *word, const char *const *words, int count, int *out)
{
    for (int i = 0; i < count; i++) {
        if (strcasecmp(word, words[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

bool log_level_parse(const char *word, enum log_level *out)
{
    int i;

    if (!word_parse(word, level_words, 4, &i))
        return false;
    *out = (enum log_level)i;
    return true;
}

bool log_format_parse(const char *word, enum log_format *out)
{
    int i;

    if (!word_parse(word, format_words, 3, &i))
        return false;
    *out = (enum log_format)i;
    return true;
}

const char *log_level_word(enum log_level level)
{
    return level_words[level];
}

unsigned long long log_lines(enum log_level level)
{
    return lines_written[level];
}

unsigned long long log_lines_suppressed(void)
{
    return lines_left_out;
}

void log_init(enum log_level level, enum log_format format)
{
    bool tty = isatty(STDERR_FILENO) == 1;
    const char *no_color = getenv("NO_COLOR");

    min_level = level;
    pretty = format == LOG_FORMAT_PRETTY || (format == LOG_FORMAT_AUTO && tty);
    colour = pretty && tty && !(no_color && *no_color);
}

bool log_enabled(enum log_level level)
{
    return level >= min_level;
}

static bool line_add(struct line *line, const char *text, size_t len, size_t limit)
{
    if (line->len + len > limit)
        return false;
    memcpy(line->text + line->len, text, len);
    line->len += len;
    return true;
}

static void line_puts(struct line *line, const char *text)
{
    (void)line_add(line, text, strlen(text), LINE_MAX_BYTES);
}

/* One character (n bytes at s) as it may stand in a line; the length of what is in out. An invalid
 * byte shows as \xHH, in JSON with the backslash doubled: a JSON string cannot hold the byte. */
static size_t escape_char(const char *s, size_t n, bool valid, char out[24])
{
    unsigned char c = (unsigned char)s[0];
    const char *slash = pretty ? "\\" : "\\\\";
    size_t used = 0;

    if (!valid) {
        for (size_t i = 0; i < n; i++)
            used += (size_t)sprintf(out + used, "%sx%02x", slash, (unsigned char)s[i]);
        return used;
    }
    if (n == 1 && !pretty && (c == '"' || c == '\\'))
        return (size_t)sprintf(out, "\\%c", c);
    if (c == '\n' || c == '\t' || c == '\r')
        return (size_t)sprintf(out, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    if (c < 0x20 || c == 0x7f)
        return (size_t)sprintf(out, "\\u%04x", c);
    if (c == 0xc2 && (unsigned char)s[1] < 0xa0) /* C1 controls: terminals obey them too */
        return (size_t)sprintf(out, "\\u%04x", (unsigned char)s[1]);
    memcpy(out, s, n);
    return n;
}

/* Adds text, escaped, as far as the line stays within limit; a cut is shown by an ellipsis. */
static void line_escape(struct line *line, const char *text, size_t limit)
{
    static const char ellipsis[] = "\xe2\x80\xa6";
    size_t len = strlen(text), at = 0;
    char out[24];

    limit -= sizeof(ellipsis) - 1;
    while (at < len) {
        bool valid;
        size_t n = utf8_step(text + at, len - at, &valid);

        if (!line_add(line, out, escape_char(text + at, n, valid, out), limit)) {
            line_puts(line, ellipsis);
            return;
        }
        at += n;
    }
}

static void line_escape_clean(struct line *line, const char *text, size_t max)
{
    char *clean = log_redact(text);

    line_escape(line, clean, line->len + max);
    free(clean);
}

static void line_time(struct line *line)
{
    long long now = text_now_ms();
    time_t seconds = (time_t)(now / 1000);
    struct tm tm;
    char text[64];

    gmtime_r(&seconds, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    line_puts(line, text);
    snprintf(text, sizeof(text), ".%03dZ", (int)(now % 1000));
    line_puts(line, text);
}

static void line_json(struct line *line, enum log_level level, const struct log_ctx *ctx,
                      const char *message)
{
    line_puts(line, "{\"time\":\"");
    line_time(line);
    line_puts(line, "\",\"level\":\"");
    line_puts(line, level_words[level]);
    if (ctx && ctx->job) {
        line_puts(line, "\",\"job\":\"");
        line_escape_clean(line, ctx->job, ID_MAX_BYTES);
    }
    if (ctx && ctx->thread) {
        line_puts(line, "\",\"thread\":\"");
        line_escape_clean(line, ctx->thread, ID_MAX_BYTES);
    }
    if (ctx && ctx->trace) { /* the names that OpenTelemetry's log formats use */
        line_puts(line, "\",\"trace_id\":\"");
        (void)line_add(line, ctx->trace + 3, 32, LINE_MAX_BYTES);
        line_puts(line, "\",\"span_id\":\"");
        (void)line_add(line, ctx->trace + 36, 16, LINE_MAX_BYTES);
    }
    line_puts(line, "\",\"msg\":\"");
    line_escape(line, message, LINE_MAX_BYTES - strlen("\"}\n"));
    line_puts(line, "\"}\n");
}

static void line_pretty(struct line *line, enum log_level level, const struct log_ctx *ctx,
                        const char *message)
{
    char word[16];

    line_time(line);
    snprintf(word, sizeof(word), " %-5s ", level_words[level]);
    line_puts(line, colour ? level_colours[level] : "");
    line_puts(line, word);
    line_puts(line, colour ? "\033[0m" : "");
    if (ctx && ctx->job) {
        line_puts(line, "[job ");
        line_escape_clean(line, ctx->job, ID_MAX_BYTES);
        line_puts(line, "] ");
    }
    if (ctx && ctx->thread) {
        line_puts(line, "[thread ");
        line_escape_clean(line, ctx->thread, ID_MAX_BYTES);
        line_puts(line, "] ");
    }
    line_escape(line, message, LINE_MAX_BYTES - strlen("\n"));
    line_puts(line, "\n");
}

/* One write for a line: lines of several processes on one pipe or terminal then never mix. A line
 * that cannot be written is lost; waiting for a stuck reader would stop the loop. */
static void line_send(const struct line *line)
{
    ssize_t n;

    do
        n = write(STDERR_FILENO, line->text, line->len);
    while (n < 0 && errno == EINTR);
}

/* The whole message, however long: a secret must be seen whole to be recognised, so the cut to
 * the line's length comes after the redaction. */
__attribute__((format(printf, 1, 0))) static char *message_new(const char *fmt, va_list args)
{
    char *message, *clean;

    if (vasprintf(&message, fmt, args) < 0)
        return mem_strdup("(a log message that could not be formatted)");
    clean = log_redact(message);
    free(message);
    return clean;
}

static void write_line(enum log_level level, const struct log_ctx *ctx, const char *message)
{
    struct line line;

    line.len = 0;
    if (pretty)
        line_pretty(&line, level, ctx, message);
    else
        line_json(&line, level, ctx, message);
    line_send(&line);
    lines_written[level]++;
}

static void say_left_out(enum log_level level, unsigned long long count, long long seconds,
                         const char *kind)
{
    char *message =
        mem_printf("%llu more lines were left out in %lld s, all like: %s", count, seconds, kind);

    write_line(level, NULL, message);
    free(message);
}

void log_flush(void)
{
    log_limit_report(true, text_monotonic_ms(), say_left_out);
}

/* Lines about a job are as many as jobs; a line about nothing but a lasting fault has no end. */
static bool may_repeat(enum log_level level, const struct log_ctx *ctx)
{
    return level < LOG_LEVEL_WARN || (ctx && ctx->job);
}

void log_write(enum log_level level, const struct log_ctx *ctx, const char *fmt, ...)
{
    int saved_errno = errno;
    char *message;
    va_list args;

    if (!log_enabled(level))
        return;
    va_start(args, fmt);
    message = message_new(fmt, args);
    va_end(args);
    log_limit_report(false, text_monotonic_ms(), say_left_out);
    if (may_repeat(level, ctx) ||
        log_limit_pass(level, strcmp(fmt, "%s") == 0 ? message : fmt, text_monotonic_ms()))
        write_line(level, ctx, message);
    else
        lines_left_out++;
    free(message);
    errno = saved_errno;
}
