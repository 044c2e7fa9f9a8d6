/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/gpu/run on fake GPUs, with small models: every step of each plan works, and every row has a value or a
 * reason. The figures have no meaning.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

#define SCALE "0.004"
#define TABLE_LINES 60
#define PRINTED_MAX 12000 /* of what a command prints, some machines return no more than the end */

/* A program whose output is in printed(). */
static pid_t spawn(const char *const *argv)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                int out = must(open(suite_path("printed"), O_WRONLY | O_CREAT | O_TRUNC, 0644));
                must(dup2(out, STDOUT_FILENO));
                execvp(argv[0], (char **)(uintptr_t)argv);
                die("%s cannot be started", argv[0]);
        }
        return pid;
}

static pid_t start(const char *const *arguments)
{
        const char *argv[24] = {"tests/gpu/run", "--scale", SCALE,           "--time",   "200",         "--dir",
                                suite_folder(),  "--bin",   build_path("."), "--wheels", "/nonexistent"};
        size_t n = 11;
        while (*arguments != NULL)
                argv[n++] = *arguments++;
        return spawn(argv);
}

/* What the last run has printed: the caller's. */
static char *printed(void)
{
        char *text = file_read(suite_path("printed"), NULL);
        ck_assert_uint_lt(strlen(text), PRINTED_MAX);
        return text;
}

static int run(const char *const *arguments)
{
        return child_wait(start(arguments));
}

static void use_fakes(void)
{
        char path[PATH_SIZE];
        fake_library("", path, sizeof(path));
        setenv("LD_LIBRARY_PATH", realpath(path, NULL), 1);
        setenv("PYTHONPYCACHEPREFIX", suite_path("pycache"), 1); /* a run has a hundred processes, which compile once */
        unsetenv("PYTHONDONTWRITEBYTECODE");
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
        static const char *const may[] = {"torch",        "torch-30gib",  "language-model", "language-model-killed",
                                          "publish",      "update",       "compiled-code",  "users-and-namespaces",
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
                const char *name = json_text(step, "name"), *outcome = json_text(step, "outcome");
                bool skipped = strcmp(outcome, "skipped") == 0 && may_be_skipped(name);
                ck_assert_msg(skipped || strcmp(outcome, "ok") == 0, "%s: %s: %s", name, outcome,
                              json_text(step, "text"));
                n += json_is_string(json_object_get(step, "plan"));
        }
        return n;
}

static void check_answers(const json_t *observations)
{
        size_t answers = 0;
        for (size_t i = 0; i < json_array_size(observations); i++) {
                const json_t *it = json_array_get(observations, i);
                answers += strncmp(json_text(it, "name"), "CUDA: ", 6) == 0;
        }
        ck_assert_uint_gt(answers, 20);
}

/* Rows of timed loads: the explanation of a rate must not need a second run. */
static bool times_loads(const char *row)
{
        static const char *const rows[] = {"warm_",
                                           "cold_",
                                           "copies_",
                                           "blocks_",
                                           "load_context_",
                                           "context_first_load",
                                           "host_cache_",
                                           "unload_stall",
                                           "llama_load_into",
                                           "loader_warm_streamerd",
                                           "loader_tmpfs_streamerd"};
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
                if (strncmp(row, rows[i], strlen(rows[i])) == 0)
                        return strstr(row, "_vs_") == NULL;
        return false;
}

static void check_explained(const json_t *row)
{
        const json_t *rounds = json_object_get(row, "rounds"), *round;
        size_t i;
        ck_assert_uint_gt(json_array_size(json_object_get(row, "log")), 0);
        ck_assert_uint_gt(json_array_size(rounds), 0);
        json_array_foreach(rounds, i, round)
        {
                bool restored = strcmp(json_text(row, "name"), "host_cache_restore") == 0; /* it has no stages */
                ck_assert_uint_gt(json_number(round, "load_ns"), 0);
                ck_assert(restored || json_object_size(json_object_get(round, "stages")) > 0);
        }
}

