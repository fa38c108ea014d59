/* Tests of what a process may use of its machine: groups of both versions, nested, contained. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/machine.h"

static char root[] = "/tmp/sandpiper-machine-XXXXXX";

/* Writes a file below root, with its folders. */
static void put(const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static struct machine look(void)
{
    struct machine m;
    machine_read(root, &m);
    return m;
}

static int setup(void **state)
{
    (void)state;
    strcpy(root + strlen(root) - 6, "XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[sizeof(root) + 32];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

#define MOUNT(top, point, type, options)                                                           \
    "21 20 0:20 / /proc rw - proc proc rw\n"                                                       \
    "36 32 0:29 " top " " point " rw,nosuid shared:9 - " type " cgroup " options "\n"

static void test_no_groups(void **state)
{
    (void)state;
    struct machine m = look();
    assert_true(m.cores >= 1);
    assert_int_equal(m.memory_kib,
                     (long long)sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / 1024));
    put("proc/self/cgroup", "rubbish\n0::\n");
    put("proc/self/mountinfo", "rubbish - \n - cgroup2 x y\n");
    assert_int_equal(look().memory_kib, m.memory_kib);
}

/* The least of all groups above: a container's, and that of the pod or unit around it. */
static void test_v2_nested(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/pod/one/leaf\n");
    put("proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup", "cgroup2", "rw,nsdelegate"));
    put("sys/fs/cgroup/pod/one/leaf/memory.max", "max\n");
    put("sys/fs/cgroup/pod/one/leaf/cpu.max", "max 100000\n");
    long long cores = look().cores;
    put("sys/fs/cgroup/pod/one/cpu.max", "100000000 100000\n"); /* more than there are */
    assert_int_equal(look().cores, cores);
    put("sys/fs/cgroup/pod/one/memory.max", "67108864\n");
    put("sys/fs/cgroup/pod/memory.max", "33554432\n");
    put("sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
    assert_int_equal(look().memory_kib, 32 << 10);
    assert_int_equal(look().cores, 1);
}

/* A group name space: its top has the limits, whatever the path in it is. */
static void test_v2_container(void **state)
{
    (void)state;
    put("proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup", "cgroup2", "rw"));
    put("sys/fs/cgroup/memory.max", "134217728\n");
    put("proc/self/cgroup", "0::/\n");
    assert_int_equal(look().memory_kib, 128 << 10);
    put("proc/self/cgroup", "0::/../elsewhere\n");
    assert_int_equal(look().memory_kib, 128 << 10);
    put("proc/self/mountinfo", MOUNT("/docker/abc", "/sys/fs/cgroup", "cgroup2", "rw"));
    put("proc/self/cgroup", "0::/docker/abc\n");
    assert_int_equal(look().memory_kib, 128 << 10);
    put("proc/self/cgroup", "0::/docker/abcdef\n");
    assert_int_equal(look().memory_kib, 128 << 10);
}

static void test_v1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "8:pids:/\n5:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n");
    put("proc/self/mountinfo",
        MOUNT("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "rw,memory")
            MOUNT("/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"));
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    long long whole = (long long)sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / 1024);
    assert_int_equal(look().memory_kib, whole);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    assert_int_equal(look().memory_kib, 256 << 10);
    assert_int_equal(look().cores, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_groups, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2_nested, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2_container, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1, setup, teardown),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
