/* One HTTP request: its options as curl wants them, its pieces, redirects and how it ended. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "common/http_impl.h"
#include "common/mem.h"
#include "common/netaddr.h"

#ifndef SANDPIPER_VERSION
#define SANDPIPER_VERSION "0"
#endif

#define HTTP_DEFAULT_MAX_BODY ((size_t)1 << 20)
#define HTTP_MAX_HEAD         ((size_t)256 * 1024)
#define HTTP_MAX_VALUE        8192 /* of the header fields we keep */
#define HTTP_MAX_RETRY_MS     86400000LL

long long http_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void http_request_judge(struct http_request *request, enum http_result result, const char *fmt, ...)
{
    va_list args;
    if (request->has_verdict)
        return;
    request->has_verdict = true;
    request->verdict = result;
    va_start(args, fmt);
    vsnprintf(request->error, sizeof(request->error), fmt, args);
    va_end(args);
}

/* ---- curl's callbacks ---- */

static void touch(struct http_request *request)
{
    request->last_byte = http_now_ms();
}

static bool has_body(const struct http_options *options)
{
    return (options->body && options->body_len) || (options->read_body && options->read_body_len);
}

/* Only GET and HEAD go on by themselves: a body is sent once, and who sends one looks at the
 * status. */
static bool will_redirect(const struct http_request *request)
{
    const struct http_options *options = &request->options;
    int status = request->status;
    bool moved = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    return moved && request->location && options->max_redirects > 0 && !has_body(options) &&
           (!strcmp(options->method, "GET") || !strcmp(options->method, "HEAD"));
}

static size_t on_write(char *piece, size_t size, size_t count, void *data)
{
    struct http_request *request = data;
    size_t len = size * count;
    touch(request);
    if (request->stage == HTTP_STAGE_CANCELLED)
        return 0;
    if (will_redirect(request))
        return 0; /* nobody wants that page: end this hop here */
    if (len > request->options.max_body_bytes - request->received) {
        http_request_judge(request, HTTP_REFUSED, "the answer is larger than %zu bytes",
                           request->options.max_body_bytes);
        return 0;
    }
    request->received += len;
    if (!request->options.on_data)
        return buf_append(&request->body, piece, len) ? 0 : len;
    if (len && request->options.on_data(request->options.data, piece, len)) {
        http_request_judge(request, HTTP_REFUSED, "the answer was not wanted any further");
        return 0;
    }
    return len;
}

static void keep_value(char **slot, const char *line, size_t len, const char *name)
{
    size_t name_len = strcspn(name, ":");
    if (len <= name_len || strncasecmp(line, name, name_len) || line[name_len] != ':' ||
        len > HTTP_MAX_VALUE)
        return;
    name_len++;
    line += name_len;
    len -= name_len;
    while (len && (*line == ' ' || *line == '\t')) {
        line++;
        len--;
    }
    while (len && strchr(" \t\r\n", line[len - 1]))
        len--;
    free(*slot);
    *slot = mem_strndup(line, len);
}

static void forget_head(struct http_request *request)
{
    free(request->location);
    free(request->content_type);
    free(request->retry_after);
    free(request->kept);
    request->location = request->content_type = request->retry_after = request->kept = NULL;
}

/* The status of a final answer; 0 for a 1xx. */
static int status_of(const char *line, size_t len)
{
    const char *space = memchr(line, ' ', len);
    int status = 0;
    for (const char *at = space ? space + 1 : line + len;
         at < line + len && *at >= '0' && *at <= '9' && status < 100; at++)
        status = status * 10 + (*at - '0');
    return status >= 200 ? status : 0;
}

static size_t on_header(char *line, size_t size, size_t count, void *data)
{
    struct http_request *request = data;
    size_t len = size * count;
    touch(request);
    request->head_bytes += len;
    if (request->head_bytes > HTTP_MAX_HEAD) {
        http_request_judge(request, HTTP_REFUSED, "the answer's head is larger than %zu bytes",
                           HTTP_MAX_HEAD);
        return 0;
    }
    if (len > 5 && !strncmp(line, "HTTP/", 5)) { /* a new head, perhaps after a 1xx */
        forget_head(request);
        request->status = status_of(line, len);
        return len;
    }
    keep_value(&request->location, line, len, "Location:");
    keep_value(&request->content_type, line, len, "Content-Type:");
    keep_value(&request->retry_after, line, len, "Retry-After:");
    if (request->options.keep_header)
        keep_value(&request->kept, line, len, request->options.keep_header);
    return len;
}