/* The number of rows that have a value. */
static size_t check_rows(const json_t *rows)
{
        size_t measured = 0;
        for (size_t i = 0; i < json_array_size(rows); i++) {
                const json_t *row = json_array_get(rows, i);
                bool has = json_is_number(json_object_get(row, "value"));
                const char *name = json_text(row, "name");
                ck_assert_msg(has || *json_text(row, "why") != '\0', "%s: neither a value nor why", name);
                if (has && (strncmp(name, "tensors_differ", 14) == 0 || strncmp(name, "bytes_reused", 12) == 0 ||
                            strcmp(name, "contract_broken") == 0))
                        ck_assert_msg(json_number(row, "value") == 0, "%s: %s", name, json_text(row, "note"));
                if (has && times_loads(name))
                        check_explained(row);
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
                snprintf(wanted, sizeof(wanted), "\n%s ", json_text(row, "name"));
                const char *at = strstr(text, wanted);
                if (json_is_number(json_object_get(row, "target")))
                        ck_assert_msg(at != NULL && at < end, "%s is not in the table", json_text(row, "name"));
        }
}

static const struct {
        const char *name;
        size_t steps, rows; /* rows: that have a value without torch, other loaders or O_DIRECT */
} plans[] = {{"a", 21, 36}, {"b", 9, 60}, {"c", 13, 9}};

FIXTURE(.all = {use_fakes, NULL}, .timeout = 240);

TEST(every_step_of_the_plan_passes_and_fills_its_row, EACH(plans), .slow = true)
{
        must(chmod(suite_folder(), 0711)); /* for the consumer of another user */
        json_t *o = document(plans[_i].name, 0, (const char *const[]){"--plan", plans[_i].name, NULL});
        ck_assert_uint_eq(check_steps(json_object_get(o, "steps")), plans[_i].steps);
        ck_assert_uint_ge(check_rows(json_object_get(o, "rows")), plans[_i].rows);
        check_printed(json_object_get(o, "rows"));
        if (_i == 0)
                check_answers(json_object_get(o, "observations"));
        ck_assert(json_is_true(json_at(o, "hardware.fake")));
}

static const json_t *must_find(const json_t *o, const char *list, const char *name)
{
        const json_t *entry = json_find(json_at(o, list), "name", name);
        ck_assert_msg(entry != NULL, "%s: none is named %s", list, name);
        return entry;
}

static bool ran(const json_t *o, const char *name)
{
        return json_find(json_at(o, "steps"), "name", name) != NULL;
}

TEST(steps_are_selected_by_name_with_their_models, .slow = true)
{
        json_t *o = document("only", 0, (const char *const[]){"--only", "descriptors,context-again", NULL});
        ck_assert_uint_eq(json_array_size(json_object_get(o, "steps")), 5); /* machine, and two models */
        ck_assert(ran(o, "descriptors") && ran(o, "context-again") && ran(o, "model-1gib") && ran(o, "model-tiny"));
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--only", "nonsense", NULL}), 2);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--plan", "d", NULL}), 2);
}

TEST(a_step_that_provokes_a_fault_runs_only_by_name, .slow = true)
{
        json_t *o = document("rights", 0,
                             (const char *const[]){"--plan", "a", "--only", "doctor,rights,descriptors", "--skip",
                                                   "descriptors", NULL});
        ck_assert(ran(o, "rights") && !ran(o, "descriptors") && !ran(o, "model-1gib"));
        ck_assert_uint_eq(check_steps(json_object_get(o, "steps")), 1); /* it belongs to no plan */
        ck_assert_uint_eq(json_array_size(json_object_get(o, "rows")), 0);
}

/* The exit status of a script, which has the modules of the GPU script and a report. */
static int run_python(const char *script)
{
        static const char begin[] = "import signal, sys, types\n"
                                    "sys.path.insert(0, 'tests/gpu')\n"
                                    "from streamer_gpu.report import Report\n"
                                    "report = Report('/dev/null')\n";
        return child_wait(spawn((const char *const[]){"python3", "-Bc", format_text("%s%s", begin, script), NULL}));
}

