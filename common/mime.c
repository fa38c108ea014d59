/* The table of MIME types by file name ending. */
#include "common/mime.h"

#include <string.h>
#include <strings.h>

#define OFFICE "application/vnd.openxmlformats-officedocument."

struct ending {
    const char *ending;
    const char *mime;
};

static const struct ending endings[] = {
    /* the incumbent's */
    {"png", "image/png"},
    {"jpg", "image/jpeg"},
    {"jpeg", "image/jpeg"},
    {"csv", "text/csv"},
    {"xlsx", OFFICE "spreadsheetml.sheet"},
    {"pptx", OFFICE "presentationml.presentation"},
    {"pdf", "application/pdf"},
    {"json", "application/json"},
    {"txt", "text/plain"},
    /* pictures, sound, video */
    {"apng", "image/apng"},
    {"avif", "image/avif"},
    {"bmp", "image/bmp"},
    {"gif", "image/gif"},
    {"heic", "image/heic"},
    {"ico", "image/vnd.microsoft.icon"},
    {"svg", "image/svg+xml"},
    {"tif", "image/tiff"},
    {"tiff", "image/tiff"},
    {"webp", "image/webp"},
    {"flac", "audio/flac"},
    {"m4a", "audio/mp4"},
    {"mp3", "audio/mpeg"},
    {"oga", "audio/ogg"},
    {"ogg", "audio/ogg"},
    {"wav", "audio/wav"},
    {"avi", "video/x-msvideo"},
    {"mov", "video/quicktime"},
    {"mp4", "video/mp4"},
    {"mpeg", "video/mpeg"},
    {"webm", "video/webm"},
    /* documents */
    {"doc", "application/msword"},
    {"docx", OFFICE "wordprocessingml.document"},
    {"epub", "application/epub+zip"},
    {"odp", "application/vnd.oasis.opendocument.presentation"},
    {"ods", "application/vnd.oasis.opendocument.spreadsheet"},
    {"odt", "application/vnd.oasis.opendocument.text"},
    {"ppt", "application/vnd.ms-powerpoint"},
    {"ps", "application/postscript"},
    {"eps", "application/postscript"},
    {"rtf", "application/rtf"},
    {"xls", "application/vnd.ms-excel"},
    {"xlsm", "application/vnd.ms-excel.sheet.macroEnabled.12"},
    /* text and code */
    {"c", "text/x-c"},
    {"css", "text/css"},
    {"h", "text/x-c"},
    {"htm", "text/html"},
    {"html", "text/html"},
    {"ics", "text/calendar"},
    {"js", "text/javascript"},
    {"log", "text/plain"},
    {"markdown", "text/markdown"},
    {"md", "text/markdown"},
    {"mjs", "text/javascript"},
    {"py", "text/x-python"},
    {"sh", "application/x-sh"},
    {"tex", "application/x-tex"},
    {"tsv", "text/tab-separated-values"},
    {"xhtml", "application/xhtml+xml"},
    {"xml", "application/xml"},
    {"vcf", "text/vcard"},
    {"yaml", "application/yaml"},
    {"yml", "application/yaml"},
    /* data */
    {"geojson", "application/geo+json"},
    {"ipynb", "application/x-ipynb+json"},
    {"jsonl", "application/jsonl"},
    {"jsonld", "application/ld+json"},
    {"ndjson", "application/x-ndjson"},
    {"parquet", "application/vnd.apache.parquet"},
    {"db", "application/vnd.sqlite3"},
    {"sqlite", "application/vnd.sqlite3"},
    {"wasm", "application/wasm"},
    /* archives */
    {"7z", "application/x-7z-compressed"},
    {"bz2", "application/x-bzip2"},
    {"gz", "application/gzip"},
    {"jar", "application/java-archive"},
    {"rar", "application/vnd.rar"},
    {"tar", "application/x-tar"},
    {"tgz", "application/gzip"},
    {"xz", "application/x-xz"},
    {"zip", "application/zip"},
    {"zst", "application/zstd"},
    /* fonts */
    {"otf", "font/otf"},
    {"ttf", "font/ttf"},
    {"woff", "font/woff"},
    {"woff2", "font/woff2"},
};

const char *mime_from_filename(const char *filename)
{
    const char *slash = strrchr(filename, '/');
    const char *name = slash ? slash + 1 : filename;
    const char *dot = strrchr(name, '.');

    if (dot && dot != name) {
        for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
            if (strcasecmp(dot + 1, endings[i].ending) == 0)
                return endings[i].mime;
    }
    return "application/octet-stream";
}

/* Is mime (its parameters left aside) this type, or of this kind when word ends with a slash? */
static bool mime_is(const char *mime, const char *word)
{
    size_t len = strlen(word);

    if (strncasecmp(mime, word, len) != 0)
        return false;
    return word[len - 1] == '/' || mime[len] == '\0' || mime[len] == ';' || mime[len] == ' ';
}

bool mime_is_base64_in_jupyter(const char *mime)
{
    static const char *const binary[] = {
        "image/",         "audio/", "video/", "application/pdf", "application/octet-stream",
        "application/zip"};

    if (mime_is(mime, "image/svg+xml"))
        return false;
    for (size_t i = 0; i < sizeof(binary) / sizeof(binary[0]); i++)
        if (mime_is(mime, binary[i]))
            return true;
    return false;
}