/* Takes up to size bytes from the streamed body; -1 when it fails or ends before its promised
 * length. */
static long read_streamed(struct http_request *request, char *into, size_t size)
{
    const struct http_options *options = &request->options;
    if (request->body_ended)
        return 0;
    if (options->read_body_len >= 0) {
        size_t left = (size_t)options->read_body_len - request->body_sent;
        size = left < size ? left : size;
        if (!size)
            return 0;
    }
    long got = options->read_body(options->data, into, size);
    if (got < 0 || (size_t)got > size)
        return -1;
    request->body_ended = got == 0;
    return got == 0 && options->read_body_len >= 0 ? -1 : got;
}

static long read_whole(struct http_request *request, char *into, size_t size)
{
    size_t left = request->options.body_len - request->body_sent;
    size = left < size ? left : size;
    if (size)
        memcpy(into, request->options.body + request->body_sent, size);
    return (long)size;
}

static size_t on_read(char *into, size_t size, size_t count, void *data)
{
    struct http_request *request = data;
    if (request->stage == HTTP_STAGE_CANCELLED)
        return CURL_READFUNC_ABORT;
    touch(request);
    long got = request->options.read_body ? read_streamed(request, into, size * count)
                                          : read_whole(request, into, size * count);
    if (got < 0) {
        http_request_judge(request, HTTP_REFUSED, "the request's body ended early");
        return CURL_READFUNC_ABORT;
    }
    request->body_sent += (size_t)got;
    request->sent = request->sent || got > 0;
    return (size_t)got;
}

/* When a reused connection dies before the answer, curl would send the request again and say
 * nothing (curl#18417): code would run twice. Refusing to rewind makes that an error. */
static int on_seek(void *data, curl_off_t offset, int origin)
{
    (void)data;
    (void)offset;
    (void)origin;
    return CURL_SEEKFUNC_FAIL;
}

/* Every socket is made here: closed in children, and only to addresses the rule allows. */
static curl_socket_t on_open_socket(void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct http_request *request = data;
    (void)purpose;
    if (request->checked && !netaddr_is_public(&address->addr)) {
        http_request_judge(request, HTTP_REFUSED, "%s: not a public address", request->where);
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* ---- From options to a handle ---- */

/* Requests that are sent with a Content-Length even when they have nothing to say. */
static bool uploads(const struct http_options *options)
{
    return has_body(options) || !strcmp(options->method, "POST") ||
           !strcmp(options->method, "PUT") || !strcmp(options->method, "PATCH");
}

static void set_method(struct http_request *request)
{
    CURL *easy = request->easy;
    const struct http_options *options = &request->options;
    if (uploads(options)) {
        curl_off_t len =
            options->read_body ? options->read_body_len : (curl_off_t)options->body_len;
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, len < 0 ? (curl_off_t)-1 : len);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(easy, CURLOPT_READDATA, request);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, request);
    } else if (!strcmp(options->method, "HEAD")) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
        return;
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, options->method);
}

static void set_transport(struct http_request *request)
{
    CURL *easy = request->easy;
    const char *ca_file = getenv("SSL_CERT_FILE");
    const char *ca_dir = getenv("SSL_CERT_DIR");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    /* Removing a handle must not wait for its resolver thread (curl#2975). */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    /* Not h2: there closing a request resets a stream, and the sandbox does not notice. */
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L); /* each hop is ours to check */
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 30L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 10L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)request->options.connect_timeout_ms);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, request);
    if (ca_file && *ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    if (ca_dir && *ca_dir)
        curl_easy_setopt(easy, CURLOPT_CAPATH, ca_dir);
    if (!request->options.public_only)
        return;
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    /* A connection another request opened was not checked by this one's rule. */
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
}

static void set_callbacks(struct http_request *request)
{
    CURL *easy = request->easy;
    curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->curl_error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, request);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "sandpiper/" SANDPIPER_VERSION);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_CURLU, request->url);
}

static char *url_part(CURLU *url, CURLUPart part)
{
    char *text = NULL;
    return curl_url_get(url, part, &text, CURLU_DEFAULT_PORT) ? NULL : text;
}

/* Names the current hop and finds out whether the address rule applies; -1 with the verdict given.
 */