static const char *const parts[] = {
        /* Rates of gVisor, whose kernel cannot tell whether a file is in the page cache, are labelled. */
        "report.hardware['sandbox'] = 'gVisor'; report.row('warm_8gib', 1)\n"
        "report.row('context_seconds', 1); report.row('cold_8gib', 1, note='cold')\n"
        "assert 'gVisor' in report.rows['warm_8gib']['note']\n"
        "assert 'note' not in report.rows['context_seconds']\n"
        "assert report.rows['cold_8gib']['note'].startswith('cold; gVisor')\n"
        "assert any('gVisor' in line for line in report.table())\n",
        /* Without --plan there are more rows than lines: those with a target are first, and the others are counted. */
        "lines = report.table(); names = [line.split()[0] for line in lines]\n"
        "assert len(lines) == 60, len(lines)\n"
        "assert all(n in names for n, row in report.rows.items() if row['target'] is not None)\n"
        "assert lines[-1].endswith(' rows only in the JSON)'), lines[-1]\n"
        "report.select(['warm_']); assert len(report.table()) == 1 + len(report.rows)\n",
        /* A step whose time ends while its processes do has been measured. */
        "from streamer_gpu.bench import Step\n"
        "bench = types.SimpleNamespace(report=report, observer=None, processes=[])\n"
        "bench.left = lambda: 100; bench.logs = lambda: []\n"
        "def late(bench, stack): stack.callback(signal.raise_signal, signal.SIGALRM)\n"
        "def slow(bench, stack): signal.raise_signal(signal.SIGALRM)\n"
        "assert Step('late', 'a', 50, (), late).run(bench)[0] == 'ok'\n"
        "assert Step('slow', 'a', 50, (), slow).run(bench)[:2] == ('failed', 'not done in 50 s')\n",
        /* What a step has no time for is reported. */
        "from streamer_gpu.sharing import _Case\n"
        "bench = types.SimpleNamespace(report=report, step_left=lambda: 3)\n"
        "assert not _Case(bench, None, 'question').observe(lambda: 'answer')\n"
        "assert report.observations[0]['text'].startswith('not asked')\n"
        "bench.step_left = lambda: 100\n"
        "assert _Case(bench, None, 'question').observe(lambda: 'answer')\n"
        "assert report.observations[1]['text'] == 'answer'\n",
};

TEST(each_part_works_alone, EACH(parts), .slow = true)
{
        ck_assert_int_eq(run_python(parts[_i]), 0);
}

TEST(a_mistake_of_the_script_prints_the_table_so_far, .slow = true)
{
        static const char script[] =
                "from importlib.machinery import SourceFileLoader\n"
                "run = SourceFileLoader('run', 'tests/gpu/run').load_module()\n"
                "def observe(*_): raise ZeroDivisionError('mistake')\n"
                "run.Bench.missing = observe\n"
                "sys.argv = ['run', '--scale', '" SCALE "', '--json', '/dev/null', '--plan', 'a']\n"
                "sys.exit(run.main())\n";
        ck_assert_int_eq(run_python(script), 1);
        char *text = printed();
        ck_assert_ptr_nonnull(strstr(text, "\nwarm_8gib "));
        ck_assert_ptr_nonnull(strstr(text, "by a mistake of this script: ZeroDivisionError"));
}

static bool logged(const json_t *step, const char *log, const char *text)
{
        const json_t *lines = json_object_get(json_object_get(step, "logs"), log);
        for (size_t i = 0; i < json_array_size(lines); i++)
                if (strstr(json_string_value(json_array_get(lines, i)), text) != NULL)
                        return true;
        return false;
}

static void check_not_measured(const json_t *said, const char *name, const char *why)
{
        const json_t *row = must_find(said, "rows", name);
        ck_assert(!json_is_number(json_object_get(row, "value")));
        ck_assert_msg(strstr(json_text(row, "why"), why) != NULL, "%s: %s", name, json_text(row, "why"));
}

/* A folder of links to these files of the build. */
static char *folder_of(const char *name, const char *const *files, size_t n)
{
        char *folder = suite_path("%s", name);
        must(mkdir(folder, 0755));
        for (size_t i = 0; i < n; i++) {
                char *from = realpath(build_path(files[i]), NULL);
                const char *slash = strrchr(files[i], '/');
                must(symlink(from, suite_path("%s/%s", name, slash != NULL ? slash + 1 : files[i])));
        }
        return folder;
}

