/* JSON trees: reads members, builds strings, writes compact text. */
#include "common/jsonx.h"

#include "common/buf.h"
#include "common/mem.h"
#include "common/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_WALKED 4096 /* twice what jansson parses; a tree that is deeper counts as this deep */

static size_t depth_within(const json_t *value, size_t limit)
{
    size_t deepest = 0, i, n;
    const char *key;
    json_t *child;

    if (limit == 0 || !(json_is_array(value) || json_is_object(value)))
        return 0;
    json_array_foreach(value, i, child)
    {
        n = depth_within(child, limit - 1);
        deepest = n > deepest ? n : deepest;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, child)
    {
        n = depth_within(child, limit - 1);
        deepest = n > deepest ? n : deepest;
    }
    return deepest + 1;
}

size_t jsonx_depth(const json_t *value)
{
    return depth_within(value, DEPTH_WALKED);
}

static int quote_byte(struct buf *out, unsigned char c)
{
    static const char plain[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    const char *found = strchr(plain, c);

    if (c != '\0' && found)
        return buf_printf(out, "\\%c", names[found - plain]);
    return buf_printf(out, "\\u%04x", c);
}

int jsonx_quote(struct buf *out, const char *text, size_t len)
{
    size_t copied = 0;

    if (buf_append_str(out, "\""))
        return -1;
    for (size_t at = 0; at < len; at++) {
        unsigned char c = (unsigned char)text[at];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (buf_append(out, text + copied, at - copied) || quote_byte(out, c))
            return -1;
        copied = at + 1;
    }
    if (buf_append(out, text + copied, len - copied))
        return -1;
    return buf_append_str(out, "\"");
}

/* The shortest spelling that reads back as the same number; jansson's own would make 0.1 into
 * 0.10000000000000001. Always with a point or an exponent, so that it stays a real. */
static int dump_real(struct buf *out, double value)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    return buf_append_str(out, text);
}

static int dump_value(struct buf *out, const json_t *value);

static int dump_array(struct buf *out, const json_t *array)
{
    size_t i;
    json_t *child;

    if (buf_append_str(out, "["))
        return -1;
    json_array_foreach(array, i, child)
    {
        if ((i > 0 && buf_append_str(out, ",")) || dump_value(out, child))
            return -1;
    }
    return buf_append_str(out, "]");
}

static int dump_object(struct buf *out, const json_t *object)
{
    const char *key, *separator = "";
    json_t *child;

    if (buf_append_str(out, "{"))
        return -1;
    json_object_foreach((json_t *)(uintptr_t)object, key, child)
    {
        if (buf_append_str(out, separator) || jsonx_quote(out, key, strlen(key)) ||
            buf_append_str(out, ":") || dump_value(out, child))
            return -1;
        separator = ",";
    }
    return buf_append_str(out, "}");
}

static int dump_value(struct buf *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return dump_object(out, value);
    case JSON_ARRAY:
        return dump_array(out, value);
    case JSON_STRING:
        return jsonx_quote(out, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        return buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL:
        return dump_real(out, json_real_value(value));
    case JSON_TRUE:
        return buf_append_str(out, "true");
    case JSON_FALSE:
        return buf_append_str(out, "false");
    default:
        return buf_append_str(out, "null");
    }
}

char *jsonx_dump(const json_t *value, size_t *len)
{
    struct buf out;
    int rc;

    if (depth_within(value, JSONX_MAX_DEPTH + 1) > JSONX_MAX_DEPTH)
        return NULL;
    buf_init(&out, SIZE_MAX / 4); /* as large as the tree, which is in memory already */
    rc = dump_value(&out, value);
    if (rc != 0)
        abort();
    if (len)
        *len = out.len;
    return buf_steal(&out);
}

json_t *jsonx_string(const char *text, size_t len)
{
    json_t *string = json_stringn(text, len);
    struct buf repaired;

    if (string)
        return string;
    buf_init(&repaired, SIZE_MAX / 4);
    if (utf8_repair(text, len, &repaired) == 0)
        string = json_stringn(repaired.data, repaired.len);
    buf_fini(&repaired);
    if (!string)
        abort(); /* valid text is only refused when memory is out */
    return string;
}

const char *jsonx_get_str(const json_t *object, const char *key, const char *fallback)
{
    const json_t *value = json_object_get(object, key);

    return json_is_string(value) ? json_string_value(value) : fallback;
}

long long jsonx_get_int(const json_t *object, const char *key, long long fallback)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) ? json_integer_value(value) : fallback;
}

bool jsonx_get_bool(const json_t *object, const char *key, bool fallback)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? json_is_true(value) : fallback;
}
