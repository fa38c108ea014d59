/* What the files of the HTTP client share; nobody else includes this. */
#ifndef SANDPIPER_COMMON_HTTP_IMPL_H
#define SANDPIPER_COMMON_HTTP_IMPL_H

#include <curl/curl.h>
#include <ev.h>

#include "common/buf.h"
#include "common/http.h"

enum http_stage {
    HTTP_STAGE_NEW,       /* to be given to curl: first, or for the next hop of a redirect */
    HTTP_STAGE_RUNNING,   /* curl has it */
    HTTP_STAGE_ENDED,     /* code or verdict is set; on_done is due */
    HTTP_STAGE_REPORTING, /* on_done runs */
    HTTP_STAGE_CANCELLED, /* to be freed without a word */
};

struct http_request {
    struct http_request *next, *prev; /* in client->requests */
    struct http *client;
    enum http_stage stage;       /* changed by http_set_stage only */
    struct http_options options; /* its strings are our copies, see http_request.c */
    CURL *easy;
    struct curl_slist *headers;
    CURLU *url;   /* of the current hop */
    char *where;  /* "host:port" of it, for error texts */
    bool checked; /* the address rule applies to this hop */
    int hops;     /* redirects followed so far */

    struct ev_timer timer; /* the nearer of the idle and the total deadline */
    long long started;     /* ms, monotonic */
    long long last_byte;   /* ms, monotonic: either way */

    size_t body_sent; /* bytes of the body handed to curl */
    bool sent;        /* answer.request_sent */
    bool body_ended;  /* read_body has returned 0 */

    int status;                                  /* of the last head; 0 until one was seen */
    size_t head_bytes;                           /* bound on what headers may add up to */
    char *location, *content_type, *retry_after; /* of the last head, or NULL */
    char *kept;                                  /* options.keep_header of the last head, or NULL */
    struct buf body;                             /* where no on_data was given */
    size_t received;                             /* body bytes */

    CURLcode code;    /* of curl, where no verdict of ours stands */
    bool has_verdict; /* result and error are ours already */
    enum http_result verdict;
    char error[300];
    char curl_error[CURL_ERROR_SIZE];
};

struct http_socket; /* a watcher of one of curl's sockets */

struct http {
    struct ev_loop *loop;
    CURLM *multi;
    http_observe_fn observer; /* or NULL */
    struct ev_timer timer;    /* curl's own */
    struct http_socket *sockets;
    struct http_request *requests;
    int due;      /* requests in NEW, ENDED or CANCELLED */
    bool in_curl; /* curl is on the stack: its API may not be called */
    bool in_turn;
    bool turn_pending; /* on the reaper's list */
    bool freed;        /* http_free was called while turn_pending */
};

/* http_request.c */
long long http_now_ms(void); /* monotonic */
struct http_request *http_request_new(const struct http_options *options, char *err,
                                      size_t err_size);
void http_request_free(struct http_request *request);
int http_request_prepare(struct http_request *request); /* sets the handle up for the next hop */
/* Our own end of the request; the first verdict stands. */
void http_request_judge(struct http_request *request, enum http_result result, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* After curl is done with a hop: true when there is another to go. */
bool http_request_redirects(struct http_request *request);
void http_request_report(struct http_request *request); /* runs on_done */
/* Seconds until the next deadline; 0 when one has passed, with the verdict given; -1: none. */
double http_request_deadline(struct http_request *request);

#endif
