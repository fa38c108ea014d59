/* The private folder of a LOCAL driver: made safely, locked while its process lives. */
#include "worker/drivers/local_folder.h"

#include "common/log.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define DEAD_MAX  256 /* folders of dead workers looked after at one start */

static const char LOCK_NAME[] = ".lock";

/* Numbers that no distribution and no program gives away (systemd's list of them says unused);
 * where a container has no such users, others that are free on Debian. */
#define USERS_FIRST   1900000000LL
#define USERS_EACH    4096LL /* of one process */
#define USERS_PIDS    60000LL
#define FEW_FIRST     60578LL
#define FEW_COUNT     606LL
#define NOBODY        65534L
#define FOLDER_OF_ALL 0711 /* passable, for bubblewrap that runs as a session's user */

static void fail(char *err, size_t err_size, const char *what, const char *path)
{
    snprintf(err, err_size, "%s %s: %s", what, path, strerror(errno));
}

/* The parent of all drivers' folders of this user: ours alone, or someone could swap what is
 * in it. */
static int open_parent(const char *path, char *err, size_t err_size)
{
    struct stat st;

    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        fail(err, err_size, "cannot make", path);
        return -1;
    }
    int fd = open(path, DIR_FLAGS);
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail(err, err_size, "cannot open", path);
    } else if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
        snprintf(err, err_size, "%s is not a folder that only this user can write", path);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Has this process's user namespace the users first to last? */
static bool has_users(long long first, long long last)
{
    long long start, outside, count;
    bool found = false;
    FILE *map = fopen("/proc/self/uid_map", "re");

    while (map && !found && fscanf(map, "%lld %lld %lld", &start, &outside, &count) == 3)
        found = first >= start && last < start + count;
    if (map)
        fclose(map);
    return found;
}

long local_folder_user(long long n)
{
    if (geteuid() != 0)
        return 0;
    long long first = USERS_FIRST + getpid() % USERS_PIDS * USERS_EACH;
    if (has_users(first, first + USERS_EACH - 1))
        return (long)(first + n % USERS_EACH);
    if (has_users(FEW_FIRST, FEW_FIRST + FEW_COUNT - 1))
        return (long)(FEW_FIRST + n % FEW_COUNT);
    return NOBODY;
}

const char *local_folder_parent(const char *dir)
{
    const char *tmp = getenv("TMPDIR");

    if (*dir)
        return dir;
    return tmp && *tmp ? tmp : "/tmp";
}

/* bubblewrap, as a session's user, must get through every folder on the way. path is changed and
 * restored. */
static int check_passable(char *path, char *err, size_t err_size)
{
    struct stat st;

    for (char *end = path + 1; end; end = *end ? strchr(end + 1, '/') : NULL) {
        char kept = *end;
        *end = '\0';
        bool closed = stat(path, &st) == 0 && (st.st_mode & 001) == 0;
        if (closed)
            snprintf(err, err_size,
                     "CODE_INTERPRETER_LOCAL_DIR: %s is closed to other users, but as root the "
                     "worker gives each session a user of its own (chmod o+x, or another folder)",
                     path);
        *end = kept;
        if (closed)
            return -1;
    }
    return 0;
}

static int lock_file(int dir_fd, const char *name, int operation)
{
    int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd >= 0 && flock(fd, operation) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Its lock can be had: the process that made the folder is gone. */
static int is_dead(int parent_fd, const char *name)
{
    int dir_fd = openat(parent_fd, name, DIR_FLAGS);
    int lock_fd = dir_fd < 0 ? -1 : lock_file(dir_fd, LOCK_NAME, LOCK_EX | LOCK_NB);

    if (lock_fd >= 0)
        close(lock_fd);
    if (dir_fd >= 0)
        close(dir_fd);
    return lock_fd >= 0;
}

static void find_dead(struct local_folder *folder, int parent_fd, const char *parent)
{
    struct dirent *entry;
    int fd = openat(parent_fd, ".", DIR_FLAGS);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)) && folder->dead_count < DEAD_MAX) {
        if (entry->d_name[0] == '.' || !is_dead(parent_fd, entry->d_name))
            continue;
        folder->dead =
            mem_realloc(folder->dead, (folder->dead_count + 1) * sizeof(folder->dead[0]));
        folder->dead[folder->dead_count++] = mem_printf("%s/%s", parent, entry->d_name);
        log_info("LOCAL: removing the folder of a dead worker: %s/%s", parent, entry->d_name);
    }
    closedir(dir);
}

