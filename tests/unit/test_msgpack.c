/* Tests of the msgpack writer: the bytes, and what a Redis server's own decoder makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "redis_server.h"
#include "worker/queue/msgpack.h"

static struct redis_server redis;
static redisContext *connection;

static int set_up(void **state)
{
    (void)state;
    redis_server_start(&redis, NULL);
    connection = redis_server_dial(&redis);
    return connection != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    redisFree(connection);
    redis_server_remove(&redis);
    return 0;
}

/* Runs Lua with the decoded value as v; the string it returns, for the caller to free. */
static redisReply *decoded(const struct buf *bytes, const char *lua)
{
    char script[400];
    snprintf(script, sizeof script, "local v = cmsgpack.unpack(ARGV[1]) return %s", lua);
    redisReply *r = redisCommand(connection, "EVAL %s 0 %b", script, bytes->data, bytes->len);
    assert_non_null(r);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s", r->str);
    return r;
}

static void assert_lua(const struct buf *bytes, const char *lua, const char *expected)
{
    redisReply *r = decoded(bytes, lua);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    if (strcmp(r->str, expected) != 0)
        fail_msg("%s is %s, not %s", lua, r->str, expected);
    freeReplyObject(r);
}

static void assert_bytes(struct buf *b, const char *expected, size_t len)
{
    assert_int_equal(b->len, len);
    assert_memory_equal(b->data, expected, len);
    buf_clear(b);
}

#define BYTES(b, text) assert_bytes(b, text, sizeof(text) - 1)

static void test_bytes(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 4096);
    msgpack_map(&b, 0), BYTES(&b, "\x80");
    msgpack_map(&b, 15), BYTES(&b, "\x8f");
    msgpack_map(&b, 16), BYTES(&b, "\xdf\x00\x00\x00\x10");
    msgpack_array(&b, 3), BYTES(&b, "\x93");
    msgpack_array(&b, 16), BYTES(&b, "\xdd\x00\x00\x00\x10");
    msgpack_array(&b, 0x01020304), BYTES(&b, "\xdd\x01\x02\x03\x04");
    msgpack_str(&b, ""), BYTES(&b, "\xa0");
    msgpack_str(&b, "abc"), BYTES(&b, "\xa3"
                                      "abc");
    msgpack_bytes(&b, "a\0b", 3), BYTES(&b, "\xa3"
                                            "a\0b");
    msgpack_str(&b, "0123456789012345678901234567890");
    BYTES(&b, "\xbf"
              "0123456789012345678901234567890");
    msgpack_str(&b, "01234567890123456789012345678901");
    BYTES(&b, "\xdb\x00\x00\x00\x20"
              "01234567890123456789012345678901");
    msgpack_int(&b, 0), BYTES(&b, "\x00");
    msgpack_int(&b, 127), BYTES(&b, "\x7f");
    msgpack_int(&b, 128), BYTES(&b, "\xd3\x00\x00\x00\x00\x00\x00\x00\x80");
    msgpack_int(&b, -1), BYTES(&b, "\xd3\xff\xff\xff\xff\xff\xff\xff\xff");
    msgpack_int(&b, LLONG_MIN), BYTES(&b, "\xd3\x80\x00\x00\x00\x00\x00\x00\x00");
    msgpack_double(&b, 1.5), BYTES(&b, "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00");
    msgpack_bool(&b, true), BYTES(&b, "\xc3");
    msgpack_bool(&b, false), BYTES(&b, "\xc2");
    buf_fini(&b);
}

static void test_numbers_in_redis(void **state)
{
    (void)state;
    static const long long ints[] = {0,
                                     1,
                                     127,
                                     128,
                                     255,
                                     256,
                                     65535,
                                     65536,
                                     2147483647,
                                     4294967296,
                                     1753000000000,
                                     -1,
                                     -32,
                                     -33,
                                     -128,
                                     9007199254740991,
                                     -9007199254740991};
    static const double reals[] = {0, -0.5, 1.5, 0.1, 1e300, DBL_MIN, -1e-300, 1753000000000.25};
    struct buf b;
    char expected[64];
    buf_init(&b, 64);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++, buf_clear(&b)) {
        msgpack_int(&b, ints[i]);
        snprintf(expected, sizeof expected, "%lld", ints[i]);
        assert_lua(&b, "string.format('%.0f', v)", expected);
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++, buf_clear(&b)) {
        msgpack_double(&b, reals[i]);
        snprintf(expected, sizeof expected, "%.17g", reals[i]);
        assert_lua(&b, "string.format('%.17g', v)", expected);
    }
    msgpack_bool(&b, true), assert_lua(&b, "tostring(v)", "true"), buf_clear(&b);
    msgpack_bool(&b, false), assert_lua(&b, "tostring(v)", "false");
    buf_fini(&b);
}

static void test_strings_in_redis(void **state)
{
    (void)state;
    static const size_t lens[] = {0, 1, 31, 32, 33, 255, 256, 65535, 65536, 300000};
    struct buf b;
    buf_init(&b, 400000);
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++, buf_clear(&b)) {
        char *text = malloc(lens[i] + 1);
        for (size_t k = 0; k < lens[i]; k++)
            text[k] = (char)(k * 131); /* every byte value, NUL too */
        msgpack_bytes(&b, text, lens[i]);
        redisReply *r = decoded(&b, "v");
        assert_int_equal(r->len, lens[i]);
        assert_memory_equal(r->str, text, lens[i]);
        freeReplyObject(r);
        free(text);
    }
    buf_fini(&b);
}

static void test_containers_in_redis(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 15, 16, 17, 1000, 70000};
    struct buf b;
    buf_init(&b, 4 << 20);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, buf_clear(&b)) {
        char name[24], expected[24];
        msgpack_map(&b, 2);
        msgpack_str(&b, "list");
        msgpack_array(&b, counts[i]);
        for (uint32_t k = 0; k < counts[i]; k++)
            msgpack_int(&b, k);
        msgpack_str(&b, "map");
        msgpack_map(&b, counts[i]);
        for (uint32_t k = 0; k < counts[i]; k++) {
            snprintf(name, sizeof name, "k%u", k);
            msgpack_str(&b, name);
            msgpack_bool(&b, k % 2);
        }
        snprintf(expected, sizeof expected, "%u", counts[i]);
        assert_lua(&b, "tostring(#v.list)", expected);
        assert_lua(&b,
                   "(function() local n = 0 for _ in pairs(v.map) do n = n + 1 end "
                   "return tostring(n) end)()",
                   expected);
        if (counts[i] > 0) {
            snprintf(name, sizeof name, "k%u", counts[i] - 1);
            char lua[64];
            snprintf(lua, sizeof lua, "tostring(v.map['%s'])", name);
            assert_lua(&b, lua, counts[i] % 2 ? "false" : "true");
            snprintf(expected, sizeof expected, "%u", counts[i] - 1);
            assert_lua(&b, "tostring(v.list[#v.list])", expected);
        }
    }
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_numbers_in_redis),
        cmocka_unit_test(test_strings_in_redis),
        cmocka_unit_test(test_containers_in_redis),
    };
    return cmocka_run_group_tests_name("msgpack", tests, set_up, tear_down);
}
