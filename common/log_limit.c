/* Counts repeats of warnings and errors, so that a fault that lasts does not fill the disk. */
#include "common/log_impl.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 256 /* more than there are formats; beyond it lines pass uncounted */

struct kind {
    char *text;
    enum log_level level;
    long long began_ms; /* of its window */
    unsigned lines;
    unsigned long long left_out;
};

static struct kind kinds[KINDS_MAX];
static size_t kind_count;
static unsigned long long left_out; /* in windows not yet reported */

static struct kind *kind_of(const char *text, long long now_ms)
{
    for (size_t i = 0; i < kind_count; i++)
        if (strcmp(kinds[i].text, text) == 0)
            return &kinds[i];
    /* A window that is over and has nothing to tell makes room. */
    for (size_t i = 0; i < kind_count; i++) {
        struct kind *k = &kinds[i];
        if (k->left_out > 0 || now_ms - k->began_ms < LOG_LIMIT_WINDOW_MS)
            continue;
        free(k->text);
        *k = (struct kind){.text = mem_strdup(text), .began_ms = now_ms};
        return k;
    }
    if (kind_count == KINDS_MAX)
        return NULL;
    kinds[kind_count] = (struct kind){.text = mem_strdup(text), .began_ms = now_ms};
    return &kinds[kind_count++];
}

bool log_limit_pass(enum log_level level, const char *text, long long now_ms)
{
    struct kind *k = kind_of(text, now_ms);
    if (k == NULL)
        return true;
    if (now_ms - k->began_ms >= LOG_LIMIT_WINDOW_MS && k->left_out == 0) {
        k->began_ms = now_ms;
        k->lines = 0;
    }
    k->level = level;
    if (k->lines < LOG_LIMIT_LINES) {
        k->lines++;
        return true;
    }
    k->left_out++;
    left_out++;
    return false;
}

void log_limit_report(bool all, long long now_ms,
                      void (*say)(enum log_level level, unsigned long long count, long long seconds,
                                  const char *kind))
{
    for (size_t i = 0; i < kind_count && left_out > 0; i++) {
        struct kind *k = &kinds[i];
        long long age = now_ms - k->began_ms;
        if (k->left_out == 0 || (!all && age < LOG_LIMIT_WINDOW_MS))
            continue;
        say(k->level, k->left_out, age / 1000, k->text);
        left_out -= k->left_out;
        k->left_out = 0;
        k->lines = 0;
        k->began_ms = now_ms;
    }
}
