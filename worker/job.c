/* A job's data, parsed and checked. */
#include "worker/job.h"

#include "common/jsonx.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/text.h"
#include "worker/safe_path.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define THREAD_MAX_BYTES 1024
#define TIMEOUT_MAX_MS   86400000LL
#define FILES_MAX        1000
#define ENV_VALUE_MAX    (127 * 1024) /* Linux takes no longer string in an environment */
#define WARNINGS_MAX     20

bool job_id_is_key_ending(const char *id)
{
    static const char *const endings[] = {"lock",      "logs",   "dependencies",
                                          "processed", "failed", "unsuccessful"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcmp(id, endings[i]) == 0)
            return true;
    return false;
}

static void warn(struct job *job, char *text)
{
    if (job->warnings == NULL)
        job->warnings = json_array();
    if (json_array_size(job->warnings) < WARNINGS_MAX)
        json_array_append_new(job->warnings, jsonx_string(text, strlen(text)));
    free(text);
}

/* A member; null is as good as absent. */
static const json_t *member(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* A string member without NUL bytes; absent and null leave *out alone. */
static char *take_string(const json_t *object, const char *key, const char *path, const char **out)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v))
        return NULL;
    if (!json_is_string(v))
        return mem_printf("The job's data is wrong: %s%s must be a string.", path, key);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return mem_printf("The job's data is wrong: %s%s contains a NUL character.", path, key);
    *out = json_string_value(v);
    return NULL;
}

static char *take_bool(const json_t *object, const char *key, bool *out)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v))
        return NULL;
    if (!json_is_boolean(v))
        return mem_printf("The job's data is wrong: %s must be true or false.", key);
    *out = json_is_true(v);
    return NULL;
}

static char *take_positive(const json_t *object, const char *key, long long *out)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v))
        return NULL;
    double real = json_number_value(v);
    bool whole =
        json_is_integer(v) || (json_is_real(v) && real < 1e15 && real == (double)(long long)real);
    if (!whole || real <= 0)
        return mem_printf(
            "The job's data is wrong: %s must be a positive whole number of milliseconds.", key);
    *out = json_is_integer(v) ? json_integer_value(v) : (long long)real;
    return NULL;
}

/* "" counts as absent: an id that names nobody must not become a shared sandbox. */
static const char *or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static char *take_thread(struct job *job, const struct jobopts *opts)
{
    const char *thread = NULL, *workspace = NULL, *group = NULL;
    char *why = take_string(job->root, "threadId", "", &thread);
    if (why == NULL)
        why = take_string(job->root, "workspaceId", "", &workspace);
    if (why == NULL && json_is_object(opts->group))
        why = take_string(opts->group, "id", "opts.group.", &group);
    if (why != NULL)
        return why;
    thread = or_null(thread);
    group = or_null(group);
    if (thread != NULL && group != NULL && strcmp(thread, group) != 0)
        return mem_strdup("The job's data is wrong: threadId and opts.group.id differ.");
    thread = thread != NULL ? thread : group;
    if (thread == NULL)
        return NULL;
    workspace = workspace != NULL ? workspace : "";
    char *a = text_percent_encode_set(workspace, strlen(workspace), "%:");
    char *b = text_percent_encode_set(thread, strlen(thread), "%:");
    job->thread = mem_printf("%s:%s", a, b);
    free(a);
    free(b);
    if (strlen(job->thread) > THREAD_MAX_BYTES)
        return mem_printf(
            "The job's data is wrong: workspaceId and threadId are longer than %d bytes.",
            THREAD_MAX_BYTES);
    return NULL;
}

