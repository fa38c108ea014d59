/* Allocation that never returns NULL: out of memory ends the process with a line on stderr. */
#include "common/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEM_COLD_BYTES 4096 /* more may come zeroed from the kernel */

/* No stdio and no log here: both may allocate. */
static _Noreturn void mem_exhausted(void)
{
    static const char line[] = "sandpiper: out of memory\n";
    ssize_t ignored = write(STDERR_FILENO, line, sizeof(line) - 1);
    (void)ignored;
    abort();
}

void *mem_alloc(size_t size)
{
    void *p;
    if (size > MEM_COLD_BYTES) {
        p = calloc(1, size);
    } else {
        /* glibc's calloc passes its per-thread cache by. (By way of realloc, for gcc makes calloc
         * of malloc and memset.) */
        p = realloc(NULL, size ? size : 1);
        if (p)
            memset(p, 0, size);
    }
    if (!p)
        mem_exhausted();
    return p;
}

void *mem_realloc(void *old, size_t size)
{
    void *p = realloc(old, size ? size : 1);
    if (!p)
        mem_exhausted();
    return p;
}

void *mem_dup(const void *data, size_t len)
{
    if (len == SIZE_MAX)
        mem_exhausted();
    char *copy = mem_realloc(NULL, len + 1);
    if (len)
        memcpy(copy, data, len);
    copy[len] = '\0';
    return copy;
}

char *mem_strdup(const char *text)
{
    return text ? mem_dup(text, strlen(text)) : NULL;
}

char *mem_strndup(const char *text, size_t len)
{
    return text ? mem_dup(text, strnlen(text, len)) : NULL;
}

char *mem_printf(const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0)
        mem_exhausted();
    return text;
}
