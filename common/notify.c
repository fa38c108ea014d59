/* Words to the service manager over NOTIFY_SOCKET (sd_notify(3)): one datagram, so libsystemd is
 * not needed for it. */
#include "common/notify.h"

#include "common/text.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool notify_send(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = path != NULL ? strlen(path) : 0;
    if (len < 2 || len >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
        return false;
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') /* the abstract name space; its names end with the address */
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    close(fd);
    return n == (ssize_t)strlen(state);
}

long long notify_watchdog_ms(void)
{
    const char *pid = getenv("WATCHDOG_PID"), *usec = getenv("WATCHDOG_USEC");
    long long us = 0, whose = 0;
    if (usec == NULL || !text_parse_int(usec, &us) || us < 1000)
        return 0;
    if (pid != NULL && (!text_parse_int(pid, &whose) || whose != getpid()))
        return 0;
    return us / 1000;
}
