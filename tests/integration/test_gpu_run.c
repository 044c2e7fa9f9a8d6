/* SPDX-License-Identifier: Apache-2.0
 *
 * The script for machines with a GPU (tests/gpu/run), in small, on stand-ins: every step of it works, and every
 * row is filled in or says why it is not. What the figures are means nothing here.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/suite.h"

#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SCALE "0.004"

static const char *text_of(const json_t *o, const char *key)
{
        const char *text = json_string_value(json_object_get(o, key));
        return text != NULL ? text : "";
}

static pid_t start(const char *const *arguments)
{
        const char *argv[16] = {"tests/gpu/run", "--scale", SCALE, "--time", "200", "--dir", suite_folder()};
        size_t n = 7;
        while (*arguments != NULL)
                argv[n++] = *arguments++;
        pid_t pid = must(fork());
        if (pid == 0) {
                execv(argv[0], (char **)(uintptr_t)argv);
                die("%s cannot be started", argv[0]);
        }
        return pid;
}

/* Its exit status. */
static int run(const char *const *arguments)
{
        pid_t pid = start(arguments);
        int status;
        must(waitpid(pid, &status, 0));
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void use_stand_ins(void)
{
        char path[PATH_SIZE];
        fake_library("", path, sizeof(path));
        setenv("LD_LIBRARY_PATH", realpath(path, NULL), 1);
}

/* Where torch is not installed, or nobody is root, or the file system has no O_DIRECT or keeps its pages. */
static bool may_be_skipped(const char *step)
{
        static const char *const may[] = {"torch", "another user", "cold loads of 1 GiB", "cold loads of 8 GiB",
                                          "cold load of 30 GiB"};
        for (size_t i = 0; i < sizeof(may) / sizeof(may[0]); i++)
                if (strcmp(step, may[i]) == 0)
                        return true;
        return false;
}

static void check_steps(const json_t *steps)
{
        ck_assert_uint_ge(json_array_size(steps), 28);
        for (size_t i = 0; i < json_array_size(steps); i++) {
                const json_t *step = json_array_get(steps, i);
                const char *name = text_of(step, "name"), *outcome = text_of(step, "outcome");
                bool skipped = strcmp(outcome, "skipped") == 0 && may_be_skipped(name);
                ck_assert_msg(skipped || strcmp(outcome, "ok") == 0, "%s: %s: %s", name, outcome,
                              text_of(step, "text"));
        }
}

static void check_answers(const json_t *observations)
{
        size_t answers = 0;
        for (size_t i = 0; i < json_array_size(observations); i++) {
                const json_t *it = json_array_get(observations, i);
                answers += strncmp(text_of(it, "name"), "CUDA: ", 6) == 0;
                if (strstr(text_of(it, "name"), "(no is expected)") != NULL)
                        ck_assert_int_eq(strncmp(text_of(it, "text"), "no: ", 4), 0);
        }
        ck_assert_uint_gt(answers, 20);
}

static void check_rows(const json_t *rows)
{
        size_t measured = 0;
        for (size_t i = 0; i < json_array_size(rows); i++) {
                const json_t *row = json_array_get(rows, i);
                bool has = json_is_number(json_object_get(row, "value"));
                ck_assert_msg(has || *text_of(row, "why") != '\0', "%s: neither a value nor why", text_of(row, "name"));
                if (has && strncmp(text_of(row, "name"), "tensors_differ", 14) == 0)
                        ck_assert_int_eq(json_integer_value(json_object_get(row, "value")), 0);
                measured += has;
        }
        ck_assert_uint_gt(measured, 30);
}

START_TEST(every_step_works_and_every_row_is_filled_in)
{
        const char *json = suite_path("gpu.json");
        must(chmod(suite_folder(), 0711)); /* for the consumer of another user */
        use_stand_ins();
        ck_assert_int_eq(run((const char *const[]){"--bin", build_path("."), "--json", json, NULL}), 0);
        json_t *said = json_load_file(json, 0, NULL);
        ck_assert_ptr_nonnull(said);
        check_steps(json_object_get(said, "steps"));
        check_rows(json_object_get(said, "rows"));
        check_answers(json_object_get(said, "observations"));
        ck_assert(json_is_true(json_object_get(json_object_get(said, "hardware"), "stand_in")));
        json_decref(said);
}
END_TEST

static const json_t *step_named(const json_t *said, const char *name)
{
        const json_t *steps = json_object_get(said, "steps");
        for (size_t i = 0; i < json_array_size(steps); i++)
                if (strcmp(text_of(json_array_get(steps, i), "name"), name) == 0)
                        return json_array_get(steps, i);
        die("no step is named %s", name);
}

static bool logged(const json_t *step, const char *log, const char *text)
{
        const json_t *lines = json_object_get(json_object_get(step, "logs"), log);
        for (size_t i = 0; i < json_array_size(lines); i++)
                if (strstr(json_string_value(json_array_get(lines, i)), text) != NULL)
                        return true;
        return false;
}

/* Whoever reads it may have no second try. */
START_TEST(a_step_that_fails_brings_the_error_the_place_and_the_logs)
{
        const char *json = suite_path("failed.json");
        use_stand_ins();
        setenv("FAKECUDA_FAIL", "cuMemSetAccess:0:801", 1);
        ck_assert_int_eq(run((const char *const[]){"--bin", build_path("."), "--json", json, "--time", "9", NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *doctor = step_named(said, "doctor");
        ck_assert_str_eq(text_of(doctor, "outcome"), "failed");
        ck_assert_ptr_nonnull(strstr(text_of(doctor, "text"), "cuMemSetAccess: operation not supported"));
        ck_assert_uint_gt(json_array_size(json_object_get(doctor, "where")), 2);
        ck_assert(logged(doctor, "daemon-2.log", "cuMemSetAccess"));
        ck_assert_uint_gt(json_object_size(json_object_get(said, "doctor")), 1);
        json_decref(said);
}
END_TEST

/* No event fires, so the first load takes longer than there is time. */
START_TEST(a_step_that_hangs_tells_what_its_processes_were_in)
{
        const char *json = suite_path("hung.json"), *state = suite_path("hung.state");
        use_stand_ins();
        setenv("FAKECUDA_STATE", state, 1);
        fake_state_map(state)->hold = 1;
        ck_assert_int_eq(run((const char *const[]){"--bin", build_path("."), "--json", json, "--time", "9", NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *doctor = step_named(said, "doctor");
        ck_assert_ptr_nonnull(strstr(text_of(doctor, "text"), "not done in"));
        ck_assert(logged(doctor, "daemon-1.log", " more threads wait for others"));
        ck_assert(logged(doctor, "daemon-1.log", "streamerd 0."));
        json_decref(said);
}
END_TEST

START_TEST(without_a_gpu_it_says_what_the_machine_has)
{
        const char *json = suite_path("none.json");
        use_stand_ins();
        setenv("FAKECUDA_DEVICES", "0", 1);
        ck_assert_int_eq(run((const char *const[]){"--bin", build_path("."), "--json", json, NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *around = json_object_get(json_object_get(said, "hardware"), "surroundings");
        ck_assert_uint_eq(json_array_size(json_object_get(around, "runtimes")), 2);
        ck_assert_ptr_nonnull(json_object_get(around, "nvidia_smi"));
        ck_assert_ptr_nonnull(strstr(text_of(step_named(said, "machine"), "text"), "NO_DEVICE"));
        json_decref(said);
}
END_TEST

#define STEPS_BEFORE_THE_KILL 3

static bool some_steps_are_in(void *path)
{
        json_error_t error;
        if (access(path, F_OK) != 0)
                return false;
        json_t *said = json_load_file(path, 0, &error);
        ck_assert_msg(said != NULL, "the file is not whole: %s", error.text);
        size_t n = json_array_size(json_object_get(said, "steps"));
        bool runs = json_is_string(json_object_get(said, "running"));
        json_decref(said);
        return n >= STEPS_BEFORE_THE_KILL && runs;
}

START_TEST(what_is_known_when_it_is_killed_is_in_the_file)
{
        char *json = suite_path("killed.json");
        use_stand_ins();
        pid_t pid = start((const char *const[]){"--bin", build_path("."), "--json", json, NULL});
        bool in_time = eventually(some_steps_are_in, json, 60000);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        ck_assert(in_time);
        ck_assert(some_steps_are_in(json));
}
END_TEST

START_TEST(a_place_that_cannot_be_written_is_told_before_anything_runs)
{
        use_stand_ins();
        ck_assert_int_eq(run((const char *const[]){"--json", "/nonexistent/gpu.json", NULL}), 2);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--dir", "/nonexistent", NULL}), 2);
}
END_TEST

int main(void)
{
        suite_begin("the script for GPUs");
        TCase *t = suite_group("on stand-ins", NULL, NULL, 240);
        if (!suite_short()) { /* nor can Python open a library with a sanitizer in it */
                tcase_add_test(t, every_step_works_and_every_row_is_filled_in);
                tcase_add_test(t, a_step_that_fails_brings_the_error_the_place_and_the_logs);
                tcase_add_test(t, a_step_that_hangs_tells_what_its_processes_were_in);
                tcase_add_test(t, without_a_gpu_it_says_what_the_machine_has);
                tcase_add_test(t, what_is_known_when_it_is_killed_is_in_the_file);
        }
        tcase_add_test(t, a_place_that_cannot_be_written_is_told_before_anything_runs);
        return suite_run();
}
