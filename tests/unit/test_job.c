/* Tests of job data: every field's good and bad forms, and the thread key against the one that
 * Redis computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/settings.h"
#include "redis_server.h"
#include "worker/job.h"
#include "worker/queue/scripts.h"

#define PREFIX "bull:q:"

static struct redis_server redis;
static redisContext *connection;
static struct settings *settings;
static char *find_thread; /* Lua: KEYS[1] is a job's key, ARGV[1] the limit of its data */

static int set_up(void **state)
{
    (void)state;
    char err[200];
    clearenv();
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    setenv("JOB_DATA_MAX_BYTES", "4096", 1);
    setenv("CODE_INTERPRETER_TIMEOUT_MS", "300000", 1);
    log_init(LOG_LEVEL_ERROR, LOG_FORMAT_JSON);
    settings = settings_from_environment(err, sizeof err);
    redis_server_start(&redis, NULL);
    connection = redis_server_dial(&redis);
    /* The claim script itself, but for its last statement. */
    char *text = mem_strndup(script_claim.text, script_claim.text_len);
    char *last = strstr(text, "\nreturn fetchNextJob(");
    if (settings == NULL || connection == NULL || last == NULL)
        return -1;
    *last = '\0';
    find_thread = mem_printf("%s\nspContext('" PREFIX "', 0, {dm = tonumber(ARGV[1])})\n"
                             "return spFindThread(spRead(KEYS[1])) or false",
                             text);
    free(text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(find_thread);
    settings_free(settings);
    redisFree(connection);
    redis_server_remove(&redis);
    return 0;
}

/* What the claim script takes for the job's thread; absent when none. */
static struct str lua_thread(const char *data, size_t len, const char *opts)
{
    freeReplyObject(redisCommand(connection, "DEL " PREFIX "1"));
    if (data != NULL)
        freeReplyObject(redisCommand(connection, "HSET " PREFIX "1 data %b", data, len));
    if (opts != NULL)
        freeReplyObject(redisCommand(connection, "HSET " PREFIX "1 opts %s", opts));
    redisReply *r = redisCommand(connection, "EVAL %s 1 " PREFIX "1 4096", find_thread);
    assert_non_null(r);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s", r->str);
    struct str thread = r->type == REDIS_REPLY_STRING ? str_make(r->str, r->len) : (struct str){0};
    freeReplyObject(r);
    return thread;
}

struct parsed {
    struct job job;
    struct jobopts opts;
    struct str thread; /* Lua's */
    char *why;
};

static void parse_bytes(struct parsed *p, const char *id, const char *name, const char *data,
                        size_t len, const char *opts)
{
    p->thread = lua_thread(data, len, opts);
    struct claimed_job claimed = {.id = {(char *)id, strlen(id)},
                                  .name = {(char *)name, name != NULL ? strlen(name) : 0},
                                  .data = {(char *)data, len},
                                  .thread = p->thread};
    struct str opts_text = {(char *)opts, opts != NULL ? strlen(opts) : 0};
    jobopts_init(&p->opts, &opts_text);
    p->why = job_parse(&p->job, &claimed, &p->opts, PREFIX, settings);
}

static void parse_named(struct parsed *p, const char *id, const char *name, const char *data,
                        const char *opts)
{
    parse_bytes(p, id, name, data, data != NULL ? strlen(data) : 0, opts);
}

static void parse(struct parsed *p, const char *data)
{
    parse_named(p, "1", "execute", data, "{}");
}

static void parsed_fini(struct parsed *p)
{
    job_fini(&p->job);
    jobopts_fini(&p->opts);
    str_fini(&p->thread);
    free(p->why);
}

static void parse_good(struct parsed *p, const char *data)
{
    parse(p, data);
    if (p->why != NULL)
        fail_msg("%s: %s", data, p->why);
}

/* Refused with a sentence that names `field`. */
static void assert_bad(const char *data, const char *field)
{
    struct parsed p;
    parse(&p, data);
    if (p.why == NULL || strstr(p.why, field) == NULL)
        fail_msg("\"%s\" is not in \"%s\" for %.300s", field, p.why != NULL ? p.why : "(accepted)",
                 data);
    assert_true(strncmp(p.why, "The job", 7) == 0);
    assert_null(strchr(p.why, '\n'));
    parsed_fini(&p);
}

static void test_plain(void **state)
{
    (void)state;
    struct parsed p;
    parse_good(&p, "{\"code\":\"print(1)\\u0000x\"}");
    assert_int_equal(p.job.kind, JOB_EXECUTE);
    assert_int_equal(p.job.code_len, 10);
    assert_memory_equal(p.job.code, "print(1)\0x", 10);
    assert_string_equal(p.job.language, "python");
    assert_null(p.job.thread);
    assert_null(p.job.actor);
    assert_null(p.job.secrets_key);
    assert_null(p.job.upload.url);
    assert_int_equal(p.job.timeout_ms, 300000);
    assert_int_equal(p.job.start_by, 0);
    assert_true(p.job.reply);
    assert_false(p.job.idempotent || p.job.force || p.job.inline_files);
    assert_int_equal(json_object_size(p.job.env), 0);
    assert_int_equal(json_array_size(p.job.warnings), 0);
    assert_int_equal(p.job.file_count, 0);
    parsed_fini(&p);
}

static void test_everything(void **state)
{
    (void)state;
    struct parsed p;
    parse_good(
        &p, "{\"v\":1,\"code\":\"\",\"language\":\"r\",\"threadId\":\"t\",\"workspaceId\":\"w\","
            "\"actorKey\":\"a\",\"files\":[{\"filename\":\"x/y\",\"content\":\"QQ==\",\"mimeType\":"
            "\"text/plain\"},{\"filename\":\"z\",\"key\":\"bull:q:file:1\"},{\"filename\":\"u\","
            "\"url\":\"https://x/\"}],\"env\":{\"A\":\"1\"},\"secretsKey\":\"bull:q:secret:s\","
            "\"timeoutMs\":5000,\"startBy\":1753000000000,\"idempotent\":true,\"output\":{"
            "\"upload\":{\"url\":\"https://h/"
            "{fileId}\",\"method\":\"POST\",\"headers\":{\"X-A\":\"1\"},"
            "\"fields\":{\"k\":\"v\"}},\"inline\":true},\"reply\":false,\"force\":true}");
    struct job *j = &p.job;
    assert_string_equal(j->language, "r");
    assert_string_equal(j->thread, "w:t");
    assert_string_equal(j->actor, "a");
    assert_int_equal(j->file_count, 3);
    assert_string_equal(j->files[0].filename, "x/y");
    assert_int_equal(j->files[0].source, JOB_FILE_CONTENT);
    assert_string_equal(j->files[0].value, "QQ==");
    assert_int_equal(j->files[0].value_len, 4);
    assert_int_equal(j->files[1].source, JOB_FILE_KEY);
    assert_int_equal(j->files[2].source, JOB_FILE_URL);
    assert_string_equal(json_string_value(json_object_get(j->env, "A")), "1");
    assert_string_equal(j->secrets_key, "bull:q:secret:s");
    assert_int_equal(j->timeout_ms, 5000);
    assert_int_equal(j->start_by, 1753000000000);
    assert_true(j->idempotent && j->inline_files && j->force);
    assert_false(j->reply);
    assert_string_equal(j->upload.method, "POST");
    assert_string_equal(j->upload.url, "https://h/{fileId}");
    assert_int_equal(json_object_size(j->upload.headers), 1);
    assert_int_equal(json_object_size(j->upload.fields), 1);
    assert_int_equal(json_array_size(j->warnings), 0);
    parsed_fini(&p);
}

/* null is as good as absent, for every optional field. */
static void test_null_is_absent(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "v",          "language",  "threadId", "workspaceId", "actorKey", "files", "env",
        "secretsKey", "timeoutMs", "startBy",  "idempotent",  "output",   "reply", "force"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char data[80];
        snprintf(data, sizeof data, "{\"code\":\"1\",\"%s\":null}", fields[i]);
        struct parsed p;
        parse_good(&p, data);
        assert_null(p.job.thread);
        assert_true(p.job.reply);
        assert_string_equal(p.job.language, "python");
        assert_int_equal(p.job.timeout_ms, 300000);
        parsed_fini(&p);
    }
    struct parsed p;
    parse_good(&p, "{\"code\":\"1\",\"output\":{\"upload\":null,\"inline\":null}}");
    parsed_fini(&p);
    parse_good(&p, "{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h/\",\"method\":null,"
                   "\"headers\":null,\"fields\":null}}}");
    assert_string_equal(p.job.upload.method, "PUT");
    assert_null(p.job.upload.fields);
    assert_null(p.job.upload.headers);
    parsed_fini(&p);
}

