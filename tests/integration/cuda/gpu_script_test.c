/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/gpu/run on fake GPUs, with small models: every step of each plan works, and every row has a value or a
 * reason. The figures have no meaning.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SCALE "0.004"
#define TABLE_LINES 60
#define PRINTED_MAX 12000 /* of what a command prints, some machines return no more than the end */

static const char *text_of(const json_t *o, const char *key)
{
        const char *text = json_string_value(json_object_get(o, key));
        return text != NULL ? text : "";
}

static pid_t start(const char *const *arguments)
{
        const char *argv[24] = {"tests/gpu/run", "--scale", SCALE,           "--time",   "200",         "--dir",
                                suite_folder(),  "--bin",   build_path("."), "--wheels", "/nonexistent"};
        size_t n = 11;
        while (*arguments != NULL)
                argv[n++] = *arguments++;
        pid_t pid = must(fork());
        if (pid == 0) {
                int out = must(open(suite_path("printed"), O_WRONLY | O_CREAT | O_TRUNC, 0644));
                must(dup2(out, STDOUT_FILENO));
                execv(argv[0], (char **)(uintptr_t)argv);
                die("%s cannot be started", argv[0]);
        }
        return pid;
}

/* What the last run has printed: the caller's. */
static char *printed(void)
{
        FILE *f = fopen(suite_path("printed"), "r");
        char *text = calloc(1, PRINTED_MAX + 1);
        ck_assert(f != NULL && text != NULL);
        ck_assert_uint_lt(fread(text, 1, PRINTED_MAX, f), PRINTED_MAX);
        fclose(f);
        return text;
}

