/* Name resolution off the loop: host names to numeric addresses. */
#ifndef SANDPIPER_COMMON_RESOLVE_H
#define SANDPIPER_COMMON_RESOLVE_H

struct ev_loop;
struct resolve; /* one look-up under way */

enum { RESOLVE_MAX_ADDRESSES = 16, RESOLVE_ADDRESS_SIZE = 80 };

/* Runs once from the loop, never inside resolve_start. addresses: count numeric addresses in the
 * order the system prefers, borrowed; count 0 with a reason in error when the name cannot be
 * resolved. The look-up is gone when this is called: do not cancel it any more. */
typedef void (*resolve_fn)(char addresses[][RESOLVE_ADDRESS_SIZE], int count, const char *error,
                           void *data);

/* Starts looking up host (a name, or an address literal without brackets). Never NULL. */
struct resolve *resolve_start(struct ev_loop *loop, const char *host, resolve_fn fn, void *data);

/* No callback after this. A query the system will not give up ends by itself, unheard. */
void resolve_cancel(struct resolve *lookup);

#endif
