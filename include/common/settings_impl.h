/* Shared by the settings files alone: how a set of values is held. */
#ifndef SANDPIPER_COMMON_SETTINGS_IMPL_H
#define SANDPIPER_COMMON_SETTINGS_IMPL_H

#include "common/settings.h"

enum setting_origin { ORIGIN_DEFAULT, ORIGIN_ENVIRONMENT, ORIGIN_FILE, ORIGIN_RUNTIME };

struct setting_value {
    char *text;       /* as settings_str gives it; for INT and BOOL as it was given */
    long long number; /* INT; BOOL: 0 or 1 */
    enum setting_origin origin;
    char *file; /* ORIGIN_FILE: the path, read again at each overlay */
};

struct settings {
    int references;
    struct setting_value values[SETTING_COUNT];
    bool has_files; /* a value has a file */
    /* The last overlay of it and the pairs it was made from: jobs hardly ever bring others. */
    struct settings *overlaid;
    char **fields;
    size_t field_count;
};

/* Is this secret a URL, of which only the password is secret? */
bool settings_secret_is_url(enum setting id);
/* Tells log_secret_add what is secret in the row's value. */
void settings_secret_register(enum setting id, const char *value);
/* The value as it may be shown; heap, caller frees. */
char *settings_secret_mask(enum setting id, const char *value);

#endif
