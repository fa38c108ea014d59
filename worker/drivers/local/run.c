/* Runs of the LOCAL driver: from the request over kernel and code to the end and files. */
#include "common/buf.h"
#include "common/jsonx.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/drivers/local.h"
#include "worker/drivers/local_host.h"
#include "worker/drivers/local_probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_CHUNK   ((size_t)1 << 20)  /* of an input file, a loop turn */
#define PIECE_SIZE   ((size_t)64 << 10) /* of an output file */
#define MAX_STARTS   2                  /* failed starts of a kernel before the run gives up */
#define MAX_WARNINGS 50

static struct local_run *run_of(struct driver_run *run)
{
    return (struct local_run *)run; /* embedded first */
}

/* --- steps from the loop ------------------------------------------------------------ */

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct local_run *run = w->data;
    void (*step)(struct local_run * run) = run->step;

    (void)loop, (void)revents;
    run->step = NULL;
    if (step)
        step(run);
}

void local_run_later(struct local_run *run, void (*step)(struct local_run *run))
{
    struct ev_loop *loop = run->local->host->loop;

    run->step = step;
    ev_timer_stop(loop, &run->timer);
    ev_timer_set(&run->timer, 0., 0.);
    ev_timer_start(loop, &run->timer);
}

/* --- the end ------------------------------------------------------------------------ */

void local_run_end(struct local_run *run, const struct driver_end *end)
{
    struct driver_end full = *end;

    if (run->state == RUN_ENDED || run->state == RUN_CLOSED)
        return;
    if (run->state == RUN_CODE) {
        local_files_list(run->box->home_fd, run->max_files, &run->listing);
        json_array_extend(run->warnings, run->listing.warnings);
        full.files = run->listing.files;
        full.file_count = run->listing.count;
    }
    run->state = RUN_ENDED;
    if (json_array_size(run->warnings) > 0)
        full.warnings = run->warnings;
    run->events.on_end(run->data, &full);
}

