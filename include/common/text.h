/* Small string helpers: percent-encoding, ANSI escapes, random ids, time. */
#ifndef SANDPIPER_COMMON_TEXT_H
#define SANDPIPER_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* Percent-encodes every byte that is in `set` (a NUL-terminated list of characters); heap, caller
 * frees. */
char *text_percent_encode_set(const char *text, size_t len, const char *set);
/* Percent-encodes all but RFC 3986 unreserved characters; heap, caller frees. */
char *text_percent_encode(const char *text, size_t len);
/* Value of a hexadecimal digit, -1 for anything else. */
int text_hex_digit(char c);
/* Decodes %XX; heap, caller frees; NULL on a malformed escape or an encoded NUL. */
char *text_percent_decode(const char *text, size_t len);

/* Appends text without ANSI escape sequences (CSI, OSC, two-byte); 0, or -1 when out is full. */
int text_strip_ansi(const char *text, size_t len, struct buf *out)
    __attribute__((warn_unused_result));

/* Writes value in decimal, ended with a NUL; the length. Much faster than printf. */
size_t text_from_int(char out[24], long long value);

/* Random UUID v4 in its 36-character spelling, from the kernel's generator. */
void text_uuid(char out[37]);

/* Wall clock in ms since the epoch; monotonic clock in ms. Neither depends on the loop's cached
 * time. */
long long text_now_ms(void);
long long text_monotonic_ms(void);

/* Decimal integer that fills the whole string; false when it does not or overflows. */
bool text_parse_int(const char *text, long long *out);

#endif