static void test_wrong_types(void **state)
{
    (void)state;
    static const char *const strings[] = {"code",        "language", "threadId",
                                          "workspaceId", "actorKey", "secretsKey"};
    static const char *const bools[] = {"idempotent", "reply", "force"};
    static const char *const times[] = {"timeoutMs", "startBy"};
    static const char *const objects[] = {"env", "output"};
    static const char *const no_string[] = {"1", "true", "[]", "{}", "[\"x\"]", "1.5"};
    static const char *const no_bool[] = {"1", "0", "\"true\"", "[]", "{}"};
    static const char *const no_time[] = {"0",  "-1", "1.5",   "\"3000\"", "true",
                                          "[]", "{}", "1e300", "-1e300"};
    static const char *const no_object[] = {"1", "\"x\"", "[]", "true"};
#define EACH(names, values)                                                                        \
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)                                      \
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {                              \
            char data[120];                                                                        \
            snprintf(data, sizeof data, "{%s\"%s\":%s}",                                           \
                     strcmp(names[i], "code") ? "\"code\":\"1\"," : "", names[i], values[k]);      \
            assert_bad(data, names[i]);                                                            \
        }
    EACH(strings, no_string)
    EACH(bools, no_bool)
    EACH(times, no_time)
    EACH(objects, no_object)