char *job_env_add(json_t *env, const char *where, const char *name, const char *value,
                  size_t value_len)
{
    bool good = name[0] != '\0' && !(name[0] >= '0' && name[0] <= '9');
    for (const char *c = name; *c != '\0' && good; c++)
        good = *c == '_' || (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
               (*c >= 'A' && *c <= 'Z');
    if (!good || strlen(name) > 256)
        return mem_printf(
            "The job's data is wrong: %s has a name that is not one of an environment variable "
            "(letters, digits and _, not beginning with a digit).",
            where);
    if (memchr(value, '\0', value_len) != NULL)
        return mem_printf("The job's data is wrong: %s.%s contains a NUL character.", where, name);
    if (value_len > ENV_VALUE_MAX)
        return mem_printf("The job's data is wrong: %s.%s is longer than %d bytes.", where, name,
                          ENV_VALUE_MAX);
    json_object_set_new(env, name, jsonx_string(value, value_len));
    return NULL;
}

static char *take_env(struct job *job)
{
    json_t *env = json_object_get(job->root, "env"), *value;
    const char *name;
    if (env == NULL || json_is_null(env))
        return NULL;
    if (!json_is_object(env))
        return mem_strdup("The job's data is wrong: env must be an object of strings.");
    json_object_foreach(env, name, value)
    {
        if (!json_is_string(value))
            return mem_strdup("The job's data is wrong: env must be an object of strings.");
        char *why =
            job_env_add(job->env, "env", name, json_string_value(value), json_string_length(value));
        if (why != NULL)
            return why;
    }
    return NULL;
}

/* Job data may only name keys below the queue's own "file:" and "secret:": what else is in Redis is
 * not its. */
static char *check_key(const char *field, const char *key, const char *queue_prefix,
                       const char *kind)
{
    size_t len = strlen(queue_prefix);
    if (strncmp(key, queue_prefix, len) == 0 && strncmp(key + len, kind, strlen(kind)) == 0)
        return NULL;
    return mem_printf("The job's data is wrong: %s must begin with %s%s", field, queue_prefix,
                      kind);
}

static char *check_url(const char *field, const char *url)
{
    if (strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0)
        return NULL;
    return mem_printf("The job's data is wrong: %s must begin with http:// or https://.", field);
}

static char *take_file(struct job *job, const json_t *entry, size_t index, const char *queue_prefix)
{
    char path[48];
    snprintf(path, sizeof path, "files[%zu].", index);
    if (!json_is_object(entry))
        return mem_printf("The job's data is wrong: files[%zu] must be an object.", index);
    const char *texts[3] = {NULL, NULL, NULL}, *filename = NULL, *mime = NULL;
    static const char *const names[3] = {"content", "key", "url"};
    char *why = take_string(entry, "filename", path, &filename);
    if (why == NULL)
        why = take_string(entry, "mimeType", path, &mime);
    int given = 0;
    struct job_file *f = &job->files[job->file_count];
    for (int i = 0; i < 3 && why == NULL; i++) {
        why = take_string(entry, names[i], path, &texts[i]);
        if (texts[i] == NULL)
            continue;
        given++;
        *f = (struct job_file){filename, (enum job_file_source)i, texts[i], strlen(texts[i])};
    }
    if (why != NULL)
        return why;
    if (filename == NULL)
        return mem_printf("The job's data is wrong: %sfilename is missing.", path);
    if (given != 1)
        return mem_printf(
            "The job's data is wrong: files[%zu] needs exactly one of content, key and url.",
            index);
    const char *bad = safe_path_check(filename);
    if (bad != NULL)
        return mem_printf("The job's data is wrong: %sfilename %s.", path, bad);
    if (f->source == JOB_FILE_KEY &&
        (why = check_key("files[].key", f->value, queue_prefix, "file:")) != NULL)
        return why;
    if (f->source == JOB_FILE_URL && (why = check_url("files[].url", f->value)) != NULL)
        return why;
    job->file_count++;
    return NULL;
}

static char *take_files(struct job *job, const char *queue_prefix)
{
    const json_t *files = json_object_get(job->root, "files");
    if (files == NULL || json_is_null(files))
        return NULL;
    if (!json_is_array(files))
        return mem_strdup("The job's data is wrong: files must be an array.");
    size_t count = json_array_size(files);
    if (count > FILES_MAX)
        return mem_printf("The job's data is wrong: files has %zu entries, the limit is %d.", count,
                          FILES_MAX);
    job->files = mem_alloc((count + 1) * sizeof *job->files);
    for (size_t i = 0; i < count; i++) {
        char *why = take_file(job, json_array_get(files, i), i, queue_prefix);
        if (why != NULL)
            return why;
    }
    return NULL;
}

static char *check_string_map(const json_t *map, const char *field)
{
    const char *name;
    json_t *value;
    if (map != NULL && !json_is_object(map))
        return mem_printf("The job's data is wrong: %s must be an object of strings.", field);
    json_object_foreach((json_t *)map, name, value)
    {
        const char *text = json_string_value(value);
        if (text == NULL || strlen(text) != json_string_length(value) ||
            strpbrk(text, "\r\n") != NULL || strpbrk(name, "\r\n:") != NULL)
            return mem_printf(
                "The job's data is wrong: %s must be an object of strings without line breaks.",
                field);
    }
    return NULL;
}

static char *take_output(struct job *job)
{
    const json_t *output = json_object_get(job->root, "output");
    if (output == NULL || json_is_null(output))
        return NULL;
    if (!json_is_object(output))
        return mem_strdup("The job's data is wrong: output must be an object.");
    char *why = take_bool(output, "inline", &job->inline_files);
    const json_t *upload = json_object_get(output, "upload");
    if (why != NULL || upload == NULL || json_is_null(upload))
        return why;
    if (!json_is_object(upload))
        return mem_strdup("The job's data is wrong: output.upload must be an object.");
    struct job_upload *u = &job->upload;
    u->headers = member(upload, "headers");
    u->fields = member(upload, "fields");
    u->method = u->fields != NULL ? "POST" : "PUT";
    why = take_string(upload, "url", "output.upload.", &u->url);
    if (why == NULL)
        why = take_string(upload, "method", "output.upload.", &u->method);
    if (why == NULL)
        why = check_string_map(u->headers, "output.upload.headers");
    if (why == NULL)
        why = check_string_map(u->fields, "output.upload.fields");
    if (why == NULL && u->url != NULL)
        why = check_url("output.upload.url", u->url);
    if (why == NULL && u->url == NULL)
        why = mem_strdup("The job's data is wrong: output.upload.url is missing.");
    if (why == NULL && strcmp(u->method, "PUT") != 0 && strcmp(u->method, "POST") != 0)
        why = mem_strdup("The job's data is wrong: output.upload.method must be PUT or POST.");
    if (why == NULL && u->fields != NULL && strcmp(u->method, "PUT") == 0)
        why = mem_strdup("The job's data is wrong: output.upload.fields are for method POST; PUT "
                         "sends no form.");
    return why;
}

static void note_unknown_fields(struct job *job)
{
    static const char *const known[] = {"v",           "code",      "language", "threadId",
                                        "workspaceId", "actorKey",  "files",    "env",
                                        "secretsKey",  "timeoutMs", "startBy",  "idempotent",
                                        "output",      "reply",     "force"};
    const char *name;
    json_t *value;
    json_object_foreach(job->root, name, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++)
            found = strcmp(name, known[i]) == 0;
        if (!found)
            warn(job, mem_printf("unknown field %.100s was ignored", name));
    }
}

