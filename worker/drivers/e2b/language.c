/* Cells that set and remove variables in languages whose kernels have no hooks of ours. */
#include "common/buf.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "worker/drivers/e2b_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_MAX ((size_t)64 << 20)

static bool is(const char *language, const char *a, const char *b)
{
    return strcmp(language, a) == 0 || strcmp(language, b) == 0;
}

/* A literal in which no byte of the value can end it: every byte but plain ones is escaped. */
static int octal(struct buf *out, const char *value, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)value[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                     strchr(" _-./:,+=@", c) != NULL;
        if (plain && c != '\0' ? buf_append(out, &value[i], 1) : buf_printf(out, "\\%03o", c))
            return -1;
    }
    return 0;
}

static int script(struct buf *out, const char *name, const json_t *value, bool remove)
{
    if (remove)
        return buf_printf(out, "delete process.env[\"%s\"];", name);
    if (buf_printf(out, "process.env[\"%s\"]=", name) != 0 ||
        jsonx_quote(out, json_string_value(value), json_string_length(value)) != 0)
        return -1;
    return buf_append_str(out, ";");
}

static int shell(struct buf *out, const char *name, const json_t *value, bool remove)
{
    if (remove)
        return buf_printf(out, "unset %s;", name);
    if (buf_printf(out, "export %s=$'", name) != 0 ||
        octal(out, json_string_value(value), json_string_length(value)) != 0)
        return -1;
    return buf_append_str(out, "';");
}

static int r(struct buf *out, const char *name, const json_t *value, bool remove)
{
    if (remove)
        return buf_printf(out, "Sys.unsetenv(\"%s\");", name);
    if (buf_printf(out, "Sys.setenv(\"%s\"=\"", name) != 0 ||
        octal(out, json_string_value(value), json_string_length(value)) != 0)
        return -1;
    return buf_append_str(out, "\");");
}

char *e2b_language_env(const char *language, const json_t *env, bool remove)
{
    int (*add)(struct buf *, const char *, const json_t *, bool) = NULL;
    struct buf out;
    const char *name;
    json_t *value;
    if (is(language, "javascript", "js") || is(language, "typescript", "ts"))
        add = script;
    else if (is(language, "bash", "sh"))
        add = shell;
    else if (is(language, "r", "R"))
        add = r;
    if (add == NULL)
        return NULL;
    buf_init(&out, CELL_MAX);
    json_object_foreach((json_t *)env, name, value)
    {
        if (add(&out, name, value, remove) == 0)
            continue;
        buf_fini(&out);
        return NULL;
    }
    /* The last value is not a result. */
    if (add == r && buf_append_str(&out, "invisible(NULL)") != 0)
        buf_clear(&out);
    if (add == script && buf_append_str(&out, "void 0") != 0)
        buf_clear(&out);
    return buf_steal(&out);
}
