/* JSON parsing: a pass that checks depth and, when tolerant, rewrites what jansson refuses. */
#include "common/buf.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "common/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* The pass does not validate: what it does not understand it leaves for jansson to refuse. */
struct pass {
    const char *text;
    size_t len;
    size_t at;
    size_t copied;  /* text before this is in out already; 0 while nothing was replaced */
    struct buf out; /* the rewritten text */
    bool tolerant;
    bool key; /* the next string is an object's key */
    size_t depth;
    bool in_object[JSONX_MAX_DEPTH + 1]; /* by depth */
};

static int emit(struct pass *p, const char *text, size_t len)
{
    return buf_append(&p->out, text, len);
}

/* text[at..at+len) becomes the replacement. */
static int replace(struct pass *p, size_t len, const char *replacement)
{
    if (emit(p, p->text + p->copied, p->at - p->copied) ||
        emit(p, replacement, strlen(replacement)))
        return -1;
    p->at += len;
    p->copied = p->at;
    return 0;
}

/* The value of the \uXXXX escape at `at`; -1 when there is none. */
static long unicode_escape(const struct pass *p, size_t at)
{
    long value = 0;

    if (p->len < 6 || at > p->len - 6 || p->text[at] != '\\' || p->text[at + 1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        int digit = text_hex_digit(p->text[at + (size_t)i]);

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static int pass_escape(struct pass *p, bool key)
{
    long c = unicode_escape(p, p->at), low;

    if (c < 0) {
        p->at += p->at + 1 < p->len ? 2 : 1;
        return 0;
    }
    if (c == 0 && key)
        return replace(p, 6, REPLACEMENT);
    if (c < 0xd800 || c > 0xdfff) {
        p->at += 6;
        return 0;
    }
    low = unicode_escape(p, p->at + 6);
    if (c > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return replace(p, 6, REPLACEMENT);
    p->at += 12;
    return 0;
}

static int pass_non_ascii(struct pass *p)
{
    bool valid;
    size_t n = utf8_step(p->text + p->at, p->len - p->at, &valid);

    if (!valid)
        return replace(p, n, REPLACEMENT);
    p->at += n;
    return 0;
}

static int pass_string(struct pass *p)
{
    bool key = p->key;
    int rc = 0;

    p->key = false;
    p->at++;
    while (p->at < p->len && rc == 0) {
        unsigned char c = (unsigned char)p->text[p->at];

        if (c == '"') {
            p->at++;
            return 0;
        }
        if (c == '\\' && p->tolerant)
            rc = pass_escape(p, key);
        else if (c == '\\')
            p->at += p->at + 1 < p->len ? 2 : 1;
        else if (c >= 0x80 && p->tolerant)
            rc = pass_non_ascii(p);
        else
            p->at++;
    }
    return rc;
}

static size_t digits_at(const char *text, size_t len, size_t at)
{
    size_t n = 0;

    while (at + n < len && isdigit((unsigned char)text[at + n]))
        n++;
    return n;
}

/* Length of the well-formed number at text, else 0; *real tells a fraction or exponent. */
static size_t number_length(const char *text, size_t len, bool *real)
{
    size_t at = len > 0 && text[0] == '-' ? 1 : 0;
    size_t whole = digits_at(text, len, at), n;

    *real = false;
    if (whole == 0 || (whole > 1 && text[at] == '0'))
        return 0;
    at += whole;
    if (at < len && text[at] == '.') {
        n = digits_at(text, len, ++at);
        if (n == 0)
            return 0;
        at += n;
        *real = true;
    }
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < len && (text[at] == '+' || text[at] == '-'))
            at++;
        n = digits_at(text, len, at);
        if (n == 0)
            return 0;
        at += n;
        *real = true;
    }
    return at;
}

/* Whether jansson can hold it: 64 bit, or a finite double. */
static bool number_fits(const char *number, bool real)
{
    long long ignored;

    return real ? isfinite(strtod(number, NULL)) : text_parse_int(number, &ignored);
}

static int pass_number(struct pass *p)
{
    const char *text = p->text + p->at;
    bool real;
    size_t n = number_length(text, p->len - p->at, &real);
    char *number, *quoted;
    int rc = 0;

    if (n == 0 || (n <= 18 && !real)) { /* not a number, or one that surely fits */
        p->at += n ? n : 1;
        return 0;
    }
    number = mem_strndup(text, n);
    if (number_fits(number, real)) {
        p->at += n;
    } else {
        quoted = mem_printf("\"%s\"", number);
        rc = replace(p, n, quoted);
        free(quoted);
    }
    free(number);
    return rc;
}

/* NaN, Infinity or -Infinity at the place: its length, else 0. */
static size_t non_number(const struct pass *p)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);

        if (p->len - p->at < n || memcmp(p->text + p->at, words[i], n) != 0)
            continue;
        if (p->at + n == p->len || !isalnum((unsigned char)p->text[p->at + n]))
            return n;
    }
    return 0;
}

