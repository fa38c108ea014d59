/* Tests of the Redis connection against a real server: greeting, commands, scripts, losses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ev.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/redis.h"
#include "redis_server.h"

static struct ev_loop *loop;
static struct redis_server server;

/* ---- What the module logs, to look at ---- */

static char log_text[65536];

void log_write(enum log_level level, const struct log_ctx *ctx, const char *fmt, ...)
{
    size_t used = strlen(log_text);
    va_list args;
    (void)ctx;
    if (level == LOG_LEVEL_DEBUG || used > sizeof(log_text) - 2048)
        return;
    va_start(args, fmt);
    vsnprintf(log_text + used, 2000, fmt, args);
    va_end(args);
    strcat(log_text, "\n");
}

static int log_count(const char *text)
{
    int n = 0;
    for (const char *at = log_text; (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

/* ---- Running the loop until something is so ---- */

#define RUN_UNTIL_SAYS log_text
#include "run_until.h"

/* ---- A connection and what it told ---- */

struct probe {
    struct redis *r;
    int ups, downs;
    char reason[256];
    int answers, nulls; /* callbacks with and without a reply */
    int nulls_at_down;  /* nulls when on_state(false) came */
    bool inside;        /* a redis_ call is on the stack: no callback may run */
    int type;           /* of the last reply */
    char text[4096];    /* of the last reply */
    size_t len;
    long long integer;
    bool reopen_on_null, command_on_up, reopen_in_reply;
    int refused_on_null;
};

static void on_reply(struct redis *r, redisReply *reply, void *data)
{
    struct probe *p = data;
    assert_false(p->inside);
    if (!reply) {
        p->nulls++;
        if (p->reopen_on_null) {
            const char *const argv[] = {"PING"};
            redis_reopen(r, "from a NULL callback");
            p->refused_on_null += redis_command(r, 1, argv, NULL, 0, on_reply, p) == -1;
        }
        return;
    }
    p->answers++;
    p->type = reply->type;
    p->integer = reply->integer;
    p->len = 0;
    if (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS ||
        reply->type == REDIS_REPLY_ERROR) {
        p->len = (size_t)reply->len < sizeof(p->text) ? (size_t)reply->len : sizeof(p->text) - 1;
        memcpy(p->text, reply->str, p->len);
    }
    p->text[p->len] = '\0';
    if (p->reopen_in_reply) {
        p->reopen_in_reply = false;
        redis_reopen(r, "from a callback");
    }
}

static void on_state(struct redis *r, bool ready, const char *reason, void *data)
{
    struct probe *p = data;
    assert_false(p->inside);
    assert_int_equal(redis_ready(r), ready);
    if (ready) {
        p->ups++;
        if (p->command_on_up) {
            const char *const argv[] = {"PING"};
            assert_int_equal(redis_command(r, 1, argv, NULL, 0, on_reply, p), 0);
        }
    } else {
        p->downs++;
        p->nulls_at_down = p->nulls;
        snprintf(p->reason, sizeof(p->reason), "%s", reason);
    }
}

static void connect_with(struct probe *p, const char *url_text, struct redis_options options)
{
    struct redis_url url;
    char err[200];
    memset(p, 0, sizeof(*p));
    if (redis_url_parse(url_text, &url, err, sizeof(err)))
        fail_msg("%s", err);
    options.url = &url;
    options.label = "test";
    options.backoff_max_ms = options.backoff_max_ms ? options.backoff_max_ms : 100;
    p->r = redis_new(loop, &options, on_state, p);
    redis_url_fini(&url);
}

static void connect_socket(struct probe *p, struct redis_options options)
{
    char url[128];
    snprintf(url, sizeof(url), "unix://%s", server.sock);
    connect_with(p, url, options);
}

static int send_argv(struct probe *p, int argc, const char *const *argv, int timeout_ms)
{
    p->inside = true;
    int rc = redis_command(p->r, argc, argv, NULL, timeout_ms, on_reply, p);
    p->inside = false;
    return rc;
}

#define SEND(p, ...)                                                                               \
    send_argv(p, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                    \
              (const char *const[]){__VA_ARGS__}, 0)

/* Runs one command to its answer. */
#define ASK(p, ...)                                                                                \
    do {                                                                                           \
        int before = (p)->answers;                                                                 \
        assert_int_equal(SEND(p, __VA_ARGS__), 0);                                                 \
        run_until((p)->answers > before);                                                          \
    } while (0)

static void admin(const char *command)
{
    redisContext *c = redis_server_dial(&server);
    assert_non_null(c);
    redisReply *reply = redisCommand(c, command);
    assert_non_null(reply);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", command, reply->str);
    freeReplyObject(reply);
    redisFree(c);
}

static int set_up(void **state)
{
    (void)state;
    loop = ev_loop_new(EVFLAG_NOENV);
    reaper_init(loop);
    log_text[0] = '\0';
    redis_server_start(&server, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    reaper_fini();
    ev_loop_destroy(loop);
    redis_server_remove(&server);
    return 0;
}

/* A number in the server's INFO. */
static long long server_info(const char *section, const char *field)
{
    redisContext *c = redis_server_dial(&server);
    assert_non_null(c);
    redisReply *reply = redisCommand(c, "INFO %s", section);
    const char *at = strstr(reply->str, field);
    long long n = at ? strtoll(at + strlen(field), NULL, 10) : 0;
    freeReplyObject(reply);
    redisFree(c);
    return n;
}

static void wait_blocked(void)
{
    while (server_info("clients", "blocked_clients:") == 0)
        ev_run(loop, EVRUN_NOWAIT);
}

/* ---- Tests ---- */

static void test_commands(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){.client_name = "me:1"});
    assert_false(redis_ready(p.r));
    assert_int_equal(SEND(&p, "PING"), -1); /* before ready: refused, never called back */
    run_until(p.ups);
    assert_true(redis_server_version(p.r) >= 60000);
    assert_int_equal(redis_reconnects(p.r), 0);

    const char *const argv[] = {"SET", "k\r\n$1", "a\0b\r\n"};
    const size_t lens[] = {3, 5, 5};
    assert_int_equal(redis_command(p.r, 3, argv, lens, 0, NULL, NULL), 0); /* cb may be NULL */
    const char *const get[] = {"GET", "k\r\n$1"};
    assert_int_equal(redis_command(p.r, 2, get, lens, 0, on_reply, &p), 0);
    run_until(p.answers == 1);
    assert_int_equal(p.type, REDIS_REPLY_STRING);
    assert_int_equal(p.len, 5);
    assert_memory_equal(p.text, "a\0b\r\n", 5);

    ASK(&p, "CLIENT", "GETNAME");
    assert_string_equal(p.text, "me:1");
    ASK(&p, "NOSUCH");
    assert_int_equal(p.type, REDIS_REPLY_ERROR);
    ASK(&p, "SET", "empty", "");
    assert_string_equal(p.text, "OK");
    assert_int_equal(p.nulls, 0);
    redis_free(p.r);
    assert_int_equal(p.downs, 0);
}

/* Many small and one large request, pipelined; answers come in order. */
static void test_pipeline(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    size_t big_len = (size_t)24 << 20;
    char *big = mem_alloc(big_len);
    memset(big, 'x', big_len);
    const char *const argv[] = {"SET", "big", big};
    const size_t lens[] = {3, 3, big_len};
    for (int i = 0; i < 1000; i++)
        assert_int_equal(SEND(&p, "INCR", "n"), 0);
    assert_int_equal(redis_command(p.r, 3, argv, lens, 0, on_reply, &p), 0);
    free(big); /* copied */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(SEND(&p, "INCR", "n"), 0);
    run_until(p.answers == 2001);
    assert_int_equal(p.integer, 2000);
    ASK(&p, "STRLEN", "big");
    assert_int_equal(p.integer, big_len);
    assert_int_equal(SEND(&p, "GET", "big"), 0);
    run_until(p.answers == 2003);
    assert_int_equal(p.nulls, 0);
    redis_free(p.r);
}

static void test_bounded(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){.max_pending_bytes = 1000});
    run_until(p.ups);
    char text[951];
    memset(text, 'x', 950);
    text[950] = '\0';
    assert_int_equal(SEND(&p, "SET", "k", text), 0);
    assert_int_equal(SEND(&p, "SET", "k", text), -1);
    run_until(p.answers == 1);
    assert_int_equal(SEND(&p, "SET", "k", text), 0); /* room again once answered */
    run_until(p.answers == 2);
    redis_free(p.r);
}

