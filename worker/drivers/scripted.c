/* Test builds only: a driver whose "code" is a list of NDJSON steps that it plays, so that tests
 * need no kernels. */
#include "worker/driver.h"

#include "common/b64.h"
#include "common/jsonx.h"
#include "common/mem.h"
#include "common/reaper.h"
#include "common/text.h"

#include <ev.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Steps, one JSON object a line:
 *   before delivery: {"prepare":ms}, {"fail":"no_sandbox"|"no_capacity"|"driver_error"[,"times":k]}
 *   after it: {"sleep":ms} {"stdout":text[,"times":n]} {"stderr":text[,"times":n]}
 * {"result":bundle[,"main":true]}
 *     {"file":path,"content":text|"base64":text} {"error":{"name","value","traceback"}} {"exit":n}
 * {"die":signal}
 *     {"oom":true} {"lost":true} {"unknown":true} {"hang":true} {"resist":true} {"state":name}
 * (prints a counter kept for the thread)
 *
 * With SCRIPTED_JOURNAL=path in the environment each delivery, end and close of a delivered run is
 * a line of JSON in that file: {"what":"begin"|"end"|"close","at":ms since the epoch,"pid","job",
 * "execution"[,"thread"]}. It is how tests count what ran without asking Redis. */

#define RESIST_SECONDS 0.3 /* until a run that ignores the interrupt is killed */

struct scripted {
    struct driver base;
    struct ev_loop *loop;
    json_t *threads; /* T -> {counter: value}; the "warm state" */
    int journal;     /* -1: none is kept */
};

struct scripted_file {
    char *path, *data;
    size_t len, read;
};

struct scripted_run {
    struct driver_run base;
    const struct driver_events *events;
    void *data;
    json_t *steps; /* array */
    size_t at;
    char *thread, *job_id, *execution_id;
    int attempt;
    bool delivered, interrupted, resisting, hanging, ended, reused;
    struct ev_timer timer;
    bool soon; /* go_on is deferred */
    struct scripted_file *files;
    struct driver_file *listing;
    size_t file_count;
    driver_piece_fn piece;
    void *piece_data;
    size_t piece_index;
};

static struct scripted *driver_of(struct scripted_run *run)
{
    return (struct scripted *)run->base.driver;
}

/* One write a line: whole, and there also when we are killed right after it. */
static void journal(const struct scripted_run *run, const char *what)
{
    int fd = driver_of((struct scripted_run *)run)->journal;
    if (fd < 0)
        return;
    json_t *line = json_pack("{s:s,s:I,s:i,s:s,s:s,s:s*}", "what", what, "at",
                             (json_int_t)text_now_ms(), "pid", (int)getpid(), "job", run->job_id,
                             "execution", run->execution_id, "thread", run->thread);
    size_t len;
    char *dumped = jsonx_dump(line, &len), *text = mem_printf("%s\n", dumped);
    if (write(fd, text, len + 1) != (ssize_t)(len + 1))
        abort();
    free(text);
    free(dumped);
    json_decref(line);
}

static void go_on(struct scripted_run *run);

static void go_on_now(void *data)
{
    struct scripted_run *run = data;
    if (run->soon)
        go_on(run);
}

/* The script goes on after so long; with 0 once the caller has returned. */
static void again(struct scripted_run *run, double seconds)
{
    ev_timer_stop(driver_of(run)->loop, &run->timer);
    run->soon = seconds <= 0;
    if (run->soon) {
        reaper_defer(go_on_now, run);
        return;
    }
    ev_timer_set(&run->timer, seconds, 0);
    ev_timer_start(driver_of(run)->loop, &run->timer);
}

static void finish(struct scripted_run *run, struct driver_end *end)
{
    run->ended = true;
    if (run->delivered)
        journal(run, "end");
    run->soon = false;
    ev_timer_stop(driver_of(run)->loop, &run->timer);
    run->listing = mem_alloc((run->file_count + 1) * sizeof *run->listing);
    for (size_t i = 0; i < run->file_count; i++)
        run->listing[i] = (struct driver_file){run->files[i].path, (long long)run->files[i].len};
    end->files = run->listing;
    end->file_count = run->file_count;
    if (end->state_lost != NULL && run->thread != NULL)
        json_object_del(driver_of(run)->threads, run->thread);
    run->events->on_end(run->data, end);
}

static void add_file(struct scripted_run *run, const json_t *step)
{
    const char *text = jsonx_get_str(step, "content", ""),
               *encoded = jsonx_get_str(step, "base64", NULL);
    struct scripted_file f = {mem_strdup(jsonx_get_str(step, "file", "")), NULL, strlen(text), 0};
    f.data =
        encoded != NULL ? (char *)b64_decode(encoded, strlen(encoded), &f.len) : mem_strdup(text);
    run->files = mem_realloc(run->files, (run->file_count + 1) * sizeof *run->files);
    run->files[run->file_count++] = f;
}

static void print(struct scripted_run *run, enum driver_stream stream, const json_t *step,
                  const char *text)
{
    long long times = jsonx_get_int(step, "times", 1);
    for (long long i = 0; i < times && text[0] != '\0'; i++)
        run->events->on_output(run->data, stream, text, strlen(text));
}

