/* Base64 in both directions. */
#include "common/b64.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdlib.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *b64_encode(const void *data, size_t len)
{
    const unsigned char *in = data;
    char *out = mem_alloc((len + 2) / 3 * 4 + 1), *p = out;

    for (; len >= 3; in += 3, len -= 3) {
        *p++ = alphabet[in[0] >> 2];
        *p++ = alphabet[(in[0] & 3) << 4 | in[1] >> 4];
        *p++ = alphabet[(in[1] & 15) << 2 | in[2] >> 6];
        *p++ = alphabet[in[2] & 63];
    }
    if (len > 0) {
        unsigned char second = len == 2 ? in[1] : 0;

        *p++ = alphabet[in[0] >> 2];
        *p++ = alphabet[(in[0] & 3) << 4 | second >> 4];
        *p++ = len == 2 ? alphabet[(second & 15) << 2] : '=';
        *p++ = '=';
    }
    *p = '\0';
    return out;
}

static int digit_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

/* digits data digits were read: may so many '=' follow, and is there a whole last byte? */
static bool ending_ok(size_t digits, size_t padding)
{
    size_t rest = digits % 4;

    return rest != 1 && padding <= (rest ? 4 - rest : 0);
}

unsigned char *b64_decode(const char *text, size_t len, size_t *out_len)
{
    unsigned char *out = mem_alloc(len / 4 * 3 + 4);
    size_t digits = 0, padding = 0, used = 0;
    unsigned bits = 0;

    for (size_t i = 0; i < len; i++) {
        int value = digit_value(text[i]);

        if (is_space(text[i]))
            continue;
        if (text[i] == '=') {
            padding++;
            continue;
        }
        if (value < 0 || padding > 0)
            goto wrong;
        bits = bits << 6 | (unsigned)value;
        if (digits++ % 4 != 0) /* 12, 18 and 24 bits of a group give a byte each */
            out[used++] = (unsigned char)(bits >> (6 - 2 * ((digits - 1) % 4)));
    }
    if (!ending_ok(digits, padding))
        goto wrong;
    *out_len = used;
    return out;
wrong:
    free(out);
    return NULL;
}
