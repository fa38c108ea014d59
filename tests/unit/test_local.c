/* Unit tests of the LOCAL driver with real kernels in bubblewrap; numbers are of cases. */
#include "local_rig.h"

static struct rig rig;

static int setup(void **state)
{
    (void)state;
    setenv("NODE_ENV", "development", 1);
    setenv("E2B_API_KEY", "e2b_canary_key", 1);
    setenv("REDIS_URL", "redis://:canary_password@127.0.0.1:1", 1);
    setenv("CODE_INTERPRETER_LOCAL_SPARE_KERNELS", "2", 1);
    setenv("CODE_INTERPRETER_LOCAL_MEMORY_MB", "512", 1);
    rig_new(&rig, "bwrap");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_free(&rig);
    assert_int_equal(rig_kernels(), 0);
    return 0;
}

static struct rig_result r; /* of the test under way */

static void run(const char *thread, const char *code)
{
    rig_run(&rig, &r, thread, code);
}

static void run_with(const char *thread, const char *code, struct rig_options options)
{
    rig_run_with(&rig, &r, thread, code, &options);
}

static void expect_error(const char *thread, const char *code, const char *name, const char *value)
{
    run(thread, code);
    assert_int_equal(r.kind, DRIVER_END_CODE_ERROR);
    assert_string_equal(r.name, name);
    assert_string_equal(r.value, value);
    assert_null(strchr(r.traceback, '\033'));
}

/* --- sessions ----------------------------------------------------------------------- */

static void test_state_is_kept_within_a_thread(void **state)
{
    (void)state;
    run("t:a", "x = 41");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(r.exit_code, 0);
    assert_false(r.reused);
    assert_string_equal(r.ready_lost, "");
    rig_result_fini(&r);
    run("t:a", "print(x + 1)");
    assert_string_equal(rig_text(&r.out), "42\n");
    assert_true(r.reused);
    rig_result_fini(&r);
    rig_expect(&rig, "t:b", "print('x' in globals())", "False\n");
}

static void test_without_a_thread_nothing_is_kept(void **state)
{
    (void)state;
    rig_expect(&rig, NULL, "canary = 1; open('left.txt', 'w').close()", "");
    rig_expect(&rig, NULL, "import os; print('canary' in globals(), os.listdir('.'))",
               "False ['output']\n");
}

static void test_actor_change_discards_the_session(void **state)
{
    (void)state;
    run_with("t:actor", "x = 1; open('f', 'w').close()", (struct rig_options){.actor = "ann"});
    rig_result_fini(&r);
    run_with("t:actor", "import os; print('x' in globals(), os.path.exists('f'))",
             (struct rig_options){.actor = "bob"});
    assert_string_equal(r.ready_lost, "actor_changed");
    assert_string_equal(rig_text(&r.out), "False False\n");
    rig_result_fini(&r);
    run_with("t:actor", "pass", (struct rig_options){0});
    assert_string_equal(r.ready_lost, "actor_changed");
    rig_result_fini(&r);
}

static void test_thread_that_was_elsewhere_starts_afresh(void **state)
{
    (void)state;
    run_with("t:moved", "x = 1", (struct rig_options){.other_replica_before = true});
    assert_string_equal(r.ready_lost, "other_replica");
    rig_result_fini(&r);
    /* Here, there, and here again: what is here is stale. */
    run_with("t:moved", "print('x' in globals())",
             (struct rig_options){.other_replica_before = true});
    assert_string_equal(r.ready_lost, "other_replica");
    assert_string_equal(rig_text(&r.out), "False\n");
    rig_result_fini(&r);
}

static void test_release_and_settle(void **state)
{
    (void)state;
    rig_expect(&rig, "t:rel", "x = 1", "");
    rig.flag = false;
    rig.driver->ops->settle(rig.driver, "t:rel", rig_done, &rig);
    assert_false(rig.flag);
    rig_until(&rig, &rig.flag);
    rig.flag = false;
    rig.driver->ops->release(rig.driver, "t:rel", rig_done, &rig);
    rig_until(&rig, &rig.flag);
    rig_expect(&rig, "t:rel", "print('x' in globals())", "False\n");
    rig.flag = false;
    rig.driver->ops->release(rig.driver, "t:nobody", rig_done, &rig);
    rig_until(&rig, &rig.flag);
}

static void test_other_languages_are_refused(void **state)
{
    (void)state;
    run_with("t:js", "1", (struct rig_options){.language = "javascript"});
    assert_int_equal(r.kind, DRIVER_END_BAD_JOB);
    assert_non_null(strstr(r.message, "javascript"));
    rig_result_fini(&r);
}

static void test_settle_waits_for_an_orphan(void **state)
{
    (void)state;
    /* The caller closes while the code runs: it is interrupted, and state survives. */
    rig_expect(&rig, "t:orphan", "x = 5", "");
    run_with("t:orphan", "import time\nprint(1, flush=True)\ntime.sleep(60)",
             (struct rig_options){.close_at_first_output = true});
    rig_result_fini(&r);
    rig.flag = false;
    rig.driver->ops->settle(rig.driver, "t:orphan", rig_done, &rig);
    rig_until(&rig, &rig.flag);
    rig_expect(&rig, "t:orphan", "print(x)", "5\n");
    /* The next run waits for it by itself too. */
    run_with("t:orphan", "import time\nprint(1, flush=True)\ntime.sleep(60)",
             (struct rig_options){.close_at_first_output = true});
    rig_result_fini(&r);
    rig_expect(&rig, "t:orphan", "print(x)", "5\n");
}

