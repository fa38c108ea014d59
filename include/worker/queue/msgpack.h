/* Writes the few msgpack types that BullMQ's scripts take as options. */
#ifndef SANDPIPER_WORKER_QUEUE_MSGPACK_H
#define SANDPIPER_WORKER_QUEUE_MSGPACK_H

#include "common/buf.h"

#include <stdbool.h>
#include <stdint.h>

/* Each appends to out, which must have room (a script's options are bounded by its caller): too
 * small a maximum is a programmer's error and aborts. */
void msgpack_map(struct buf *out, uint32_t pairs);
void msgpack_array(struct buf *out, uint32_t elements);
void msgpack_bytes(struct buf *out, const void *data, size_t len); /* as a str */
void msgpack_str(struct buf *out, const char *text);
void msgpack_int(struct buf *out, long long value);
void msgpack_double(struct buf *out, double value);
void msgpack_bool(struct buf *out, bool value);
void msgpack_nil(struct buf *out);

#endif
