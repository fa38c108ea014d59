/* Tests of the address rule and the allow list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "common/netaddr.h"

static bool is_public(const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        return netaddr_is_public((struct sockaddr *)&in);
    if (inet_pton(AF_INET6, text, &in6.sin6_addr) != 1)
        fail_msg("not an address: %s", text);
    return netaddr_is_public((struct sockaddr *)&in6);
}

static void test_public(void **state)
{
    static const char *const yes[] = {
        "1.1.1.1",         "8.8.8.8",         "9.255.255.255",
        "11.0.0.0",        "100.63.255.255",  "100.128.0.0",
        "126.255.255.255", "128.0.0.1",       "169.253.255.255",
        "169.255.0.0",     "172.15.255.255",  "172.32.0.0",
        "192.0.1.0",       "192.167.255.255", "192.169.0.0",
        "198.17.255.255",  "198.20.0.0",      "223.255.255.255",
        "2606:4700::1111", "2a00:1450::1",    "2001:4860:4860::8888",
        "2001:200::1",     "::ffff:8.8.8.8",  "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    };
    static const char *const no[] = {
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "169.254.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::7f00:1",
        "::8.8.8.8",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "2001:2::1",
        "2001:10::1",
        "::ffff:127.0.0.1",
        "::ffff:10.1.1.1",
        "::ffff:169.254.169.254",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::8.8.8.8",
        "2002:7f00:1::1",
        "2002:a00:1::",
        "5f00::1",
        "2001:0:7f00:1::1",
        "2001:0:808:808:0:0:80ff:fffe", /* Teredo client 127.0.0.1 */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        if (!is_public(yes[i]))
            fail_msg("refused: %s", yes[i]);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        if (is_public(no[i]))
            fail_msg("accepted: %s", no[i]);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    assert_false(netaddr_is_public((struct sockaddr *)&un));
}

static void test_list(void **state)
{
    static const char list[] = "minio:9000, 10.0.0.5:*\n[fd00::5]:443,Files.Example.COM.:80";
    (void)state;
    assert_true(netaddr_list_valid(list));
    assert_true(netaddr_list_allows(list, "minio", 9000));
    assert_true(netaddr_list_allows(list, "MinIO.", 9000));
    assert_false(netaddr_list_allows(list, "minio", 9001));
    assert_false(netaddr_list_allows(list, "minio.evil", 9000));
    assert_false(netaddr_list_allows(list, "xminio", 9000));
    assert_true(netaddr_list_allows(list, "10.0.0.5", 1));
    assert_false(netaddr_list_allows(list, "10.0.0.50", 1));
    assert_true(netaddr_list_allows(list, "[FD00:0::5]", 443));
    assert_true(netaddr_list_allows(list, "fd00::5", 443));
    assert_false(netaddr_list_allows(list, "fd00::6", 443));
    assert_true(netaddr_list_allows(list, "files.example.com", 80));
    assert_false(netaddr_list_allows(list, "", 80));
    assert_false(netaddr_list_allows(NULL, "minio", 9000));
    assert_false(netaddr_list_allows("", "minio", 9000));
    assert_true(
        netaddr_list_allows("bad, minio:9000", "minio", 9000)); /* bad entries name nothing */
}

static void test_list_valid(void **state)
{
    static const char *const bad[] = {"minio",         "minio:",   ":80",        "minio:0",
                                      "minio:65536",   "minio:8a", "fd00::5:80", "[fd00::5]",
                                      "[x]:80",        "*:80",     "a:80,b",     "a:-1",
                                      "http://a:80/x", "a:80:80",  "a/b:80"};
    (void)state;
    assert_true(netaddr_list_valid(NULL));
    assert_true(netaddr_list_valid(""));
    assert_true(netaddr_list_valid(" , \n"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (netaddr_list_valid(bad[i]))
            fail_msg("accepted: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_public),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_valid),
    };
    return cmocka_run_group_tests_name("netaddr", tests, NULL, NULL);
}
