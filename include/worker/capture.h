/* Keeps the head and the tail of a stream of text in bounded memory. */
#ifndef SANDPIPER_WORKER_CAPTURE_H
#define SANDPIPER_WORKER_CAPTURE_H

#include "common/buf.h"

struct capture {
    struct buf head;
    char *ring;  /* the last ring_len bytes after the head; made on first need */
    size_t half; /* bytes kept at each end */
    size_t ring_pos, ring_len;
    long long total; /* bytes seen */
};

void capture_init(struct capture *c, size_t max_bytes);
void capture_fini(struct capture *c);
void capture_add(struct capture *c, const char *text, size_t len);

/* At most max bytes of it (head and tail, cut at characters, with a line between that says how much
 * is left out). Heap, caller frees; *dropped is the bytes that are not in it. */
char *capture_text(const struct capture *c, size_t max, size_t *len, long long *dropped);

#endif
