/* A growable byte buffer that knows its maximum from birth. */
#include "common/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define BUF_FIRST_CAP 64

void buf_init(struct buf *b, size_t max_bytes)
{
    *b = (struct buf){.max = max_bytes};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    buf_init(b, b->max);
}

int buf_reserve(struct buf *b, size_t more)
{
    if (more > b->max || b->len > b->max - more || more >= SIZE_MAX - b->len)
        return -1;
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : BUF_FIRST_CAP;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap - 1 > b->max) /* doubling must not hold more than may ever be used */
        cap = b->max + 1;
    b->data = mem_realloc(b->data, cap);
    b->cap = cap;
    return 0;
}

int buf_append_grown(struct buf *b, const void *data, size_t len)
{
    if (buf_reserve(b, len))
        return -1;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    char small[256]; /* most texts are: formatted once then */
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(small, sizeof(small), fmt, args);
    va_end(args);
    if (len >= 0 && (size_t)len < sizeof(small))
        return buf_append(b, small, (size_t)len);
    if (len < 0 || buf_reserve(b, (size_t)len))
        return -1;
    va_start(args, fmt);
    vsnprintf(b->data + b->len, (size_t)len + 1, fmt, args);
    va_end(args);
    b->len += (size_t)len;
    return 0;
}

void buf_consume(struct buf *b, size_t len)
{
    if (len >= b->len) {
        buf_clear(b);
        return;
    }
    memmove(b->data, b->data + len, b->len - len + 1);
    b->len -= len;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

char *buf_steal(struct buf *b)
{
    char *data = b->data ? b->data : mem_dup("", 0);
    buf_init(b, b->max);
    return data;
}
