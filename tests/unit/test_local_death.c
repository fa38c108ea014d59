/* Unit tests of LOCAL: kernels without isolation; deaths of worker and host. */
#include "local_rig.h"

#include <sys/wait.h>

static struct rig rig;
static struct rig_result r;

static void run(const char *thread, const char *code)
{
    rig_run(&rig, &r, thread, code);
}

static void begin(const char *isolation)
{
    setenv("NODE_ENV", "development", 1);
    setenv("E2B_API_KEY", "e2b_canary_key", 1);
    setenv("CODE_INTERPRETER_LOCAL_SPARE_KERNELS", "1", 1);
    rig_new(&rig, isolation);
}

static void finish(void)
{
    rig_free(&rig);
    assert_int_equal(rig_kernels(), 0);
}

static void test_plain_kernels_serve_sessions(void **state)
{
    (void)state;
    begin("none");
    run("t:a", "import os\nx = 1; open('output/a', 'w').write('1'); open(os.environ['OUTPUT_DIR'] "
               "+ '/b', 'w').close()\n"
               "print(os.getcwd() == os.environ['HOME'])");
    assert_string_equal(rig_text(&r.out), "True\n");
    assert_int_equal(r.file_count, 2);
    rig_result_fini(&r);
    rig_expect(&rig, "t:a", "print(x, os.listdir('output'))", "1 []\n");
    run("t:a", "import os\nprint(dict(os.environ)); "
               "print(repr(open(f'/proc/{os.getppid()}/environ').read()))");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_null(strstr(rig_text(&r.out), "canary"));
    rig_result_fini(&r);
    run("t:a", "import os; os._exit(7)");
    assert_int_equal(r.kind, DRIVER_END_KERNEL_DIED);
    assert_int_equal(r.exit_code, 7);
    rig_result_fini(&r);
    run("t:a", "import os; os.kill(os.getpid(), 11)");
    assert_int_equal(r.exit_code, 139);
    rig_result_fini(&r);
    rig_expect(&rig, "t:a", "print('alive')", "alive\n");
    finish();
}

static void test_plain_kernels_leave_no_process(void **state)
{
    (void)state;
    struct rig_options options = {.interrupt_after_ms = 500};

    begin("none");
    /* A daemon: its parents are gone, its session is its own. */
    rig_expect(&rig, "t:b",
               "import os, time, warnings\n"
               "warnings.simplefilter('ignore')\n" /* Python 3.12 warns of forks */
               "if os.fork() == 0:\n"
               "    os.setsid()\n"
               "    if os.fork() == 0: os.execvp('sleep', ['sleep', '4441'])\n"
               "    os._exit(0)\n"
               "os.wait(); time.sleep(0.2)",
               "");
    assert_int_equal(rig_running("sleep 4441"), 0);
    rig_run_with(&rig, &r, "t:b",
                 "import subprocess; print(1, flush=True)\n"
                 "subprocess.run('setsid sleep 4442 & sleep 4443', shell=True)",
                 &options);
    assert_int_equal(r.kind, DRIVER_END_INTERRUPTED);
    rig_result_fini(&r);
    assert_int_equal(rig_running("sleep 444"), 0);
    run("t:b", "import os, subprocess; subprocess.Popen(['setsid', 'sleep', '4444']); os._exit(1)");
    rig_result_fini(&r);
    assert_int_equal(rig_running("sleep 444"), 0);
    finish();
}

/* In a child: a worker whose code runs for ever; tells by the pipe that it does. */
static void be_worker(const char *isolation, int tell_fd)
{
    static const struct rig_options options;
    static const char code[] =
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '5551'])\nprint('running', flush=True)\ntime.sleep(600)";

    begin(isolation);
    rig_start(&rig, &r, "t:w", code, &options);
    while (!r.first_output_ms)
        ev_run(rig.loop, EVRUN_ONCE);
    if (write(tell_fd, rig.dir, sizeof(rig.dir)) != sizeof(rig.dir))
        _exit(1);
    for (;;)
        ev_run(rig.loop, EVRUN_ONCE);
}

static pid_t start_worker(const char *isolation, char dir[64])
{
    int pair[2];

    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        be_worker(isolation, pair[1]);
    close(pair[1]);
    assert_int_equal(read(pair[0], dir, 64), 64);
    close(pair[0]);
    return pid;
}

#define POLLS 6000 /* of 10 ms */

/* Polls, since these processes are nobody's children of ours. */
static void expect_gone(const char *text, pid_t worker)
{
    for (int i = 0; i < POLLS; i++) {
        if (rig_processes("cmdline", text, rig_token(worker), 0) == 0)
            return;
        usleep(10000);
    }
    fail_msg("still there: %s", text);
}

/* Sessions' folders of the worker `pid` in dir. */
static int count_folders(const char *dir, pid_t pid)
{
    char path[120], prefix[64];
    struct dirent *entry;
    int count = 0;

    snprintf(path, sizeof(path), "%s/sandpiper-%ld", dir, (long)geteuid());
    snprintf(prefix, sizeof(prefix), "test_replica_1-%ld-", (long)pid);
    DIR *d = opendir(path);
    while (d && (entry = readdir(d)))
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (d)
        closedir(d);
    return count;
}

static void remove_dir(const char *dir)
{
    char *command = mem_printf("rm -rf '%s'", dir);

    assert_int_equal(system(command), 0);
    free(command);
}

