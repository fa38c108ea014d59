/* Asks the status port of the worker on this machine whether it is healthy: for a container's
 * HEALTHCHECK. */
#ifndef SANDPIPER_WORKER_STATUS_HEALTH_H
#define SANDPIPER_WORKER_STATUS_HEALTH_H

struct settings;

/* GET /healthz at STATUS_HOST and STATUS_PORT (where that is every address: at loopback), waiting
 * for up to 2 s. 0: healthy; 1: not, or no answer, or there is no fixed port, which is said on
 * stderr. Blocks. */
int health_ask(const struct settings *settings);

#endif
