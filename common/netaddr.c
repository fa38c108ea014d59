/* Which network addresses the worker may fetch from. */
#include "common/netaddr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NETADDR_SPACE ", \t\r\n"

struct prefix4 {
    uint32_t net;
    int bits;
};

/* What is not globally reachable unicast (the IANA special-purpose registry). */
static const struct prefix4 special4[] = {
    {0x00000000, 8},  /* this network */
    {0x0a000000, 8},  /* private */
    {0x64400000, 10}, /* CGNAT; 100.100.100.200 is a cloud's metadata */
    {0x7f000000, 8},  /* loopback */
    {0xa9fe0000, 16}, /* link-local; 169.254.169.254 is most clouds' metadata */
    {0xac100000, 12}, /* private */
    {0xc0000000, 24}, /* IETF protocol assignments; 192.0.0.192 is a cloud's metadata */
    {0xc0000200, 24}, /* documentation */
    {0xc0586300, 24}, /* 6to4 relays */
    {0xc0a80000, 16}, /* private */
    {0xc6120000, 15}, /* benchmark */
    {0xc6336400, 24}, /* documentation */
    {0xcb007100, 24}, /* documentation */
    {0xe0000000, 4},  /* multicast */
    {0xf0000000, 4},  /* reserved, broadcast */
    {0xa83f8110, 32}, /* 168.63.129.16: a cloud's host agent, publicly numbered */
};

static bool is_public4(uint32_t ip)
{
    for (size_t i = 0; i < sizeof(special4) / sizeof(special4[0]); i++)
        if ((ip ^ special4[i].net) >> (32 - special4[i].bits) == 0)
            return false;
    return true;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool begins(const uint8_t *ip, const uint8_t *prefix, size_t len)
{
    return !memcmp(ip, prefix, len);
}

static bool is_public6(const uint8_t *ip)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b};
    static const uint8_t nat64_local[6] = {0, 0x64, 0xff, 0x9b, 0, 1};
    static const uint8_t teredo[4] = {0x20, 0x01, 0, 0};
    static const uint8_t documentation[4] = {0x20, 0x01, 0x0d, 0xb8};

    if (begins(ip, mapped, 12) || begins(ip, nat64, 12))
        return is_public4(be32(ip + 12));
    if (begins(ip, nat64_local, 6)) /* a site's own translator: to wherever it likes */
        return false;
    if (ip[0] == 0x20 && ip[1] == 0x02) /* 6to4 */
        return is_public4(be32(ip + 2));
    if (begins(ip, teredo, 4)) /* server, and client inverted */
        return is_public4(be32(ip + 4)) && is_public4(~be32(ip + 12));
    if (begins(ip, documentation, 4) || (ip[0] == 0x3f && ip[1] == 0xff && ip[2] < 0x10))
        return false;
    if (ip[0] == 0x20 && ip[1] == 0x01 && ip[2] < 0x02) /* 2001::/23: benchmark, ORCHID and kin */
        return false;
    /* Only 2000::/3 is global unicast: out go ::, ::1, ::a.b.c.d, fc00::/7, fe80::/10, fec0::/10,
     * ff00::/8. */
    return ip[0] >> 5 == 1;
}

bool netaddr_is_public(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, addr, sizeof(in));
        return is_public4(ntohl(in.sin_addr.s_addr));
    }
    if (addr->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, addr, sizeof(in6));
        return is_public6(in6.sin6_addr.s6_addr);
    }
    return false;
}

/* ---- Allow list ---- */

struct entry {
    char host[256]; /* without brackets and final dot */
    int port;       /* 0: any */
};

/* The host without brackets and final dot; -1 when empty or too long. */
static int entry_host(struct entry *out, const char *host, size_t len)
{
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        struct in6_addr ignored;
        host++;
        len -= 2;
        if (len >= sizeof(out->host))
            return -1;
        memcpy(out->host, host, len);
        out->host[len] = '\0';
        return inet_pton(AF_INET6, out->host, &ignored) == 1 ? 0 : -1;
    }
    if (len && host[len - 1] == '.')
        len--;
    if (len == 0 || len >= sizeof(out->host))
        return -1;
    memcpy(out->host, host, len);
    out->host[len] = '\0';
    return 0;
}

/* Takes the next entry off *list: 1, 0 at the end, -1 when it is not well-formed (and skipped). */
static int entry_next(const char **list, struct entry *out)
{
    const char *from = *list + strspn(*list, NETADDR_SPACE);
    size_t len = strcspn(from, NETADDR_SPACE);
    *list = from + len;
    if (!len)
        return 0;
    const char *colon = memrchr(from, ':', len);
    if (!colon || entry_host(out, from, (size_t)(colon - from)))
        return -1;
    /* A name or IPv4 address holds none of these; an IPv6 address needs its brackets. */
    if (*from != '[' && strpbrk(out->host, ":/@?#[]*"))
        return -1;
    size_t port_len = len - (size_t)(colon - from) - 1;
    out->port = 0;
    if (port_len == 1 && colon[1] == '*')
        return 1;
    if (!port_len || port_len > 5 || strspn(colon + 1, "0123456789") < port_len)
        return -1;
    out->port = atoi(colon + 1);
    return out->port >= 1 && out->port <= 65535 ? 1 : -1;
}

bool netaddr_list_valid(const char *list)
{
    struct entry entry;
    int rc = 0;
    while (list && (rc = entry_next(&list, &entry)) > 0)
        ;
    return rc == 0;
}

static bool same_host(const char *a, const char *b)
{
    struct in6_addr a6, b6;
    if (inet_pton(AF_INET6, a, &a6) == 1 && inet_pton(AF_INET6, b, &b6) == 1)
        return !memcmp(&a6, &b6, sizeof(a6));
    return !strcasecmp(a, b);
}

bool netaddr_list_allows(const char *list, const char *host, int port)
{
    struct entry entry, wanted;
    int rc;
    if (!list || !host || entry_host(&wanted, host, strlen(host)))
        return false;
    while ((rc = entry_next(&list, &entry)))
        if (rc > 0 && (entry.port == 0 || entry.port == port) && same_host(entry.host, wanted.host))
            return true;
    return false;
}