/* ACL user, a password with every awkward character, a database, over TCP and by name. */
static void test_auth(void **state)
{
    struct probe p;
    char url[200];
    (void)state;
    admin("ACL SETUSER bob on >p@s:s%%/#? ~* &* +@all");
    snprintf(url, sizeof(url), "redis://bob:p%%40s%%3As%%25%%2F%%23%%3F@localhost:%d/5",
             server.port);
    connect_with(&p, url, (struct redis_options){0});
    run_until(p.ups);
    ASK(&p, "ACL", "WHOAMI");
    assert_string_equal(p.text, "bob");
    ASK(&p, "SET", "here", "1");
    redis_free(p.r);

    snprintf(url, sizeof(url), "unix://%s?db=5", server.sock);
    connect_with(&p, url, (struct redis_options){0});
    run_until(p.ups);
    ASK(&p, "EXISTS", "here");
    assert_int_equal(p.integer, 1);
    redis_free(p.r);

    snprintf(url, sizeof(url), "redis://[::1]:%d/0", server.port);
    connect_with(&p, url, (struct redis_options){0});
    run_until(p.ups);
    ASK(&p, "EXISTS", "here");
    assert_int_equal(p.integer, 0);
    redis_free(p.r);
}

/* A user who may neither INFO nor PING nor CLIENT still gets in, with a warning. */
static void test_few_rights(void **state)
{
    struct probe p;
    char url[200];
    (void)state;
    admin("ACL SETUSER low on >low ~* +get +set");
    snprintf(url, sizeof(url), "redis://low:low@127.0.0.1:%d", server.port);
    connect_with(&p, url, (struct redis_options){.client_name = "x"});
    run_until(p.ups);
    assert_int_equal(redis_server_version(p.r), 0);
    assert_int_equal(log_count("NOPERM"), 2);
    ASK(&p, "GET", "a");
    assert_int_equal(p.type, REDIS_REPLY_NIL);
    redis_free(p.r);
}