static char *take_limits(struct job *job, const struct settings *settings)
{
    long long most = settings_int(settings, SETTING_CODE_INTERPRETER_TIMEOUT_MS);
    job->timeout_ms = most;
    char *why = take_positive(job->root, "timeoutMs", &job->timeout_ms);
    if (why == NULL)
        why = take_positive(job->root, "startBy", &job->start_by);
    if (why == NULL && job->timeout_ms > most) {
        warn(job, mem_printf("timeoutMs was lowered from %lld to the limit of %lld",
                             job->timeout_ms, most));
        job->timeout_ms = most;
    }
    return why;
}

static char *take_code(struct job *job)
{
    const json_t *code = json_object_get(job->root, "code");
    char *why = take_string(job->root, "language", "", &job->language);
    if (why != NULL)
        return why;
    if (or_null(job->language) == NULL)
        job->language = "python";
    if (code == NULL || json_is_null(code))
        return mem_strdup("The job's data is wrong: code is missing.");
    if (!json_is_string(code))
        return mem_strdup("The job's data is wrong: code must be a string.");
    job->code = json_string_value(code);
    job->code_len = json_string_length(code);
    return NULL;
}

static char *parse_root(struct job *job, const struct claimed_job *claimed,
                        const struct settings *settings)
{
    char err[160];
    long long limit = settings_int(settings, SETTING_JOB_DATA_MAX_BYTES);
    if (claimed->data.data == NULL)
        return mem_strdup("The job has no data.");
    if ((long long)claimed->data.len > limit)
        return mem_printf("The job's data has %zu bytes; the limit (JOB_DATA_MAX_BYTES) is %lld.",
                          claimed->data.len, limit);
    job->root = jsonx_parse(claimed->data.data, claimed->data.len, err, sizeof err);
    if (job->root == NULL)
        return mem_printf("The job's data is not valid JSON: %s.", err);
    if (!json_is_object(job->root))
        return mem_strdup("The job's data is wrong: it must be a JSON object.");
    const json_t *v = json_object_get(job->root, "v");
    if (v != NULL && !json_is_null(v) && !(json_is_integer(v) && json_integer_value(v) == 1))
        return mem_strdup("The job's data is wrong: v must be 1, the version of the contract that "
                          "this worker knows.");
    return take_bool(job->root, "reply", &job->reply);
}

