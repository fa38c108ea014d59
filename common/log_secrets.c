/* Known secrets; replaces them in texts, also where percent-encoded or JSON-escaped. */
#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

#define SECRET_MIN_BYTES 4
#define SECRETS_MAX      64 /* rotated keys pile up; the oldest is forgotten first */
#define CUT_MIN_BYTES                                                                              \
    8 /* shortest piece of a secret at a text's end taken for that secret, cut off */

static char *secrets[SECRETS_MAX];
static size_t secret_count;

static void secret_free(char *secret)
{
    explicit_bzero(secret, strlen(secret));
    free(secret);
}

void log_secret_add(const char *secret)
{
    if (!secret || strlen(secret) < SECRET_MIN_BYTES)
        return;
    for (size_t i = 0; i < secret_count; i++)
        if (strcmp(secrets[i], secret) == 0)
            return;
    if (secret_count == SECRETS_MAX) {
        secret_free(secrets[0]);
        memmove(secrets, secrets + 1, sizeof(secrets) - sizeof(secrets[0]));
        secret_count--;
    }
    secrets[secret_count++] = mem_strdup(secret);
}

void log_secrets_clear(void)
{
    while (secret_count > 0)
        secret_free(secrets[--secret_count]);
}

/* A spelling: reads the one unit at text (NUL-terminated), writes the bytes it stands for (at most
 * 4) and their number, and returns the unit's length; 0 at the end. */
typedef size_t (*spelling_fn)(const char *text, char bytes[4], size_t *count);

static size_t spelling_verbatim(const char *text, char bytes[4], size_t *count)
{
    bytes[0] = text[0];
    *count = 1;
    return text[0] != '\0';
}

static size_t spelling_percent(const char *text, char bytes[4], size_t *count)
{
    int high = text[0] == '%' ? text_hex_digit(text[1]) : -1;
    int low = high >= 0 ? text_hex_digit(text[2]) : -1;

    if (low < 0) {
        *count = 1;
        bytes[0] = text[0];
        if (text[0] == '+')
            bytes[0] = ' '; /* as forms do; a plain '+' is found by the verbatim spelling */
        return text[0] != '\0';
    }
    *count = 1;
    bytes[0] = (char)(high * 16 + low);
    return 3;
}

static long hex4(const char *text)
{
    long value = 0;

    for (int i = 0; i < 4; i++) {
        int digit = text_hex_digit(text[i]);

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t utf8_put(long c, char bytes[4])
{
    if (c < 0x80) {
        bytes[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        bytes[0] = (char)(0xc0 | c >> 6);
        bytes[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        bytes[0] = (char)(0xe0 | c >> 12);
        bytes[1] = (char)(0x80 | (c >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    bytes[0] = (char)(0xf0 | c >> 18);
    bytes[1] = (char)(0x80 | (c >> 12 & 0x3f));
    bytes[2] = (char)(0x80 | (c >> 6 & 0x3f));
    bytes[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

static size_t spelling_json(const char *text, char bytes[4], size_t *count)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char *name;
    long c, low;

    *count = 1;
    bytes[0] = text[0];
    if (text[0] != '\\' || text[1] == '\0')
        return text[0] != '\0';
    c = text[1] == 'u' ? hex4(text + 2) : -1;
    if (c < 0) {
        name = strchr(names, text[1]);
        bytes[0] = name ? values[name - names] : text[1];
        return 2;
    }
    low = c >= 0xd800 && c < 0xdc00 && text[6] == '\\' && text[7] == 'u' ? hex4(text + 8) : -1;
    if (low >= 0xdc00 && low < 0xe000) {
        *count = utf8_put(0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00), bytes);
        return 12;
    }
    *count = utf8_put(c, bytes);
    return 6;
}

/* How many bytes at text spell the secret that way; 0 when they do not. Where the text ends inside
 * the secret, it counts too from CUT_MIN_BYTES on: error texts are cut before they come here. */
static size_t spelled_at(const char *text, const char *secret, spelling_fn spelling)
{
    size_t at = 0, done = 0, len = strlen(secret);

    while (done < len) {
        char bytes[4];
        size_t count, n = spelling(text + at, bytes, &count);

        if (n == 0)
            return done >= CUT_MIN_BYTES ? at : 0;
        if (count > len - done || memcmp(bytes, secret + done, count) != 0)
            return 0;
        at += n;
        done += count;
    }
    return at;
}

/* The longest spelling of any secret at text. */
static size_t secret_at(const char *text)
{
    static const spelling_fn spellings[] = {spelling_verbatim, spelling_percent, spelling_json};
    size_t longest = 0;

    for (size_t i = 0; i < secret_count; i++) {
        for (size_t k = 0; k < sizeof(spellings) / sizeof(spellings[0]); k++) {
            size_t n = spelled_at(text, secrets[i], spellings[k]);

            if (n > longest)
                longest = n;
        }
    }
    return longest;
}

char *log_redact(const char *text)
{
    size_t len = strlen(text), used = 0, hidden_to = 0;
    /* The replacement (3 bytes) is never longer than what it replaces (4 bytes at least). */
    char *out = mem_alloc(len + 1);

    for (size_t at = 0; at < len; at++) {
        size_t n = secret_at(text + at); /* inside of one too: secrets may overlap */

        if (n > 0 && at >= hidden_to) {
            memcpy(out + used, "***", 3);
            used += 3;
        }
        if (at + n > hidden_to)
            hidden_to = at + n;
        if (at >= hidden_to)
            out[used++] = text[at];
    }
    out[used] = '\0';
    return out;
}
