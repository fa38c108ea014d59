/* How much of the machine is this process's: its control group's limits, where it has some. */
#include "common/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 4096

/* A controller's folder: the group's own, and the mount above which there is nothing to see. */
struct group {
    char folder[PATH_SIZE];
    size_t mount_len;
};

/* Is one of the comma-separated words of list the word? An empty word is found in an empty list. */
static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);
    if (!len)
        return !*list;
    for (const char *at = list; (at = strstr(at, word)); at += len)
        if ((at == list || at[-1] == ',') && (!at[len] || strchr(",\n ", at[len])))
            return true;
    return false;
}

/* The group's path in the hierarchy of controller ("": v2), from /proc/self/cgroup. */
static bool own_path(const char *root, const char *controller, char *path, size_t size)
{
    char name[PATH_SIZE], line[PATH_SIZE];
    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof(line), file)) {
        char *list = strchr(line, ':'), *own = list ? strchr(list + 1, ':') : NULL;
        if (!own)
            continue;
        *own++ = '\0';
        own[strcspn(own, "\n")] = '\0';
        found = has_word(list + 1, controller) && strlen(own) < size;
        if (found)
            strcpy(path, own);
    }
    if (file)
        fclose(file);
    return found;
}

/* One line of mountinfo: is it that hierarchy's? Then the group's folder below it. */
static bool mount_line(char *line, const char *root, const char *controller, const char *own,
                       struct group *g)
{
    char top[PATH_SIZE], point[PATH_SIZE], type[64], options[PATH_SIZE];
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) != 2 ||
        sscanf(rest, " - %63s %*s %4095s", type, options) != 2)
        return false;
    if (*controller ? strcmp(type, "cgroup") || !has_word(options, controller)
                    : strcmp(type, "cgroup2") != 0)
        return false;
    size_t len = strcmp(top, "/") ? strlen(top) : 0;
    if (strncmp(own, top, len) != 0 || (own[len] && own[len] != '/'))
        own = "", len = 0; /* what is mounted is not above the group: a look at its top will do */
    int n = snprintf(g->folder, sizeof(g->folder), "%s%s%s", root, point, own + len);
    g->mount_len = strlen(root) + strlen(point);
    return n > 0 && (size_t)n < sizeof(g->folder);
}

static bool find_group(const char *root, const char *controller, struct group *g)
{
    char own[PATH_SIZE], name[PATH_SIZE], line[2 * PATH_SIZE];
    if (!own_path(root, controller, own, sizeof(own)))
        return false;
    snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
    FILE *file = fopen(name, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof(line), file))
        found = mount_line(line, root, controller, own, g);
    if (file)
        fclose(file);
    return found;
}

/* A file's one or two numbers; how many there are. "max" is none. */
static int numbers(const char *folder, const char *file, long long *a, long long *b)
{
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, "%lld %lld", a, b) : 0;
    if (f)
        fclose(f);
    return n;
}

static void at_most(long long *value, long long limit)
{
    if (limit > 0 && limit < *value)
        *value = limit;
}

/* The limits of one group, in the files of either version: those that are not there say nothing. */
static void limit_by(const char *folder, struct machine *out)
{
    long long a = 0, b = 0, period = 0;
    if (numbers(folder, "memory.max", &a, &b) > 0 ||
        numbers(folder, "memory.limit_in_bytes", &a, &b) > 0)
        at_most(&out->memory_kib, a / 1024);
    if (numbers(folder, "cpu.max", &a, &b) == 2 && b > 0)
        at_most(&out->cores, (a + b - 1) / b);
    if (numbers(folder, "cpu.cfs_quota_us", &a, &b) == 1 && a > 0 &&
        numbers(folder, "cpu.cfs_period_us", &period, &b) == 1 && period > 0)
        at_most(&out->cores, (a + period - 1) / period);
}

void machine_read(const char *root, struct machine *out)
{
    static const char *const controllers[] = {"", "memory", "cpu"};
    cpu_set_t set;
    out->cores =
        sched_getaffinity(0, sizeof(set), &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    out->memory_kib = (long long)sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / 1024);
    for (size_t i = 0; i < sizeof(controllers) / sizeof(controllers[0]); i++) {
        struct group g;
        if (!find_group(root, controllers[i], &g))
            continue;
        for (;;) {
            limit_by(g.folder, out);
            char *slash = strrchr(g.folder, '/');
            if (!slash || (size_t)(slash - g.folder) < g.mount_len)
                break;
            *slash = '\0';
        }
    }
    if (out->cores < 1)
        out->cores = 1;
}
