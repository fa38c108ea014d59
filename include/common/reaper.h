/* The one way of freeing things that die inside a callback: later, when the loop turns. */
#ifndef SANDPIPER_COMMON_REAPER_H
#define SANDPIPER_COMMON_REAPER_H

struct ev_loop;

/* Call once, before any other module uses the loop. */
void reaper_init(struct ev_loop *loop);

/* Runs fn(arg) once, before the loop next waits (ev_prepare): never inside a library's callback.
 * fn may call reaper_defer itself; what it adds runs in the same turn. */
void reaper_defer(void (*fn)(void *arg), void *arg);

/* Runs what is pending and forgets the loop; call after the loop has stopped. */
void reaper_fini(void);

#endif