static void test_needless_password(void **state)
{
    struct probe p;
    char url[200];
    (void)state;
    snprintf(url, sizeof(url), "unix://:canary@%s", server.sock);
    connect_with(&p, url, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(log_count("REDIS_URL: it has a password"), 1);
    assert_int_equal(log_count("canary"), 0);
    redis_free(p.r);
}

/* A wrong password is one line, however often it is tried; once it is right the connection is
 * there. */
static void test_wrong_password(void **state)
{
    struct probe p;
    char url[200];
    (void)state;
    admin("ACL SETUSER bob on >other ~* &* +@all");
    snprintf(url, sizeof(url), "redis://bob:canary@127.0.0.1:%d", server.port);
    long long before = server_info("stats", "total_connections_received:");
    connect_with(&p, url, (struct redis_options){.backoff_max_ms = 60});
    run_until(server_info("stats", "total_connections_received:") >
              before + 20); /* each look is a connection too */
    assert_int_equal(p.ups, 0);
    assert_int_equal(log_count("REDIS_URL: the server refused the user or password"), 1);
    assert_int_equal(log_count("\n"), 1);
    assert_int_equal(log_count("canary"), 0);
    admin("ACL SETUSER bob >canary");
    run_until(p.ups);
    assert_int_equal(p.downs, 0);
    redis_free(p.r);

    admin("ACL SETUSER default resetpass >pw");
    log_text[0] = '\0';
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", server.port);
    connect_with(&p, url, (struct redis_options){0});
    run_until(log_count("NOAUTH"));
    assert_int_equal(log_count("REDIS_URL: the server wants a password"), 1);
    redis_free(p.r);
}

static void test_script(void **state)
{
    static const char text[] = "return {KEYS[1], ARGV[1], redis.call('INCR', 'runs')}";
    static const struct redis_script script = {"test", text, sizeof(text) - 1,
                                               "40ab7cf5f3bf04a3a4a5e5a0b8bd2cd8b6ee2f5d"};
    struct redis_script real = script;
    struct probe p;
    const char *const argv[] = {"key", "v\0l"};
    const size_t lens[] = {3, 3};
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    char *sha = NULL;
    redisContext *c = redis_server_dial(&server);
    redisReply *reply = redisCommand(c, "SCRIPT LOAD %s", text);
    sha = mem_strdup(reply->str);
    real.sha1 = sha;
    freeReplyObject(reply);

    for (int round = 0; round < 3; round++) {
        if (round == 1) /* gone while a pipeline of calls is on its way */
            freeReplyObject(redisCommand(c, "SCRIPT FLUSH"));
        int before = p.answers;
        for (int i = 0; i < 5; i++)
            assert_int_equal(redis_script_call(p.r, &real, 1, 2, argv, lens, 0, on_reply, &p), 0);
        run_until(p.answers == before + 5);
        assert_int_equal(p.type, REDIS_REPLY_ARRAY);
    }
    assert_int_equal(p.nulls, 0);
    ASK(&p, "GET", "runs");
    assert_string_equal(p.text, "15"); /* each exactly once */
    assert_int_equal(redis_script_call(p.r, &real, 3, 2, argv, lens, 0, on_reply, &p), -1);
    redisFree(c);
    free(sha);
    redis_free(p.r);
}

/* Killed with a command under way: NULL callback, then the state; then the server is back. */
static void test_restart(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    p.command_on_up = true;
    run_until(p.answers == 1);
    assert_int_equal(SEND(&p, "BLPOP", "nothing", "0"), 0);
    assert_int_equal(SEND(&p, "PING"), 0);
    redis_server_kill(&server);
    run_until(p.downs);
    assert_int_equal(p.nulls, 2);
    assert_int_equal(p.nulls_at_down, 2);
    assert_false(redis_ready(p.r));
    assert_int_equal(SEND(&p, "PING"), -1);
    redis_server_start(&server, NULL);
    run_until(p.ups == 2 && p.answers == 2);
    assert_int_equal(redis_reconnects(p.r), 1);
    ASK(&p, "SET", "a", "b");
    assert_string_equal(p.text, "OK");
    redis_free(p.r);
}

/* The server is not there when we start, for longer than the largest pause. */
static void test_late_server(void **state)
{
    struct probe p;
    char url[100];
    (void)state;
    redis_server_kill(&server);
    snprintf(url, sizeof(url), "redis://localhost:%d", server.port);
    connect_with(&p, url, (struct redis_options){0});
    run_until(log_count("Connection refused"));
    redis_server_start(&server, NULL);
    run_until(p.ups);
    assert_int_equal(log_count("Connection refused"), 1);
    redis_free(p.r);
}

/* Up, but still reading its data: one line that says so, then ready. */
static void test_loading(void **state)
{
    static const char *const slow[] = {"--key-load-delay", "3000",
                                       "--loading-process-events-interval-bytes", "1024", NULL};
    struct probe p;
    (void)state;
    admin("EVAL for\tn=1,300\tdo\tredis.call('SET',n,string.rep('x',200))\tend 0");
    admin("SAVE");
    redis_server_kill(&server);
    redis_server_start(&server, slow);
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(log_count("REDIS_URL: the server is still loading"), 1);
    assert_int_equal(p.downs, 0);
    redis_free(p.r);
}

static void test_too_many_clients(void **state)
{
    struct probe p;
    (void)state;
    redisContext *one = redis_server_dial(&server);
    freeReplyObject(redisCommand(one, "CONFIG SET maxclients 1"));
    connect_socket(&p, (struct redis_options){.client_name = "x"});
    run_until(log_count("max number of clients"));
    assert_int_equal(log_count("\n"), 1);
    redisFree(one);
    run_until(p.ups);
    redis_free(p.r);
}

static void test_client_kill(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(SEND(&p, "BLPOP", "nothing", "0"), 0);
    wait_blocked();
    admin("CLIENT KILL TYPE normal");
    run_until(p.ups == 2);
    assert_int_equal(p.nulls, 1);
    assert_int_equal(p.downs, 1);
    redis_free(p.r);
}

/* A server that stops answering without closing: noticed by the deadline, with an open socket. */
static void test_frozen(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){.connect_timeout_ms = 200});
    run_until(p.ups);
    kill(server.pid, SIGSTOP);
    assert_int_equal(send_argv(&p, 1, (const char *const[]){"PING"}, 150), 0);
    assert_int_equal(SEND(&p, "PING"), 0);
    run_until(p.downs);
    assert_int_equal(p.nulls, 2);
    assert_string_equal(p.reason, "no answer to PING within 150 ms");
    run_until(log_count("timed out after 200 ms waiting for the greeting"));
    kill(server.pid, SIGCONT);
    run_until(p.ups == 2);
    ASK(&p, "PING");
    redis_free(p.r);
}

