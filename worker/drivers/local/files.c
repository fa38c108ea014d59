/* Input and output files of a LOCAL session: no link that user code planted is ever followed. */
#include "worker/drivers/local_files.h"

#include "common/buf.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_FLAGS    (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define MAX_DEPTH    16
#define MAX_VISITS   20000 /* entries looked at in one listing */
#define MAX_WARNINGS 20
#define MAX_PATH     4096

/* The next part of a path: its length, 0 at the end, -1 when it must not be walked. */
static long next_part(const char *path, char part[NAME_MAX + 1])
{
    size_t len = strcspn(path, "/");

    if (len == 0)
        return *path ? -1 : 0;
    if (len > NAME_MAX || (len == 1 && path[0] == '.') || (len == 2 && memcmp(path, "..", 2) == 0))
        return -1;
    memcpy(part, path, len);
    part[len] = '\0';
    return (long)len;
}

/* What we make as root belongs to the session's user, as the folder that it is in. -1 with fd
 * closed. */
static int give_away(int dir_fd, int fd)
{
    struct stat st;

    if (fd < 0 || (fstat(dir_fd, &st) == 0 &&
                   (st.st_uid == geteuid() || fchown(fd, st.st_uid, st.st_gid) == 0)))
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* The folder `name` of dir_fd; made, in place of whatever has that name, when make is set. */
static int enter(int dir_fd, const char *name, bool make)
{
    int fd = openat(dir_fd, name, DIR_FLAGS);

    if (fd >= 0 || !make)
        return fd;
    if (errno == ENOTDIR || errno == ELOOP) {
        if (unlinkat(dir_fd, name, 0) != 0)
            return -1;
    } else if (errno != ENOENT) {
        return -1;
    }
    if (mkdirat(dir_fd, name, 0755) != 0)
        return -1;
    return give_away(dir_fd, openat(dir_fd, name, DIR_FLAGS));
}

/* Walks to the folder that holds the last part of path; its descriptor, and that part in name. */
static int walk(int start_fd, const char *path, bool make, char name[NAME_MAX + 1])
{
    int fd = dup(start_fd);

    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    while (fd >= 0) {
        long len = next_part(path, name);
        if (len <= 0) {
            errno = EINVAL;
            break;
        }
        path += len;
        if (!*path)
            return fd;
        path++;
        int inner = enter(fd, name, make);
        int saved = errno;
        close(fd);
        errno = saved;
        fd = inner;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

int local_files_create(int home_fd, const char *path, char *err, size_t err_size)
{
    char name[NAME_MAX + 1];
    int result = -1;
    int fd = walk(home_fd, path, true, name);

    if (fd >= 0 && unlinkat(fd, name, 0) != 0 && errno == EISDIR) {
        snprintf(err, err_size, "a folder has that name");
        close(fd);
        return -1;
    }
    if (fd >= 0)
        result = give_away(
            fd, openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (result < 0)
        snprintf(err, err_size, "%s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return result;
}

int local_files_open(int home_fd, const char *path, char *err, size_t err_size)
{
    char name[NAME_MAX + 1];
    struct stat st;
    int result = -1, fd = -1;
    int output_fd = enter(home_fd, "output", false);

    if (output_fd >= 0)
        fd = walk(output_fd, path, false, name);
    /* O_NONBLOCK: opening what became a FIFO must not wait for its writer. */
    if (fd >= 0)
        result = openat(fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (result < 0) {
        snprintf(err, err_size, "%s", errno == ELOOP ? "is a link" : strerror(errno));
    } else if (fstat(result, &st) != 0 || !S_ISREG(st.st_mode)) {
        snprintf(err, err_size, "is not a regular file");
        close(result);
        result = -1;
    }
    if (fd >= 0)
        close(fd);
    if (output_fd >= 0)
        close(output_fd);
    return result;
}

struct listing_walk {
    struct local_listing *out;
    size_t max_files;
    size_t capacity;
    size_t visits;
    size_t unreported; /* warnings beyond MAX_WARNINGS */
    bool full;
};

static void warn(struct listing_walk *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void warn(struct listing_walk *w, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (json_array_size(w->out->warnings) >= MAX_WARNINGS) {
        w->unreported++;
        return;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    json_array_append_new(w->out->warnings, jsonx_string(text, strlen(text)));
}

static void add_file(struct listing_walk *w, const char *path, long long size)
{
    struct local_listing *out = w->out;

    if (out->count == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 16;
        out->files = mem_realloc(out->files, w->capacity * sizeof(out->files[0]));
    }
    out->files[out->count++] = (struct driver_file){.path = mem_strdup(path), .size = size};
}

static void list_dir(struct listing_walk *w, int fd, const char *prefix, int depth);

static void list_entry(struct listing_walk *w, int dir_fd, const char *name, const char *path,
                       int depth)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (!utf8_valid(path, strlen(path))) {
        warn(w, "output/%s: skipped, its name is not UTF-8", path);
    } else if (S_ISDIR(st.st_mode)) {
        int fd = depth < MAX_DEPTH ? openat(dir_fd, name, DIR_FLAGS) : -1;
        if (fd >= 0)
            list_dir(w, fd, path, depth + 1);
        else
            warn(w, "output/%s: skipped, %s", path,
                 depth < MAX_DEPTH ? strerror(errno) : "nested too deep");
    } else if (S_ISLNK(st.st_mode)) {
        warn(w, "output/%s: skipped, it is a link", path);
    } else if (!S_ISREG(st.st_mode)) {
        warn(w, "output/%s: skipped, it is not a regular file", path);
    } else if (st.st_nlink > 1) {
        warn(w, "output/%s: skipped, it has several names (hard links)", path);
    } else if (w->out->count >= w->max_files) {
        w->full = true;
        warn(w, "output: more than %zu files; the others are left out", w->max_files);
    } else {
        add_file(w, path, st.st_size);
    }
}

/* Takes fd over. */
static void list_dir(struct listing_walk *w, int fd, const char *prefix, int depth)
{
    char path[MAX_PATH];
    struct dirent *entry;
    DIR *dir = fdopendir(fd);

    if (!dir) {
        close(fd);
        return;
    }
    while (!w->full && (entry = readdir(dir))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (++w->visits > MAX_VISITS) {
            w->full = true;
            warn(w, "output: more than %d entries; the others are left out", MAX_VISITS);
            break;
        }
        int len = snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "/" : "", name);
        if (len < (int)sizeof(path))
            list_entry(w, dirfd(dir), name, path, depth);
    }
    closedir(dir);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct driver_file *)a)->path, ((const struct driver_file *)b)->path);
}

void local_files_list(int home_fd, size_t max_files, struct local_listing *out)
{
    struct listing_walk w = {.out = out, .max_files = max_files};

    *out = (struct local_listing){.warnings = json_array()};
    int fd = enter(home_fd, "output", false);
    if (fd >= 0)
        list_dir(&w, fd, "", 0);
    else if (errno != ENOENT)
        warn(&w, "output: not read, it is not a folder that can be opened (%s)",
             errno == ENOTDIR || errno == ELOOP ? "a link or a file" : strerror(errno));
    if (w.unreported > 0) {
        char text[64];
        snprintf(text, sizeof(text), "output: %zu more entries skipped", w.unreported);
        json_array_append_new(out->warnings, json_string(text));
    }
    if (out->count > 1)
        qsort(out->files, out->count, sizeof(out->files[0]), by_path);
}

void local_listing_fini(struct local_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free((char *)listing->files[i].path);
    free(listing->files);
    json_decref(listing->warnings);
    *listing = (struct local_listing){0};
}
