/* Words to the service manager over NOTIFY_SOCKET (sd_notify(3)). */
#ifndef SANDPIPER_COMMON_NOTIFY_H
#define SANDPIPER_COMMON_NOTIFY_H

#include <stdbool.h>

/* "READY=1", "STOPPING=1", "STATUS=...", "WATCHDOG=1", several with newlines between. Never blocks;
 * false when there is nobody to tell (no NOTIFY_SOCKET) or it could not be told. */
bool notify_send(const char *state);

/* The watchdog's time in ms: WATCHDOG_USEC, where WATCHDOG_PID is us or absent; 0: none is wanted.
 */
long long notify_watchdog_ms(void);

#endif