static void test_idle_ping(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){.idle_ping_ms = 30, .command_timeout_ms = 150});
    run_until(p.ups);
    /* While it answers, the pings keep it up. */
    while (server_info("commandstats", "cmdstat_ping:calls=") < 5)
        ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(p.downs, 0);
    kill(server.pid, SIGSTOP);
    run_until(p.downs);
    assert_string_equal(p.reason, "no answer to PING within 150 ms");
    kill(server.pid, SIGCONT);
    run_until(p.ups == 2);
    redis_free(p.r);
}

/* When our own process stalls past the deadline, an answer that came in time still counts. */
static void test_own_stall(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(send_argv(&p, 1, (const char *const[]){"PING"}, 100), 0);
    ev_run(loop, EVRUN_NOWAIT);
    usleep(300 * 1000);
    run_until(p.answers + p.nulls == 1);
    assert_int_equal(p.answers, 1);
    assert_int_equal(p.downs, 0);
    redis_free(p.r);
}

static void test_readonly_reopens(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    admin("REPLICAOF 127.0.0.1 1");
    assert_int_equal(SEND(&p, "SET", "a", "b"), 0);
    assert_int_equal(SEND(&p, "PING"), 0);
    run_until(p.ups == 2);
    assert_int_equal(p.answers, 1); /* the callback saw the READONLY reply */
    assert_int_equal(p.nulls, 1);   /* what was behind it is unknown */
    assert_non_null(strstr(p.reason, "READONLY"));
    assert_non_null(strstr(p.text, "READONLY"));
    admin("REPLICAOF NO ONE");
    ASK(&p, "SET", "a", "b");
    assert_string_equal(p.text, "OK");

    assert_int_equal(SEND(&p, "BLPOP", "nothing", "0"), 0);
    wait_blocked();
    admin("REPLICAOF 127.0.0.1 1"); /* UNBLOCKED */
    run_until(p.ups == 3);
    assert_non_null(strstr(p.text, "UNBLOCKED"));
    redis_free(p.r);
}