/* --- output: cases A ---------------------------------------------------------------- */

static void test_1_multi_byte_characters_stay_whole(void **state)
{
    (void)state;
    rig_expect(
        &rig, "t:o",
        "import sys, time\n"
        "for b in 'é中😀'.encode():\n"
        "    sys.stdout.buffer.write(bytes([b])); sys.stdout.buffer.flush(); time.sleep(0.01)\n"
        "print()",
        "é中😀\n");
    rig_expect(&rig, "t:o",
               "import os, time\n"
               "for b in 'é中😀\\n'.encode():\n"
               "    os.write(1, bytes([b])); time.sleep(0.01)\n",
               "é中😀\n");
    run("t:o",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import sys; sys.stderr.write(\"é中😀\" * 2000)'])\n"
        "None");
    assert_int_equal(r.err.len, 2000 * strlen("é中😀"));
    assert_null(strstr(rig_text(&r.err), "\xEF\xBF\xBD"));
    rig_result_fini(&r);
    /* What a TextIOWrapper around it does at its end must not close the stream. */
    rig_expect(&rig, "t:o",
               "import io, sys\n"
               "w = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8'); w.write('ü'); "
               "w.flush(); del w\n"
               "print('!')",
               "ü!\n");
}

static void test_3_lone_surrogates(void **state)
{
    (void)state;
    run("t:o", "print('bad-\\udcff-name')\nraise ValueError('\\ud800')");
    assert_string_equal(rig_text(&r.out), "bad-\xEF\xBF\xBD-name\n");
    assert_string_equal(r.name, "ValueError");
    assert_string_equal(r.value, "\xEF\xBF\xBD");
    assert_non_null(strstr(r.traceback, "line 2"));
    rig_result_fini(&r);
    run("t:o", "from IPython.display import display\ndisplay({'text/plain': '\\ud83d', 'a/b': "
               "{'k\\ud800': 1}}, raw=True)");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_string_equal(json_string_value(rig_mime(&r, 0, "text/plain")), "\xEF\xBF\xBD");
    rig_result_fini(&r);
}

static void test_4_text_is_utf8_whatever_the_locale(void **state)
{
    (void)state;
    run("t:o", "import subprocess\nprint('naïve → 東京'); open('output/é.txt','w').write('é')\n"
               "print(subprocess.run(['ls', 'output'], capture_output=True, text=True).stdout)");
    assert_string_equal(rig_text(&r.out), "naïve → 東京\né.txt\n\n");
    assert_int_equal(r.file_count, 1);
    assert_string_equal(r.files[0].path, "é.txt");
    assert_string_equal(rig_text(&r.files[0].data), "é");
    rig_result_fini(&r);
}

static void test_5_nan_in_rich_results(void **state)
{
    (void)state;
    run("t:big", "import pandas as pd, numpy as np\n"
                 "from IPython.display import JSON, display\n"
                 "display(pd.DataFrame({'x':[1.0, np.nan, np.inf, -np.inf, None]}))\n"
                 "display(JSON({'a': float('nan'), 'b': 2**70}))");
    assert_string_equal(rig_text(&r.err), "");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(json_array_size(r.results), 2);
    assert_non_null(rig_mime(&r, 0, "text/html"));
    assert_true(json_is_null(json_object_get(rig_mime(&r, 1, "application/json"), "a")));
    rig_result_fini(&r);
}

static void test_7_a_flood_of_output_is_bounded(void **state)
{
    (void)state;
    run("t:flood", "import sys\nfor i in range(1000): sys.stdout.write('x' * 65535 + "
                   "'\\n')\nprint('the end')");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_true(r.out.len >= (size_t)32 << 20 && r.out.len < (size_t)34 << 20);
    assert_string_equal(rig_text(&r.out) + r.out.len - 8, "the end\n");
    assert_int_equal(json_array_size(r.warnings), 1);
    assert_non_null(strstr(json_string_value(json_array_get(r.warnings, 0)), "stdout: "));
    rig_result_fini(&r);
    /* Many small flushed messages: none is lost on the way. */
    run("t:flood", "for i in range(5000): print(i, flush=True)");
    size_t lines = 0;
    for (size_t i = 0; i < r.out.len; i++)
        lines += r.out.data[i] == '\n';
    assert_int_equal(lines, 5000);
    rig_result_fini(&r);
}

static void test_7_a_reader_that_pauses_loses_nothing(void **state)
{
    static const struct rig_options options;

    (void)state;
    rig_start(&rig, &r, "t:flood", "for i in range(6000): print('y' * 1500, flush=True)", &options);
    while (!r.first_output_ms)
        ev_run(rig.loop, EVRUN_ONCE);
    sleep(3); /* the loop hangs: host and kernel must wait, not drop */
    rig_until(&rig, &r.ended);
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(r.out.len, 6000 * 1501);
    rig_close(&r);
    rig_result_fini(&r);
}

static void test_12_a_chunk_is_not_a_line(void **state)
{
    (void)state;
    rig_expect(&rig, "t:o",
               "import time\nprint('a', end='', flush=True); time.sleep(.1)\n"
               "print('b\\n\\nc', flush=True); time.sleep(.1); print('d', end='')",
               "ab\n\nc\nd");
}

static void test_13_figures_come_as_png(void **state)
{
    (void)state;
    run("t:big", "import matplotlib.pyplot as plt\nax = plt.figure().gca(); ax.plot([1,2,3])\nax");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(json_array_size(r.results), 2);
    assert_true(json_is_true(json_array_get(json_array_get(r.results, 0), 1)));
    assert_true(strncmp(json_string_value(rig_mime(&r, 1, "image/png")), "iVBOR", 5) == 0);
    rig_result_fini(&r);
}

static void test_16_every_mime_type_is_kept(void **state)
{
    (void)state;
    run("t:o", "from IPython.display import display, HTML, SVG, Latex, Markdown, Javascript, JSON\n"
               "display(HTML('<b>1</b>')); display(SVG('<svg></svg>')); display(Latex('$x$'))\n"
               "display(Markdown('*m*')); display(Javascript('1')); display(JSON([1, 2]))\n"
               "display({'text/plain': 't', 'text/html': 'h', 'image/png': 'aGk=', "
               "'application/x-own': {'k': [1]}}, raw=True)");
    assert_int_equal(r.kind, DRIVER_END_OK);
    static const char *const types[] = {
        "text/html",     "image/svg+xml",          "text/latex",
        "text/markdown", "application/javascript", "application/json"};
    for (size_t i = 0; i < 6; i++)
        assert_non_null(rig_mime(&r, i, types[i]));
    assert_int_equal(json_object_size(json_array_get(json_array_get(r.results, 6), 0)), 4);
    rig_result_fini(&r);
}

static void test_17_updates_and_clear_output(void **state)
{
    (void)state;
    run("t:o", "from IPython.display import display, clear_output\n"
               "h = display('step 0', display_id=True)\n"
               "for i in range(1,4): h.update(f'step {i}')\n"
               "clear_output(wait=True); display('final')");
    assert_int_equal(r.kind, DRIVER_END_OK);
    size_t n = json_array_size(r.results);
    assert_string_equal(json_string_value(rig_mime(&r, n - 1, "text/plain")), "'final'");
    rig_result_fini(&r);
}

static void test_19_nobody_answers_input(void **state)
{
    (void)state;
    expect_error("t:o", "name = input('Your name? ')", "StdinNotImplementedError",
                 "raw_input was called, but this frontend does not support input requests.");
    rig_result_fini(&r);
    run("t:o", "import getpass; getpass.getpass()");
    assert_int_equal(r.kind, DRIVER_END_CODE_ERROR);
    rig_result_fini(&r);
    rig_expect(&rig, "t:o", "%%bash\nread x; cat; echo done", "done\n");
}

static void test_20_leaving(void **state)
{
    (void)state;
    static const char *const fine[] = {"import sys; sys.exit(0)", "exit()", "quit()", "exit",
                                       "raise SystemExit"};

    rig_expect(&rig, "t:x", "x = 1", "");
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
        rig_expect(&rig, "t:x", fine[i], "");
    expect_error("t:x", "import sys; sys.exit(3)", "SystemExit", "3");
    assert_int_equal(r.exit_code, 3);
    assert_string_equal(rig_text(&r.err), "");
    rig_result_fini(&r);
    expect_error("t:x", "exit(4)", "SystemExit", "4");
    assert_int_equal(r.exit_code, 4);
    rig_result_fini(&r);
    expect_error("t:x", "import sys; sys.exit('bad input')", "SystemExit", "bad input");
    assert_int_equal(r.exit_code, 1);
    rig_result_fini(&r);
    expect_error("t:x", "raise KeyboardInterrupt", "KeyboardInterrupt", "");
    rig_result_fini(&r);
    rig_expect(&rig, "t:x", "print(x)", "1\n");
}

static void expect_death(const char *code, int exit_code)
{
    run("t:dead", code);
    assert_int_equal(r.kind, DRIVER_END_KERNEL_DIED);
    assert_int_equal(r.exit_code, exit_code);
    assert_non_null(r.message);
    assert_string_equal(r.end_lost, "kernel_died");
    rig_result_fini(&r);
    run("t:dead", "print('alive', open('kept').read())");
    assert_string_equal(r.ready_lost, "kernel_died");
    assert_string_equal(rig_text(&r.out), "alive files stay\n");
    assert_false(r.reused);
    rig_result_fini(&r);
    run("t:dead", "pass"); /* told once */
    assert_string_equal(r.ready_lost, "");
    rig_result_fini(&r);
}

static void test_20_death_of_the_kernel(void **state)
{
    (void)state;
    rig_expect(&rig, "t:dead", "open('kept', 'w').write('files stay'); None", "");
    expect_death("import os; os._exit(7)", 7);
    expect_death("import os; os.kill(os.getpid(), 9)", 137);
    expect_death("import os; os._exit(0)", 1);
    run("t:dead", "import os, time\nopen('output/p', 'w').write('x')\nprint('last words', "
                  "flush=True); time.sleep(0.1); os.abort()");
    assert_int_equal(r.exit_code, 134);
    assert_string_equal(rig_text(&r.out), "last words\n");
    assert_int_equal(r.file_count, 1);
    rig_result_fini(&r);
}

static void test_21_memory_runs_out(void **state)
{
    (void)state;
    run("t:mem", "x = bytearray(1)\nwhile True: x += bytearray(64 << 20)");
    assert_true(r.kind == DRIVER_END_CODE_ERROR || r.kind == DRIVER_END_KERNEL_DIED ||
                r.kind == DRIVER_END_OOM);
    if (r.kind == DRIVER_END_CODE_ERROR)
        assert_string_equal(r.name, "MemoryError");
    rig_result_fini(&r);
    rig_expect(&rig, "t:mem", "print('alive')", "alive\n");
}

/* --- the end of long code ----------------------------------------------------------- */

static void test_23_interrupt_keeps_the_state(void **state)
{
    (void)state;
    static const char *const forever[] = {
        "print('p', flush=True)\nwhile True: pass",
        "print('p')\nimport time; time.sleep(60)",
        "print('p')\nimport asyncio; await asyncio.sleep(60)",
        "print('p')\nimport subprocess; subprocess.run('sleep 3333 & sleep 3334', shell=True)",
    };

    rig_expect(&rig, "t:int", "x = 'kept'", "");
    for (size_t i = 0; i < sizeof(forever) / sizeof(forever[0]); i++) {
        run_with("t:int", forever[i], (struct rig_options){.interrupt_after_ms = 400});
        assert_int_equal(r.kind, DRIVER_END_INTERRUPTED);
        assert_string_equal(rig_text(&r.out), "p\n");
        assert_string_equal(r.end_lost, "");
        assert_true(r.ended_ms - r.first_output_ms >= 300);
        rig_result_fini(&r);
    }
    rig_expect(&rig, "t:int", "print(x)", "kept\n");
    assert_int_equal(rig_running("sleep 333"), 0);
}

static void test_23_code_that_resists_is_killed(void **state)
{
    (void)state;
    rig_expect(&rig, "t:deaf", "x = 1; open('kept', 'w').close()", "");
    run_with("t:deaf",
             "open('output/partial.csv', 'w').write('a,b')\n"
             "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
             "print('deaf', flush=True)\nwhile True: pass",
             (struct rig_options){.interrupt_after_ms = 300});
    assert_int_equal(r.kind, DRIVER_END_INTERRUPTED);
    assert_string_equal(r.end_lost, "killed_after_timeout");
    assert_int_equal(r.file_count, 1);
    rig_result_fini(&r);
    run("t:deaf", "import os; print('x' in globals(), os.path.exists('kept'))");
    assert_string_equal(r.ready_lost, "killed_after_timeout");
    assert_string_equal(rig_text(&r.out), "False True\n");
    rig_result_fini(&r);
}

static void test_31_no_process_outlives_its_run(void **state)
{
    (void)state;
    rig_expect(&rig, "t:bg",
               "import subprocess\nsubprocess.Popen(['sleep', '3331']); print('parent done')",
               "parent done\n");
    assert_int_equal(rig_running("sleep 3331"), 0);
    rig_expect(&rig, "t:bg",
               "import os, warnings\nwarnings.simplefilter('ignore')\n"
               "if os.fork() == 0:\n    os.setsid(); os.execvp('sleep', ['sleep', '3332'])",
               "");
    assert_int_equal(rig_running("sleep 3332"), 0);
    rig_expect(&rig, "t:bg", "print(1)", "1\n");
}

static void test_33_both_streams_full(void **state)
{
    (void)state;
    run("t:o", "import sys\n"
               "for i in range(5000): sys.stderr.write('e'*100+'\\n')\n"
               "print('o'*200000)\n"
               "for i in range(5000): sys.stderr.write('e'*100+'\\n')");
    assert_int_equal(r.out.len, 200001);
    assert_int_equal(r.err.len, 1010000);
    rig_result_fini(&r);
}

static void test_34_output_is_live(void **state)
{
    (void)state;
    long long best = LLONG_MAX; /* of several: others may be at work on this machine */

    for (int i = 0; i < 20 && best >= 300; i++) {
        run_with("t:o", "import time\nprint('tick'); time.sleep(600)",
                 (struct rig_options){.interrupt_after_ms = 1});
        assert_int_equal(r.kind, DRIVER_END_INTERRUPTED);
        assert_string_equal(rig_text(&r.out), "tick\n");
        if (r.first_output_ms - r.delivered_ms < best)
            best = r.first_output_ms - r.delivered_ms;
        rig_result_fini(&r);
    }
    assert_true(best < 300);
}

static json_t *some_env(void)
{
    return json_pack("{s:s,s:s}", "TOKEN", "s3cr3t_value", "PATH", "/nowhere:/usr/bin:/bin");
}

static void test_36_first_lines_and_line_numbers(void **state)
{
    (void)state;
    static const char *const codes[][2] = {
        {"from __future__ import annotations\nprint(1)", "1\n"},
        {"%%bash\necho hi", "hi\n"},
        {"%%bash\necho $TOKEN", "s3cr3t_value\n"},
        {"    print('indented')", "indented\n"},
        {"", ""},
        {"# only a comment", ""},
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        run_with("t:first", codes[i][0], (struct rig_options){.env = some_env()});
        assert_int_equal(r.kind, DRIVER_END_OK);
        assert_string_equal(rig_text(&r.out), codes[i][1]);
        rig_result_fini(&r);
    }
    run_with("t:first", "%%time\nsum(range(10))", (struct rig_options){.env = some_env()});
    assert_string_equal(json_string_value(rig_mime(&r, 0, "text/plain")), "45");
    rig_result_fini(&r);
    run_with("t:first", "\"\"\"docstring\"\"\"\n1/0", (struct rig_options){.env = some_env()});
    assert_non_null(strstr(r.traceback, "line 2"));
    rig_result_fini(&r);
    run_with("t:first", "await_me = 1\n\n\nraise ValueError(1)",
             (struct rig_options){.env = some_env()});
    assert_non_null(strstr(r.traceback, "line 4"));
    rig_result_fini(&r);
}

static void test_37_top_level_await(void **state)
{
    (void)state;
    rig_expect(&rig, "t:o", "import asyncio\nasync def m(): return 5\nprint(await m())", "5\n");
}

static void test_38_error_detail(void **state)
{
    (void)state;
    expect_error("t:o", "{}['x']", "KeyError", "'x'");
    rig_result_fini(&r);
    expect_error("t:o", "assert False", "AssertionError", "");
    assert_non_null(strstr(r.traceback, "assert False"));
    rig_result_fini(&r);
    expect_error("t:o", "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('b') from e",
                 "ValueError", "b");
    assert_non_null(strstr(r.traceback, "ZeroDivisionError"));
    rig_result_fini(&r);
    expect_error("t:o", "%%bash\nexit 4", "CalledProcessError",
                 "Command 'b'exit 4\\n'' returned non-zero exit status 4.");
    rig_result_fini(&r);
    run("t:o",
        "class B(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise B()");
    assert_int_equal(r.kind, DRIVER_END_CODE_ERROR);
    assert_true(strlen(r.name) > 0);
    rig_result_fini(&r);
    run("t:o", "raise ValueError('m' * 1000000)");
    assert_string_equal(r.name, "ValueError");
    assert_true(strlen(r.value) < 70000 && strlen(r.traceback) < 140000);
    rig_result_fini(&r);
    run("t:o", "def f(): f()\nf()");
    assert_string_equal(r.name, "RecursionError");
    rig_result_fini(&r);
    run("t:o", "x = (");
    /* Python 3.13 has a name of its own for it. */
    if (strcmp(r.name, "_IncompleteInputError") != 0)
        assert_string_equal(r.name, "SyntaxError");
    rig_result_fini(&r);
}

static void test_40_values_of_the_last_expression(void **state)
{
    (void)state;
    run("t:o", "1+1");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_string_equal(json_string_value(rig_mime(&r, 0, "text/plain")), "2");
    assert_true(json_is_true(json_array_get(json_array_get(r.results, 0), 1)));
    rig_result_fini(&r);
    run("t:o", "x = 1");
    assert_int_equal(json_array_size(r.results), 0);
    rig_result_fini(&r);
}

/* --- files: cases B ----------------------------------------------------------------- */

static void test_45_binary_files_arrive_whole(void **state)
{
    (void)state;
    run("t:f", "import os\n"
               "open('output/all.bin','wb').write(bytes(range(256))*1000); "
               "open('output/empty','w').close()");
    assert_int_equal(r.file_count, 2);
    assert_string_equal(r.files[0].path, "all.bin");
    assert_int_equal(r.files[0].size, 256000);
    assert_int_equal(r.files[0].data.len, 256000);
    for (size_t i = 0; i < 256000; i++)
        assert_int_equal((unsigned char)r.files[0].data.data[i], i % 256);
    assert_int_equal(r.files[1].data.len, 0);
    rig_result_fini(&r);
}

static int temp_file(const char *text)
{
    char name[] = "/tmp/sandpiper-input-XXXXXX";
    int fd = mkstemp(name);

    assert_true(fd >= 0);
    unlink(name);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

static void test_47_inputs_never_leave_the_folder(void **state)
{
    (void)state;
    int fd = temp_file("from outside");
    char target[] = "/tmp/sandpiper-target-XXXXXX";
    int target_fd = mkstemp(target);
    struct driver_input inputs[] = {
        {"sub/dir/ok.csv", fd, 12}, {"link", fd, 12}, {"dirlink/x", fd, 12}};
    struct driver_input bad = {"../escape", fd, 12}, folder = {"sub", fd, 12};

    rig_expect(&rig, "t:in",
               "import os\nos.symlink('/home/user/kept', 'link'); os.symlink('/tmp', 'dirlink')\n"
               "open('kept', 'w').write('k'); None",
               "");
    run_with("t:in",
             "import os\nprint(open('sub/dir/ok.csv').read(), open('link').read(), "
             "os.path.islink('link'),"
             " os.path.islink('dirlink'), open('kept').read(), os.path.exists('/tmp/x'))",
             (struct rig_options){.inputs = inputs, .input_count = 3});
    assert_string_equal(rig_text(&r.out), "from outside from outside False False k False\n");
    assert_int_equal(r.file_count, 0);
    rig_result_fini(&r);
    run_with("t:in", "1", (struct rig_options){.inputs = &bad, .input_count = 1});
    assert_int_equal(r.kind, DRIVER_END_BAD_JOB);
    rig_result_fini(&r);
    run_with("t:in", "1", (struct rig_options){.inputs = &folder, .input_count = 1});
    assert_int_equal(r.kind, DRIVER_END_BAD_JOB);
    rig_result_fini(&r);
    close(target_fd);
    unlink(target);
    close(fd);
}

static void test_47_large_input(void **state)
{
    (void)state;
    char name[] = "/tmp/sandpiper-input-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    assert_int_equal(ftruncate(fd, 5 << 20), 0);
    struct driver_input input = {"big.bin", fd, 5 << 20};
    run_with("t:in", "import os; print(os.path.getsize('big.bin'))",
             (struct rig_options){.inputs = &input, .input_count = 1});
    assert_string_equal(rig_text(&r.out), "5242880\n");
    rig_result_fini(&r);
    close(fd);
}

static bool has_warning(const char *text)
{
    size_t i;
    json_t *item;

    json_array_foreach(r.warnings, i, item) if (strstr(json_string_value(item), text)) return true;
    return false;
}

static void test_48_links_are_not_followed(void **state)
{
    (void)state;
    run("t:link", "import os\n"
                  "os.symlink('/etc/passwd','output/p.txt'); "
                  "os.symlink('/proc/self/environ','output/e.txt')\n"
                  "os.symlink('..','output/loop'); os.symlink('nowhere','output/dangling')\n"
                  "os.mkfifo('output/fifo'); open('output/ok','w').write('ok')\n"
                  "open('secret','w').write('s'); os.link('secret','output/hard')\n"
                  "open(b'output/bad\\xff','w').close()");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(r.file_count, 1);
    assert_string_equal(rig_text(&r.files[0].data), "ok");
    static const char *const skipped[] = {"p.txt", "e.txt", "loop",     "dangling",
                                          "fifo",  "hard",  "not UTF-8"};
    for (size_t i = 0; i < sizeof(skipped) / sizeof(skipped[0]); i++)
        assert_true(has_warning(skipped[i]));
    rig_result_fini(&r);
    run("t:link", "import os, shutil\nshutil.rmtree('output'); os.symlink('/etc', 'output')");
    assert_int_equal(r.file_count, 0);
    assert_true(has_warning("output"));
    rig_result_fini(&r);
    /* The next run has a real folder again. */
    run("t:link", "import os\nprint(os.path.islink('output'), "
                  "os.path.isdir('/etc'))\nopen('output/a','w').close()");
    assert_string_equal(rig_text(&r.out), "False True\n");
    assert_int_equal(r.file_count, 1);
    rig_result_fini(&r);
}

static void test_50_nested_folders(void **state)
{
    (void)state;
    run("t:f",
        "import os\nos.makedirs('output/a/b/c')\n"
        "open('output/a/b/c/deep.csv','w').write('x'); open('output/a/r.csv','w').write('1')\n"
        "open('output/r.csv','w').write('2'); os.makedirs('output/' + '/'.join('d' * 20))\n"
        "open('output/' + '/'.join('d' * 20) + '/f', 'w').close()");
    assert_int_equal(r.file_count, 3);
    assert_string_equal(r.files[0].path, "a/b/c/deep.csv");
    assert_string_equal(r.files[1].path, "a/r.csv");
    assert_string_equal(r.files[2].path, "r.csv");
    assert_true(has_warning("too deep"));
    rig_result_fini(&r);
}

static void expect_files(const char *code, size_t count, const char *path, const char *text)
{
    run("t:out", code);
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_int_equal(r.file_count, count);
    if (count > 0) {
        assert_string_equal(r.files[0].path, path);
        assert_string_equal(rig_text(&r.files[0].data), text);
    }
    rig_result_fini(&r);
}

static void test_51_52_only_this_runs_files(void **state)
{
    (void)state;
    expect_files("open('output/a.txt','w').write('1'); open('home.txt','w').close()", 1, "a.txt",
                 "1");
    expect_files("print(1)", 0, "", "");
    expect_files("open('output/b.txt','w').write('2'); None", 1, "b.txt", "2");
    int fd = temp_file("1,2");
    struct driver_input input = {"c.csv", fd, 3};
    run_with("t:out", "print(open('c.csv').read())",
             (struct rig_options){.inputs = &input, .input_count = 1});
    assert_int_equal(r.file_count, 0);
    rig_result_fini(&r);
    close(fd);
    expect_files("open('output/r.txt','w').write('AAAA'); None", 1, "r.txt", "AAAA");
    expect_files("open('output/r.txt','w').write('BBBB'); None", 1, "r.txt", "BBBB");
    expect_files(
        "import os\nopen('output/r.txt','w').write('BBBB'); os.utime('output/r.txt', (0, 0))", 1,
        "r.txt", "BBBB");
    /* Also out of a folder that was made hard to empty. */
    run("t:out", "import os\nos.makedirs('output/d/e'); open('output/d/e/f','w').close(); "
                 "os.chmod('output/d', 0)\nos.chmod('output', 0o500)");
    assert_int_equal(r.kind, DRIVER_END_OK); /* what is listed depends on who we are */
    rig_result_fini(&r);
    expect_files("import os; print(os.listdir('output'), os.path.exists('home.txt'))", 0, "", "");
}

static void test_58_files_before_an_error(void **state)
{
    (void)state;
    run("t:f", "open('output/partial.csv','w').write('a,b\\n1,2\\n'); raise SystemExit('later step "
               "failed')");
    assert_int_equal(r.kind, DRIVER_END_CODE_ERROR);
    assert_string_equal(rig_text(&r.files[0].data), "a,b\n1,2\n");
    rig_result_fini(&r);
    run_with("t:f",
             "f = open('output/partial.csv','w'); f.write('a,b\\n1,2\\n'); f.close()\n"
             "print(1, flush=True)\nwhile True: pass",
             (struct rig_options){.interrupt_after_ms = 300});
    assert_int_equal(r.kind, DRIVER_END_INTERRUPTED);
    assert_string_equal(rig_text(&r.files[0].data), "a,b\n1,2\n");
    rig_result_fini(&r);
}

static void test_62_paths_are_real(void **state)
{
    (void)state;
    run("t:f", "print('https://x.test/home/user/profile')\n"
               "open('/home/user/output/a.txt','w').write('see /home/user/readme')\n"
               "import os; print(len('/home/user'), os.getcwd(), os.environ['HOME'])");
    assert_string_equal(rig_text(&r.out),
                        "https://x.test/home/user/profile\n10 /home/user /home/user\n");
    assert_string_equal(rig_text(&r.files[0].data), "see /home/user/readme");
    rig_result_fini(&r);
}

/* --- env and secrets: cases F ------------------------------------------------------- */

static void test_133_env_values_are_exact(void **state)
{
    (void)state;
    char *big = mem_alloc(100001);
    memset(big, 'q', 100000);
    json_t *env = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "A", "it's", "B", "a\"b",
                            "C", "x\\ny\\", "D", "line1\nimport os; os.system('touch /tmp/pwned')",
                            "E", "'; import os; x='", "F", "$(id) `id`", "G", "日本😀", "H", "", "I",
                            big, "K", "\"\"\"");
    json_t *copy = json_deep_copy(env);
    run_with("t:env",
             "import os, json\nprint(json.dumps({k: os.environ.get(k) for k in 'ABCDEFGHIK'}))",
             (struct rig_options){.env = env});
    json_t *got = json_loads(rig_text(&r.out), 0, NULL);
    assert_true(json_equal(got, copy));
    json_decref(got);
    json_decref(copy);
    rig_result_fini(&r);
    rig_expect(&rig, "t:env", "import os; print([k for k in 'ABCDEFGHIK' if k in os.environ])",
               "[]\n");
    free(big);
}

static void test_137_env_is_found_nowhere_later(void **state)
{
    (void)state;
    static const char *const first[] = {"1/0", "x = (", "await __import__('asyncio').sleep(0)",
                                        "%%bash\nexit 1",
                                        "import os; os.environ['TOKEN'] = 'changed'"};

    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        run_with("t:sec", first[i], (struct rig_options){.env = some_env()});
        assert_null(strstr(r.traceback ? r.traceback : "", "s3cr3t"));
        rig_result_fini(&r);
    }
    run_with("t:sec", "import sys\nif 0:\n    pass\nelse syntax error",
             (struct rig_options){.env = some_env()});
    rig_result_fini(&r);
    /* Needles are put together at run time, or the search would find its own text. */
    rig_expect(
        &rig, "t:sec",
        "import base64, gc, json, os, sys\n"
        "secret = ''.join(['s3c', 'r3t_va', 'lue'])\n"

        "b64 = [base64.b64encode(('x' * n + secret).encode()).decode()[4:16] for n in range(3)]\n"
        "def bad(s): return secret in s or any(b in s for b in b64)\n"
        "found = []\n"
        "ip = get_ipython()\n"
        "def look(where, o):\n"
        "    if isinstance(o, str) and bad(o) and o not in b64 + [secret]: "
        "found.append((where, o[:80]))\n"
        "for o in gc.get_objects():\n"
        "    if type(o) is dict:\n"
        "        for v in list(o.values()): look('dict', v)\n"
        "    elif type(o) in (list, tuple, set):\n"
        "        for v in list(o): look('seq', v)\n"
        "    elif type(o) is type(sys._getframe()):\n"
        "        for v in list(o.f_locals.values()): look('frame', v)\n"
        "tb = getattr(sys, 'last_traceback', None)\n"
        "while tb:\n"
        "    f = tb.tb_frame\n"
        "    while f:\n"
        "        for v in list(f.f_locals.values()): look('last ' + f.f_code.co_name, v)\n"
        "        f = f.f_back\n"
        "    tb = tb.tb_next\n"
        "for row in ip.history_manager.get_range(raw=True): look('history', row[2])\n"
        "look('info', ip.last_execution_result.info.raw_cell)\n"
        "print(found, os.environ.get('TOKEN'), os.environ['PATH'])",
        "[] None /usr/local/bin:/usr/bin:/bin\n");
    rig_expect(&rig, "t:sec", "print([k for k in globals() if 'sand' in k.lower()], In[1], _i1)",
               "[] 1/0 1/0\n");
}

