/* Checks, cuts and repairs UTF-8 text. */
#include "common/utf8.h"

#include "common/buf.h"

static bool is_tail(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* Length of the sequence that lead starts (0: no lead byte), and the range of its second byte:
 * the narrowed ranges are what keeps out overlong forms, surrogates and values past U+10FFFF. */
static size_t lead_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

size_t utf8_step(const char *text, size_t len, bool *valid)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char low, high;
    size_t want = lead_length(s[0], &low, &high);
    size_t have = 1;

    if (want > 1 && len > 1 && s[1] >= low && s[1] <= high) {
        have = 2;
        while (have < want && have < len && is_tail(s[have]))
            have++;
    }
    *valid = have == want;
    return have;
}

size_t utf8_ascii_run(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && (unsigned char)text[n] < 0x80)
        n++;
    return n;
}

bool utf8_valid(const char *text, size_t len)
{
    size_t at = 0;
    bool valid;

    while ((at += utf8_ascii_run(text + at, len - at)) < len) {
        at += utf8_step(text + at, len - at, &valid);
        if (!valid)
            return false;
    }
    return true;
}

size_t utf8_cut(const char *text, size_t len, size_t max)
{
    if (max >= len)
        return len;
    while (max > 0 && is_tail((unsigned char)text[max]))
        max--;
    return max;
}

size_t utf8_cut_tail(const char *text, size_t len, size_t from)
{
    while (from < len && is_tail((unsigned char)text[from]))
        from++;
    return from < len ? from : len;
}

int utf8_repair(const char *text, size_t len, struct buf *out)
{
    size_t at = 0, copied = 0;

    while ((at += utf8_ascii_run(text + at, len - at)) < len) {
        bool valid;
        size_t n = utf8_step(text + at, len - at, &valid);

        if (!valid) {
            if (buf_append(out, text + copied, at - copied) || buf_append_str(out, "\xef\xbf\xbd"))
                return -1;
            copied = at + n;
        }
        at += n;
    }
    return buf_append(out, text + copied, len - copied);
}
