/* Tests of words to the service manager: path and abstract sockets, and who the watchdog is for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/notify.h"

/* A socket as the manager has it; name begins with '/' or '@'. */
static int manager(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(address.sun_path, name, len);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    assert_int_equal(bind(fd, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
                     0);
    return fd;
}

static void expect_word(int fd, const char *word)
{
    char text[200] = "";
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    assert_int_equal(n, strlen(word));
    assert_string_equal(text, word);
}

static void test_sockets(void **state)
{
    (void)state;
    char folder[] = "/tmp/sandpiper-notify-XXXXXX", path[64], abstract[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/notify", folder);
    snprintf(abstract, sizeof abstract, "@sandpiper-notify-%d", (int)getpid());
    const char *const names[] = {path, abstract};
    for (size_t i = 0; i < 2; i++) {
        int fd = manager(names[i]);
        setenv("NOTIFY_SOCKET", names[i], 1);
        assert_true(notify_send("READY=1\nSTATUS=here"));
        expect_word(fd, "READY=1\nSTATUS=here");
        close(fd);
    }
    assert_false(notify_send("READY=1")); /* the abstract one went with its socket */
    unlink(path);
    rmdir(folder);
}

static void test_nobody(void **state)
{
    (void)state;
    char longest[300];
    memset(longest, 'x', sizeof longest - 1);
    longest[0] = '/';
    longest[sizeof longest - 1] = '\0';
    const char *const wrong[] = {"", "/", "@", "relative", "/nonexistent/notify", longest};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("NOTIFY_SOCKET", wrong[i], 1);
        assert_false(notify_send("READY=1"));
    }
    unsetenv("NOTIFY_SOCKET");
    assert_false(notify_send("READY=1"));
}

/* A manager that does not read: the word is lost, the loop is not. */
static void test_full(void **state)
{
    (void)state;
    char abstract[64];
    int sent = 0;
    snprintf(abstract, sizeof abstract, "@sandpiper-full-%d", (int)getpid());
    int fd = manager(abstract);
    setenv("NOTIFY_SOCKET", abstract, 1);
    while (sent < 100000 && notify_send("WATCHDOG=1"))
        sent++;
    assert_true(sent > 0 && sent < 100000);
    close(fd);
}

static void test_watchdog(void **state)
{
    (void)state;
    char me[24], other[24];
    snprintf(me, sizeof me, "%d", (int)getpid());
    snprintf(other, sizeof other, "%d", (int)getppid());
    const struct {
        const char *usec, *pid;
        long long ms;
    } cases[] = {{"30000000", me, 30000},
                 {"30000000", NULL, 30000},
                 {"30000000", other, 0},
                 {NULL, me, 0},
                 {"", me, 0},
                 {"-5", me, 0},
                 {"30s", me, 0},
                 {"1", me, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        if (cases[i].usec)
            setenv("WATCHDOG_USEC", cases[i].usec, 1);
        if (cases[i].pid)
            setenv("WATCHDOG_PID", cases[i].pid, 1);
        assert_int_equal(notify_watchdog_ms(), cases[i].ms);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sockets),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_watchdog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