static void test_builtin_names_may_be_shadowed(void **state)
{
    (void)state;
    rig_expect(&rig, "t:shadow", "list = dict = str = len = open = isinstance = sorted = None", "");
    run_with("t:shadow", "import os; __builtins__.print(os.environ['TOKEN'])\nos.mkdir('output/d')",
             (struct rig_options){.env = some_env()});
    assert_string_equal(rig_text(&r.out), "s3cr3t_value\n");
    assert_int_equal(r.kind, DRIVER_END_OK);
    rig_result_fini(&r);
}

static void test_138_nothing_is_inherited(void **state)
{
    (void)state;
    run("t:inh", "import os\n"
                 "print(dict(os.environ)); print(repr(open('/proc/self/environ').read()))\n"
                 "try:\n    print(repr(open(f'/proc/{os.getppid()}/environ').read()))\n"
                 "except OSError as e: print(e)\n"
                 "for p in os.listdir('/proc'):\n"
                 "    try: print(repr(open(f'/proc/{p}/environ').read()))\n"
                 "    except OSError: pass\n"
                 "print([os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if "
                 "os.path.exists(f'/proc/self/fd/{f}')])\n"
                 "print(os.path.exists('/root/.bashrc'), os.path.exists('/etc/shadow'))");
    assert_int_equal(r.kind, DRIVER_END_OK);
    assert_null(strstr(rig_text(&r.out), "canary"));
    assert_null(strstr(rig_text(&r.out), "REDIS"));
    assert_null(strstr(rig_text(&r.out), rig.dir)); /* no descriptor of the worker's folders */
    assert_non_null(strstr(rig_text(&r.out), "False False"));
    rig_result_fini(&r);
}