/* A letter, digit or minus sign outside of strings. A whole word is passed at once, so that a
 * number or NaN is only seen where a token starts. */
static int pass_word(struct pass *p)
{
    size_t n;

    if (p->tolerant) {
        n = non_number(p);
        if (n > 0)
            return replace(p, n, "null");
        if (!isalpha((unsigned char)p->text[p->at]))
            return pass_number(p);
    }
    do
        p->at++;
    while (p->at < p->len && isalnum((unsigned char)p->text[p->at]));
    return 0;
}

/* -1 when it opens more than JSONX_MAX_DEPTH levels. */
static int pass_punctuation(struct pass *p, char c)
{
    p->at++;
    if (c == '[' || c == '{') {
        if (p->depth == JSONX_MAX_DEPTH)
            return -1;
        p->in_object[++p->depth] = c == '{';
        p->key = c == '{';
    } else if ((c == ']' || c == '}') && p->depth > 0) {
        p->depth--;
        p->key = false;
    } else if (c == ',') {
        p->key = p->in_object[p->depth];
    } else if (c == ':') {
        p->key = false;
    }
    return 0;
}

/* NULL, or what is wrong. */
static const char *pass_run(struct pass *p)
{
    while (p->at < p->len) {
        char c = p->text[p->at];
        int rc;

        if (c == '"') {
            rc = pass_string(p);
        } else if (isalnum((unsigned char)c) || c == '-') {
            rc = pass_word(p);
        } else {
            if (pass_punctuation(p, c))
                return "nested too deep";
            continue;
        }
        if (rc != 0)
            return "too large";
    }
    if (p->copied > 0 && emit(p, p->text + p->copied, p->len - p->copied))
        return "too large";
    return NULL;
}

/* jansson's reason without the piece of text it quotes: that may hold anything, secrets too. */
static void explain(char *err, size_t err_size, const json_error_t *error)
{
    const char *near = strstr(error->text, " near ");
    int len = (int)(near ? (size_t)(near - error->text) : strlen(error->text));

    snprintf(err, err_size, "%.*s at byte %d", len, error->text, error->position);
}

static json_t *parse(const char *text, size_t len, bool tolerant, char *err, size_t err_size)
{
    struct pass p = {.text = text, .len = len, .tolerant = tolerant};
    const char *wrong;
    json_error_t error;
    json_t *value = NULL;

    /* The worst growth: each stray byte becomes the three of U+FFFD. */
    buf_init(&p.out, len < SIZE_MAX / 8 ? len * 3 + 64 : SIZE_MAX / 2);
    wrong = pass_run(&p);
    if (wrong) {
        snprintf(err, err_size, "%s at byte %zu", wrong, p.at);
    } else {
        const char *from = p.copied > 0 ? p.out.data : text;
        size_t from_len = p.copied > 0 ? p.out.len : len;

        value = json_loadb(from, from_len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (!value)
            explain(err, err_size, &error);
    }
    buf_fini(&p.out);
    return value;
}

json_t *jsonx_parse(const char *text, size_t len, char *err, size_t err_size)
{
    return parse(text, len, false, err, err_size);
}

json_t *jsonx_parse_tolerant(const char *text, size_t len, char *err, size_t err_size)
{
    return parse(text, len, true, err, err_size);
}
