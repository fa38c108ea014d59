/* The E2B driver: one warm sandbox a thread on E2B's service. */
#include "worker/drivers/e2b.h"

#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_exec.h"
#include "worker/drivers/e2b_run.h"
#include "worker/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISPOSE_LIMIT_S 10.0 /* for kills under way */

static void free_driver(void *arg);

void e2b_work_begin(struct e2b *e2b)
{
    e2b->work++;
}

void e2b_work_end(struct e2b *e2b)
{
    if (--e2b->work == 0 && e2b->disposing)
        reaper_defer(free_driver, e2b);
}

static void op_release(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    e2b_session_release((struct e2b *)d, thread, cb, data);
}

static void op_settle(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    e2b_session_settle((struct e2b *)d, thread, cb, data);
}

static void op_apply(struct driver *d, const struct settings *settings)
{
    struct e2b *e2b = (struct e2b *)d;
    struct settings *old = e2b->settings;
    e2b->settings = settings_ref((struct settings *)settings);
    settings_free(old);
}

/* Without callbacks from here on; what still waits for Redis keeps the struct alive. */
static void shut(struct e2b *e2b)
{
    ev_timer_stop(e2b->host->loop, &e2b->dispose_timer);
    ev_timer_stop(e2b->host->loop, &e2b->wait_timer);
    e2b_sweeper_fini(e2b);
    e2b_exec_free_all(e2b);
    while (e2b->boxes != NULL)
        e2b_box_forget(e2b->boxes);
}

static void free_driver(void *arg)
{
    struct e2b *e2b = arg;
    driver_done_fn done = e2b->disposed;
    void *data = e2b->disposed_data;
    if (done == NULL)
        return; /* given up before */
    shut(e2b);
    http_free(e2b->http);
    settings_free(e2b->settings);
    free(e2b->api_key);
    free(e2b->api_url);
    free(e2b->sandbox_url);
    free(e2b->domain);
    free(e2b->template);
    free(e2b->tag);
    free(e2b->deployment);
    free(e2b);
    done(data);
}

/* The process ends or the key was changed, and E2B does not answer: what is under way is left to
 * itself. */
static void on_dispose_limit(struct ev_loop *loop, ev_timer *w, int revents)
{
    static struct e2b *given_up; /* reachable, for whoever counts leaks */
    struct e2b *e2b = w->data;
    driver_done_fn done = e2b->disposed;
    (void)loop, (void)revents;
    log_warn("E2B: the driver is given up with %zu calls under way", e2b->work);
    e2b->disposed = NULL;
    shut(e2b);
    while (e2b->calls != NULL)
        e2b_call_cancel(e2b->calls);
    given_up = e2b;
    (void)given_up;
    done(e2b->disposed_data);
}

static void op_dispose(struct driver *d, driver_done_fn cb, void *data)
{
    struct e2b *e2b = (struct e2b *)d;
    e2b->disposing = true;
    e2b->disposed = cb;
    e2b->disposed_data = data;
    e2b_sweeper_fini(e2b);
    ev_timer_init(&e2b->dispose_timer, on_dispose_limit, DISPOSE_LIMIT_S, 0);
    e2b->dispose_timer.data = e2b;
    ev_now_update(e2b->host->loop);
    ev_timer_start(e2b->host->loop, &e2b->dispose_timer);
    if (e2b->work == 0)
        reaper_defer(free_driver, e2b);
}

static const struct driver_ops e2b_ops = {
    .name = "E2B",
    .start = e2b_run_start,
    .deliver = e2b_run_deliver,
    .interrupt = e2b_run_interrupt,
    .file_read = e2b_run_file_read,
    .close = e2b_run_close,
    .release = op_release,
    .settle = op_settle,
    .apply = op_apply,
    .dispose = op_dispose,
};

/* An address from the settings, without the slash at its end. */
static char *address(const char *text)
{
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '/')
        len--;
    return mem_strndup(text, len);
}

static bool is_address(const char *text)
{
    return strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0;
}

static int check(const struct settings *s, char *err, size_t err_size)
{
    const char *api = settings_str(s, SETTING_E2B_API_URL);
    const char *sandbox = settings_str(s, SETTING_E2B_SANDBOX_URL);
    const char *key = settings_str(s, SETTING_E2B_API_KEY);
    if (key[0] == '\0')
        snprintf(err, err_size, "E2B_API_KEY is required when CODE_INTERPRETER_TYPE is E2B");
    else if (strpbrk(key, " \r\n\t") != NULL)
        snprintf(err, err_size, "E2B_API_KEY has white space in it");
    else if (!e2b_is_plain(settings_str(s, SETTING_E2B_DOMAIN)))
        snprintf(err, err_size, "E2B_DOMAIN is not a domain name");
    else if ((api[0] != '\0' && !is_address(api)) || (sandbox[0] != '\0' && !is_address(sandbox)))
        snprintf(err, err_size,
                 "E2B_API_URL and E2B_SANDBOX_URL must begin with https:// or http://");
    else if (settings_str(s, SETTING_E2B_SESSION_TAG)[0] == '\0')
        snprintf(err, err_size, "E2B_SESSION_TAG must not be empty");
    else
        return 0;
    return -1;
}

static void count_request(const char *kind, enum http_result result, int status)
{
    static const char *const ends[] = {[HTTP_REFUSED] = "refused",
                                       [HTTP_FAILED] = "failed",
                                       [HTTP_CUT] = "cut",
                                       [HTTP_TIMED_OUT] = "timed_out"};
    char code[16];
    snprintf(code, sizeof code, "%d", status);
    metrics_count(METRIC_E2B_REQUESTS, 1, kind, result == HTTP_DONE ? code : ends[result]);
}

struct driver *driver_e2b_new(const struct driver_host *host, const struct settings *settings,
                              char *err, size_t err_size)
{
    if (check(settings, err, err_size) != 0)
        return NULL;
    struct e2b *e2b = mem_alloc(sizeof *e2b);
    const char *api = settings_str(settings, SETTING_E2B_API_URL);
    const char *deployment = settings_str(settings, SETTING_E2B_DEPLOYMENT_ID);
    e2b->base.ops = &e2b_ops;
    e2b->host = host;
    e2b->settings = settings_ref((struct settings *)settings);
    e2b->http = http_new(host->loop);
    http_observe(e2b->http, count_request);
    e2b->api_key = mem_strdup(settings_str(settings, SETTING_E2B_API_KEY));
    e2b->domain = mem_strdup(settings_str(settings, SETTING_E2B_DOMAIN));
    e2b->api_url = api[0] != '\0' ? address(api) : mem_printf("https://api.%s", e2b->domain);
    e2b->sandbox_url = address(settings_str(settings, SETTING_E2B_SANDBOX_URL));
    e2b->template = mem_strdup(settings_str(settings, SETTING_E2B_TEMPLATE));
    e2b->tag = mem_strdup(settings_str(settings, SETTING_E2B_SESSION_TAG));
    e2b->deployment = deployment[0] != '\0' ? mem_strdup(deployment) : NULL;
    log_secret_add(e2b->api_key);
    e2b_sweeper_init(e2b);
    return &e2b->base;
}
