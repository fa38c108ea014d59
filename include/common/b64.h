/* Base64 (RFC 4648, with padding). */
#ifndef SANDPIPER_COMMON_B64_H
#define SANDPIPER_COMMON_B64_H

#include <stddef.h>

/* Heap string with the encoding of len bytes; the caller frees. */
char *b64_encode(const void *data, size_t len);

/* Decodes; white space is skipped, missing padding allowed. Heap bytes (caller frees, never NULL on
 * success) and *out_len, or NULL when text is not base64. */
unsigned char *b64_decode(const char *text, size_t len, size_t *out_len);

#endif
