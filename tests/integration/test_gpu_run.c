/* SPDX-License-Identifier: Apache-2.0
 *
 * The script for machines with a GPU (tests/gpu/run), in small, on stand-ins: every step of it works, and every
 * row is filled in or says why it is not. What the figures are means nothing here.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/suite.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SCALE "0.004"

static const char *text_of(const json_t *o, const char *key)
{
        const char *text = json_string_value(json_object_get(o, key));
        return text != NULL ? text : "";
}

/* Its exit status. */
static int run(const char *const *arguments)
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
        ck_assert_uint_ge(json_array_size(steps), 21);
        for (size_t i = 0; i < json_array_size(steps); i++) {
                const json_t *step = json_array_get(steps, i);
                const char *name = text_of(step, "name"), *outcome = text_of(step, "outcome");
                bool skipped = strcmp(outcome, "skipped") == 0 && may_be_skipped(name);
                ck_assert_msg(skipped || strcmp(outcome, "ok") == 0, "%s: %s: %s", name, outcome,
                              text_of(step, "text"));
        }
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
        ck_assert(json_is_true(json_object_get(json_object_get(said, "hardware"), "stand_in")));
        json_decref(said);
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
        if (!suite_short()) /* nor can Python open a library with a sanitizer in it */
                tcase_add_test(t, every_step_works_and_every_row_is_filled_in);
        tcase_add_test(t, a_place_that_cannot_be_written_is_told_before_anything_runs);
        return suite_run();
}
