/* Fuzzes the JSON parsers: what they accept dumps to strict JSON that reads back equal. */
#include "common/jsonx.h"
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

/* The dump of value, which is freed; NULL gives NULL. */
static char *dump_and_free(json_t *value)
{
    char err[200];
    size_t len;

    if (!value)
        return NULL;
    check(jsonx_depth(value) <= JSONX_MAX_DEPTH);
    char *text = jsonx_dump(value, &len);
    check(text && strlen(text) == len && utf8_valid(text, len));
    json_t *again = jsonx_parse(text, len, err, sizeof(err));
    check(again && json_equal(value, again));
    json_decref(again);
    json_decref(value);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char err[200] = "";
    const char *in = (const char *)data;
    char *strict = dump_and_free(jsonx_parse(in, size, err, sizeof(err)));

    check(strict || *err);
    err[0] = '\0';
    char *tolerant = dump_and_free(jsonx_parse_tolerant(in, size, err, sizeof(err)));
    check(tolerant || *err);
    if (strict) /* what is right already is not changed */
        check(tolerant && strcmp(strict, tolerant) == 0);
    free(strict);
    free(tolerant);
    return 0;
}
