/* A counted, owned string: job ids and payloads may hold any byte. */
#ifndef SANDPIPER_COMMON_STR_H
#define SANDPIPER_COMMON_STR_H

#include <stddef.h>

struct str {
    char *data; /* heap, NUL-terminated; NULL: absent */
    size_t len; /* without the NUL */
};

/* A copy of len bytes; NULL data gives an absent string. */
struct str str_make(const void *data, size_t len);
struct str str_copy(const struct str *from);
void str_fini(struct str *s); /* frees and makes absent; an absent one is fine */

#endif
