/* UTF-8: checks, cutting at character boundaries, repair. */
#ifndef SANDPIPER_COMMON_UTF8_H
#define SANDPIPER_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* Strict: no surrogates, no overlong forms, nothing above U+10FFFF. NUL bytes are allowed. */
bool utf8_valid(const char *text, size_t len);

/* Bytes of the character at text (len > 0), or, with *valid false, of the maximal invalid part
 * there. */
size_t utf8_step(const char *text, size_t len, bool *valid);
/* How many bytes from the start are ASCII. */
size_t utf8_ascii_run(const char *text, size_t len);

/* The largest n <= max such that text[0..n) does not end inside a character. text must be valid. */
size_t utf8_cut(const char *text, size_t len, size_t max);
/* The smallest start >= from that is a character boundary (for keeping a tail). */
size_t utf8_cut_tail(const char *text, size_t len, size_t from);

/* Appends text to out with each maximal invalid part replaced by U+FFFD; 0, or -1 when out is full.
 */
int utf8_repair(const char *text, size_t len, struct buf *out) __attribute__((warn_unused_result));

#endif