/* Its exit status. */
static int run(const char *const *arguments)
{
        pid_t pid = start(arguments);
        int status;
        must(waitpid(pid, &status, 0));
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void use_fakes(void)
{
        char path[PATH_SIZE];
        fake_library("", path, sizeof(path));
        setenv("LD_LIBRARY_PATH", realpath(path, NULL), 1);
}

/* The document of a run with these arguments and exit status: the caller's. */
static json_t *document(const char *name, int status, const char *const *arguments)
{
        char *path = suite_path("%s.json", name);
        const char *argv[16] = {"--json", path};
        for (size_t n = 2; *arguments != NULL; n++)
                argv[n] = *arguments++;
        ck_assert_int_eq(run(argv), status);
        json_t *o = json_load_file(path, 0, NULL);
        ck_assert_ptr_nonnull(o);
        return o;
}

/* No torch, no root, no O_DIRECT, no page cache that drops its pages, no other loader. */
static bool may_be_skipped(const char *step)
{
        static const char *const may[] = {"torch",        "torch-30gib",  "language-model", "users-and-namespaces",
                                          "bare-ipc",     "cold-1gib",    "cold-8gib",      "cold-30gib",
                                          "loaders-warm", "loaders-tmpfs"};
        for (size_t i = 0; i < sizeof(may) / sizeof(may[0]); i++)
                if (strcmp(step, may[i]) == 0)
                        return true;
        return false;
}

static size_t check_steps(const json_t *steps)
{
        size_t n = 0;
        for (size_t i = 0; i < json_array_size(steps); i++) {
                const json_t *step = json_array_get(steps, i);
                const char *name = text_of(step, "name"), *outcome = text_of(step, "outcome");
                bool skipped = strcmp(outcome, "skipped") == 0 && may_be_skipped(name);
                ck_assert_msg(skipped || strcmp(outcome, "ok") == 0, "%s: %s: %s", name, outcome,
                              text_of(step, "text"));
                n += json_is_string(json_object_get(step, "plan"));
        }
        return n;
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

/* The number of rows that have a value. */
static size_t check_rows(const json_t *rows)
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
        return measured;
}

/* The table is first: each row with a target begins one of its lines. */
static void check_printed(const json_t *rows)
{
        char *text = printed(), *end = text;
        for (size_t line = 0; line < TABLE_LINES && *end != '\0'; line++)
                end += strcspn(end, "\n") + 1;
        for (size_t i = 0; i < json_array_size(rows); i++) {
                const json_t *row = json_array_get(rows, i);
                char wanted[100];
                snprintf(wanted, sizeof(wanted), "\n%s ", text_of(row, "name"));
                const char *at = strstr(text, wanted);
                if (json_is_number(json_object_get(row, "target")))
                        ck_assert_msg(at != NULL && at < end, "%s is not in the table", text_of(row, "name"));
        }
        free(text);
}

static const struct {
        const char *name;
        size_t steps, rows; /* rows: that have a value without torch, other loaders or O_DIRECT */
} plans[] = {{"a", 21, 32}, {"b", 9, 60}, {"c", 9, 9}};

FIXTURE(.timeout = 240);

TEST(every_step_of_the_plan_passes_and_fills_its_row, EACH(plans), .slow = true)
{
        must(chmod(suite_folder(), 0711)); /* for the consumer of another user */
        use_fakes();
        json_t *o = document(plans[_i].name, 0, (const char *const[]){"--plan", plans[_i].name, NULL});
        ck_assert_uint_eq(check_steps(json_object_get(o, "steps")), plans[_i].steps);
        ck_assert_uint_ge(check_rows(json_object_get(o, "rows")), plans[_i].rows);
        check_printed(json_object_get(o, "rows"));
        if (_i == 0)
                check_answers(json_object_get(o, "observations"));
        ck_assert(json_is_true(json_object_get(json_object_get(o, "hardware"), "fake")));
        json_decref(o);
}

static bool ran(const json_t *o, const char *name)
{
        const json_t *steps = json_object_get(o, "steps");
        for (size_t i = 0; i < json_array_size(steps); i++)
                if (strcmp(text_of(json_array_get(steps, i), "name"), name) == 0)
                        return true;
        return false;
}

TEST(steps_are_selected_by_name_with_their_models, .slow = true)
{
        use_fakes();
        json_t *o = document("only", 0, (const char *const[]){"--only", "descriptors,context-again", NULL});
        ck_assert_uint_eq(json_array_size(json_object_get(o, "steps")), 5); /* machine, and two models */
        ck_assert(ran(o, "descriptors") && ran(o, "context-again") && ran(o, "model-1gib") && ran(o, "model-tiny"));
        json_decref(o);

        o = document("skip", 0, (const char *const[]){"--only", "doctor,descriptors", "--skip", "descriptors", NULL});
        ck_assert(ran(o, "doctor") && !ran(o, "descriptors") && !ran(o, "model-1gib"));
        ck_assert_uint_eq(json_array_size(json_object_get(o, "rows")), 0);
        json_decref(o);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--only", "nonsense", NULL}), 2);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--plan", "d", NULL}), 2);
}

TEST(a_step_that_provokes_a_fault_runs_only_by_name, .slow = true)
{
        use_fakes();
        json_t *o = document("rights", 0, (const char *const[]){"--plan", "a", "--only", "doctor,rights", NULL});
        ck_assert(ran(o, "rights"));
        ck_assert_uint_eq(check_steps(json_object_get(o, "steps")), 1); /* it belongs to no plan */
        json_decref(o);
}

/* gVisor's kernel cannot tell whether a file is in the page cache. */
TEST(rates_of_gvisor_are_labelled, .slow = true)
{
        static const char script[] =
                "import sys; sys.path.insert(0, 'tests/gpu'); from streamer_gpu.report import Report; "
                "r = Report('/dev/null'); r.hardware['sandbox'] = 'gVisor'; r.row('warm_8gib', 1); "
                "r.row('context_seconds', 1); r.row('cold_8gib', 1, note='cold'); "
                "assert 'gVisor' in r.rows['warm_8gib']['note']; assert 'note' not in r.rows['context_seconds']; "
                "assert r.rows['cold_8gib']['note'].startswith('cold; gVisor'); assert any('gVisor' in t for t in "
                "r.table())";
        pid_t pid = must(fork());
        if (pid == 0) {
                execlp("python3", "python3", "-Bc", script, (char *)NULL);
                die("python3 cannot be started");
        }
        int status;
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
}

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

