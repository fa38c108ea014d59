/* Tests of MIME types by file name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/mime.h"

static void test_by_name(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"a.png", "image/png"},
        {"A.PNG", "image/png"},
        {"a.jpg", "image/jpeg"},
        {"a.jpeg", "image/jpeg"},
        {"a.csv", "text/csv"},
        {"a.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
        {"a.pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"},
        {"a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
        {"a.pdf", "application/pdf"},
        {"a.json", "application/json"},
        {"a.txt", "text/plain"},
        {"page.html", "text/html"},
        {"png-inside.html", "text/html"},
        {"logo.svg", "image/svg+xml"},
        {"x.tar.gz", "application/gzip"},
        {"sub/dir.d/x.Csv", "text/csv"},
        {"data", "application/octet-stream"},
        {"", "application/octet-stream"},
        {".hidden", "application/octet-stream"},
        {".png", "application/octet-stream"},
        {"dir/.png", "application/octet-stream"},
        {"dir.png/data", "application/octet-stream"},
        {"trailing.", "application/octet-stream"},
        {"a.unknownending", "application/octet-stream"},
        {"\xc3\xa9.png", "image/png"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        assert_string_equal(mime_from_filename(pairs[i][0]), pairs[i][1]);
}

static void test_base64(void **state)
{
    (void)state;
    static const char *const yes[] = {"image/png",  "image/jpeg", "IMAGE/GIF", "application/pdf",
                                      "image/webp", "audio/mpeg", "video/mp4", "image/png; a=b"};
    static const char *const no[] = {"image/svg+xml",
                                     "text/html",
                                     "text/plain",
                                     "application/json",
                                     "text/latex",
                                     "image/svg+xml;charset=utf-8",
                                     "application/pdfx",
                                     "application/javascript",
                                     "",
                                     "image"};
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        assert_true(mime_is_base64_in_jupyter(yes[i]));
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(mime_is_base64_in_jupyter(no[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests_name("mime", tests, NULL, NULL);
}
