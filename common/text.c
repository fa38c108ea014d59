/* Small string helpers: percent-encoding, ANSI escapes, random ids, time. */
#include "common/text.h"

#include "common/buf.h"
#include "common/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static bool is_unreserved(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

/* set NULL: everything but the unreserved characters. */
static bool must_encode(unsigned char c, const char *set)
{
    return set ? c != '\0' && strchr(set, c) != NULL : !is_unreserved(c);
}

static char *percent_encode(const char *text, size_t len, const char *set)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t size = len + 1, used = 0;
    char *out;

    for (size_t i = 0; i < len; i++)
        if (must_encode((unsigned char)text[i], set))
            size += 2;
    out = mem_alloc(size);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if (must_encode(c, set)) {
            out[used++] = '%';
            out[used++] = digits[c >> 4];
            out[used++] = digits[c & 15];
        } else {
            out[used++] = text[i];
        }
    }
    out[used] = '\0';
    return out;
}

char *text_percent_encode_set(const char *text, size_t len, const char *set)
{
    return percent_encode(text, len, set);
}

char *text_percent_encode(const char *text, size_t len)
{
    return percent_encode(text, len, NULL);
}

int text_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

char *text_percent_decode(const char *text, size_t len)
{
    char *out = mem_alloc(len + 1);
    size_t used = 0;

    for (size_t i = 0; i < len; i++) {
        int high, low;

        if (text[i] != '%') {
            out[used++] = text[i];
            continue;
        }
        high = i + 2 < len ? text_hex_digit(text[i + 1]) : -1;
        low = i + 2 < len ? text_hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0 || high + low == 0) {
            free(out);
            return NULL;
        }
        out[used++] = (char)(high * 16 + low);
        i += 2;
    }
    out[used] = '\0';
    return out;
}

static size_t skip_range(const char *text, size_t len, size_t at, int low, int high)
{
    while (at < len && (unsigned char)text[at] >= low && (unsigned char)text[at] <= high)
        at++;
    return at;
}

/* From behind "ESC [" to behind the final byte, or to the first byte that cannot be in a CSI. */
static size_t csi_end(const char *text, size_t len, size_t at)
{
    at = skip_range(text, len, at, 0x20, 0x3f);
    return at < len && text[at] >= 0x40 && text[at] <= 0x7e ? at + 1 : at;
}

/* From behind "ESC ]" (and kin) to behind BEL or ST. An unterminated string ends before the next
 * control character, so that a stray introducer costs one line at most. */
static size_t control_string_end(const char *text, size_t len, size_t at)
{
    for (; at < len; at++) {
        unsigned char c = (unsigned char)text[at];

        if (c == '\a')
            return at + 1;
        if (at + 1 < len && ((c == 0x1b && text[at + 1] == '\\') ||
                             (c == 0xc2 && (unsigned char)text[at + 1] == 0x9c)))
            return at + 2;
        if (c < 0x20 && c != '\t')
            return at;
    }
    return at;
}

/* Where the escape sequence that begins at `at` ends; `at` itself when none begins there. */
static size_t escape_end(const char *text, size_t len, size_t at)
{
    unsigned char c = (unsigned char)text[at];
    unsigned char next = at + 1 < len ? (unsigned char)text[at + 1] : 0;
    bool c1 = c == 0xc2 && next >= 0x80 && next <= 0x9f; /* U+0080..U+009F: ESC and next - 0x40 */

    if (c != 0x1b && !c1)
        return at;
    if (c1)
        next -= 0x40;
    if (next == '[')
        return csi_end(text, len, at + 2);
    if (next == ']' || next == 'P' || next == 'X' || next == '^' || next == '_')
        return control_string_end(text, len, at + 2);
    if (c1)
        return at;                                  /* NEL and the like are no sequences */
    at = skip_range(text, len, at + 1, 0x20, 0x2f); /* as in "ESC ( B" */
    return at < len && text[at] >= 0x30 && text[at] <= 0x7e ? at + 1 : at;
}

int text_strip_ansi(const char *text, size_t len, struct buf *out)
{
    size_t at = 0, copied = 0;

    while (at < len) {
        size_t end = escape_end(text, len, at);

        if (end == at) {
            at++;
            continue;
        }
        if (buf_append(out, text + copied, at - copied))
            return -1;
        at = copied = end;
    }
    return buf_append(out, text + copied, len - copied);
}

size_t text_from_int(char out[24], long long value)
{
    char backwards[24];
    size_t count = 0, len = 0;
    unsigned long long rest =
        value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;

    do
        backwards[count++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (value < 0)
        out[len++] = '-';
    while (count > 0)
        out[len++] = backwards[--count];
    out[len] = '\0';
    return len;
}

/* Random bytes, asked of the kernel by the page; each is given out once. */
static void random_bytes(unsigned char *out, size_t len)
{
    static unsigned char pool[4096];
    static size_t left;

    if (left < len) {
        for (size_t at = 0; at < sizeof(pool);) {
            ssize_t got = getrandom(pool + at, sizeof(pool) - at, 0);
            if (got > 0) /* a signal may cut it short */
                at += (size_t)got;
            else if (errno != EINTR)
                abort();
        }
        left = sizeof(pool);
    }
    left -= len;
    memcpy(out, pool + left, len);
    memset(pool + left, 0, len);
}

void text_uuid(char out[37])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char b[16];

    random_bytes(b, sizeof(b));
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = digits[b[i] >> 4];
        *out++ = digits[b[i] & 15];
    }
    *out = '\0';
}

static long long clock_ms(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (long long)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

long long text_now_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

long long text_monotonic_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

bool text_parse_int(const char *text, long long *out)
{
    char *end;
    long long value;

    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false; /* strtoll would take white space and '+' */
    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno || *end || end == text)
        return false;
    *out = value;
    return true;
}
