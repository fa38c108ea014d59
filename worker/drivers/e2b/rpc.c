/* One Connect RPC of envd, JSON both ways, tried again while the trouble may pass. */
#include "common/http.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "worker/drivers/e2b_control.h"
#include "worker/drivers/e2b_files.h"

#include <stdlib.h>
#include <string.h>

#define TRIES_MAX  4
#define LIMIT_MS   8000
#define ANSWER_MAX ((size_t)16 << 20)

struct e2b_rpc {
    struct e2b_box *box;
    char *path, *text;
    size_t text_len;
    struct http_request *request;
    ev_timer timer;
    int tries;
    e2b_rpc_fn done;
    void *data;
};

static void rpc_free(struct e2b_rpc *rpc)
{
    ev_timer_stop(rpc->box->e2b->host->loop, &rpc->timer);
    if (rpc->request != NULL)
        http_cancel(rpc->request);
    free(rpc->path);
    free(rpc->text);
    e2b_box_unref(rpc->box);
    free(rpc);
}

void e2b_rpc_cancel(struct e2b_rpc *rpc)
{
    if (rpc != NULL)
        rpc_free(rpc);
}

static void finish(struct e2b_rpc *rpc, enum e2b_file_result result, const json_t *body,
                   const char *code)
{
    e2b_rpc_fn done = rpc->done;
    void *data = rpc->data;
    rpc_free(rpc);
    done(data, result, body, code);
}

static void send_rpc(struct e2b_rpc *rpc);

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop, (void)revents;
    send_rpc(w->data);
}

static void arm(struct e2b_rpc *rpc, long long ms)
{
    ev_now_update(rpc->box->e2b->host->loop);
    ev_timer_set(&rpc->timer, (double)ms / 1000, 0);
    ev_timer_start(rpc->box->e2b->host->loop, &rpc->timer);
}

static void on_done(void *data, const struct http_answer *a)
{
    struct e2b_rpc *rpc = data;
    char err[100];
    rpc->request = NULL;
    json_t *body =
        a->body_len > 0 ? jsonx_parse_tolerant(a->body, a->body_len, err, sizeof err) : NULL;
    const char *code =
        json_is_string(json_object_get(body, "code")) ? jsonx_get_str(body, "code", "") : "";
    bool gone = a->status == 502 && json_object_get(body, "sandboxId") != NULL &&
                json_object_get(body, "port") == NULL;
    if (a->result == HTTP_DONE && a->status == 200 && json_is_object(body))
        finish(rpc, FILE_OK, body, "");
    else if (gone || a->status == 401 || a->status == 403)
        finish(rpc, gone ? FILE_GONE : FILE_DENIED, NULL,
               gone               ? "gone"
               : a->status == 401 ? "HTTP 401"
                                  : "HTTP 403");
    else if (a->status >= 400 && a->status < 500 && a->status != 429 && a->status != 408 &&
             (a->status != 409 || code[0] != '\0'))
        finish(rpc, FILE_REFUSED, NULL, code[0] != '\0' ? code : "refused");
    else if (++rpc->tries < TRIES_MAX)
        arm(rpc, e2b_backoff_ms(rpc->tries, a->retry_after_ms));
    else
        finish(rpc, FILE_TRANSIENT, NULL, code[0] != '\0' ? code : "no answer");
    json_decref(body);
}

static void send_rpc(struct e2b_rpc *rpc)
{
    struct e2b_headers headers;
    char err[200], *url = e2b_box_url(rpc->box, E2B_PORT_ENVD, rpc->path);
    e2b_headers_init(&headers, rpc->box, E2B_PORT_ENVD, "application/json");
    headers.lines[headers.count++] = mem_strdup("Connect-Protocol-Version: 1");
    headers.lines[headers.count++] = mem_strdup("Authorization: Basic dXNlcjo="); /* "user:" */
    rpc->request = http_start(rpc->box->e2b->http,
                              &(struct http_options){.method = "POST",
                                                     .kind = "filesystem",
                                                     .url = url,
                                                     .headers = (const char *const *)headers.lines,
                                                     .body = rpc->text,
                                                     .body_len = rpc->text_len,
                                                     .on_done = on_done,
                                                     .data = rpc,
                                                     .max_body_bytes = ANSWER_MAX,
                                                     .total_timeout_ms = LIMIT_MS},
                              err, sizeof err);
    e2b_headers_fini(&headers);
    free(url);
    if (rpc->request == NULL)
        finish(rpc, FILE_REFUSED, NULL, err);
}

struct e2b_rpc *e2b_rpc_start(struct e2b_box *box, const char *method, json_t *body,
                              e2b_rpc_fn done, void *data)
{
    struct e2b_rpc *rpc = mem_alloc(sizeof *rpc);
    rpc->box = e2b_box_ref(box);
    rpc->path = mem_printf("/%s", method);
    rpc->text = jsonx_dump(body, &rpc->text_len);
    rpc->done = done;
    rpc->data = data;
    json_decref(body);
    ev_timer_init(&rpc->timer, on_timer, 0, 0);
    rpc->timer.data = rpc;
    arm(rpc, 0);
    return rpc;
}
