/* MIME types by file name, and file name endings by MIME type. */
#ifndef SANDPIPER_COMMON_MIME_H
#define SANDPIPER_COMMON_MIME_H

#include <stdbool.h>

/* By the ending after the last dot, case-insensitively; "application/octet-stream" when unknown,
 * when there is none, or for dot files. A superset of the incumbent's table. Static string. */
const char *mime_from_filename(const char *filename);

/* True for a type whose Jupyter value is base64 text of bytes (image/png, image/jpeg, image/gif,
 * application/pdf, ...; image/svg+xml is text). */
bool mime_is_base64_in_jupyter(const char *mime);

#endif