/* The lease was taken for the thread that the claim script found; ours must be the same one. */
static char *check_lease(const struct job *job, const struct claimed_job *claimed)
{
    bool same = job->thread == NULL ? claimed->thread.data == NULL
                                    : claimed->thread.data != NULL &&
                                          strcmp(job->thread, claimed->thread.data) == 0;
    return same ? NULL
                : mem_strdup("The job's data is wrong: threadId and workspaceId cannot be read by "
                             "Redis (too deeply "
                             "nested, or spelled with escapes).");
}

/* Only a checked key is kept: it will be read, and deleted at the job's end. */
static char *take_secrets_key(struct job *job, const char *queue_prefix)
{
    const char *key = NULL;
    char *why = take_string(job->root, "secretsKey", "", &key);
    if (why == NULL && key != NULL)
        why = check_key("secretsKey", key, queue_prefix, "secret:");
    if (why == NULL)
        job->secrets_key = key;
    return why;
}

char *job_parse(struct job *job, const struct claimed_job *claimed, const struct jobopts *opts,
                const char *queue_prefix, const struct settings *settings)
{
    *job = (struct job){.reply = true, .env = json_object()};
    job->timeout_ms = TIMEOUT_MAX_MS;
    if (job_id_is_key_ending(claimed->id.data)) {
        job->reply = false;
        return mem_printf(
            "The job id \"%s\" cannot be used: it is how BullMQ ends the names of its own keys.",
            claimed->id.data);
    }
    char *why = parse_root(job, claimed, settings);
    if (why != NULL)
        return why;
    job->kind = claimed->name.data != NULL && strcmp(claimed->name.data, "release") == 0
                    ? JOB_RELEASE
                    : JOB_EXECUTE;
    if ((why = take_thread(job, opts)) != NULL || (why = check_lease(job, claimed)) != NULL ||
        (why = take_string(job->root, "actorKey", "", &job->actor)) != NULL ||
        (why = take_bool(job->root, "idempotent", &job->idempotent)) != NULL ||
        (why = take_bool(job->root, "force", &job->force)) != NULL ||
        (why = take_limits(job, settings)) != NULL)
        return why;
    note_unknown_fields(job);
    if (job->kind == JOB_RELEASE)
        return job->thread != NULL
                   ? NULL
                   : mem_strdup("The job's data is wrong: a release needs threadId.");
    if ((why = take_code(job)) != NULL || (why = take_env(job)) != NULL ||
        (why = take_secrets_key(job, queue_prefix)) != NULL ||
        (why = take_files(job, queue_prefix)) != NULL || (why = take_output(job)) != NULL)
        return why;
    return NULL;
}

void job_fini(struct job *job)
{
    json_decref(job->root);
    json_decref(job->env);
    json_decref(job->warnings);
    free(job->thread);
    free(job->files);
    *job = (struct job){.reply = false};
}
