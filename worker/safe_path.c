/* The one rule for file names that come from outside. */
#include "worker/safe_path.h"

#include "common/utf8.h"

#include <string.h>

#define NAME_MAX_BYTES 1024
#define PART_MAX_BYTES 255
#define PARTS_MAX      16

static const char *check_part(const char *part, size_t len)
{
    if (len == 0)
        return "has an empty part";
    if ((len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
        return "has a part that is . or .. and could leave /home/user";
    if (len > PART_MAX_BYTES)
        return "has a part of more than 255 bytes";
    return NULL;
}

const char *safe_path_check(const char *name)
{
    size_t len = strlen(name), parts = 0;
    if (len == 0)
        return "is empty";
    if (len > NAME_MAX_BYTES)
        return "is longer than 1024 bytes";
    if (!utf8_valid(name, len))
        return "is not valid UTF-8";
    if (name[0] == '/')
        return "is absolute; it must be relative to /home/user";
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '\\')
            return "has a control character or a backslash in it";
    for (const char *part = name;;) {
        size_t n = strcspn(part, "/");
        const char *why = check_part(part, n);
        if (why != NULL)
            return why;
        if (++parts > PARTS_MAX)
            return "has more than 16 parts";
        if (part[n] == '\0')
            break;
        part += n + 1;
    }
    if (strcmp(name, "output") == 0 || strncmp(name, "output/", 7) == 0)
        return "is in the output folder, which is emptied before the run";
    return NULL;
}
