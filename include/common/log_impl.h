/* Shared by the log's files alone: which lines are left out. */
#ifndef SANDPIPER_COMMON_LOG_IMPL_H
#define SANDPIPER_COMMON_LOG_IMPL_H

#include "common/log.h"

enum {
    LOG_LIMIT_LINES = 10,       /* of one kind in a window ... */
    LOG_LIMIT_WINDOW_MS = 60000 /* ... which begins with the first of them */
};

/* May this line be written? It counts. A kind is a format (of "%s": a text). */
bool log_limit_pass(enum log_level level, const char *kind, long long now_ms);
/* What is to be said about lines that were left out in windows that are over (all: in every one):
 * say runs for each kind. */
void log_limit_report(bool all, long long now_ms,
                      void (*say)(enum log_level level, unsigned long long count, long long seconds,
                                  const char *kind));

#endif
