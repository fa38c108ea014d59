/* The line before a run's code: it carries the run's settings, sealed, and keeps an unprepared
 * kernel from running anything. */
#include "common/b64.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/drivers/e2b.h"

#include <stdio.h>
#include <stdlib.h>

char *e2b_guard_key_line(struct e2b_box *box)
{
    text_uuid(box->key_name);
    text_uuid(box->key);
    return mem_printf("_sandpiper_key = (\"%s\", \"%s\")\n", box->key_name, box->key);
}

/* XOR with SHA-256 in counter mode; a nonce is used for one line. What a kernel refused stays in
 * its history, and E2B's server logs each cell: neither shall show the values of the env. The key
 * went the same way before, in the hooks' cell: this keeps values out of sight, not from somebody
 * who has the whole of that log. */
static void seal(unsigned char *data, size_t len, const char *key, const char *nonce)
{
    char seed[120], hex[65];
    for (size_t i = 0; i < len; i++) {
        size_t at = i % 32;
        if (at == 0) {
            snprintf(seed, sizeof seed, "%s:%s:%zu", key, nonce, i / 32);
            e2b_digest(seed, hex);
        }
        data[i] ^=
            (unsigned char)(text_hex_digit(hex[2 * at]) << 4 | text_hex_digit(hex[2 * at + 1]));
    }
}

char *e2b_guard_line(const struct e2b_box *box, const char *nonce, const json_t *settings)
{
    size_t len;
    char *json = jsonx_dump(settings, &len);
    seal((unsigned char *)json, len, box->key, nonce);
    char *text = b64_encode(json, len);
    char *line = mem_printf("%%%%sandpiper-%s %s %s\n", nonce, box->key_name, text);
    free(json);
    free(text);
    return line;
}
