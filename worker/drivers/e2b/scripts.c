/* The scripts folder of the settings, read for a new sandbox. */
#include "worker/drivers/e2b_scripts.h"

#include "common/log.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 8
#define FILES_MAX 1000
#define BYTES_MAX ((long long)16 << 20)

struct walk {
    struct e2b_scripts *scripts;
    long long total;
};

static char *read_whole(const char *path, long long size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char *bytes = NULL;
    long long got = 0;
    if (fd < 0)
        return NULL;
    bytes = mem_alloc((size_t)size + 1);
    while (got < size) {
        ssize_t n = read(fd, bytes + got, (size_t)(size - got));
        if (n <= 0)
            break;
        got += n;
    }
    close(fd);
    if (got == size)
        return bytes;
    free(bytes);
    return NULL;
}

static void add_file(struct walk *w, const char *path, const char *name, long long size)
{
    struct e2b_scripts *s = w->scripts;
    if (s->count >= FILES_MAX || w->total + size > BYTES_MAX) {
        log_warn("E2B_SCRIPTS_DIR: %.200s is left out: too many or too large files", name);
        return;
    }
    char *bytes = read_whole(path, size);
    if (bytes == NULL) {
        log_warn("E2B_SCRIPTS_DIR: %.200s cannot be read: %s", name, strerror(errno));
        return;
    }
    s->parts = mem_realloc(s->parts, (s->count + 1) * sizeof *s->parts);
    s->parts[s->count++] =
        (struct e2b_part){mem_printf(E2B_HOME "/scripts/%s", name), -1, bytes, size};
    w->total += size;
}

static void walk_folder(struct walk *w, const char *folder, const char *prefix, int depth)
{
    DIR *dir = depth > DEPTH_MAX ? NULL : opendir(folder);
    struct dirent *entry;
    if (dir == NULL) {
        log_warn("E2B_SCRIPTS_DIR: %.200s cannot be read: %s", folder, strerror(errno));
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "__pycache__") == 0)
            continue;
        char *path = mem_printf("%s/%s", folder, entry->d_name);
        char *name = mem_printf("%s%s", prefix, entry->d_name);
        bool known = lstat(path, &st) == 0;
        if (known && S_ISREG(st.st_mode)) {
            add_file(w, path, name, st.st_size);
        } else if (known && S_ISDIR(st.st_mode)) {
            char *deeper = mem_printf("%s/", name);
            walk_folder(w, path, deeper, depth + 1);
            free(deeper);
        }
        free(path);
        free(name);
    }
    closedir(dir);
}

struct e2b_scripts *e2b_scripts_read(const char *folder)
{
    struct walk w = {.scripts = mem_alloc(sizeof *w.scripts)};
    walk_folder(&w, folder, "", 0);
    return w.scripts;
}

void e2b_scripts_free(struct e2b_scripts *scripts)
{
    if (scripts == NULL)
        return;
    for (size_t i = 0; i < scripts->count; i++) {
        free((char *)scripts->parts[i].path);
        free((char *)scripts->parts[i].bytes);
    }
    free(scripts->parts);
    free(scripts);
}