/* redis_reopen: nothing runs inside it, from wherever it is called. */
static void test_reopen(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    redis_reopen(p.r, "too early: on its way already");
    run_until(p.ups);
    p.reopen_on_null = true;
    assert_int_equal(SEND(&p, "BLPOP", "nothing", "0"), 0);
    p.inside = true;
    redis_reopen(p.r, "because");
    redis_reopen(p.r, "twice");
    p.inside = false;
    assert_false(redis_ready(p.r));
    run_until(p.ups == 2);
    assert_int_equal(p.nulls, 1);
    assert_int_equal(p.refused_on_null, 1);
    assert_int_equal(p.downs, 1);
    assert_string_equal(p.reason, "because");

    p.reopen_on_null = false;
    p.reopen_in_reply = true;
    assert_int_equal(SEND(&p, "PING"), 0);
    assert_int_equal(SEND(&p, "PING"), 0);
    run_until(p.ups == 3);
    assert_int_equal(p.answers, 1);
    assert_int_equal(p.nulls, 2);
    redis_free(p.r);
}

/* Freed in every state: pending callbacks get NULL inside redis_free, nothing runs after. */
static void test_free_anywhere(void **state)
{
    struct probe p;
    (void)state;
    connect_socket(&p, (struct redis_options){0});
    redis_free(p.r);
    connect_with(&p, "redis://localhost:1", (struct redis_options){0});
    ev_run(loop, EVRUN_ONCE); /* resolving */
    redis_free(p.r);
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(SEND(&p, "BLPOP", "nothing", "0"), 0);
    ev_run(loop, EVRUN_NOWAIT);
    redis_free(p.r);
    assert_int_equal(p.nulls, 1);
    connect_socket(&p, (struct redis_options){0});
    run_until(p.ups);
    assert_int_equal(SEND(&p, "PING"), 0);
    redis_reopen(p.r, "just before"); /* its NULL callback and turn are pending */
    redis_free(p.r);
    assert_int_equal(p.nulls, 1);
    ev_run(loop, EVRUN_NOWAIT);
    redis_free(NULL);
}

static void test_no_such_host(void **state)
{
    struct probe p;
    (void)state;
    connect_with(&p, "redis://no-such-host.invalid", (struct redis_options){0});
    run_until(log_count("cannot resolve"));
    redis_free(p.r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_commands),       TEST(test_pipeline),         TEST(test_bounded),
        TEST(test_auth),           TEST(test_few_rights),       TEST(test_needless_password),
        TEST(test_wrong_password), TEST(test_script),           TEST(test_restart),
        TEST(test_late_server),    TEST(test_loading),          TEST(test_too_many_clients),
        TEST(test_client_kill),    TEST(test_frozen),           TEST(test_idle_ping),
        TEST(test_own_stall),      TEST(test_readonly_reopens), TEST(test_reopen),
        TEST(test_free_anywhere),  TEST(test_no_such_host),
    };
    return cmocka_run_group_tests_name("redis", tests, NULL, NULL);
}