static const char *const programs[] = {"streamerd", "streamerctl", "libstreamer-client.so.0", "gpu-rates",
                                       "tests/fake/libcudart.so.13"};

TEST(a_runtime_is_named_by_a_file_beside_the_programs, .slow = true)
{
        char *bin = folder_of("beside", programs, 5);
        const char *const arguments[] = {"--bin", bin, "--cudart", "libcudart.so.13", "--only", "doctor", NULL};
        json_t *o = document("named", 0, arguments);
        const json_t *runtimes = json_at(o, "hardware.surroundings.runtimes");
        ck_assert_uint_eq(json_array_size(runtimes), 1);
        ck_assert_str_eq(json_text(runtimes, "0"), suite_path("beside/libcudart.so.13"));
}

/* No row of rates can be judged without gpu-rates. */
TEST(a_missing_program_is_reported_before_any_step, .slow = true)
{
        char *bin = folder_of("bin", programs, 3);
        json_t *o = document("bin", 1, (const char *const[]){"--bin", bin, "--only", "loads-1gib", NULL});
        ck_assert_uint_eq(json_array_size(json_object_get(o, "steps")), 0);
        check_not_measured(o, "warm_1gib", "gpu-rates does not exist");
}

TEST(no_rate_is_recorded_while_the_ring_is_not_pinned, .slow = true)
{
        setenv("FAKECUDA_FAIL", "cudaHostRegister:0:801", 1);
        json_t *o = document("ring", 1, (const char *const[]){"--only", "loads-1gib", NULL});
        ck_assert_str_eq(json_text(must_find(o, "steps", "loads-1gib"), "outcome"), "failed");
        check_not_measured(o, "warm_1gib", "the staging ring is not pinned");
}

/* The consumer's first registration is that for reading. */
static const int refusals[] = {801, 1};
TEST(refused_registrations_for_reading_are_reported_and_replaced_by_staging, EACH(refusals), .slow = true)
{
        char fail[64];
        snprintf(fail, sizeof(fail), "cudaHostRegister:1:%d", refusals[_i]);
        setenv("FAKECUDA_FAIL", fail, 1);
        json_t *o = document("refused", 0, (const char *const[]){"--only", "host-copies", NULL});
        check_not_measured(o, "host_register_auto", "is refused");
        check_not_measured(o, "host_copy_registered_auto", "is refused");
        ck_assert(json_is_number(json_object_get(must_find(o, "rows", "host_copy_staged_auto"), "value")));
}

TEST(a_rate_has_the_stages_of_each_load_and_a_small_disk_is_replaced_by_memory, .slow = true)
{
        json_t *o = document("disk", 0, (const char *const[]){"--disk", "0.001", "--only", "loads-1gib", NULL});
        const json_t *row = must_find(o, "rows", "warm_1gib"), *rounds = json_object_get(row, "rounds");
        ck_assert(json_is_number(json_object_get(row, "value")));
        ck_assert_ptr_nonnull(strstr(json_text(row, "note"), "tmpfs"));
        check_explained(row);
        ck_assert_uint_eq(json_array_size(rounds), 5);
        for (size_t i = 0; i < json_array_size(rounds); i++)
                ck_assert(json_is_number(json_object_get(json_array_get(rounds, i), "combined")));
}

/* The reader of the report may not be able to repeat the run. */
TEST(a_failed_step_reports_the_error_its_place_and_the_logs, .slow = true)
{
        setenv("FAKECUDA_FAIL", "cuMemSetAccess:0:801", 1);
        json_t *said = document("failed", 1, (const char *const[]){"--time", "30", "--only", "doctor", NULL});
        const json_t *doctor = must_find(said, "steps", "doctor");
        ck_assert_str_eq(json_text(doctor, "outcome"), "failed");
        ck_assert_ptr_nonnull(strstr(json_text(doctor, "text"), "cuMemSetAccess: operation not supported"));
        ck_assert_uint_gt(json_array_size(json_object_get(doctor, "where")), 2);
        ck_assert(logged(doctor, "daemon-2.log", " serves "));
        ck_assert_uint_gt(json_object_size(json_object_get(said, "doctor")), 1);
}

