/* The one rule for file names that come from outside. */
#ifndef SANDPIPER_WORKER_SAFE_PATH_H
#define SANDPIPER_WORKER_SAFE_PATH_H

/* NULL when name may be put below /home/user: relative, valid UTF-8, parts of 1 to 255 bytes that
 * are neither
 * "." nor "..", no control characters and no backslash, at most 1024 bytes and 16 parts, not in the
 * output folder (which is emptied before the run). Else what is wrong with it, as the end of a
 * sentence. */
const char *safe_path_check(const char *name);

#endif
