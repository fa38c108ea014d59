/* Hands out the driver that the settings ask for; made on first use, and again when what identifies
 * it changes. */
#include "worker/factory.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "worker/drivers/local_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct kept {
    struct kept *next;
    struct factory *owner;
    struct driver *driver;
    char *identity; /* what makes it this driver and no other; may hold a key: never logged */
    size_t users;
    bool retired;
};

struct factory {
    struct driver_host host;
    struct kept *all;
    struct kept *current;
    driver_done_fn done;
    void *done_data;
    bool disposing;
};

enum type { TYPE_DISABLED, TYPE_LOCAL, TYPE_E2B, TYPE_SCRIPTED, TYPE_UNKNOWN };

#define TEXT_DISABLED                                                                              \
    "Code interpreter is disabled. Set CODE_INTERPRETER_TYPE to LOCAL (development only) or E2B "  \
    "to enable it."
static enum type type_of(const struct settings *s)
{
    const char *word = settings_str(s, SETTING_CODE_INTERPRETER_TYPE);
    if (word[0] == '\0')
        return settings_is_development(s) ? TYPE_LOCAL : TYPE_DISABLED;
    if (strcasecmp(word, "LOCAL") == 0)
        return TYPE_LOCAL;
    if (strcasecmp(word, "E2B") == 0 || strcasecmp(word, "E_2_B") == 0)
        return TYPE_E2B;
    if (strcasecmp(word, "DISABLED") == 0)
        return TYPE_DISABLED;
#ifdef SANDPIPER_TEST_BUILD
    if (strcasecmp(word, "SCRIPTED") == 0)
        return TYPE_SCRIPTED;
#endif
    return TYPE_UNKNOWN;
}

/* LOCAL, and known that it may not run here. */
static bool is_refused(const struct settings *s)
{
    struct local_verdict verdict = local_verdict(s);

    return !verdict.allowed && !verdict.pending;
}

/* What a change of makes another driver necessary. */
static char *identity_of(const struct settings *s, enum type type)
{
    switch (type) {
    case TYPE_LOCAL:
        return mem_printf("LOCAL|%d|%d|%s|%s|%s|%s", settings_is_development(s), is_refused(s),
                          settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_ISOLATION),
                          settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_PYTHON),
                          settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_DIR),
                          settings_str(s, SETTING_CODE_INTERPRETER_LOCAL_NETWORK));
    case TYPE_E2B:
        return mem_printf(
            "E2B|%s|%s|%s|%s|%s|%s|%s", settings_str(s, SETTING_E2B_API_KEY),
            settings_str(s, SETTING_E2B_TEMPLATE), settings_str(s, SETTING_E2B_DOMAIN),
            settings_str(s, SETTING_E2B_API_URL), settings_str(s, SETTING_E2B_SANDBOX_URL),
            settings_str(s, SETTING_E2B_SESSION_TAG), settings_str(s, SETTING_E2B_DEPLOYMENT_ID));
    case TYPE_SCRIPTED:
        return mem_strdup("SCRIPTED");
    case TYPE_DISABLED:
    case TYPE_UNKNOWN:
        break;
    }
    return mem_strdup("DISABLED");
}

/* Made while the isolation is still being checked, the driver waits for the verdict. */
static struct driver *make_local(struct factory *f, const struct settings *s, char *err,
                                 size_t err_size)
{
    if (!is_refused(s))
        return driver_local_new(&f->host, s, err, err_size);
    char *message = mem_printf(DRIVER_LOCAL_REFUSED, local_verdict(s).why);
    struct driver *driver = driver_disabled_new(&f->host, message);
    free(message);
    return driver;
}

static struct driver *make(struct factory *f, const struct settings *s, enum type type, char *err,
                           size_t err_size)
{
    switch (type) {
    case TYPE_DISABLED:
        return driver_disabled_new(&f->host, TEXT_DISABLED);
    case TYPE_LOCAL:
        return make_local(f, s, err, err_size);
    case TYPE_E2B:
        return driver_e2b_new(&f->host, s, err, err_size);
    case TYPE_SCRIPTED:
#ifdef SANDPIPER_TEST_BUILD
        return driver_scripted_new(&f->host);
#endif
    case TYPE_UNKNOWN:
        break;
    }
    snprintf(err, err_size, "Invalid code interpreter driver type (%.100s), check your .env file",
             settings_str(s, SETTING_CODE_INTERPRETER_TYPE));
    return NULL;
}

