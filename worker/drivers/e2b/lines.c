/* NDJSON: whole lines out of pieces of any size, each byte looked at once, with a cap a line. */
#include "common/buf.h"
#include "common/mem.h"
#include "worker/drivers/e2b_exec.h"

#include <stdlib.h>
#include <string.h>

struct e2b_lines {
    struct buf part; /* of a line whose end has not come */
    size_t lost;     /* bytes of a line that is too long, so far; else 0 */
    size_t max;
};

struct e2b_lines *e2b_lines_new(size_t line_max)
{
    struct e2b_lines *lines = mem_alloc(sizeof *lines);
    lines->max = line_max;
    buf_init(&lines->part, line_max);
    return lines;
}

void e2b_lines_free(struct e2b_lines *lines)
{
    if (lines == NULL)
        return;
    buf_fini(&lines->part);
    free(lines);
}

/* A line without its end: kept, or counted as lost. */
static void keep(struct e2b_lines *lines, const char *piece, size_t len)
{
    if (lines->lost > 0) {
        lines->lost += len;
    } else if (buf_append(&lines->part, piece, len) != 0) {
        lines->lost = lines->part.len + len;
        buf_fini(&lines->part);
    }
}

/* The line that has been kept is whole. */
static bool flush(struct e2b_lines *lines,
                  bool (*on_line)(void *data, const char *line, size_t len, size_t lost),
                  void *data)
{
    struct buf whole = lines->part;
    size_t lost = lines->lost;
    bool on = true;
    buf_init(&lines->part, lines->max);
    lines->lost = 0;
    if (lost > 0)
        on = on_line(data, NULL, 0, lost);
    else if (whole.len > 0)
        on = on_line(data, whole.data, whole.len, 0);
    free(whole.data);
    return on;
}

bool e2b_lines_feed(struct e2b_lines *lines, const char *piece, size_t len,
                    bool (*on_line)(void *data, const char *line, size_t len, size_t lost),
                    void *data)
{
    while (len > 0) {
        const char *end = memchr(piece, '\n', len);
        size_t n = end != NULL ? (size_t)(end - piece) : len;
        if (end == NULL) {
            keep(lines, piece, n);
            return true;
        }
        bool direct = lines->part.len == 0 && lines->lost == 0 && n <= lines->max;
        if (!direct)
            keep(lines, piece, n);
        if (direct ? n > 0 && !on_line(data, piece, n, 0) : !flush(lines, on_line, data))
            return false;
        piece += n + 1;
        len -= n + 1;
    }
    return true;
}

bool e2b_lines_end(struct e2b_lines *lines,
                   bool (*on_line)(void *data, const char *line, size_t len, size_t lost),
                   void *data)
{
    return flush(lines, on_line, data);
}