static char *folder_name(const char *replica_id)
{
    static unsigned serial;
    char *name = mem_printf("%.64s-%ld-%u", replica_id, (long)getpid(), ++serial);

    for (char *c = name; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", *c))
            *c = '_';
    return name;
}

static int make_own(struct local_folder *folder, int parent_fd, const char *name, char *err,
                    size_t err_size)
{
    if (mkdirat(parent_fd, name, 0700) != 0)
        goto fail;
    folder->fd = openat(parent_fd, name, DIR_FLAGS);
    if (folder->fd < 0)
        goto fail;
    folder->lock_fd = lock_file(folder->fd, LOCK_NAME, LOCK_EX | LOCK_NB);
    if (folder->lock_fd >= 0)
        return 0;
fail:
    fail(err, err_size, "cannot make the folder", name);
    return -1;
}

int local_folder_init(struct local_folder *folder, const char *dir, const char *replica_id,
                      bool drop, char *err, size_t err_size)
{
    char *parent = NULL, *name = folder_name(replica_id);
    int parent_fd = -1, guard_fd = -1, result = -1;

    *folder = (struct local_folder){.fd = -1, .lock_fd = -1};
    folder->drop = drop && geteuid() == 0;
    dir = local_folder_parent(dir);
    char *real = realpath(dir, NULL);
    if (!real) {
        fail(err, err_size, "cannot find the folder", dir);
        goto out;
    }
    if (folder->drop && check_passable(real, err, err_size) != 0)
        goto out;
    parent = mem_printf("%s/sandpiper-%ld", real, (long)geteuid());
    parent_fd = open_parent(parent, err, err_size);
    if (parent_fd < 0)
        goto out;
    if (folder->drop)
        fchmod(parent_fd, FOLDER_OF_ALL);
    /* Held while a folder has no lock of its own yet; for microseconds, by workers that start. */
    guard_fd = lock_file(parent_fd, LOCK_NAME, LOCK_EX);
    if (guard_fd < 0) {
        fail(err, err_size, "cannot lock", parent);
        goto out;
    }
    find_dead(folder, parent_fd, parent);
    result = make_own(folder, parent_fd, name, err, err_size);
    if (result == 0 && folder->drop)
        fchmod(folder->fd, FOLDER_OF_ALL);
    if (result == 0)
        folder->base = mem_printf("%s/%s", parent, name);
out:
    if (guard_fd >= 0)
        close(guard_fd);
    if (parent_fd >= 0)
        close(parent_fd);
    free(parent);
    free(real);
    free(name);
    if (result != 0)
        local_folder_fini(folder);
    return result;
}

void local_folder_fini(struct local_folder *folder)
{
    if (folder->base) {
        unlinkat(folder->fd, LOCK_NAME, 0);
        rmdir(folder->base); /* what is left is found by the next worker */
    }
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    if (folder->fd >= 0)
        close(folder->fd);
    for (size_t i = 0; i < folder->dead_count; i++)
        free(folder->dead[i]);
    free(folder->dead);
    free(folder->base);
    *folder = (struct local_folder){.fd = -1, .lock_fd = -1};
}

int local_folder_write(struct local_folder *folder, const char *name, const char *data, size_t len)
{
    /* Never through what is there: without isolation, code of sessions could have put a link. */
    unlinkat(folder->fd, name, 0);
    int fd = openat(folder->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        data += n;
        len -= (size_t)n;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return len == 0 ? 0 : -1;
}

/* A folder in dir_fd, for the user alone; a descriptor of it, or -1 (errno). */
static int make_for(int dir_fd, const char *name, long user)
{
    int fd = mkdirat(dir_fd, name, 0700) == 0 ? openat(dir_fd, name, DIR_FLAGS) : -1;

    if (fd >= 0 && user != 0 && fchown(fd, (uid_t)user, (gid_t)user) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

int local_folder_add(struct local_folder *folder, const char *name, long user)
{
    int fd = make_for(folder->fd, name, 0), home = -1;

    if (fd < 0)
        return -1;
    int tmp = make_for(fd, "tmp", user);
    if (tmp >= 0 && (user == 0 || fchmod(fd, FOLDER_OF_ALL) == 0))
        home = make_for(fd, "home", user);
    int saved = errno;
    if (tmp >= 0)
        close(tmp);
    close(fd);
    errno = saved;
    return home;
}
