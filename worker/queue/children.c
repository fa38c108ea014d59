/* Lets a claimed job wait for its children: BullMQ's move, then its thread is given back. */
#include "worker/queue/children.h"

#include "common/log.h"
#include "common/mem.h"
#include "common/text.h"
#include "worker/queue/scripts.h"

#include <stdlib.h>

struct waiting {
    struct queue *q;
    struct str id, thread;
    children_fn cb;
    void *data;
};

static enum children_result result_of(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_INTEGER)
        return CHILDREN_LOST;
    return reply->integer == 0    ? CHILDREN_WAITING
           : reply->integer == 1  ? CHILDREN_DONE
           : reply->integer == -9 ? CHILDREN_FAILED
                                  : CHILDREN_LOST;
}

/* Should we die before this call, the stalled pass does the same: such a holder holds nothing. */
static void give_thread_back(const struct waiting *w)
{
    char *suffix = mem_printf("lease:%s", w->thread.data);
    struct queue_call *call = queue_call_new(w->q, &script_release, 1);
    queue_call_key(call, suffix);
    queue_call_str(call, queue_prefix(w->q));
    queue_call_bytes(call, w->thread.data, w->thread.len);
    queue_call_bytes(call, w->id.data, w->id.len);
    queue_call_int(call, text_now_ms());
    queue_call_send(call, NULL, NULL);
    free(suffix);
}

static void on_moved(redisReply *reply, void *data)
{
    struct waiting *w = data;
    enum children_result result = result_of(reply);
    struct log_ctx ctx = {.job = w->id.data, .thread = w->thread.data};
    if (result == CHILDREN_LOST)
        log_write(LOG_LEVEL_WARN, &ctx, "job could not be made to wait for its children (%lld)",
                  reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0LL);
    if (result == CHILDREN_WAITING) {
        log_write(LOG_LEVEL_INFO, &ctx, "job waits for its children");
        if (w->thread.data != NULL)
            give_thread_back(w);
    }
    w->cb(result, w->data);
    str_fini(&w->id);
    str_fini(&w->thread);
    free(w);
}

void children_wait(struct queue *q, const struct claimed_job *job, children_fn cb, void *data)
{
    struct waiting *w = mem_alloc(sizeof *w);
    *w = (struct waiting){q, str_copy(&job->id), str_copy(&job->thread), cb, data};
    struct queue_call *call = queue_call_new(q, &script_moveToWaitingChildren, 7);
    queue_call_key(call, "active");
    queue_call_key(call, "waiting-children");
    queue_call_job_key(call, &job->id, "");
    queue_call_job_key(call, &job->id, ":dependencies");
    queue_call_job_key(call, &job->id, ":unsuccessful");
    queue_call_key(call, "stalled");
    queue_call_key(call, "events");
    queue_call_bytes(call, job->token.data, job->token.len);
    queue_call_str(call, ""); /* any child */
    queue_call_int(call, text_now_ms());
    queue_call_bytes(call, job->id.data, job->id.len);
    queue_call_str(call, queue_prefix(q));
    queue_call_send(call, on_moved, w);
}
