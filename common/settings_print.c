/* Settings on paper: the help, the check, the table in README. */
#include "common/settings.h"
#include "common/settings_impl.h"

#include <stdlib.h>
#include <string.h>

static const char *source_word(const struct setting_row *row)
{
    return row->source == SETTING_SOURCE_RUNTIME ? "runtime" : "environment";
}

/* "integer, ms", "bwrap or none", ... */
static void print_type(const struct setting_row *row, FILE *out)
{
    switch (row->type) {
    case SETTING_TYPE_STRING:
        fputs(row->secret ? "text, secret" : "text", out);
        break;
    case SETTING_TYPE_INT:
        fputs("integer", out);
        if (*row->unit)
            fprintf(out, ", %s", row->unit);
        break;
    case SETTING_TYPE_BOOL:
        fputs("true or false", out);
        break;
    case SETTING_TYPE_ENUM:
        for (const char *c = row->values; *c; c++) {
            if (*c == ' ')
                fputs(strchr(c + 1, ' ') ? ", " : " or ", out);
            else
                fputc(*c, out);
        }
        break;
    }
}

void settings_print_help(FILE *out)
{
    fputs("Settings (environment variables; those marked * may also be set at run time in the\n"
          "hash settings:runtime of the queue; a secret may be given as a file by NAME_FILE):\n",
          out);
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);

        fprintf(out, "  %s%s  (", row->name, row->source == SETTING_SOURCE_RUNTIME ? "*" : "");
        print_type(row, out);
        if (row->type == SETTING_TYPE_INT)
            fprintf(out, ", %lld to %lld", row->min, row->max);
        fprintf(out, "; default %s)\n      %s\n", *row->fallback ? row->fallback : "unset",
                row->help);
    }
}

static const char *origin_word(enum setting_origin origin)
{
    static const char *const words[] = {"default", "environment", "file", "runtime"};

    return words[origin];
}

void settings_print(const struct settings *s, FILE *out)
{
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);
        const struct setting_value *value = &s->values[id];
        char *masked = row->secret ? settings_secret_mask((enum setting)id, value->text) : NULL;

        fprintf(out, "%s=%s (%s)\n", row->name, masked ? masked : value->text,
                origin_word(value->origin));
        free(masked);
    }
}

/* A bar would end the table's cell. */
static void print_cell(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

void settings_print_markdown(FILE *out)
{
    fputs("| Name | Type | Default | Source | Meaning |\n|---|---|---|---|---|\n", out);
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);

        fprintf(out, "| `%s` | ", row->name);
        print_type(row, out);
        if (*row->fallback)
            fprintf(out, " | `%s` | ", row->fallback);
        else
            fputs(" |  | ", out);
        fprintf(out, "%s | ", source_word(row));
        print_cell(row->help, out);
        fputs(" |\n", out);
    }
}

/* Text for man(7): what would be a request or an escape there is none. */
static void print_man_text(const char *text, FILE *out)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

void settings_print_man(FILE *out)
{
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting_row *row = settings_row((enum setting)id);

        fprintf(out, ".TP\n\\fB%s\\fP (", row->name);
        print_type(row, out);
        if (row->type == SETTING_TYPE_INT)
            fprintf(out, ", %s%lld to %lld", row->min < 0 ? "\\" : "", row->min, row->max);
        if (*row->fallback) {
            fputs("; default ", out);
            print_man_text(row->fallback, out);
        }
        fputs(row->source == SETTING_SOURCE_RUNTIME ? "; run time)\n" : ")\n", out);
        print_man_text(row->help, out);
        fputs("\n", out);
    }
}
