/* A private redis-server for unit tests: its own folder, socket and port, ended by its process id.
 */
#ifndef SANDPIPER_TESTS_REDIS_SERVER_H
#define SANDPIPER_TESTS_REDIS_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct redis_server {
    char dir[64];  /* removed by redis_server_remove */
    char sock[96]; /* the socket's path */
    int port;      /* loopback */
    pid_t pid;     /* 0: not running */
};

static inline int redis_server_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, size) || getsockname(fd, (struct sockaddr *)&a, &size))
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

/* A blocking connection of the test's own (NULL: not up). */
static inline redisContext *redis_server_dial(const struct redis_server *s)
{
    redisContext *c = redisConnectUnix(s->sock);
    if (c && c->err) {
        redisFree(c);
        return NULL;
    }
    return c;
}

/* Starts the server (again) in its folder and waits until it answers; extra: more arguments or
 * NULL. */
static inline void redis_server_start(struct redis_server *s, const char *const *extra)
{
    if (!s->dir[0]) {
        snprintf(s->dir, sizeof(s->dir), "/tmp/sandpiper-redis-XXXXXX");
        if (!mkdtemp(s->dir))
            abort();
        snprintf(s->sock, sizeof(s->sock), "%s/r.sock", s->dir);
        s->port = redis_server_free_port();
    }
    char port[16];
    snprintf(port, sizeof(port), "%d", s->port);
    const char *argv[32] = {"redis-server", "--port", port,         "--bind", "127.0.0.1", "::1",
                            "--unixsocket", s->sock,  "--dir",      s->dir,   "--save",    "",
                            "--appendonly", "no",     "--loglevel", "warning"};
    int argc = 16;
    for (; extra && *extra && argc < 31; extra++)
        argv[argc++] = *extra;
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    for (int i = 0; i < 1000; i++) {
        redisContext *c = redis_server_dial(s);
        if (c) {
            redisFree(c);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    fprintf(stderr, "redis-server did not start\n");
    abort();
}

static inline void redis_server_kill(struct redis_server *s)
{
    if (!s->pid)
        return;
    kill(s->pid, SIGKILL);
    kill(s->pid, SIGCONT);
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    s->pid = 0;
    unlink(s->sock);
}

static inline void redis_server_remove(struct redis_server *s)
{
    char dump[96];
    redis_server_kill(s);
    snprintf(dump, sizeof(dump), "%s/dump.rdb", s->dir);
    unlink(dump);
    rmdir(s->dir);
    s->dir[0] = '\0';
}

#endif
