/* Files of this tree that are carried inside the binary (made by worker/embed.py). */
#ifndef SANDPIPER_WORKER_EMBEDDED_H
#define SANDPIPER_WORKER_EMBEDDED_H

#include <stddef.h>

/* worker/drivers/local/host as an archive that Python runs: binary, of embedded_local_host_pyz_len
 * bytes (the NUL behind it does not count). */
extern const char embedded_local_host_pyz[];
extern const size_t embedded_local_host_pyz_len;
extern const char embedded_prepare_py[]; /* worker/drivers/kernel/prepare.py, NUL-terminated */
extern const size_t embedded_prepare_py_len;

#endif