void local_run_fail(struct local_run *run, enum driver_end_kind kind, const char *fmt, ...)
{
    char message[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    /* Nothing of the code has left us: worth another attempt, whatever it was. */
    if (kind == DRIVER_END_SANDBOX_LOST && run->state != RUN_CODE)
        kind = DRIVER_END_NO_SANDBOX;
    local_run_end(run, &(struct driver_end){.kind = kind, .exit_code = 1, .message = message});
}

static const char *died_message(char *text, size_t size, int code, const char *why)
{
    if (*why)
        snprintf(text, size, "The interpreter was killed: %s; its state is lost.", why);
    else if (code > 128 && code < 160)
        snprintf(text, size, "The interpreter died (signal %d, %s); its state is lost.", code - 128,
                 strsignal(code - 128));
    else
        snprintf(text, size, "The interpreter exited with status %d; its state is lost.", code);
    return text;
}

static void end_by_death(struct local_run *run, const json_t *event)
{
    int code = (int)jsonx_get_int(event, "code", 1);
    bool oom = jsonx_get_bool(event, "oom", false);
    const char *why = jsonx_get_str(event, "why", "");
    char text[400];
    struct driver_end end = {.kind = oom ? DRIVER_END_OOM : DRIVER_END_KERNEL_DIED,
                             .exit_code = code > 0 ? code : 1,
                             .state_lost = "kernel_died"};

    if (run->interrupted) {
        end.kind = DRIVER_END_INTERRUPTED;
        end.state_lost = "killed_after_timeout";
        end.message = "The code did not heed the interrupt; its interpreter was killed.";
    } else if (oom && *why) {
        snprintf(text, sizeof(text),
                 "Memory ran out: %s. The interpreter was killed; its state "
                 "is lost.",
                 why);
        end.message = text;
    } else if (oom) {
        end.message = "Memory ran out: the system killed the interpreter; its state is lost.";
    } else if (run->box->disk_full) {
        snprintf(text, sizeof(text),
                 "The interpreter was killed: %s. Its state and the files are "
                 "lost.",
                 why);
        end.message = text;
        end.state_lost = "disk_full";
    } else {
        end.message = died_message(text, sizeof(text), code, why);
    }
    local_run_end(run, &end);
}

void local_run_kernel_dead(struct local_run *run, const json_t *event, const char *reason)
{
    switch (run->state) {
    case RUN_CODE:
        if (event)
            end_by_death(run, event);
        else
            local_run_end(run, &(struct driver_end){.kind = DRIVER_END_SANDBOX_LOST,
                                                    .exit_code = 1,
                                                    .message = "The sandbox was lost: the process "
                                                               "that runs the interpreters died.",
                                                    .state_lost = "kernel_died"});
        break;
    case RUN_READY:
        local_run_fail(run, DRIVER_END_NO_SANDBOX, "The interpreter died before it got the code.");
        break;
    case RUN_PREPARING:
        if (run->box->failed_starts >= MAX_STARTS)
            local_run_fail(run, DRIVER_END_NO_SANDBOX, "No interpreter could be started: %s.",
                           reason);
        break;
    default:
        break;
    }
}

/* --- preparing: the box, its kernel, the input files -------------------------------- */

static void maybe_ready(struct local_run *run)
{
    struct local_box *box = run->box;

    if (run->state != RUN_PREPARING || box->state != BOX_READY || run->input_at < run->input_count)
        return;
    run->state = RUN_READY;
    struct driver_ready ready = {
        .reused = run->reused && !box->state_lost, .resumed = false, .state_lost = box->state_lost};
    run->events.on_ready(run->data, &ready);
}

static void prepare(struct local_run *run)
{
    struct local_box *box = run->box;

    /* An orphan's code still runs, or its kernel dies: no file is touched before that is over. */
    if (run->state != RUN_PREPARING || box->state == BOX_RUNNING || box->state == BOX_DYING)
        return;
    local_boxes_start(run->local);
    if (run->input_at < run->input_count && !run->step)
        local_run_later(run, local_run_copy_inputs);
    else
        maybe_ready(run);
}

static void on_box_settled(void *data)
{
    struct local_box *box;
    struct local *local = data;

    for (box = local->boxes; box; box = box->next)
        if (box->run && box->run->state == RUN_PREPARING && !box->run->step)
            local_run_later(box->run, prepare);
}

/* A box of the thread that may be used, or NULL with the reason to make a fresh one (or none). */
static struct local_box *usable_box(struct local_run *run)
{
    struct local_box *box = local_box_of_thread(run->local, run->thread);

    if (run->other_replica_before)
        run->new_reason = "other_replica";
    if (!box)
        return NULL;
    if (run->other_replica_before) {
        local_box_discard(box, "the thread has run on another replica");
        return NULL;
    }
    if (strcmp(box->actor ? box->actor : "", run->actor ? run->actor : "") != 0 ||
        !box->actor != !run->actor) {
        local_box_discard(box, "the actor changed");
        run->new_reason = "actor_changed";
        return NULL;
    }
    return box;
}

void local_run_attach(struct local_run *run)
{
    struct local_box *box = run->thread ? local_box_of_thread(run->local, run->thread) : NULL;

    if (box && box->run) { /* its caller has not closed that run yet */
        run->state = RUN_WAITING;
        return;
    }
    if (run->thread)
        box = usable_box(run);
    run->reused = box != NULL;
    if (!box) {
        box = local_box_take(run->local);
        if (!box) {
            local_run_fail(
                run, DRIVER_END_NO_SANDBOX,
                "No folder for the sandbox could be made: %s (CODE_INTERPRETER_LOCAL_DIR).",
                strerror(errno));
            return;
        }
        box->thread = mem_strdup(run->thread);
        box->actor = mem_strdup(run->actor);
        box->state_lost = run->new_reason;
    }
    run->box = box;
    box->run = run;
    box->failed_starts = 0;
    box->retry_at = 0;
    run->state = RUN_PREPARING;
    if (box->state == BOX_RUNNING || box->state == BOX_DYING)
        local_box_wait(box, false, on_box_settled, run->local);
    else
        prepare(run);
}

void local_run_begin(struct local_run *run)
{
    struct local_verdict verdict = local_verdict(run->local->settings);

    if (verdict.pending)
        return;
    if (!verdict.allowed) {
        local_run_fail(run, DRIVER_END_DISABLED, DRIVER_LOCAL_REFUSED, verdict.why);
        return;
    }
    if (strcmp(run->language, "python") != 0) {
        local_run_fail(run, DRIVER_END_BAD_JOB,
                       "The LOCAL driver runs only python, not %.100s (%%%%bash cells work).",
                       run->language);
        return;
    }
    local_run_attach(run);
}

void local_run_kernel_ready(struct local_run *run)
{
    prepare(run);
}

/* --- input files -------------------------------------------------------------------- */

static void input_failed(struct local_run *run, enum driver_end_kind kind, const char *why)
{
    local_run_fail(run, kind, "The input file %.200s cannot be put into the sandbox: %s.",
                   run->inputs[run->input_at].filename, why);
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* One chunk of the file under way; 1 when the file is complete, 0 when there is more, -1 failed. */
static int copy_chunk(struct local_run *run)
{
    static char chunk[COPY_CHUNK]; /* one loop, one thread */
    const struct driver_input *input = &run->inputs[run->input_at];
    ssize_t n = pread(input->fd, chunk, sizeof(chunk), (off_t)run->input_offset);

    if (n < 0)
        return errno == EINTR ? 0 : -1;
    if (n == 0)
        return 1;
    run->input_offset += n;
    return write_all(run->input_fd, chunk, (size_t)n);
}

void local_run_copy_inputs(struct local_run *run)
{
    char err[120];

    if (run->state != RUN_PREPARING)
        return;
    if (run->input_fd < 0) {
        run->input_offset = 0;
        run->input_fd = local_files_create(run->box->home_fd, run->inputs[run->input_at].filename,
                                           err, sizeof(err));
        if (run->input_fd < 0) {
            input_failed(run, DRIVER_END_BAD_JOB, err);
            return;
        }
    }
    int done = copy_chunk(run);
    if (done < 0) {
        input_failed(run, DRIVER_END_DRIVER_ERROR, strerror(errno));
        return;
    }
    if (done == 1) {
        close(run->input_fd);
        run->input_fd = -1;
        run->input_at++;
    }
    if (run->input_at < run->input_count)
        local_run_later(run, local_run_copy_inputs);
    else
        maybe_ready(run);
}

/* --- the code ----------------------------------------------------------------------- */

static void not_delivered(struct local_run *run)
{
    local_run_fail(run, DRIVER_END_DRIVER_ERROR,
                   "The code could not be handed to the interpreter: the kernel host is down.");
}

void local_run_deliver(struct driver_run *base)
{
    struct local_run *run = run_of(base);
    struct local_box *box = run->box;

    if (run->state != RUN_READY)
        return;
    json_t *message =
        json_pack("{s:s,s:I,s:o,s:O,s:s}", "op", "run", "k", (json_int_t)box->kernel, "code",
                  jsonx_string(run->code, run->code_len), "env", run->env, "nonce", run->nonce);
    if (local_host_send(box->local->process, message) != 0) {
        local_run_later(run, not_delivered);
        return;
    }
    box->state_lost = NULL; /* told */
    run->state = RUN_CODE;
    local_box_code_sent(box);
}

void local_run_interrupt(struct driver_run *base)
{
    struct local_run *run = run_of(base);

    if (run->state != RUN_CODE || run->interrupted)
        return;
    run->interrupted = true;
    local_box_interrupt(run->box);
}

static void on_end_of_code(struct local_run *run, const json_t *event)
{
    const char *name = jsonx_get_str(event, "name", NULL);
    const char *trace = jsonx_get_str(event, "tb", "");
    bool failed = strcmp(jsonx_get_str(event, "status", ""), "ok") != 0;
    struct buf clean;
    struct driver_end end = {.kind = DRIVER_END_OK};

    buf_init(&clean, strlen(trace) + 1);
    if (failed) {
        if (text_strip_ansi(trace, strlen(trace), &clean) != 0)
            buf_clear(&clean);
        end.kind = DRIVER_END_CODE_ERROR;
        end.exit_code = (int)jsonx_get_int(event, "exit", 1);
        end.error_name = name;
        end.error_value = jsonx_get_str(event, "value", "");
        end.traceback = clean.data ? clean.data : "";
    }
    if (run->interrupted) {
        end.kind = DRIVER_END_INTERRUPTED;
        end.exit_code = 130;
        end.message = "The code was interrupted.";
    }
    local_run_end(run, &end);
    buf_fini(&clean);
}

static void on_output(struct local_run *run, const json_t *event)
{
    const json_t *text = json_object_get(event, "t");
    enum driver_stream stream = jsonx_get_int(event, "s", 1) == 2 ? DRIVER_STDERR : DRIVER_STDOUT;

    if (json_string_length(text) > 0)
        run->events.on_output(run->data, stream, json_string_value(text), json_string_length(text));
}

void local_run_event(struct local_run *run, const char *name, const json_t *event)
{
    if (run->state != RUN_CODE)
        return;
    if (strcmp(name, "out") == 0) {
        on_output(run, event);
    } else if (strcmp(name, "result") == 0) {
        const json_t *data = json_object_get(event, "data");
        if (json_is_object(data))
            run->events.on_result(run->data, data, jsonx_get_bool(event, "main", false));
    } else if (strcmp(name, "warn") == 0) {
        if (json_array_size(run->warnings) < MAX_WARNINGS)
            json_array_append(run->warnings, json_object_get(event, "t"));
    } else if (strcmp(name, "end") == 0) {
        on_end_of_code(run, event);
    }
}

/* --- output files ------------------------------------------------------------------- */

static void end_reading(struct local_run *run)
{
    if (run->read_fd >= 0)
        close(run->read_fd);
    run->read_fd = -1;
}

static void read_piece(struct local_run *run)
{
    static char piece[PIECE_SIZE]; /* one loop, one thread */
    const struct driver_file *file = &run->listing.files[run->read_index];
    char err[120];
    ssize_t n = 0;

    if (run->read_fd < 0) {
        run->read_left = file->size;
        run->read_fd = local_files_open(run->box->home_fd, file->path, err, sizeof(err));
        if (run->read_fd < 0) {
            run->read_cb(run->read_data, NULL, -1, err);
            return;
        }
    }
    if (run->read_left > 0) {
        size_t want = run->read_left < (long long)PIECE_SIZE ? (size_t)run->read_left : PIECE_SIZE;
        do
            n = read(run->read_fd, piece, want);
        while (n < 0 && errno == EINTR);
    }
    if (n < 0 || (n == 0 && run->read_left > 0)) {
        snprintf(err, sizeof(err), "%s",
                 n < 0 ? strerror(errno) : "it became shorter while it was read");
        end_reading(run);
        run->read_cb(run->read_data, NULL, -1, err);
        return;
    }
    run->read_left -= n;
    if (n == 0)
        end_reading(run);
    run->read_cb(run->read_data, piece, (long)n, NULL);
}

void local_run_file_read(struct driver_run *base, size_t index, driver_piece_fn cb, void *data)
{
    struct local_run *run = run_of(base);

    if (run->state != RUN_ENDED || index >= run->listing.count)
        return;
    if (index != run->read_index)
        end_reading(run);
    run->read_index = index;
    run->read_cb = cb;
    run->read_data = data;
    local_run_later(run, read_piece);
}

/* --- from start to close ------------------------------------------------------------ */

struct driver_run *local_run_start(struct driver *d, const struct driver_request *request,
                                   const struct driver_events *events, void *data)
{
    struct local *local = (struct local *)d;
    struct local_run *run = mem_alloc(sizeof(*run));
    char nonce[37];

    text_uuid(nonce);
    run->base.driver = d;
    run->local = local;
    run->events = *events;
    run->data = data;
    run->job_id = mem_strdup(request->job_id);
    run->thread = mem_strdup(request->thread);
    run->actor = mem_strdup(request->actor);
    run->language = mem_strdup(request->language);
    run->code = mem_dup(request->code, request->code_len);
    run->code_len = request->code_len;
    run->nonce = mem_strdup(nonce);
    run->env = request->env ? json_deep_copy(request->env) : json_object();
    run->inputs = request->inputs;
    run->input_count = request->input_count;
    run->input_fd = run->read_fd = -1;
    run->other_replica_before = request->other_replica_before;
    run->max_files = (size_t)settings_int(request->settings, SETTING_FILES_MAX_COUNT);
    run->warnings = json_array();
    ev_timer_init(&run->timer, on_timer, 0., 0.);
    run->timer.data = run;
    run->next = local->runs;
    local->runs = run;
    local_run_later(run, local_run_begin);
    return &run->base;
}

static void run_free(void *arg)
{
    struct local_run *run = arg;

    local_listing_fini(&run->listing);
    json_decref(run->warnings);
    json_decref(run->env);
    free(run->job_id);
    free(run->thread);
    free(run->actor);
    free(run->language);
    free(run->code);
    free(run->nonce);
    free(run);
}

/* The box is free for the thread's next run, which may be waiting for it. */
static void give_back(struct local_run *run, bool code_runs)
{
    struct local_box *box = run->box;

    run->box = NULL;
    if (!box)
        return;
    if (code_runs)
        local_box_interrupt(box);
    local_box_give_back(box);
    for (struct local_run *other = run->local->runs; other; other = other->next) {
        if (other->state == RUN_WAITING && run->thread && strcmp(other->thread, run->thread) == 0) {
            local_run_later(other, local_run_attach);
            return;
        }
    }
}

void local_run_close(struct driver_run *base)
{
    struct local_run *run = run_of(base);
    struct local_run **at = &run->local->runs;
    bool code_runs = run->state == RUN_CODE;

    if (run->state == RUN_CLOSED)
        return;
    run->state = RUN_CLOSED;
    ev_timer_stop(run->local->host->loop, &run->timer);
    end_reading(run);
    if (run->input_fd >= 0)
        close(run->input_fd);
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    give_back(run, code_runs);
    reaper_defer(run_free, run);
}