#undef EACH
}

static void test_other_bad_forms(void **state)
{
    (void)state;
    static const struct {
        const char *data, *field;
    } rows[] = {
        {"{}", "code is missing"},
        {"{\"code\":null}", "code is missing"},
        {"{\"code\":\"1\",\"v\":2}", "v must be 1"},
        {"{\"code\":\"1\",\"v\":\"1\"}", "v must be 1"},
        {"{\"code\":\"1\",\"threadId\":\"a\\u0000b\"}", "threadId"},
        {"{\"code\":\"1\",\"language\":\"a\\u0000b\"}", "language"},
        {"{\"code\":\"1\",\"actorKey\":\"a\\u0000b\"}", "actorKey"},
        {"{\"code\":\"1\",\"secretsKey\":\"secret:x\"}",
         "secretsKey must begin with bull:q:secret:"},
        {"{\"code\":\"1\",\"secretsKey\":\"bull:q:file:x\"}", "secretsKey"},
        {"{\"code\":\"1\",\"secretsKey\":\"bull:q:meta\"}", "secretsKey"},
        {"{\"code\":\"1\",\"secretsKey\":\"bull:other:secret:x\"}", "secretsKey"},
        {"{\"code\":\"1\",\"files\":{}}", "files must be an array"},
        {"{\"code\":\"1\",\"files\":\"x\"}", "files must be an array"},
        {"{\"code\":\"1\",\"files\":[1]}", "files[0] must be an object"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"content\":\"\"},null]}", "files[1]"},
        {"{\"code\":\"1\",\"files\":[{\"content\":\"\"}]}", "files[0].filename is missing"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":7,\"content\":\"\"}]}", "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\"}]}", "files[0] needs exactly one"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"content\":\"\",\"url\":\"http://x\"}]}",
         "files[0] needs exactly one"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"content\":5}]}", "files[0].content"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"url\":[]}]}", "files[0].url"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"key\":\"bull:q:secret:x\"}]}",
         "files[].key must begin with bull:q:file:"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a\",\"content\":\"\",\"mimeType\":1}]}",
         "files[0].mimeType"},
        /* case 47 */
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"../../etc/cron.d/x\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"/tmp/abs.txt\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"a/../../b\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"..\\\\..\\\\w.txt\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\".\",\"content\":\"\"}]}", "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"..\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"\",\"content\":\"\"}]}", "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"x\\u0000.txt\",\"content\":\"\"}]}",
         "files[0].filename"},
        {"{\"code\":\"1\",\"files\":[{\"filename\":\"/home/user/.bashrc\",\"content\":\"\"}]}",
         "files[0].filename"},
        /* case 133 */
        {"{\"code\":\"1\",\"env\":{\"J\":\"a\\u0000b\"}}", "env.J contains a NUL"},
        {"{\"code\":\"1\",\"env\":{\"A\":1}}", "env must be an object of strings"},
        {"{\"code\":\"1\",\"env\":{\"A\":null}}", "env must be an object of strings"},
        {"{\"code\":\"1\",\"env\":{\"\":\"x\"}}", "env has a name"},
        {"{\"code\":\"1\",\"env\":{\"1A\":\"x\"}}", "env has a name"},
        {"{\"code\":\"1\",\"env\":{\"A=B\":\"x\"}}", "env has a name"},
        {"{\"code\":\"1\",\"env\":{\"A B\":\"x\"}}", "env has a name"},
        {"{\"code\":\"1\",\"env\":{\"\xc3\xa9\":\"x\"}}", "env has a name"},
        {"{\"code\":\"1\",\"output\":{\"inline\":\"yes\"}}", "inline must be true or false"},
        {"{\"code\":\"1\",\"output\":{\"upload\":\"http://x\"}}",
         "output.upload must be an object"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{}}}", "output.upload.url is missing"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":5}}}", "output.upload.url"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"method\":\"DELETE\"}}}",
         "output.upload.method"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"method\":1}}}",
         "output.upload.method"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"headers\":[]}}}",
         "output.upload.headers"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"headers\":{\"A\":1}}}}",
         "output.upload.headers"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://"
         "h\",\"headers\":{\"A\":\"x\\r\\nB: y\"}}}}",
         "output.upload.headers"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"headers\":{\"A: "
         "b\":\"x\"}}}}",
         "output.upload.headers"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"fields\":{\"a\":{}}}}}",
         "output.upload.fields"},
        {"{\"code\":\"1\",\"output\":{\"upload\":{\"url\":\"http://h\",\"method\":\"PUT\","
         "\"fields\":{}}}}",
         "output.upload.fields"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_bad(rows[i].data, rows[i].field);
}

