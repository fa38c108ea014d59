/* Which network addresses the worker may fetch from: the rule for URLs that come from jobs. */
#ifndef SANDPIPER_COMMON_NETADDR_H
#define SANDPIPER_COMMON_NETADDR_H

#include <stdbool.h>
#include <sys/socket.h>

/* True for a globally routable unicast address: not loopback, private (RFC 1918, fc00::/7),
 * link-local, CGNAT, metadata (169.254.169.254 and kin), multicast, unspecified, documentation,
 * benchmark, 0/8, 240/4, nor an IPv4 address of those kinds spelled as v4-mapped, 6to4, NAT64 or
 * Teredo IPv6. */
bool netaddr_is_public(const struct sockaddr *addr);

/* Allow list: "host:port" entries separated by commas or white space; host is a name, an IPv4
 * literal or an [IPv6] literal, compared case-insensitively; port "*" is any. NULL or "" allows
 * nothing. */
bool netaddr_list_valid(const char *list);
bool netaddr_list_allows(const char *list, const char *host, int port);

#endif
