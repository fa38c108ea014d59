/* A counted, owned string. */
#include "common/str.h"

#include "common/mem.h"

#include <stdlib.h>

struct str str_make(const void *data, size_t len)
{
    struct str s = {NULL, 0};
    if (data != NULL) {
        s.data = mem_dup(data, len);
        s.len = len;
    }
    return s;
}

struct str str_copy(const struct str *from)
{
    return str_make(from->data, from->len);
}

void str_fini(struct str *s)
{
    free(s->data);
    s->data = NULL;
    s->len = 0;
}
