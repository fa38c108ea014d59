/* Fuzzes the stripping of escape sequences: no ESC is left, and valid text stays valid. */
#include "common/buf.h"
#include "common/text.h"
#include "common/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *in = (const char *)data;
    struct buf out;

    buf_init(&out, size);
    check(text_strip_ansi(in, size, &out) == 0);
    check(!memchr(out.data, 0x1b, out.len));
    if (utf8_valid(in, size))
        check(utf8_valid(out.data, out.len));
    buf_fini(&out);
    return 0;
}
