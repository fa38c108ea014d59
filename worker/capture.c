/* Keeps the head and the tail of a stream of text in bounded memory. */
#include "worker/capture.h"

#include "common/mem.h"
#include "common/utf8.h"

#include <stdlib.h>
#include <string.h>

#define NOTE_ROOM 64 /* bytes for the line that says what is left out */

void capture_init(struct capture *c, size_t max_bytes)
{
    *c = (struct capture){.half = max_bytes / 2};
    buf_init(&c->head, c->half);
}

void capture_fini(struct capture *c)
{
    buf_fini(&c->head);
    free(c->ring);
    c->ring = NULL;
}

void capture_add(struct capture *c, const char *text, size_t len)
{
    c->total += (long long)len;
    size_t room = c->half - c->head.len;
    size_t into_head = len < room ? len : room;
    if (into_head > 0 && buf_append(&c->head, text, into_head) != 0)
        abort();
    text += into_head;
    len -= into_head;
    if (len == 0)
        return;
    if (c->ring == NULL)
        c->ring = mem_alloc(c->half);
    if (len > c->half) {
        text += len - c->half;
        len = c->half;
    }
    size_t first = c->half - c->ring_pos < len ? c->half - c->ring_pos : len;
    memcpy(c->ring + c->ring_pos, text, first);
    memcpy(c->ring, text + first, len - first);
    c->ring_pos = (c->ring_pos + len) % c->half;
    c->ring_len = c->ring_len + len > c->half ? c->half : c->ring_len + len;
}

/* Head and ring as one piece of memory. */
static char *joined(const struct capture *c, size_t *len)
{
    *len = c->head.len + c->ring_len;
    char *all = mem_alloc(*len + 1);
    if (c->head.len > 0)
        memcpy(all, c->head.data, c->head.len);
    for (size_t i = 0; i < c->ring_len; i++)
        all[c->head.len + i] = c->ring[(c->ring_pos + c->half - c->ring_len + i) % c->half];
    return all;
}

/* The largest n <= len such that text[0..n) ends with a whole character, whatever comes after it.
 */
static size_t whole(const char *text, size_t len)
{
    size_t last = len;
    bool valid = true;
    while (last > 0 && len - last < 4 && ((unsigned char)text[last - 1] & 0xc0) == 0x80)
        last--;
    if (last > 0 && (unsigned char)text[last - 1] >= 0xc0)
        utf8_step(text + last - 1, len - last + 1, &valid);
    return valid ? len : last - 1;
}

char *capture_text(const struct capture *c, size_t max, size_t *len, long long *dropped)
{
    size_t kept;
    char *all = joined(c, &kept);
    *dropped = 0;
    *len = kept;
    if (c->total == (long long)kept && kept <= max)
        return all;
    size_t room = max > NOTE_ROOM ? max - NOTE_ROOM : 0;
    /* Where bytes are missing already, neither end may reach across the gap. */
    size_t gap = c->total == (long long)kept ? kept : c->head.len;
    size_t head = room * 2 / 3 < gap ? room * 2 / 3 : gap;
    size_t first_tail = c->total == (long long)kept ? head : gap;
    size_t tail = room - head < kept - first_tail ? room - head : kept - first_tail;
    /* What follows the gap was no neighbour of what is before it. */
    head = head == gap ? whole(all, head) : utf8_cut(all, kept, head);
    size_t from = utf8_cut_tail(all, kept, kept - tail);
    *dropped = c->total - (long long)head - (long long)(kept - from);
    struct buf text;
    buf_init(&text, kept + NOTE_ROOM + 64);
    if (buf_append(&text, all, head) != 0 ||
        buf_printf(&text, "\n[... %lld bytes left out ...]\n", *dropped) != 0 ||
        buf_append(&text, all + from, kept - from) != 0)
        abort();
    free(all);
    *len = text.len;
    return buf_steal(&text);
}