/* A comparison is worth something only if it can fail. */
TEST(bytes_that_differ_after_a_kill_are_counted, .slow = true)
{
        setenv("FAKECUDA_DAMAGE", "2", 1);
        json_t *o = document("damage", 0, (const char *const[]){"--only", "descriptors", NULL});
        const json_t *row = must_find(o, "rows", "bytes_reused_descriptors");
        ck_assert_uint_gt(json_number(row, "value"), 0);
        ck_assert_str_eq(json_text(row, "reached"), "no");
}

/* A consumer reports what the daemon answered, not a mistake of the script. */
TEST(a_failed_load_reports_the_reason_of_the_daemon, .slow = true)
{
        setenv("FAKECUDA_FAIL", "cudaMalloc:0:2", 1);
        json_t *o = document("memory", 1, (const char *const[]){"--only", "loads-1gib,calls", NULL});
        static const char *const steps[] = {"loads-1gib", "calls"};
        for (size_t i = 0; i < 2; i++) {
                const char *text = json_text(must_find(o, "steps", steps[i]), "text");
                ck_assert_msg(strstr(text, "on the device") != NULL, "%s: %s", steps[i], text);
        }
        char *all = json_dumps(o, 0);
        ck_assert_ptr_null(strstr(all, "AttributeError"));
}

/* No event fires, so the first load exceeds its time. */
TEST(a_hanging_step_reports_the_state_of_its_processes, .slow = true)
{
        const char *state = suite_path("hung.state");
        setenv("FAKECUDA_STATE", state, 1);
        fake_state_map(state)->hold = 1;
        json_t *said = document("hung", 1, (const char *const[]){"--time", "15", "--only", "doctor", NULL});
        const json_t *doctor = must_find(said, "steps", "doctor");
        ck_assert_ptr_nonnull(strstr(json_text(doctor, "text"), "not done in"));
        ck_assert(logged(doctor, "daemon-1.log", " more threads wait for a futex"));
        ck_assert(logged(doctor, "daemon-1.log", "streamerd 0."));
}

TEST(without_a_gpu_the_script_describes_the_machine, .slow = true)
{
        setenv("FAKECUDA_DEVICES", "0", 1);
        json_t *said = document("none", 1, (const char *const[]){"--plan", "a", NULL});
        ck_assert_uint_eq(json_array_size(json_at(said, "hardware.surroundings.runtimes")), 2);
        ck_assert_ptr_nonnull(json_at(said, "hardware.surroundings.nvidia_smi"));
        ck_assert_ptr_nonnull(strstr(json_text(must_find(said, "steps", "machine"), "text"), "NO_DEVICE"));
}

#define STEPS_BEFORE_THE_KILL 3

static bool has_steps(const char *path)
{
        json_error_t error;
        if (access(path, F_OK) != 0)
                return false;
        json_t *said = json_load_file(path, 0, &error);
        ck_assert_msg(said != NULL, "the file is not whole: %s", error.text);
        size_t n = json_array_size(json_object_get(said, "steps"));
        json_decref(said);
        return n >= STEPS_BEFORE_THE_KILL;
}

static const int signals[] = {SIGKILL, SIGTERM};
TEST(an_ended_run_has_written_its_results_so_far, EACH(signals), .slow = true)
{
        char *json = suite_path("ended-by-%d.json", signals[_i]);
        pid_t pid = start((const char *const[]){"--json", json, "--plan", "a", NULL});
        bool in_time = WITHIN(60000, has_steps(json));
        must(kill(pid, signals[_i]));
        int status = child_wait(pid);
        ck_assert(in_time);
        ck_assert(has_steps(json));
        if (signals[_i] != SIGTERM)
                return;
        char *text = printed();
        ck_assert_int_eq(status, 1);
        ck_assert_ptr_nonnull(strstr(text, "\nwarm_8gib "));
        ck_assert_ptr_nonnull(strstr(text, "\nended by SIGTERM in step "));
}

TEST(an_unwritable_directory_is_reported_at_once)
{
        ck_assert_int_eq(run((const char *const[]){"--json", "/nonexistent/gpu.json", NULL}), 2);
        ck_assert_int_eq(run((const char *const[]){"--json", "/dev/null", "--dir", "/nonexistent", NULL}), 2);
}
