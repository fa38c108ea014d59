/* Judges an entry of the intake stream: a job that BullMQ's own clients could have added, or a dead
 * letter. */
#ifndef SANDPIPER_WORKER_INTAKE_CHECK_H
#define SANDPIPER_WORKER_INTAKE_CHECK_H

#include "common/str.h"

#include <stdbool.h>

struct intake_entry { /* borrowed from the fields (and id_storage) */
    struct str data;  /* JSON text */
    struct str name;  /* "execute" when absent */
    struct str id;    /* "s-<entry id>" when absent */
    struct str opts;  /* JSON object; "{}" when absent */
};

/* fields: name, value, name, value, ... (count pairs). NULL when the entry can be admitted, *out
 * filled; else the reason (heap, caller frees). id_storage holds a made-up id; the caller's to
 * str_fini in each case. */
char *intake_check(const struct str *fields, size_t count, const char *entry_id,
                   size_t data_max_bytes, struct intake_entry *out, struct str *id_storage);

/* True for an id that is the name, or looks like the beginning, of a key that BullMQ or we keep
 * under the queue's prefix: a job of that id would destroy it. */
bool intake_id_reserved(const char *id);

#endif
