/* Tests of the nameless temporary files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/spool.h"

static void test_write_and_read(void **state)
{
    (void)state;
    int fd = spool_open();
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(spool_write(fd, "abc", 3), 0);
    assert_int_equal(spool_write(fd, "", 0), 0);
    assert_int_equal(spool_write(fd, "d\0e", 3), 0);
    char got[16];
    assert_int_equal(pread(fd, got, sizeof got, 0), 6);
    assert_memory_equal(got, "abcd\0e", 6);
    close(fd);
}

static void test_errors(void **state)
{
    (void)state;
    int full = open("/dev/full", O_WRONLY);
    assert_int_equal(spool_write(full, "x", 1), -1);
    assert_int_equal(errno, ENOSPC);
    close(full);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    assert_int_equal(spool_open(), -1);
    unsetenv("TMPDIR");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests_name("spool", tests, NULL, NULL);
}
