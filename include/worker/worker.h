/* The worker: claims jobs while it has free slots, runs them, ends them, and drains. */
#ifndef SANDPIPER_WORKER_WORKER_H
#define SANDPIPER_WORKER_WORKER_H

struct ev_loop;
struct settings;
struct worker;

/* Starts connecting and working. settings are kept (a reference is taken). NULL with a line in err
 * when they cannot be used. */
struct worker *worker_new(struct ev_loop *loop, struct settings *settings, char *err,
                          unsigned long err_size);

/* Claim no more; let runs finish up to DRAIN_TIMEOUT_MS, then stop them; then ended runs from the
 * loop. The second call stops them at once. */
void worker_drain(struct worker *w, void (*ended)(void *data), void *data);

#ifdef SANDPIPER_TEST_BUILD
/* From now on no claim is made and no wait of the claim loop is begun again: a bug, for tests. */
void worker_hang(void);
#endif

/* unfit runs at most once, from the loop, and only while Redis has not served us yet: the server
 * was reached and is one that cannot (too old, a cluster without a hash tag in QUEUE_PREFIX). */
void worker_on_unfit(struct worker *w, void (*unfit)(const char *reason, void *data), void *data);

/* After `ended`, once the loop has stopped. */
void worker_free(struct worker *w);

#endif