static void print_state(struct scripted_run *run, const char *name)
{
    json_t *all = driver_of(run)->threads;
    json_t *mine = run->thread != NULL ? json_object_get(all, run->thread) : NULL;
    long long value = jsonx_get_int(mine, name, 0) + 1;
    if (mine != NULL)
        json_object_set_new(mine, name, json_integer(value));
    char *text = mem_printf("%lld\n", value);
    run->events->on_output(run->data, DRIVER_STDOUT, text, strlen(text));
    free(text);
}

static void end_with_error(struct scripted_run *run, const json_t *error)
{
    struct driver_end end = {.kind = DRIVER_END_CODE_ERROR,
                             .exit_code = 1,
                             .error_name = jsonx_get_str(error, "name", "Exception"),
                             .error_value = jsonx_get_str(error, "value", ""),
                             .traceback = jsonx_get_str(error, "traceback", "")};
    finish(run, &end);
}

static void end_with_exit(struct scripted_run *run, int code)
{
    struct driver_end end = {.kind = code == 0 ? DRIVER_END_OK : DRIVER_END_CODE_ERROR,
                             .exit_code = code};
    if (code != 0) {
        end.error_name = "SystemExit";
        end.error_value = "exit";
    }
    finish(run, &end);
}

/* Plays one step; true when the next one may follow at once. */
static bool play(struct scripted_run *run, const json_t *step)
{
    const json_t *v;
    struct driver_end lost = {.state_lost = "sandbox_gone"};
    if ((v = json_object_get(step, "sleep")) != NULL) {
        again(run, json_number_value(v) / 1000.0);
        return false;
    }
    if ((v = json_object_get(step, "stdout")) != NULL) {
        print(run, DRIVER_STDOUT, step, json_string_value(v));
    } else if ((v = json_object_get(step, "stderr")) != NULL) {
        print(run, DRIVER_STDERR, step, json_string_value(v));
    } else if ((v = json_object_get(step, "result")) != NULL) {
        run->events->on_result(run->data, v, jsonx_get_bool(step, "main", false));
    } else if (json_object_get(step, "file") != NULL) {
        add_file(run, step);
    } else if ((v = json_object_get(step, "state")) != NULL) {
        print_state(run, json_string_value(v));
    } else if ((v = json_object_get(step, "error")) != NULL) {
        end_with_error(run, v);
    } else if ((v = json_object_get(step, "exit")) != NULL) {
        end_with_exit(run, (int)json_integer_value(v));
    } else if ((v = json_object_get(step, "die")) != NULL) {
        lost.kind = DRIVER_END_KERNEL_DIED;
        lost.exit_code = 128 + (int)json_integer_value(v);
        lost.message = "The interpreter was killed by a signal; the session's state is lost.";
        lost.state_lost = "kernel_died";
        finish(run, &lost);
    } else if (json_object_get(step, "oom") != NULL) {
        lost.kind = DRIVER_END_OOM;
        lost.exit_code = 137;
        lost.message =
            "The interpreter was killed because memory ran out; the session's state is lost.";
        lost.state_lost = "kernel_died";
        finish(run, &lost);
    } else if (json_object_get(step, "lost") != NULL) {
        lost.kind = DRIVER_END_SANDBOX_LOST;
        lost.message = "The sandbox was lost while the code ran.";
        finish(run, &lost);
    } else if (json_object_get(step, "unknown") != NULL) {
        lost.kind = DRIVER_END_OUTCOME_UNKNOWN;
        lost.message = "Nobody can tell what became of the code.";
        finish(run, &lost);
    } else if (json_object_get(step, "hang") != NULL) {
        run->hanging = true;
        return false;
    } else if (json_object_get(step, "resist") != NULL) {
        run->resisting = true;
    }
    return !run->ended;
}

static void play_delivered(struct scripted_run *run)
{
    while (run->at < json_array_size(run->steps))
        if (!play(run, json_array_get(run->steps, run->at++)))
            return;
    struct driver_end end = {.kind = DRIVER_END_OK};
    finish(run, &end);
}

/* A {"fail":...} step: ends the run before delivery, in as many attempts as it says. */
static bool fail_before(struct scripted_run *run, const json_t *step)
{
    const char *what = jsonx_get_str(step, "fail", "");
    if (run->attempt > jsonx_get_int(step, "times", 1LL << 40))
        return false;
    struct driver_end end = {.kind = strcmp(what, "no_sandbox") == 0    ? DRIVER_END_NO_SANDBOX
                                     : strcmp(what, "no_capacity") == 0 ? DRIVER_END_NO_CAPACITY
                                                                        : DRIVER_END_DRIVER_ERROR,
                             .message = "The script says that no sandbox can be had."};
    finish(run, &end);
    return true;
}

