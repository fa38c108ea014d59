/* Unnamed temporary files: bytes on their way in or out of a sandbox that should not stay in
 * memory. */
#ifndef SANDPIPER_WORKER_SPOOL_H
#define SANDPIPER_WORKER_SPOOL_H

#include <stddef.h>

/* An open, empty, nameless file in $TMPDIR or /tmp, closed on exec; -1 with errno. The caller
 * closes it. */
int spool_open(void);
/* All of data at the end; 0, or -1 with errno (disk full). */
int spool_write(int fd, const void *data, size_t len);

#endif
