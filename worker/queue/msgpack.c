/* Writes the few msgpack types that BullMQ's scripts take as options (https://msgpack.org, spec of
 * 2017). */
#include "worker/queue/msgpack.h"

#include <stdlib.h>
#include <string.h>

static void put(struct buf *out, const void *data, size_t len)
{
    if (buf_append(out, data, len) != 0)
        abort();
}

/* A type byte and `size` bytes of value, most significant first. */
static void put_tagged(struct buf *out, unsigned char tag, uint64_t value, int size)
{
    unsigned char bytes[9] = {tag};
    for (int i = 0; i < size; i++)
        bytes[1 + i] = (unsigned char)(value >> (8 * (size - 1 - i)));
    put(out, bytes, (size_t)size + 1);
}

void msgpack_map(struct buf *out, uint32_t pairs)
{
    if (pairs < 16)
        put_tagged(out, (unsigned char)(0x80 | pairs), 0, 0);
    else
        put_tagged(out, 0xdf, pairs, 4);
}

void msgpack_array(struct buf *out, uint32_t elements)
{
    if (elements < 16)
        put_tagged(out, (unsigned char)(0x90 | elements), 0, 0);
    else
        put_tagged(out, 0xdd, elements, 4);
}

void msgpack_bytes(struct buf *out, const void *data, size_t len)
{
    if (len < 32)
        put_tagged(out, (unsigned char)(0xa0 | len), 0, 0);
    else
        put_tagged(out, 0xdb, len, 4);
    put(out, data, len);
}

void msgpack_str(struct buf *out, const char *text)
{
    msgpack_bytes(out, text, strlen(text));
}

void msgpack_int(struct buf *out, long long value)
{
    if (value >= 0 && value < 128)
        put_tagged(out, (unsigned char)value, 0, 0);
    else
        put_tagged(out, 0xd3, (uint64_t)value, 8);
}

void msgpack_double(struct buf *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tagged(out, 0xcb, bits, 8);
}

void msgpack_bool(struct buf *out, bool value)
{
    put_tagged(out, value ? 0xc3 : 0xc2, 0, 0);
}

void msgpack_nil(struct buf *out)
{
    put_tagged(out, 0xc0, 0, 0);
}
