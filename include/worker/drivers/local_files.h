/* Files in a LOCAL session's folder, where user code may have planted anything. */
#ifndef SANDPIPER_WORKER_DRIVERS_LOCAL_FILES_H
#define SANDPIPER_WORKER_DRIVERS_LOCAL_FILES_H

#include "worker/driver.h"

#include <jansson.h>
#include <stddef.h>

/* Creates the file `path` (relative, checked by the caller's caller; ".", ".." and empty parts
 * are refused here again) under home_fd, its folders with it. What is in the way is replaced,
 * links are never followed. A descriptor open for writing, or -1 with a few words in err. */
int local_files_create(int home_fd, const char *path, char *err, size_t err_size);

struct local_listing {
    struct driver_file *files; /* sorted by path */
    size_t count;
    json_t *warnings; /* array of strings; what was left out and why */
};

/* Regular files under <home_fd>/output, at most max_files of them, 16 levels deep. Links,
 * special files, files with several names and names that are not UTF-8 are left out, each with
 * a warning (at most 20). */
void local_files_list(int home_fd, size_t max_files, struct local_listing *out);
void local_listing_fini(struct local_listing *listing);

/* Opens output/<path> for reading: regular, not a link, at no component. -1 with a few words
 * in err. */
int local_files_open(int home_fd, const char *path, char *err, size_t err_size);

#endif