static const json_t *row_named(const json_t *said, const char *name)
{
        const json_t *rows = json_object_get(said, "rows");
        for (size_t i = 0; i < json_array_size(rows); i++)
                if (strcmp(text_of(json_array_get(rows, i), "name"), name) == 0)
                        return json_array_get(rows, i);
        die("no row is named %s", name);
}

static void check_not_measured(const json_t *said, const char *name, const char *why)
{
        const json_t *row = row_named(said, name);
        ck_assert(!json_is_number(json_object_get(row, "value")));
        ck_assert_msg(strstr(text_of(row, "why"), why) != NULL, "%s: %s", name, text_of(row, "why"));
}

/* No row of rates can be judged without gpu-rates. */
TEST(a_missing_program_is_reported_before_any_step, .slow = true)
{
        char *bin = suite_path("bin");
        static const char *const needed[] = {"streamerd", "streamerctl", "libstreamer-client.so.0"};
        must(mkdir(bin, 0755));
        for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
                char *from = realpath(build_path(needed[i]), NULL);
                must(symlink(from, suite_path("bin/%s", needed[i])));
                free(from);
        }
        use_fakes();
        json_t *o = document("bin", 1, (const char *const[]){"--bin", bin, "--only", "loads-1gib", NULL});
        ck_assert_uint_eq(json_array_size(json_object_get(o, "steps")), 0);
        check_not_measured(o, "warm_1gib", "gpu-rates does not exist");
        json_decref(o);
}

TEST(no_rate_is_recorded_while_the_ring_is_not_pinned, .slow = true)
{
        use_fakes();
        setenv("FAKECUDA_FAIL", "cudaHostRegister:0:801", 1);
        json_t *o = document("ring", 1, (const char *const[]){"--only", "loads-1gib", NULL});
        ck_assert_str_eq(text_of(step_named(o, "loads-1gib"), "outcome"), "failed");
        check_not_measured(o, "warm_1gib", "the staging ring is not pinned");
        json_decref(o);
}

/* The consumer's first registration is that for reading. */
static const int refusals[] = {801, 1};
TEST(refused_registrations_for_reading_are_reported_and_replaced_by_staging, EACH(refusals), .slow = true)
{
        char fail[64];
        use_fakes();
        snprintf(fail, sizeof(fail), "cudaHostRegister:1:%d", refusals[_i]);
        setenv("FAKECUDA_FAIL", fail, 1);
        json_t *o = document("refused", 0, (const char *const[]){"--only", "host-copies", NULL});
        check_not_measured(o, "host_register_auto", "is refused");
        check_not_measured(o, "host_copy_registered_auto", "is refused");
        ck_assert(json_is_number(json_object_get(row_named(o, "host_copy_staged_auto"), "value")));
        json_decref(o);
}

/* The explanation of a rate must not need a second run. */
TEST(a_rate_has_the_stages_of_each_load_and_a_small_disk_is_replaced_by_memory, .slow = true)
{
        use_fakes();
        json_t *o = document("disk", 0, (const char *const[]){"--disk", "0.001", "--only", "loads-1gib", NULL});
        const json_t *row = row_named(o, "warm_1gib"), *rounds = json_object_get(row, "rounds");
        ck_assert(json_is_number(json_object_get(row, "value")));
        ck_assert_ptr_nonnull(strstr(text_of(row, "note"), "tmpfs"));
        ck_assert_uint_gt(json_array_size(json_object_get(row, "log")), 0);
        ck_assert_uint_eq(json_array_size(rounds), 5);
        for (size_t i = 0; i < json_array_size(rounds); i++) {
                const json_t *round = json_array_get(rounds, i);
                ck_assert_int_gt(json_integer_value(json_object_get(round, "load_ns")), 0);
                ck_assert_uint_gt(json_object_size(json_object_get(round, "stages")), 0);
                ck_assert(json_is_number(json_object_get(round, "combined")));
        }
        json_decref(o);
}

