/* Allocation that never returns NULL: for small structs and strings of bounded size. */
#ifndef SANDPIPER_COMMON_MEM_H
#define SANDPIPER_COMMON_MEM_H

#include <stddef.h>

/* Each returns heap memory that the caller frees with free(); out of memory ends the process with a
 * line on stderr. Sizes that come from outside (payloads, files) belong in a bounded struct buf. */
void *mem_alloc(size_t size);              /* zeroed */
void *mem_realloc(void *old, size_t size); /* grown part not zeroed */
char *mem_strdup(const char *text);        /* NULL gives NULL */
char *mem_strndup(const char *text, size_t len);
void *mem_dup(const void *data, size_t len); /* a NUL byte is added behind the copy */
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
