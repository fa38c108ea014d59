/* Tests of rediss:// against a real server with certificates made here; skipped where TLS is not
 * built in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ev.h>

#include "common/mem.h"
#include "common/reaper.h"
#include "common/redis.h"
#include "redis_server.h"

#ifdef SANDPIPER_REDIS_TLS

static struct ev_loop *loop;
static struct redis_server server;
static int tls_port;

struct probe {
    int ups, answers, nulls, failures;
    char why[200]; /* of the last failure */
    long long integer;
};

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    struct probe *p = data;
    (void)r;
    (void)reason;
    p->ups += ready;
}

static void on_failed(struct redis *r, const char *reason, bool permanent, void *data)
{
    struct probe *p = data;
    (void)r;
    (void)permanent;
    p->failures++;
    snprintf(p->why, sizeof(p->why), "%s", reason);
}

static void on_reply(struct redis *r, redisReply *reply, void *data)
{
    struct probe *p = data;
    (void)r;
    p->answers += reply != NULL;
    p->nulls += reply == NULL;
    p->integer = reply ? reply->integer : -1;
}

static void on_guard(struct ev_loop *l, ev_timer *timer, int events)
{
    (void)events;
    *(bool *)timer->data = true;
    ev_break(l, EVBREAK_ONE);
}

/* Runs the loop until *count is at least want, or so many seconds have passed; whether it is. */
static bool run_for(const int *count, int want, double seconds)
{
    bool over = false;
    ev_timer guard;
    ev_timer_init(&guard, on_guard, seconds, 0);
    guard.data = &over;
    ev_now_update(loop);
    ev_timer_start(loop, &guard);
    while (*count < want && !over)
        ev_run(loop, EVRUN_ONCE);
    ev_timer_stop(loop, &guard);
    return *count >= want;
}

static void shell(const char *command)
{
    if (system(command))
        fail_msg("failed: %s", command);
}

static int set_up(void **state)
{
    char command[1024], port[16], key[128], cert[128], ca[128];
    (void)state;
    redis_server_start(&server, NULL); /* for its folder */
    redis_server_kill(&server);
    snprintf(
        command, sizeof(command),
        "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null",
        server.dir);
    shell(command);
    snprintf(key, sizeof(key), "%s/key.pem", server.dir);
    snprintf(cert, sizeof(cert), "%s/cert.pem", server.dir);
    snprintf(ca, sizeof(ca), "%s/cert.pem", server.dir);
    setenv("SSL_CERT_FILE", ca, 1);
    tls_port = redis_server_free_port();
    snprintf(port, sizeof(port), "%d", tls_port);
    const char *const extra[] = {"--tls-port",
                                 port,
                                 "--tls-cert-file",
                                 cert,
                                 "--tls-key-file",
                                 key,
                                 "--tls-ca-cert-file",
                                 ca,
                                 "--tls-auth-clients",
                                 "no",
                                 NULL};
    redis_server_start(&server, extra);
    loop = ev_loop_new(EVFLAG_NOENV);
    reaper_init(loop);
    return 0;
}

static int tear_down(void **state)
{
    char command[256];
    (void)state;
    reaper_fini();
    ev_loop_destroy(loop);
    snprintf(command, sizeof(command), "rm -f %s/*.pem", server.dir);
    shell(command);
    redis_server_remove(&server);
    return 0;
}

static struct redis *dial(struct probe *p, const char *host)
{
    struct redis_url url;
    char text[128], err[200];
    snprintf(text, sizeof(text), "rediss://%s:%d", host, tls_port);
    assert_int_equal(redis_url_parse(text, &url, err, sizeof(err)), 0);
    struct redis_options options = {.url = &url, .label = "tls"};
    struct redis *r = redis_new(loop, &options, on_state, p);
    redis_url_fini(&url);
    return r;
}