/* Case 106: what is no job at all. */
static void test_malformed(void **state)
{
    (void)state;
    static const char *const texts[] = {"undefined",
                                        "",
                                        "{",
                                        "{\"code\":\"1\"",
                                        "{\"code\":1e400}",
                                        "NaN",
                                        "{\"code\":\"\\ud800\"}",
                                        "{\"code\":\"\xff\"}",
                                        "{'code':'1'}",
                                        "{\"code\":\"1\"} x"};
    static const char *const others[] = {"[]", "\"str\"", "null", "12", "true"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_bad(texts[i], "is not valid JSON");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_bad(others[i], "must be a JSON object");
    assert_bad(NULL, "no data");

    char deep[2100] = "{\"code\":\"1\",\"x\":";
    size_t at = strlen(deep);
    for (int i = 0; i < 1000; i++)
        deep[at++] = '[';
    for (int i = 0; i < 1000; i++)
        deep[at++] = ']';
    strcpy(deep + at, "}");
    assert_bad(deep, "is not valid JSON");

    struct parsed p;
    parse_good(&p, "{\"code\":\"1\",\"code\":\"2\"}"); /* as JavaScript: the last one */
    assert_string_equal(p.job.code, "2");
    parsed_fini(&p);
}

/* Case 108. */
static void test_size(void **state)
{
    (void)state;
    char *data = mem_alloc(5000);
    memset(data, 'x', 4999);
    memcpy(data, "{\"code\":\"", 9);
    memcpy(data + 4094, "\"}", 3);
    struct parsed p;
    parse_good(&p, data);
    assert_int_equal(p.job.code_len, 4085);
    parsed_fini(&p);
    memset(data + 4094, 'x', 3);
    memcpy(data + 4095, "\"}", 3);
    assert_bad(data, "4097 bytes; the limit (JOB_DATA_MAX_BYTES) is 4096");
    free(data);
}

static void test_limits(void **state)
{
    (void)state;
    struct parsed p;
    parse_good(&p, "{\"code\":\"1\",\"timeoutMs\":300000}");
    assert_int_equal(json_array_size(p.job.warnings), 0);
    parsed_fini(&p);
    parse_good(&p, "{\"code\":\"1\",\"timeoutMs\":300001}");
    assert_int_equal(p.job.timeout_ms, 300000);
    assert_string_equal(json_string_value(json_array_get(p.job.warnings, 0)),
                        "timeoutMs was lowered from 300001 to the limit of 300000");
    parsed_fini(&p);
    parse_good(&p, "{\"code\":\"1\",\"timeoutMs\":1e12}");
    assert_int_equal(p.job.timeout_ms, 300000);
    parsed_fini(&p);
    parse_good(&p, "{\"code\":\"1\",\"timeoutMs\":2000.0}");
    assert_int_equal(p.job.timeout_ms, 2000);
    parsed_fini(&p);
}

static void test_unknown_fields(void **state)
{
    (void)state;
    struct parsed p;
    parse_good(&p, "{\"code\":\"1\",\"timeout\":5,\"Code\":\"\"}");
    assert_int_equal(json_array_size(p.job.warnings), 2);
    assert_string_equal(json_string_value(json_array_get(p.job.warnings, 0)),
                        "unknown field timeout was ignored");
    parsed_fini(&p);
    char data[4000] = "{\"code\":\"1\"";
    for (int i = 0; i < 200; i++)
        sprintf(data + strlen(data), ",\"f%d\":1", i);
    strcat(data, "}");
    parse_good(&p, data);
    assert_in_range(json_array_size(p.job.warnings), 10, 50);
    parsed_fini(&p);
}

/* Case 133: values go through as they are. */
static void test_env_values(void **state)
{
    (void)state;
    static const char *const values[] = {"it's",
                                         "a\"b",
                                         "x\\ny",
                                         "line1\nimport os",
                                         "'; import os; x='",
                                         "$(id) `id`",
                                         "\xe6\x97\xa5\xe6\x9c\xac\xf0\x9f\x98\x80",
                                         "",
                                         "\"\"\"",
                                         "end\\",
                                         "\x01\x7f"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_t *data = json_pack("{s:s,s:{s:s}}", "code", "1", "env", "A_b9", values[i]);
        char *text = jsonx_dump(data, NULL);
        struct parsed p;
        parse_good(&p, text);
        assert_string_equal(json_string_value(json_object_get(p.job.env, "A_b9")), values[i]);
        parsed_fini(&p);
        free(text);
        json_decref(data);
    }
    json_t *env = json_object();
    char *big = mem_alloc(200000);
    memset(big, 'x', 200000);
    char *why = job_env_add(env, "env", "BIG", big, 100000);
    assert_null(why);
    why = job_env_add(env, "the secrets", "BIG", big, 200000);
    assert_non_null(strstr(why, "the secrets.BIG"));
    free(why);
    json_decref(env);
    free(big);
}

static void test_release(void **state)
{
    (void)state;
    struct parsed p;
    parse_named(&p, "1", "release", "{\"threadId\":\"t\",\"force\":true}", "{}");
    assert_null(p.why);
    assert_int_equal(p.job.kind, JOB_RELEASE);
    assert_true(p.job.force);
    assert_string_equal(p.job.thread, ":t");
    parsed_fini(&p);
    parse_named(&p, "1", "release", "{\"workspaceId\":\"w\"}", "{}");
    assert_non_null(strstr(p.why, "threadId"));
    parsed_fini(&p);
}

/* Case 116 and ids: only those that BullMQ ends its own keys with are refused, without a reply. */
static void test_ids(void **state)
{
    (void)state;
    static const char *const endings[] = {"lock",      "logs",   "dependencies",
                                          "processed", "failed", "unsuccessful"};
    static const char *const fine[] = {"locks", "1",     "a:b:c", "\xe6\x97\xa5:\xf0\x9f\x98\x80",
                                       "Lock",  "x:lock"};
    struct parsed p;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        parse_named(&p, endings[i], "execute", "{\"code\":\"1\"}", "{}");
        assert_non_null(p.why);
        assert_non_null(strstr(p.why, "job id"));
        assert_false(p.job.reply);
        parsed_fini(&p);
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        parse_named(&p, fine[i], NULL, "{\"code\":\"1\"}", NULL);
        assert_null(p.why);
        parsed_fini(&p);
    }
    parse_named(&p, "1", "execute", "{\"reply\":false,\"code\":7}", "{}");
    assert_non_null(p.why);
    assert_false(p.job.reply); /* understood before what was wrong */
    parsed_fini(&p);
}