static void worker_is_killed(const char *isolation)
{
    char dir[64];
    pid_t pid = start_worker(isolation, dir);

    assert_true(rig_processes("cmdline", "sleep 5551", rig_token(pid), 0) > 0);
    assert_int_equal(count_folders(dir, pid), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    expect_gone("", pid); /* none of its kernels' processes */
    for (int i = 0; i < POLLS && count_folders(dir, pid) > 0; i++)
        usleep(10000);
    assert_int_equal(count_folders(dir, pid), 0); /* the host has cleaned up */
    remove_dir(dir);
}

static void test_worker_is_killed(void **state)
{
    (void)state;
    worker_is_killed("bwrap");
    worker_is_killed("none");
}

static void test_worker_and_host_are_killed(void **state)
{
    char dir[64], parent[40];
    pid_t pid = start_worker("none", dir);

    (void)state;
    snprintf(parent, sizeof(parent), "PPid:\t%ld\n", (long)pid);
    kill(pid, SIGSTOP);
    assert_true(rig_processes("status", parent, NULL, SIGKILL) > 0);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(count_folders(dir, pid), 1); /* nobody was left to remove it */
    /* The next worker in the same folder does, and ends what still runs from it. */
    setenv("NODE_ENV", "development", 1);
    setenv("CODE_INTERPRETER_LOCAL_DIR", dir, 1);
    rig_new(&rig, "none");
    rig.driver->ops->dispose(rig.driver, rig_done, &rig);
    rig_until(&rig, &rig.flag);
    remove_dir(rig.dir);
    char err[200];
    setenv("CODE_INTERPRETER_LOCAL_DIR", dir, 1);
    settings_free(rig.settings);
    rig.settings = settings_from_environment(err, sizeof(err));
    rig.driver = driver_local_new(&rig.host, rig.settings, err, sizeof(err));
    assert_non_null(rig.driver);
    strcpy(rig.dir, dir);
    rig_expect(&rig, "t:n", "print(1)", "1\n");
    expect_gone("", pid); /* none of its kernels' processes */
    for (int i = 0; i < POLLS && count_folders(dir, pid) > 0; i++)
        rig_pass(&rig, 0.01);
    assert_int_equal(count_folders(dir, pid), 0);
    finish();
}

static void test_silent_worker_loses_its_code(void **state)
{
    static const struct rig_options options;

    (void)state;
    begin("bwrap");
    rig.flag = false;
    rig.driver->ops->dispose(rig.driver, rig_done, &rig);
    rig_until(&rig, &rig.flag);
    rig.host.lock_duration_ms = 5000; /* of the next driver: silent after 3.75 s */
    char err[200];
    rig.driver = driver_local_new(&rig.host, rig.settings, err, sizeof(err));
    assert_non_null(rig.driver);
    rig_expect(&rig, "t:s", "x = 1", "");
    rig_start(&rig, &r, "t:s", "import time; print(1, flush=True); time.sleep(600)", &options);
    while (!r.first_output_ms)
        ev_run(rig.loop, EVRUN_ONCE);
    rig_pass(&rig, 4.5); /* beats are sent: it lives on */
    assert_false(r.ended);
    sleep(5); /* a worker that hangs */
    rig_until(&rig, &r.ended);
    assert_int_equal(r.kind, DRIVER_END_KERNEL_DIED);
    assert_non_null(strstr(r.message, "no sign of life"));
    rig_close(&r);
    rig_result_fini(&r);
    run("t:s", "print('x' in globals())");
    assert_string_equal(r.ready_lost, "kernel_died");
    rig_result_fini(&r);
    finish();
}

static void test_what_cannot_work_is_told(void **state)
{
    char err[300];
    struct rig bad = {0};

    (void)state;
    setenv("NODE_ENV", "development", 1);
    setenv("CODE_INTERPRETER_LOCAL_PYTHON", "/no/such/python", 1);
    bad.settings = settings_from_environment(err, sizeof(err));
    assert_null(driver_local_new(&bad.host, bad.settings, err, sizeof(err)));
    assert_non_null(strstr(err, "/no/such/python"));
    settings_free(bad.settings);
    /* A Python that starts, but is none. */
    setenv("CODE_INTERPRETER_LOCAL_PYTHON", "/bin/false", 1);
    begin("none");
    run("t:p", "1");
    assert_int_equal(r.kind, DRIVER_END_NO_SANDBOX);
    assert_non_null(strstr(r.message, "does not start"));
    rig_result_fini(&r);
    unsetenv("CODE_INTERPRETER_LOCAL_PYTHON");
    rig.flag = false;
    rig.driver->ops->dispose(rig.driver, rig_done, &rig);
    rig_until(&rig, &rig.flag);
    reaper_fini();
    ev_loop_destroy(rig.loop);
    settings_free(rig.settings);
    remove_dir(rig.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_kernels_serve_sessions),
        cmocka_unit_test(test_plain_kernels_leave_no_process),
        cmocka_unit_test(test_worker_is_killed),
        cmocka_unit_test(test_worker_and_host_are_killed),
        cmocka_unit_test(test_silent_worker_loses_its_code),
        cmocka_unit_test(test_what_cannot_work_is_told),
    };
    return cmocka_run_group_tests_name("local_death", tests, NULL, NULL);
}