static void go_on(struct scripted_run *run)
{
    run->soon = false;
    if (run->interrupted) {
        struct driver_end end = {.kind = DRIVER_END_INTERRUPTED,
                                 .state_lost = run->resisting ? "killed_after_timeout" : NULL};
        finish(run, &end);
        return;
    }
    if (run->delivered) {
        play_delivered(run);
        return;
    }
    for (; run->at < json_array_size(run->steps); run->at++) {
        const json_t *step = json_array_get(run->steps, run->at);
        const json_t *prepare = json_object_get(step, "prepare");
        if (prepare != NULL) {
            run->at++;
            again(run, json_number_value(prepare) / 1000.0);
            return;
        }
        if (json_object_get(step, "fail") == NULL)
            break;
        if (fail_before(run, step))
            return;
    }
    struct driver_ready ready = {.reused = run->reused};
    run->events->on_ready(run->data, &ready);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    go_on(w->data);
}

static json_t *parse_steps(const char *code, size_t len)
{
    json_t *steps = json_array();
    char err[80];
    for (const char *line = code, *end = code + len; line < end;) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((eol != NULL ? eol : end) - line);
        json_t *step = jsonx_parse(line, n, err, sizeof err);
        if (step != NULL)
            json_array_append_new(steps, step);
        line += n + 1;
    }
    return steps;
}

static struct driver_run *scripted_start(struct driver *d, const struct driver_request *request,
                                         const struct driver_events *events, void *data)
{
    struct scripted *s = (struct scripted *)d;
    struct scripted_run *run = mem_alloc(sizeof *run);
    run->base.driver = d;
    run->events = events;
    run->data = data;
    run->steps = parse_steps(request->code, request->code_len);
    run->thread = mem_strdup(request->thread);
    run->job_id = mem_strdup(request->job_id);
    run->execution_id = mem_strdup(request->execution_id);
    run->attempt = request->attempt;
    run->reused = run->thread != NULL && json_object_get(s->threads, run->thread) != NULL;
    if (run->thread != NULL && !run->reused)
        json_object_set_new(s->threads, run->thread, json_object());
    ev_timer_init(&run->timer, on_timer, 0, 0);
    run->timer.data = run;
    again(run, 0);
    return &run->base;
}

static void scripted_deliver(struct driver_run *base)
{
    struct scripted_run *run = (struct scripted_run *)base;
    run->delivered = true;
    journal(run, "begin");
    again(run, 0);
}

static void scripted_interrupt(struct driver_run *base)
{
    struct scripted_run *run = (struct scripted_run *)base;
    if (run->ended || run->interrupted)
        return;
    run->interrupted = true;
    again(run, run->resisting ? RESIST_SECONDS : 0);
}

static void on_piece(void *data)
{
    struct scripted_run *run = data;
    struct scripted_file *f = &run->files[run->piece_index];
    size_t n = f->len - f->read < 65536 ? f->len - f->read : 65536;
    const char *piece = f->data + f->read;
    f->read += n;
    if (run->piece != NULL)
        run->piece(run->piece_data, piece, (long)n, NULL);
}

static void scripted_file_read(struct driver_run *base, size_t index, driver_piece_fn cb,
                               void *data)
{
    struct scripted_run *run = (struct scripted_run *)base;
    if (index != run->piece_index)
        run->files[index].read = 0;
    run->piece_index = index;
    run->piece = cb;
    run->piece_data = data;
    reaper_defer(on_piece, run);
}

static void free_run(void *data)
{
    struct scripted_run *run = data;
    json_decref(run->steps);
    for (size_t i = 0; i < run->file_count; i++) {
        free(run->files[i].path);
        free(run->files[i].data);
    }
    free(run->files);
    free(run->listing);
    free(run->thread);
    free(run->job_id);
    free(run->execution_id);
    free(run);
}

static void scripted_close(struct driver_run *base)
{
    struct scripted_run *run = (struct scripted_run *)base;
    if (run->delivered && !run->ended)
        journal(run, "close");
    run->soon = false;
    ev_timer_stop(driver_of(run)->loop, &run->timer);
    run->piece = NULL;
    reaper_defer(free_run, run);
}

static void scripted_release(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    json_object_del(((struct scripted *)d)->threads, thread);
    reaper_defer(cb, data);
}

static void scripted_settle(struct driver *d, const char *thread, driver_done_fn cb, void *data)
{
    (void)d;
    (void)thread;
    reaper_defer(cb, data);
}

static void free_driver(void *data)
{
    struct scripted *s = data;
    json_decref(s->threads);
    if (s->journal >= 0)
        close(s->journal);
    free(s);
}

static void scripted_dispose(struct driver *d, driver_done_fn cb, void *data)
{
    reaper_defer(cb, data);
    reaper_defer(free_driver, d);
}

static const struct driver_ops scripted_ops = {
    .name = "SCRIPTED",
    .start = scripted_start,
    .deliver = scripted_deliver,
    .interrupt = scripted_interrupt,
    .file_read = scripted_file_read,
    .close = scripted_close,
    .release = scripted_release,
    .settle = scripted_settle,
    .dispose = scripted_dispose,
};

struct driver *driver_scripted_new(const struct driver_host *host)
{
    struct scripted *s = mem_alloc(sizeof *s);
    s->base.ops = &scripted_ops;
    s->loop = host->loop;
    s->threads = json_object();
    const char *path = getenv("SCRIPTED_JOURNAL");
    s->journal = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    return &s->base;
}
