/* Fuzzes UTF-8 repair and cuts: what comes out is valid, and valid text is not changed. */
#include "common/buf.h"
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

    buf_init(&out, size * 3);
    check(utf8_repair(in, size, &out) == 0);
    check(utf8_valid(out.data, out.len));
    if (utf8_valid(in, size))
        check(out.len == size && (size == 0 || memcmp(out.data, in, size) == 0));
    for (size_t i = 0; i <= out.len && i < 64; i++) {
        size_t head = utf8_cut(out.data, out.len, i);
        size_t tail = utf8_cut_tail(out.data, out.len, i);

        check(head <= i && i - head < 4 && tail >= i && tail - i < 4 && tail <= out.len);
        check(utf8_valid(out.data, head));
        check(utf8_valid(out.data + tail, out.len - tail));
    }
    buf_fini(&out);
    return 0;
}