/* The reader of the report may not be able to repeat the run. */
TEST(a_failed_step_reports_the_error_its_place_and_the_logs, .slow = true)
{
        const char *json = suite_path("failed.json");
        use_fakes();
        setenv("FAKECUDA_FAIL", "cuMemSetAccess:0:801", 1);
        ck_assert_int_eq(run((const char *const[]){"--json", json, "--time", "9", "--plan", "a", NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *doctor = step_named(said, "doctor");
        ck_assert_str_eq(text_of(doctor, "outcome"), "failed");
        ck_assert_ptr_nonnull(strstr(text_of(doctor, "text"), "cuMemSetAccess: operation not supported"));
        ck_assert_uint_gt(json_array_size(json_object_get(doctor, "where")), 2);
        ck_assert(logged(doctor, "daemon-2.log", "cuMemSetAccess"));
        ck_assert_uint_gt(json_object_size(json_object_get(said, "doctor")), 1);
        json_decref(said);
}

/* No event fires, so the first load exceeds its time. */
TEST(a_hanging_step_reports_the_state_of_its_processes, .slow = true)
{
        const char *json = suite_path("hung.json"), *state = suite_path("hung.state");
        use_fakes();
        setenv("FAKECUDA_STATE", state, 1);
        fake_state_map(state)->hold = 1;
        ck_assert_int_eq(run((const char *const[]){"--json", json, "--time", "9", "--plan", "a", NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *doctor = step_named(said, "doctor");
        ck_assert_ptr_nonnull(strstr(text_of(doctor, "text"), "not done in"));
        ck_assert(logged(doctor, "daemon-1.log", " more threads wait for a futex"));
        ck_assert(logged(doctor, "daemon-1.log", "streamerd 0."));
        json_decref(said);
}

TEST(without_a_gpu_the_script_describes_the_machine, .slow = true)
{
        const char *json = suite_path("none.json");
        use_fakes();
        setenv("FAKECUDA_DEVICES", "0", 1);
        ck_assert_int_eq(run((const char *const[]){"--json", json, "--plan", "a", NULL}), 1);
        json_t *said = json_load_file(json, 0, NULL);
        const json_t *around = json_object_get(json_object_get(said, "hardware"), "surroundings");
        ck_assert_uint_eq(json_array_size(json_object_get(around, "runtimes")), 2);
        ck_assert_ptr_nonnull(json_object_get(around, "nvidia_smi"));
        ck_assert_ptr_nonnull(strstr(text_of(step_named(said, "machine"), "text"), "NO_DEVICE"));
        json_decref(said);
}

#define STEPS_BEFORE_THE_KILL 3

static bool has_steps(void *path)
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

static const int signals[] = {SIGKILL, SIGTERM};
TEST(an_ended_run_has_written_its_results_so_far, EACH(signals), .slow = true)
{
        char *json = suite_path("ended-by-%d.json", signals[_i]);
        int status;
        use_fakes();
        pid_t pid = start((const char *const[]){"--json", json, "--plan", "a", NULL});
        bool in_time = eventually(has_steps, json, 60000);
        must(kill(pid, signals[_i]));
        must(waitpid(pid, &status, 0));
        ck_assert(in_time);
        ck_assert(has_steps(json));
        if (signals[_i] != SIGTERM)
                return;
        char *text = printed();
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        ck_assert_ptr_nonnull(strstr(text, "\nwarm_8gib "));
        ck_assert_ptr_nonnull(strstr(text, "\nended by SIGTERM in step "));
        free(text);
}

TEST(an_unwritable_directory_is_reported_at_once)
{
        use_fakes();
        ck_assert_int_eq(run((const char *const[]){"--json", "/nonexistent/gpu.json", NULL}), 2);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--dir", "/nonexistent", NULL}), 2);
}
