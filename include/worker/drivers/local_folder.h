/* The private folder of one LOCAL driver, and finding those of dead workers. */
#ifndef SANDPIPER_WORKER_DRIVERS_LOCAL_FOLDER_H
#define SANDPIPER_WORKER_DRIVERS_LOCAL_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

struct local_folder {
    char *base;  /* absolute path; its last part is unique among drivers of this machine */
    int fd;      /* base, open as a directory */
    int lock_fd; /* flock'ed while this process lives */
    bool drop;   /* we are root, and sessions belong to users of their own */
    char **dead; /* absolute paths of folders whose worker is dead */
    size_t dead_count;
};

/* dir where it is set, else $TMPDIR, else /tmp. */
const char *local_folder_parent(const char *dir);

/* The user of this process's n-th session: a number that nobody else has on this machine; 0, the
 * worker's own, when the worker is not root. Two sessions may get the same where the worker sees
 * few users (a container). */
long local_folder_user(long long n);

/* Makes <dir>/sandpiper-<uid>/<replica>-<pid>-<n> (dir: the setting, or $TMPDIR, or /tmp). 0,
 * or -1 with a reason. drop: as root, let other users through (for bubblewrap).
 * Folders of dead workers are found, not removed. */
int local_folder_init(struct local_folder *folder, const char *dir, const char *replica_id,
                      bool drop, char *err, size_t err_size);
void local_folder_fini(struct local_folder *folder); /* closes; removes the folder if it is empty */

/* Makes <base>/<name>/home and tmp, of that user (0: ours). A descriptor of home, or -1 (errno). */
int local_folder_add(struct local_folder *folder, const char *name, long user);

/* Makes the file <base>/<name> anew, for this user alone. 0, or -1 (errno). */
int local_folder_write(struct local_folder *folder, const char *name, const char *data, size_t len);

#endif