static int look_at_url(struct http_request *request)
{
    char *scheme = url_part(request->url, CURLUPART_SCHEME);
    char *host = url_part(request->url, CURLUPART_HOST);
    char *port = url_part(request->url, CURLUPART_PORT);
    int rc = 0;
    if (!scheme || !host || !port || (strcmp(scheme, "http") && strcmp(scheme, "https"))) {
        http_request_judge(request, HTTP_REFUSED, "not an http:// or https:// URL");
        rc = -1;
    } else {
        free(request->where);
        request->where = mem_printf("%s:%s", host, port);
        request->checked = request->options.public_only &&
                           !netaddr_list_allows(request->options.allow_list, host, atoi(port));
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    return rc;
}

int http_request_prepare(struct http_request *request)
{
    if (look_at_url(request))
        return -1;
    if (!request->easy)
        request->easy = curl_easy_init();
    else
        curl_easy_reset(request->easy);
    if (!request->easy) {
        http_request_judge(request, HTTP_FAILED, "out of memory");
        return -1;
    }
    request->curl_error[0] = '\0';
    set_callbacks(request);
    set_transport(request);
    set_method(request);
    return 0;
}

/* ---- Making and freeing ---- */

static bool is_token(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 127 ||
            strchr("()<>@,;:\\\"/[]?={}", text[i]))
            return false;
    return len > 0;
}

static int add_header(struct curl_slist **list, const char *line)
{
    const char *colon = strchr(line, ':');
    if (!colon || !is_token(line, (size_t)(colon - line)) || strpbrk(line, "\r\n"))
        return -1;
    /* curl takes "Name:" for "do not send Name" and "Name;" for an empty value. */
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    char *text = *value ? mem_strdup(line) : mem_printf("%.*s;", (int)(colon - line), line);
    struct curl_slist *longer = curl_slist_append(*list, text);
    free(text);
    if (!longer)
        return -1;
    *list = longer;
    return 0;
}

static int add_headers(struct http_request *request, const char *const *headers)
{
    for (; headers && *headers; headers++)
        if (add_header(&request->headers, *headers))
            return -1;
    /* No wait for "100 Continue" before a large body. */
    struct curl_slist *longer = curl_slist_append(request->headers, "Expect:");
    if (!longer)
        return -1;
    request->headers = longer;
    return 0;
}

static void copy_options(struct http_request *request, const struct http_options *options)
{
    struct http_options *o = &request->options;
    *o = *options;
    o->method = mem_strdup(options->method);
    o->body = options->body ? mem_dup(options->body, options->body_len) : NULL;
    o->allow_list = mem_strdup(options->allow_list);
    o->keep_header = mem_strdup(options->keep_header);
    o->url = NULL;
    o->headers = NULL;
    if (!o->max_body_bytes)
        o->max_body_bytes = HTTP_DEFAULT_MAX_BODY;
    if (o->connect_timeout_ms <= 0)
        o->connect_timeout_ms = 10000;
    if (o->idle_timeout_ms <= 0)
        o->idle_timeout_ms = 60000;
    buf_init(&request->body, o->max_body_bytes);
}

struct http_request *http_request_new(const struct http_options *options, char *err,
                                      size_t err_size)
{
    const char *why = NULL;
    struct http_request *request = mem_alloc(sizeof(*request));
    copy_options(request, options);
    request->url = curl_url();
    if (!options->method || !is_token(options->method, strlen(options->method)))
        why = "the method is not well-formed";
    else if (!options->url ||
             (strncasecmp(options->url, "http://", 7) && strncasecmp(options->url, "https://", 8)))
        why = "not an http:// or https:// URL";
    else if (!request->url || curl_url_set(request->url, CURLUPART_URL, options->url, 0) ||
             look_at_url(request))
        why = "the URL is not well-formed";
    else if (add_headers(request, options->headers))
        why = "a header is not well-formed";
    if (!why)
        return request;
    snprintf(err, err_size, "%s", why);
    http_request_free(request);
    return NULL;
}

void http_request_free(struct http_request *request)
{
    if (request->easy)
        curl_easy_cleanup(request->easy);
    curl_slist_free_all(request->headers);
    curl_url_cleanup(request->url);
    forget_head(request);
    buf_fini(&request->body);
    free((char *)request->options.method);
    free((char *)request->options.body);
    free((char *)request->options.allow_list);
    free((char *)request->options.keep_header);
    free(request->where);
    free(request);
}

