/* A growable byte buffer that knows its maximum from birth. */
#ifndef SANDPIPER_COMMON_BUF_H
#define SANDPIPER_COMMON_BUF_H

#include <stddef.h>
#include <string.h>

struct buf {
    char *data; /* NUL-terminated whenever non-NULL; NULL while nothing was added */
    size_t len; /* bytes used, without the NUL */
    size_t cap; /* bytes allocated */
    size_t max; /* len never exceeds this */
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_fini(struct buf *b); /* frees the bytes; the buffer may be used again as empty */

/* Makes room for so many more bytes at once; -1 when that would pass max. */
int buf_reserve(struct buf *b, size_t more) __attribute__((warn_unused_result));
/* The part of buf_append for a buffer that has to grow. */
int buf_append_grown(struct buf *b, const void *data, size_t len)
    __attribute__((warn_unused_result));

/* Append; 0, or -1 when the result would pass max (then nothing is appended). Inline: replies and
 * calls are written in many small pieces. */
__attribute__((warn_unused_result)) static inline int buf_append(struct buf *b, const void *data,
                                                                 size_t len)
{
    if (len >= b->cap - b->len) /* no room for it and the NUL */
        return buf_append_grown(b, data, len);
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}
__attribute__((warn_unused_result)) static inline int buf_append_str(struct buf *b,
                                                                     const char *text)
{
    return buf_append(b, text, strlen(text));
}
int buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), warn_unused_result));

void buf_consume(struct buf *b, size_t len); /* drops len bytes from the front (all if fewer) */
void buf_clear(struct buf *b);               /* len = 0, memory kept */
char *buf_steal(struct buf *b); /* the bytes (caller frees; "" if empty); b is empty after */

#endif
