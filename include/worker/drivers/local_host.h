/* The Python process that runs the LOCAL driver's kernels, started again when it dies. */
#ifndef SANDPIPER_WORKER_DRIVERS_LOCAL_HOST_H
#define SANDPIPER_WORKER_DRIVERS_LOCAL_HOST_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

struct ev_loop;
struct local_folder;
struct local_host;

/* All run from the loop, never inside a call of this module; none may free the host. */
struct local_host_events {
    /* A message of the host (protocol: worker/drivers/local/host/wire.py); borrowed. */
    void (*on_event)(void *data, const json_t *event);
    /* true: it takes commands now. false: it is gone with all its kernels, and will be started
     * again; with the reason and how many starts in a row have failed (0 when it had been up). */
    void (*on_state)(void *data, bool up, const char *reason, int failures);
    void *data;
};

/* Starts the process at once; its program is put into the folder (borrowed until done of
 * local_host_free). config: its first message (stolen), sent again at each restart. */
struct local_host *local_host_new(struct ev_loop *loop, const char *python,
                                  struct local_folder *folder, json_t *config,
                                  const struct local_host_events *events);

/* Queues a message (stolen). 0, or -1 when the host is down or has stopped reading. */
int local_host_send(struct local_host *host, json_t *message) __attribute__((warn_unused_result));
bool local_host_is_up(const struct local_host *host);
pid_t local_host_pid(const struct local_host *host); /* 0 when there is none */

/* Kills a process that no longer does its work; it is started again as after any death. */
void local_host_kill(struct local_host *host, const char *reason);

/* Ends the process (its kernels die, their folders go), then frees the host; done(data) from
 * the loop. No event after this call. */
void local_host_free(struct local_host *host, void (*done)(void *data), void *data);

/* Starts `python -E -s program arguments...` (arguments end with NULL) in a session of its own,
 * with a clean environment and only the four descriptors 0 to 3; -1 is /dev/null, for 3 nothing.
 * 0 and the pid (the caller reaps it), or an errno. */
int local_host_spawn(pid_t *pid, const char *python, const char *program,
                     const char *const *arguments, const int fds[4]);

#endif