int http_status(const struct http_request *request)
{
    return request->status;
}

/* ---- Ending ---- */

double http_request_deadline(struct http_request *request)
{
    const struct http_options *options = &request->options;
    long long now = http_now_ms();
    long long idle = request->last_byte + options->idle_timeout_ms - now;
    long long total = request->started + options->total_timeout_ms - now;
    if (options->total_timeout_ms > 0 && total <= 0)
        http_request_judge(request, HTTP_TIMED_OUT, "%s: not done within %d ms", request->where,
                           options->total_timeout_ms);
    else if (idle <= 0)
        http_request_judge(request, HTTP_TIMED_OUT, "%s: no byte for %d ms", request->where,
                           options->idle_timeout_ms);
    if (request->has_verdict)
        return 0;
    if (options->total_timeout_ms > 0 && total < idle)
        idle = total;
    return (double)idle / 1000;
}

/* Headers may hold credentials that were meant for the first host only. */
static void drop_headers_for_stranger(struct http_request *request, const char *old_where)
{
    if (!strcasecmp(old_where, request->where))
        return;
    curl_slist_free_all(request->headers);
    request->headers = NULL;
    (void)add_headers(request, NULL);
}

bool http_request_redirects(struct http_request *request)
{
    if (request->has_verdict || !will_redirect(request))
        return false;
    if (request->code != CURLE_OK && request->code != CURLE_WRITE_ERROR)
        return false;
    if (++request->hops > request->options.max_redirects) {
        http_request_judge(request, HTTP_REFUSED, "more than %d redirects",
                           request->options.max_redirects);
        return false;
    }
    char *old_where = mem_strdup(request->where);
    bool ok = false;
    if (curl_url_set(request->url, CURLUPART_URL, request->location, CURLU_URLENCODE))
        http_request_judge(request, HTTP_REFUSED, "the redirect's target is not an http(s) URL");
    else if (!look_at_url(request)) {
        drop_headers_for_stranger(request, old_where);
        forget_head(request);
        request->status = 0;
        request->received = 0;
        buf_clear(&request->body);
        ok = true;
    }
    free(old_where);
    return ok;
}

/* In ms from now: seconds or an HTTP date; -1 for none or nonsense. */
static long long retry_after_ms(const char *value)
{
    if (!value || !*value)
        return -1;
    long long ms;
    if (strspn(value, "0123456789") == strlen(value)) {
        ms = strlen(value) > 9 ? HTTP_MAX_RETRY_MS : atoll(value) * 1000;
    } else {
        time_t when = curl_getdate(value, NULL);
        if (when == (time_t)-1)
            return -1;
        ms = ((long long)when - (long long)time(NULL)) * 1000;
    }
    if (ms < 0)
        return 0;
    return ms > HTTP_MAX_RETRY_MS ? HTTP_MAX_RETRY_MS : ms;
}

/* curl's text, unless it quotes something that could be a URL. */
static void judge_by_curl(struct http_request *request)
{
    const char *text = request->curl_error;
    if (!*text || strpbrk(text, "?@\r\n") || strstr(text, "://"))
        text = curl_easy_strerror(request->code);
    http_request_judge(request, request->sent ? HTTP_CUT : HTTP_FAILED, "%s: %s", request->where,
                       text);
}

static void note_head_sent(struct http_request *request)
{
    long bytes = 0;
    if (request->easy && !has_body(&request->options) &&
        !curl_easy_getinfo(request->easy, CURLINFO_REQUEST_SIZE, &bytes) && bytes > 0)
        request->sent = true;
}

void http_request_report(struct http_request *request)
{
    note_head_sent(request);
    if (!request->has_verdict && request->code != CURLE_OK)
        judge_by_curl(request);
    struct http_answer answer = {
        .result = request->has_verdict ? request->verdict : HTTP_DONE,
        .status = request->status,
        .retry_after_ms = retry_after_ms(request->retry_after),
        .content_type = request->content_type,
        .header = request->kept,
        .error = request->has_verdict ? request->error : NULL,
        .request_sent = request->sent,
    };
    if (!request->options.on_data) {
        answer.body = request->body.data ? request->body.data : "";
        answer.body_len = request->body.len;
    }
    if (request->client->observer)
        request->client->observer(request->options.kind ? request->options.kind : "other",
                                  answer.result, answer.status);
    if (request->options.on_done)
        request->options.on_done(request->options.data, &answer);
}