struct factory *factory_new(const struct driver_host *host)
{
    struct factory *f = mem_alloc(sizeof *f);
    f->host = *host;
    return f;
}

static void check_all_gone(struct factory *f)
{
    if (!f->disposing || f->all != NULL)
        return;
    driver_done_fn done = f->done;
    void *data = f->done_data;
    free(f);
    done(data);
}

static void on_disposed(void *data)
{
    struct kept *k = data;
    struct factory *f = k->owner;
    struct kept **link = &f->all;
    while (*link != k)
        link = &(*link)->next;
    *link = k->next;
    free(k->identity);
    free(k);
    check_all_gone(f);
}

static void retire(struct kept *k)
{
    if (k == NULL)
        return;
    k->retired = true;
    if (k->owner->current == k)
        k->owner->current = NULL;
    if (k->users == 0) {
        log_info("driver %s is disposed of", k->driver->ops->name);
        k->driver->ops->dispose(k->driver, on_disposed, k);
    }
}

struct driver *factory_take(struct factory *f, const struct settings *settings, char *err,
                            size_t err_size)
{
    enum type type = type_of(settings);
    if (type == TYPE_LOCAL)
        local_probe_start(f->host.loop, settings);
    char *identity = identity_of(settings, type);
    if (f->current != NULL && type != TYPE_UNKNOWN && strcmp(f->current->identity, identity) == 0) {
        free(identity);
        if (f->current->driver->ops->apply != NULL)
            f->current->driver->ops->apply(f->current->driver, settings);
        f->current->users++;
        return f->current->driver;
    }
    struct driver *driver = make(f, settings, type, err, err_size);
    if (driver == NULL) {
        free(identity);
        return NULL;
    }
    retire(f->current); /* only now: while the new one cannot be made, the old one may yet be asked
                           for again */
    struct kept *k = mem_alloc(sizeof *k);
    *k = (struct kept){f->all, f, driver, identity, 1, false};
    f->all = f->current = k;
    log_info("driver %s is ready", driver->ops->name);
    return driver;
}

void factory_give_back(struct factory *f, struct driver *d)
{
    for (struct kept *k = f->all; k != NULL; k = k->next) {
        if (k->driver != d)
            continue;
        if (--k->users == 0 && k->retired)
            retire(k);
        return;
    }
}

bool factory_is_local(const struct settings *settings)
{
    return type_of(settings) == TYPE_LOCAL;
}

const char *factory_describe(const struct settings *settings, const char **why)
{
    static char refusal[800];

    *why = "";
    switch (type_of(settings)) {
    case TYPE_LOCAL:
        if (local_verdict(settings).allowed)
            return "LOCAL";
        snprintf(refusal, sizeof refusal,
                 local_verdict(settings).pending ? "LOCAL, but %s" : DRIVER_LOCAL_REFUSED,
                 local_verdict(settings).why);
        *why = refusal;
        return "DISABLED";
    case TYPE_E2B:
        if (settings_str(settings, SETTING_E2B_API_KEY)[0] == '\0')
            *why = "E2B_API_KEY is required when CODE_INTERPRETER_TYPE is E2B";
        return "E2B";
    case TYPE_SCRIPTED:
        return "SCRIPTED";
    case TYPE_DISABLED:
        *why = TEXT_DISABLED;
        return "DISABLED";
    case TYPE_UNKNOWN:
        break;
    }
    *why = "invalid CODE_INTERPRETER_TYPE";
    return "INVALID";
}

void factory_prepare(struct factory *f, const struct settings *settings)
{
    char err[400];
    const char *why;
    enum type type = type_of(settings);

    factory_describe(settings, &why);
    /* E2B: its sweeper has work also where no job comes. */
    if (type != TYPE_LOCAL && (type != TYPE_E2B || why[0] != '\0'))
        return;
    struct driver *driver = factory_take(f, settings, err, sizeof err);
    if (driver != NULL)
        factory_give_back(f, driver);
    else
        log_error("driver %s cannot be made: %s", type == TYPE_LOCAL ? "LOCAL" : "E2B", err);
}

void factory_dispose(struct factory *f, driver_done_fn done, void *data)
{
    f->disposing = true;
    f->done = done;
    f->done_data = data;
    retire(f->current);
    if (f->all == NULL) {
        free(f);
        done(data);
    }
}