/* --- deaths ------------------------------------------------------------------------- */

static void test_death_of_the_host(void **state)
{
    (void)state;
    rig_expect(&rig, "t:host", "x = 1; open('kept', 'w').close()", "");
    run_with("t:host", "import time; print('p', flush=True); time.sleep(60)",
             (struct rig_options){.kill_host_after_ms = 300});
    assert_int_equal(r.kind, DRIVER_END_SANDBOX_LOST);
    assert_string_equal(r.end_lost, "kernel_died");
    assert_string_equal(rig_text(&r.out), "p\n");
    rig_result_fini(&r);
    run("t:host", "import os; print('x' in globals(), os.path.exists('kept'))");
    assert_string_equal(r.ready_lost, "kernel_died");
    assert_string_equal(rig_text(&r.out), "False True\n");
    rig_result_fini(&r);
}

static void test_moved_threads_are_stopped(void **state)
{
    (void)state;
    rig_expect(&rig, "t:gone", "x = 1", "");
    rig.moved = "t:gone";
    rig.flag = false;
    rig_until(&rig, &rig.flag); /* asked each 10 s */
    rig.moved = NULL;
    run("t:gone", "print('x' in globals())");
    assert_string_equal(rig_text(&r.out), "False\n");
    assert_false(r.reused);
    rig_result_fini(&r);
}

