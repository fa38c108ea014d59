/* What jansson leaves to us: tolerant parsing of sandbox output, depth caps, compact dumping. */
#ifndef SANDPIPER_COMMON_JSONX_H
#define SANDPIPER_COMMON_JSONX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct buf;

#define JSONX_MAX_DEPTH 200 /* of anything we build or accept from a sandbox */

/* Strict JSON (any top-level value, NUL escapes allowed, depth <= JSONX_MAX_DEPTH): a new
 * reference, or NULL with a one-line reason in err. Lone surrogates, bare NaN and integers beyond
 * 64 bit are errors. */
json_t *jsonx_parse(const char *text, size_t len, char *err, size_t err_size);

/* Tolerant: as jsonx_parse, but lone surrogate escapes become U+FFFD, bare NaN/Infinity/-Infinity
 * become null, integers beyond 64 bit and reals beyond double become strings of their digits,
 * invalid UTF-8 becomes U+FFFD, and "\u0000" inside an object key becomes U+FFFD. Linear time. */
json_t *jsonx_parse_tolerant(const char *text, size_t len, char *err, size_t err_size);

/* Depth of nesting; 0 for a scalar. Safe on trees of any depth up to jansson's own limit. */
size_t jsonx_depth(const json_t *value);

/* Compact text; the caller frees. NULL only when value is deeper than JSONX_MAX_DEPTH. *len may be
 * NULL. */
char *jsonx_dump(const json_t *value, size_t *len);

/* A JSON string from bytes that may be invalid UTF-8 (repaired). New reference, never NULL. */
json_t *jsonx_string(const char *text, size_t len);

/* Appends text as a JSON string literal with its quotes; text must be valid UTF-8. */
int jsonx_quote(struct buf *out, const char *text, size_t len) __attribute__((warn_unused_result));

/* Object members by type; the fallback when absent, null or of another type. Borrowed. */
const char *jsonx_get_str(const json_t *object, const char *key, const char *fallback);
long long jsonx_get_int(const json_t *object, const char *key, long long fallback);
bool jsonx_get_bool(const json_t *object, const char *key, bool fallback);

#endif