/* Case 142 and the rest of the thread key: C and Lua must agree, or the lease would guard another
 * sandbox. */
static const struct {
    const char *data, *opts, *thread; /* "!": refused */
} threads[] = {
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{}", ":t"},
    {"{\"code\":\"\",\"threadId\":\"t\",\"workspaceId\":\"w\"}", "{}", "w:t"},
    {"{\"code\":\"\",\"threadId\":\"t\",\"workspaceId\":\"\"}", "{}", ":t"},
    {"{\"code\":\"\",\"threadId\":\"t\",\"workspaceId\":null}", "{}", ":t"},
    {"{\"code\":\"\",\"workspaceId\":\"w\"}", "{}", NULL},
    {"{\"code\":\"\",\"threadId\":\"\",\"workspaceId\":\"w\"}", "{}", NULL},
    {"{\"code\":\"\",\"threadId\":null}", "{}", NULL},
    {"{\"code\":\"\",\"threadId\":\"undefined\"}", "{}", ":undefined"},
    {"{\"code\":\"\",\"threadId\":\"a:b\",\"workspaceId\":\"c:d\"}", "{}", "c%3Ad:a%3Ab"},
    {"{\"code\":\"\",\"threadId\":\":\",\"workspaceId\":\":\"}", "{}", "%3A:%3A"},
    {"{\"code\":\"\",\"threadId\":\"100%\",\"workspaceId\":\"%3A\"}", "{}", "%253A:100%25"},
    {"{\"code\":\"\",\"threadId\":\"a%3Ab\"}", "{}", ":a%253Ab"},
    {"{\"code\":\"\",\"threadId\":\"\xe6\x97\xa5\xf0\x9f\x98\x80\"}", "{}",
     ":\xe6\x97\xa5\xf0\x9f\x98\x80"},
    {"{\"code\":\"\",\"threadId\":\"\\u65e5\\ud83d\\ude00\"}", "{}",
     ":\xe6\x97\xa5\xf0\x9f\x98\x80"},
    {"{\"code\":\"\",\"threadId\":\"a\\nb \\\"q\\\" \\\\ \\u0001\"}", "{}", ":a\nb \"q\" \\ \x01"},
    {"{\"code\":\"\",\"threadId\":\"a b/c?d#e\"}", "{}", ":a b/c?d#e"},
    {"{\"code\":\"\",\"threadId\":\"x\",\"threadId\":\"y\"}", "{}", ":y"},
    {"{ \"code\" : \"\" , \"threadId\" : \"t\" }", "{}", ":t"},
    /* group id */
    {"{\"code\":\"\"}", "{\"group\":{\"id\":\"g\"}}", ":g"},
    {"{\"code\":\"\",\"workspaceId\":\"w\"}", "{\"group\":{\"id\":\"g:1\"}}", "w:g%3A1"},
    {"{\"code\":\"\",\"threadId\":\"g\"}", "{\"group\":{\"id\":\"g\"}}", ":g"},
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{\"group\":{\"id\":\"g\"}}", "!differ"},
    {"{\"code\":\"\",\"threadId\":\"\"}", "{\"group\":{\"id\":\"g\"}}", ":g"},
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{\"group\":{\"id\":\"\"}}", ":t"},
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{\"group\":{\"id\":null}}", ":t"},
    {"{\"code\":\"\"}", "{\"group\":{\"id\":7}}", "!opts.group.id"},
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{\"group\":{\"id\":[]}}", "!opts.group.id"},
    {"{\"code\":\"\"}", "{\"group\":{}}", NULL},
    {"{\"code\":\"\"}", "{\"group\":\"g\"}", NULL},
    {"{\"code\":\"\"}", "{\"group\":[\"id\"]}", NULL},
    {"{\"code\":\"\"}", "{\"group\":null}", NULL},
    {"{\"code\":\"\",\"threadId\":\"t\"}", "{\"group\":", ":t"},
    {"{\"code\":\"\"}", "[]", NULL},
    {"{\"code\":\"\",\"threadId\":\"t\"}", NULL, ":t"},
    /* refused by both */
    {"{\"code\":\"\",\"threadId\":7}", "{}", "!threadId"},
    {"{\"code\":\"\",\"threadId\":true}", "{}", "!threadId"},
    {"{\"code\":\"\",\"threadId\":\"t\",\"workspaceId\":7}", "{}", "!workspaceId"},
    {"{\"code\":\"\",\"threadId\":\"t\",\"workspaceId\":{}}", "{}", "!workspaceId"},
    {"[\"threadId\"]", "{}", "!object"},
    {"{\"threadId\":\"t\"", "{}", "!JSON"},
    /* what Lua does not see must not run without the lease */
    {"{\"code\":\"\",\"thread\\u0049d\":\"t\"}", "{}", "!threadId"},
};

