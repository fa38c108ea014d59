/* Options, settings, start, signals. */
#include "common/log.h"
#include "common/reaper.h"
#include "common/redis_settings.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/status/health.h"
#include "worker/worker.h"

#include <curl/curl.h>
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* README "Exit codes" */
enum exit_code { EXIT_FINE = 0, EXIT_UNHEALTHY = 1, EXIT_USAGE = 2, EXIT_SETTINGS = 3 };

struct app {
    struct ev_loop *loop;
    struct worker *worker;
    struct ev_signal term, intr;
    enum exit_code code;
#ifdef SANDPIPER_TEST_BUILD
    struct ev_signal usr2; /* makes the claim loop hang */
#endif
};

static void on_drained(void *data)
{
    struct app *app = data;
    ev_break(app->loop, EVBREAK_ALL);
}

/* The Redis of the settings can never serve us. */
static void on_unfit(const char *reason, void *data)
{
    struct app *app = data;
    log_error("giving up: %s", reason);
    app->code = EXIT_SETTINGS;
    worker_drain(app->worker, on_drained, app);
}

static void on_signal(struct ev_loop *loop, struct ev_signal *w, int revents)
{
    (void)loop;
    (void)revents;
    struct app *app = w->data;
    log_info("signal %d", w->signum);
    worker_drain(app->worker, on_drained, app);
}

#ifdef SANDPIPER_TEST_BUILD
static void on_hang_signal(struct ev_loop *loop, struct ev_signal *w, int revents)
{
    (void)loop;
    (void)w;
    (void)revents;
    worker_hang();
}
#endif

static void watch(struct app *app, struct ev_signal *w, int signum)
{
    ev_signal_init(w, on_signal, signum);
    w->data = app;
    ev_signal_start(app->loop, w);
    ev_unref(app->loop);
}

/* The end of the loop. */
static void unwatch(struct app *app)
{
    reaper_fini();
    ev_ref(app->loop);
    ev_ref(app->loop);
    ev_signal_stop(app->loop, &app->term);
    ev_signal_stop(app->loop, &app->intr);
#ifdef SANDPIPER_TEST_BUILD
    ev_ref(app->loop);
    ev_signal_stop(app->loop, &app->usr2);
#endif
    ev_loop_destroy(app->loop);
}

static int serve(struct settings *settings)
{
    struct app app = {.loop = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV)};
    char err[400];
    signal(SIGPIPE, SIG_IGN);
    srandom((unsigned)(text_now_ms() ^ getpid()));
    curl_global_init(CURL_GLOBAL_DEFAULT);
    reaper_init(app.loop);
    /* Before anything is said: a signal from here on waits for the loop, and for its worker. */
    watch(&app, &app.term, SIGTERM);
    watch(&app, &app.intr, SIGINT);
#ifdef SANDPIPER_TEST_BUILD
    ev_signal_init(&app.usr2, on_hang_signal, SIGUSR2);
    ev_signal_start(app.loop, &app.usr2);
    ev_unref(app.loop);
#endif
    app.worker = worker_new(app.loop, settings, err, sizeof err);
    if (app.worker == NULL) {
        log_error("%s", err);
        unwatch(&app);
        return EXIT_SETTINGS;
    }
    worker_on_unfit(app.worker, on_unfit, &app);
    ev_run(app.loop, 0);
    worker_free(app.worker);
    unwatch(&app);
    curl_global_cleanup();
    log_info("drained; bye");
    return app.code;
}

static void print_help(void)
{
    printf("sandpiper " SANDPIPER_VERSION
           ": a BullMQ queue worker that runs code, one warm sandbox per thread\n\n"
           "Usage: sandpiper [--check-config | --health | --help | --version]\n\n"
           "  --check-config  print the settings in effect, secrets masked, and exit\n"
           "  --health        ask the status port of a running worker: exit code 0 when it is "
           "healthy\n"
           "  --help          this text\n"
           "  --version       the version\n\n"
           "Settings are environment variables:\n\n");
    settings_print_help(stdout);
}

/* What settings.c does not know of: the parts of URLs and lists. */
static bool check_redis_url(const struct settings *settings)
{
    struct redis_url url;
    char err[300];
    if (redis_settings_parse(settings, &url, err, sizeof err) != 0) {
        log_error("%s", err);
        return false;
    }
    redis_url_fini(&url);
    return true;
}

int main(int argc, char **argv)
{
    const char *option = argc > 1 ? argv[1] : "";
    char err[400];
    /* Our environment and memory hold secrets. LOCAL's kernels without isolation run as the same
     * user; so no other process of this user may look at /proc/<pid>/environ or mem, or attach.
     * Programs that we start are not affected; the price is that a crash leaves no core file. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
        print_help();
        return EXIT_FINE;
    }
    if (strcmp(option, "--version") == 0 || strcmp(option, "-V") == 0) {
        printf("sandpiper " SANDPIPER_VERSION "\n");
        return EXIT_FINE;
    }
    if (strcmp(option, "--settings-markdown") == 0) {
        settings_print_markdown(stdout);
        return EXIT_FINE;
    }
    if (strcmp(option, "--settings-man") == 0) {
        settings_print_man(stdout);
        return EXIT_FINE;
    }
    if (argc > 2 || (option[0] != '\0' && strcmp(option, "--check-config") != 0 &&
                     strcmp(option, "--health") != 0)) {
        fprintf(stderr, "sandpiper: unknown option %s; see --help\n", option);
        return EXIT_USAGE;
    }
    log_init(LOG_LEVEL_INFO, LOG_FORMAT_AUTO);
    struct settings *settings = settings_from_environment(err, sizeof err);
    if (settings == NULL) {
        log_error("%s", err);
        return EXIT_SETTINGS;
    }
    if (!check_redis_url(settings)) {
        settings_free(settings);
        return EXIT_SETTINGS;
    }
    int code = EXIT_FINE;
    if (strcmp(option, "--health") == 0) {
        code = health_ask(settings) == 0 ? EXIT_FINE : EXIT_UNHEALTHY;
    } else if (option[0] != '\0') {
        settings_print(settings, stdout);
    } else {
        enum log_level level = LOG_LEVEL_INFO;
        enum log_format format = LOG_FORMAT_AUTO;
        log_level_parse(settings_str(settings, SETTING_LOG_LEVEL), &level);
        log_format_parse(settings_str(settings, SETTING_LOG_FORMAT), &format);
        log_init(level, format);
        code = serve(settings);
    }
    settings_free(settings);
    log_flush();
    log_secrets_clear();
    return code;
}