/* With REDIS_TLS_CA_FILE and so on: names of files in the server's folder, or NULL. */
static struct redis *dial_with(struct probe *p, const char *ca, const char *cert, const char *key)
{
    struct redis_url url;
    char text[128], err[200];
    snprintf(text, sizeof(text), "rediss://localhost:%d", tls_port);
    assert_int_equal(redis_url_parse(text, &url, err, sizeof(err)), 0);
    url.tls_files.ca = ca ? mem_printf("%s/%s", server.dir, ca) : NULL;
    url.tls_files.cert = cert ? mem_printf("%s/%s", server.dir, cert) : NULL;
    url.tls_files.key = key ? mem_printf("%s/%s", server.dir, key) : NULL;
    struct redis_options options = {.url = &url, .label = "tls", .on_failed = on_failed};
    struct redis *r = redis_new(loop, &options, on_state, p);
    redis_url_fini(&url);
    return r;
}

static void test_tls(void **state)
{
    struct probe p = {0};
    size_t big_len = (size_t)8 << 20;
    char *big = mem_alloc(big_len);
    const char *const set[] = {"SET", "big", big};
    const size_t set_lens[] = {3, 3, big_len};
    const char *const get[] = {"GET", "big"};
    const char *const len[] = {"STRLEN", "big"};
    (void)state;
    struct redis *r = dial(&p, "localhost");
    assert_true(run_for(&p.ups, 1, 15));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(redis_command(r, 3, set, set_lens, 0, on_reply, &p), 0);
        assert_int_equal(redis_command(r, 2, get, NULL, 0, on_reply, &p), 0);
        assert_int_equal(redis_command(r, 2, len, NULL, 0, on_reply, &p), 0);
    }
    assert_true(run_for(&p.answers, 9, 15));
    assert_int_equal(p.integer, big_len);
    assert_int_equal(p.nulls, 0);
    redis_free(r);
    free(big);
}

/* The certificate is not for this name. */
static void test_wrong_name(void **state)
{
    struct probe p = {0};
    (void)state;
    struct redis *r = dial(&p, "127.0.0.1");
    assert_false(run_for(&p.ups, 1, 1));
    redis_free(r);
}

/* CA and client certificate from files of our own; the server asks for one from here on. */
static void test_files(void **state)
{
    char command[512];
    struct probe own = {0}, none = {0}, wrong = {0}, fine = {0};
    (void)state;
    setenv("SSL_CERT_FILE", "/nonexistent", 1); /* the system knows no CA */
    snprintf(command, sizeof(command),
             "redis-cli -s %s/r.sock CONFIG SET tls-auth-clients yes >/dev/null && "
             "cp %s/key.pem %s/other.pem && : >%s/empty.pem",
             server.dir, server.dir, server.dir, server.dir);
    shell(command);

    struct redis *r = dial_with(&own, NULL, NULL, NULL);
    assert_true(run_for(&own.failures, 1, 60)); /* an unknown CA */
    assert_int_equal(own.ups, 0);
    redis_free(r);
    r = dial_with(&none, "cert.pem", NULL, NULL);
    assert_true(run_for(&none.failures, 1, 60)); /* no certificate of ours */
    assert_int_equal(none.ups, 0);
    redis_free(r);
    r = dial_with(&wrong, "cert.pem", "empty.pem", "key.pem");
    assert_true(run_for(&wrong.failures, 1, 60));
    assert_non_null(strstr(wrong.why, "REDIS_TLS_CERT_FILE"));
    redis_free(r);
    r = dial_with(&fine, "cert.pem", "cert.pem", "other.pem");
    assert_true(run_for(&fine.ups, 1, 60));
    redis_free(r);
}

#else

static int set_up(void **state)
{
    (void)state;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return 0;
}

static void test_tls(void **state)
{
    (void)state;
    skip();
}

static void test_wrong_name(void **state)
{
    (void)state;
    skip();
}

static void test_files(void **state)
{
    (void)state;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_wrong_name),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests_name("redis_tls", tests, set_up, tear_down);
}
