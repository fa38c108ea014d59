/* The HTTP client: curl's multi handle on the loop, and when its requests start and end. */
#include "common/http.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/http_impl.h"
#include "common/mem.h"
#include "common/reaper.h"

/* Kept open for the next request. Each sandbox is a host of its own, so idle ones pile up. */
#define HTTP_MAX_IDLE_CONNECTIONS 64L

struct http_socket {
    struct http_socket *next, *prev;
    struct http *client;
    struct ev_io io;
};

static void http_turn(struct http *client);

/* ---- The list of requests ---- */

static bool http_stage_is_due(enum http_stage stage)
{
    return stage == HTTP_STAGE_NEW || stage == HTTP_STAGE_ENDED || stage == HTTP_STAGE_CANCELLED;
}

static void http_set_stage(struct http_request *request, enum http_stage stage)
{
    request->client->due += http_stage_is_due(stage) - http_stage_is_due(request->stage);
    request->stage = stage;
}

static void http_link(struct http *client, struct http_request *request)
{
    request->client = client;
    request->next = client->requests;
    if (request->next)
        request->next->prev = request;
    client->requests = request;
    request->stage = HTTP_STAGE_RUNNING; /* not due, until set below */
    http_set_stage(request, HTTP_STAGE_NEW);
}

static void http_take_from_curl(struct http_request *request)
{
    ev_timer_stop(request->client->loop, &request->timer);
    if (request->easy)
        curl_multi_remove_handle(request->client->multi, request->easy);
}

static void http_unlink_and_free(struct http_request *request)
{
    struct http *client = request->client;
    http_take_from_curl(request);
    http_set_stage(request, HTTP_STAGE_REPORTING); /* out of the count of what is due */
    if (request->next)
        request->next->prev = request->prev;
    if (request->prev)
        request->prev->next = request->next;
    else
        client->requests = request->next;
    http_request_free(request);
}

/* ---- curl's sockets and timer ---- */

static void http_drive(struct http *client, curl_socket_t fd, int events)
{
    int running = 0, left = 0;
    client->in_curl = true;
    curl_multi_socket_action(client->multi, fd, events, &running);
    client->in_curl = false;
    for (CURLMsg *message; (message = curl_multi_info_read(client->multi, &left));) {
        struct http_request *request = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&request);
        request->code = message->data.result;
        if (request->stage == HTTP_STAGE_RUNNING) /* else cancelled meanwhile */
            http_set_stage(request, HTTP_STAGE_ENDED);
    }
    http_turn(client);
}

static void http_on_io(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct http_socket *s = io->data;
    (void)loop;
    http_drive(s->client, io->fd,
               (events & EV_READ ? CURL_CSELECT_IN : 0) |
                   (events & EV_WRITE ? CURL_CSELECT_OUT : 0));
}

static void http_on_curl_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    http_drive(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static int http_on_set_timer(CURLM *multi, long ms, void *data)
{
    struct http *client = data;
    (void)multi;
    ev_timer_stop(client->loop, &client->timer);
    if (ms < 0)
        return 0;
    /* Never curl_multi_socket_action from here: it would be a call from inside curl. */
    ev_timer_set(&client->timer, (double)ms / 1000, 0);
    ev_timer_start(client->loop, &client->timer);
    return 0;
}

static void http_socket_free(struct http_socket *s)
{
    ev_io_stop(s->client->loop, &s->io);
    if (s->next)
        s->next->prev = s->prev;
    if (s->prev)
        s->prev->next = s->next;
    else
        s->client->sockets = s->next;
    free(s);
}

static struct http_socket *http_socket_new(struct http *client, curl_socket_t fd)
{
    struct http_socket *s = mem_alloc(sizeof(*s));
    s->client = client;
    ev_io_init(&s->io, http_on_io, fd, 0);
    s->io.data = s;
    s->next = client->sockets;
    if (s->next)
        s->next->prev = s;
    client->sockets = s;
    curl_multi_assign(client->multi, fd, s);
    return s;
}

static int http_on_set_socket(CURL *easy, curl_socket_t fd, int what, void *data, void *socket_data)
{
    struct http *client = data;
    struct http_socket *s = socket_data;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        curl_multi_assign(client->multi, fd, NULL);
        if (s)
            http_socket_free(s);
        return 0;
    }
    if (!s)
        s = http_socket_new(client, fd);
    /* Stop before set: the number may be a new file by now, and libev must not think it the old
     * one. */
    ev_io_stop(client->loop, &s->io);
    ev_io_set(&s->io, fd,
              (what & CURL_POLL_IN ? EV_READ : 0) | (what & CURL_POLL_OUT ? EV_WRITE : 0));
    ev_io_start(client->loop, &s->io);
    return 0;
}