static void test_idle_kernels_are_stopped(void **state)
{
    (void)state;
    char err[200];
    const char *fields[] = {"CODE_INTERPRETER_IDLE_TIMEOUT_MS", "1000"};
    struct settings *quick = settings_overlay(rig.settings, fields, 1, err, sizeof(err));

    assert_non_null(quick);
    rig_expect(&rig, "t:idle", "x = 1; open('kept', 'w').close()", "");
    rig.driver->ops->apply(rig.driver, quick);
    rig_pass(&rig, 3);
    rig.driver->ops->apply(rig.driver, rig.settings);
    settings_free(quick);
    run("t:idle", "import os; print('x' in globals(), os.path.exists('kept'))");
    assert_string_equal(r.ready_lost, "idle");
    assert_string_equal(rig_text(&r.out), "False True\n");
    rig_result_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_is_kept_within_a_thread),
        cmocka_unit_test(test_without_a_thread_nothing_is_kept),
        cmocka_unit_test(test_actor_change_discards_the_session),
        cmocka_unit_test(test_thread_that_was_elsewhere_starts_afresh),
        cmocka_unit_test(test_release_and_settle),
        cmocka_unit_test(test_other_languages_are_refused),
        cmocka_unit_test(test_settle_waits_for_an_orphan),
        cmocka_unit_test(test_1_multi_byte_characters_stay_whole),
        cmocka_unit_test(test_3_lone_surrogates),
        cmocka_unit_test(test_4_text_is_utf8_whatever_the_locale),
        cmocka_unit_test(test_5_nan_in_rich_results),
        cmocka_unit_test(test_7_a_flood_of_output_is_bounded),
        cmocka_unit_test(test_7_a_reader_that_pauses_loses_nothing),
        cmocka_unit_test(test_12_a_chunk_is_not_a_line),
        cmocka_unit_test(test_13_figures_come_as_png),
        cmocka_unit_test(test_16_every_mime_type_is_kept),
        cmocka_unit_test(test_17_updates_and_clear_output),
        cmocka_unit_test(test_19_nobody_answers_input),
        cmocka_unit_test(test_20_leaving),
        cmocka_unit_test(test_20_death_of_the_kernel),
        cmocka_unit_test(test_21_memory_runs_out),
        cmocka_unit_test(test_23_interrupt_keeps_the_state),
        cmocka_unit_test(test_23_code_that_resists_is_killed),
        cmocka_unit_test(test_31_no_process_outlives_its_run),
        cmocka_unit_test(test_33_both_streams_full),
        cmocka_unit_test(test_34_output_is_live),
        cmocka_unit_test(test_36_first_lines_and_line_numbers),
        cmocka_unit_test(test_37_top_level_await),
        cmocka_unit_test(test_38_error_detail),
        cmocka_unit_test(test_40_values_of_the_last_expression),
        cmocka_unit_test(test_45_binary_files_arrive_whole),
        cmocka_unit_test(test_47_inputs_never_leave_the_folder),
        cmocka_unit_test(test_47_large_input),
        cmocka_unit_test(test_48_links_are_not_followed),
        cmocka_unit_test(test_50_nested_folders),
        cmocka_unit_test(test_51_52_only_this_runs_files),
        cmocka_unit_test(test_58_files_before_an_error),
        cmocka_unit_test(test_62_paths_are_real),
        cmocka_unit_test(test_133_env_values_are_exact),
        cmocka_unit_test(test_137_env_is_found_nowhere_later),
        cmocka_unit_test(test_builtin_names_may_be_shadowed),
        cmocka_unit_test(test_138_nothing_is_inherited),
        cmocka_unit_test(test_death_of_the_host),
        cmocka_unit_test(test_moved_threads_are_stopped),
        cmocka_unit_test(test_idle_kernels_are_stopped),
    };
    return cmocka_run_group_tests_name("local", tests, setup, teardown);
}
