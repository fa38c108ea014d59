/* HTTP requests on libcurl's multi interface and libev: streamed both ways, bounded. */
#ifndef SANDPIPER_COMMON_HTTP_H
#define SANDPIPER_COMMON_HTTP_H

#include <stdbool.h>
#include <stddef.h>

struct ev_loop;
struct http;         /* one client: a curl multi handle and its watchers */
struct http_request; /* one request under way */

struct http *http_new(struct ev_loop *loop);
void http_free(struct http *client); /* cancels what is under way, without callbacks */

enum http_result {
    HTTP_DONE,      /* an HTTP answer came to its end; look at status */
    HTTP_REFUSED,   /* by our rules: scheme, address, redirect target, too large */
    HTTP_FAILED,    /* connect, TLS, DNS, protocol; nothing of the request was surely delivered */
    HTTP_CUT,       /* the connection died after the request was sent: outcome unknown */
    HTTP_TIMED_OUT, /* total or idle deadline */
};

struct http_answer {
    enum http_result result;
    int status;               /* 0 unless an answer's head was seen */
    long long retry_after_ms; /* from Retry-After (seconds or date); -1 absent */
    const char *content_type; /* or NULL */
    const char *header;       /* value of options.keep_header, or NULL */
    const char *error; /* one line, without credentials or query string; NULL when HTTP_DONE */
    bool request_sent; /* a byte of the request's body (or its head, without body) was handed to the
                          wire */
    const char *body;  /* the body where no on_data was given (NUL-terminated), else NULL */
    size_t body_len;
};

/* observer runs before each on_done. kind: of the options, or "other". */
typedef void (*http_observe_fn)(const char *kind, enum http_result result, int status);
void http_observe(struct http *client, http_observe_fn observer);

/* All callbacks run from the loop, never inside http_start. on_data: a piece of the body; return 0,
 * or -1 to abort (ends as HTTP_REFUSED). on_done: exactly once unless cancelled; everything in
 * answer is borrowed. read_body: fill up to size bytes, return the count, 0 at the end, -1 to
 * abort; it is never rewound: where curl would send a body a second time the request fails instead.
 * None of them may call http_cancel on its own request or http_free; all may start requests and
 * cancel others. */
struct http_options {
    const char *method;         /* "GET", "POST", ...; copied like every string here */
    const char *kind;           /* for the observer: a word of a few, static; or NULL */
    const char *url;            /* http:// or https:// */
    const char *const *headers; /* "Name: value" strings, NULL-terminated array, or NULL */
    const char *keep_header;    /* name of one more header of the answer to report; or NULL */
    const char *body;           /* whole body, copied; or NULL */
    size_t body_len;
    long (*read_body)(void *data, char *into, size_t size); /* streamed body, or NULL */
    long long read_body_len; /* bytes of the streamed body; -1 unknown (chunked) */
    int (*on_data)(void *data, const char *piece, size_t len);
    void (*on_done)(void *data, const struct http_answer *answer);
    void *data;
    size_t max_body_bytes;  /* of the answer; 0: 1 MiB. More ends as HTTP_REFUSED */
    int connect_timeout_ms; /* 0: 10000 */
    int idle_timeout_ms;    /* no byte either way; 0: 60000 */
    int total_timeout_ms;   /* 0: none */
    int max_redirects; /* 0: none followed. Only GET and HEAD without a body follow; headers are
                             * not sent on to another host or port */
    bool public_only;  /* address rule of netaddr_is_public, on the address really connected to,
                       * redirects included; no proxy, no reused connection */
    const char *allow_list; /* netaddr_list_allows exceptions to public_only; or NULL */
};

/* Starts a request. NULL with a reason in err when the options are wrong (scheme, header with
 * CR/LF). */
struct http_request *http_start(struct http *client, const struct http_options *options, char *err,
                                size_t err_size);
/* Status of the answer whose body on_data is given; 0 while no head was seen. */
int http_status(const struct http_request *request);
/* Closes the connection at once; no callback after. */
void http_cancel(struct http_request *request);

#endif