/* ---- What is due ---- */

static void http_on_deadline(struct ev_loop *loop, struct ev_timer *timer, int events);

static void http_arm_deadline(struct http_request *request)
{
    double wait = http_request_deadline(request);
    ev_now_update(request->client->loop);
    ev_timer_init(&request->timer, http_on_deadline, wait, 0);
    request->timer.data = request;
    ev_timer_start(request->client->loop, &request->timer);
}

static void http_on_deadline(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct http_request *request = timer->data;
    (void)loop;
    (void)events;
    if (request->stage != HTTP_STAGE_RUNNING)
        return;
    if (http_request_deadline(request) > 0) {
        http_arm_deadline(request);
        return;
    }
    http_set_stage(request, HTTP_STAGE_ENDED);
    http_turn(request->client);
}

static void http_begin(struct http_request *request)
{
    http_set_stage(request, HTTP_STAGE_RUNNING);
    if (http_request_prepare(request)) {
        http_set_stage(request, HTTP_STAGE_ENDED);
        return;
    }
    http_arm_deadline(request);
    if (curl_multi_add_handle(request->client->multi, request->easy)) {
        http_request_judge(request, HTTP_FAILED, "out of memory");
        http_set_stage(request, HTTP_STAGE_ENDED);
    }
}

static void http_end(struct http_request *request)
{
    http_take_from_curl(request);
    if (http_request_redirects(request)) {
        http_set_stage(request, HTTP_STAGE_NEW);
        return;
    }
    http_set_stage(request, HTTP_STAGE_REPORTING);
    http_request_report(request);
    http_unlink_and_free(request);
}

static struct http_request *http_first_due(const struct http *client)
{
    struct http_request *request = client->due ? client->requests : NULL;
    while (request && !http_stage_is_due(request->stage))
        request = request->next;
    return request;
}

/* The one place where requests enter and leave curl. Callbacks may start and cancel others, so the
 * list is looked at afresh after each. */
static void http_turn(struct http *client)
{
    struct http_request *request;
    if (client->in_turn || client->in_curl)
        return;
    client->in_turn = true;
    while ((request = http_first_due(client))) {
        if (request->stage == HTTP_STAGE_NEW)
            http_begin(request);
        else if (request->stage == HTTP_STAGE_ENDED)
            http_end(request);
        else
            http_unlink_and_free(request);
    }
    client->in_turn = false;
}

static void http_reaped(void *arg)
{
    struct http *client = arg;
    client->turn_pending = false;
    if (client->freed)
        free(client);
    else
        http_turn(client);
}

static void http_schedule_turn(struct http *client)
{
    if (client->turn_pending)
        return;
    client->turn_pending = true;
    reaper_defer(http_reaped, client);
}

/* ---- Interface ---- */

struct http *http_new(struct ev_loop *loop)
{
    struct http *client = mem_alloc(sizeof(*client));
    struct sigaction old;
    if (!sigaction(SIGPIPE, NULL, &old) && old.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);      /* CURLOPT_NOSIGNAL leaves that to us */
    curl_global_init(CURL_GLOBAL_ALL); /* counted; undone in http_free */
    client->loop = loop;
    client->multi = curl_multi_init();
    if (!client->multi)
        abort();
    ev_timer_init(&client->timer, http_on_curl_timer, 0, 0);
    client->timer.data = client;
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, http_on_set_socket);
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, http_on_set_timer);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, HTTP_MAX_IDLE_CONNECTIONS);
    return client;
}

void http_observe(struct http *client, http_observe_fn observer)
{
    client->observer = observer;
}

void http_free(struct http *client)
{
    if (!client)
        return;
    while (client->requests)
        http_unlink_and_free(client->requests);
    curl_multi_cleanup(client->multi);
    while (client->sockets)
        http_socket_free(client->sockets);
    ev_timer_stop(client->loop, &client->timer);
    curl_global_cleanup();
    client->freed = true;
    if (!client->turn_pending) /* else http_reaped frees it */
        free(client);
}

struct http_request *http_start(struct http *client, const struct http_options *options, char *err,
                                size_t err_size)
{
    struct http_request *request = http_request_new(options, err, err_size);
    if (!request)
        return NULL;
    request->started = request->last_byte = http_now_ms();
    http_link(client, request);
    http_schedule_turn(client);
    return request;
}

void http_cancel(struct http_request *request)
{
    if (request->stage == HTTP_STAGE_REPORTING)
        return;
    if (!request->client->in_curl) {
        http_unlink_and_free(request);
        return;
    }
    http_set_stage(request, HTTP_STAGE_CANCELLED); /* its callbacks refuse from now on */
}