static void check_thread(const char *data, size_t len, const char *opts, const char *expected)
{
    struct parsed p;
    parse_bytes(&p, "1", "execute", data, len, opts);
    bool refused = expected != NULL && expected[0] == '!';
    if (refused) {
        if (p.why == NULL || strstr(p.why, expected + 1) == NULL || p.thread.data != NULL)
            fail_msg("%s %s: %s, Lua %s", data, opts, p.why, p.thread.data);
    } else if (p.why != NULL || (expected == NULL) != (p.job.thread == NULL) ||
               (expected == NULL) != (p.thread.data == NULL) ||
               (expected != NULL &&
                (strcmp(p.job.thread, expected) != 0 || strcmp(p.thread.data, expected) != 0))) {
        fail_msg("%s %s: C %s, Lua %s, not %s (%s)", data, opts, p.job.thread, p.thread.data,
                 expected, p.why);
    }
    parsed_fini(&p);
}

static void test_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        check_thread(threads[i].data, strlen(threads[i].data), threads[i].opts, threads[i].thread);
}

static void test_random_threads(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a",  "%",  ":",    "%3A", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                         "\"", "\\", "\x01", " ",   "/",        "\x7f",
                                         "{",  "\n"};
    unsigned seed = 99;
    char seen[300][2][80];
    for (int round = 0; round < 300; round++) {
        char ids[2][80] = {"", ""};
        for (int k = 0; k < 2; k++)
            for (int n = rand_r(&seed) % 6 + !k; n > 0; n--)
                strcat(ids[k], pieces[rand_r(&seed) % (sizeof pieces / sizeof *pieces)]);
        json_t *data =
            json_pack("{s:s,s:s,s:s}", "code", "", "threadId", ids[0], "workspaceId", ids[1]);
        char *text = json_dumps(data, round % 2 ? JSON_ENSURE_ASCII : 0);
        struct parsed p;
        parse_good(&p, text);
        assert_non_null(p.thread.data);
        assert_string_equal(p.job.thread, p.thread.data);
        /* one key, one pair of ids */
        snprintf(seen[round][0], 80, "%s", ids[0]);
        snprintf(seen[round][1], 80, "%s", ids[1]);
        for (int k = 0; k < round; k++) {
            json_t *other = json_pack("{s:s,s:s,s:s}", "code", "", "threadId", seen[k][0],
                                      "workspaceId", seen[k][1]);
            if (k % 50 == 0 && !json_equal(other, data)) {
                struct parsed q;
                char *other_text = json_dumps(other, 0);
                parse_good(&q, other_text);
                assert_string_not_equal(p.job.thread, q.job.thread);
                parsed_fini(&q);
                free(other_text);
            }
            json_decref(other);
        }
        parsed_fini(&p);
        free(text);
        json_decref(data);
    }
}

static void test_long_threads(void **state)
{
    (void)state;
    char data[4000], id[1100];
    memset(id, 'x', sizeof id);
    id[1023] = '\0';
    snprintf(data, sizeof data, "{\"code\":\"\",\"threadId\":\"%s\"}", id);
    struct parsed p;
    parse_good(&p, data);
    parsed_fini(&p);
    id[1023] = 'x', id[1024] = '\0';
    snprintf(data, sizeof data, "{\"code\":\"\",\"threadId\":\"%s\"}", id);
    assert_bad(data, "threadId");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_null_is_absent),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_other_bad_forms),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_unknown_fields),
        cmocka_unit_test(test_env_values),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_random_threads),
        cmocka_unit_test(test_long_threads),
    };
    return cmocka_run_group_tests_name("job", tests, set_up, tear_down);
}
