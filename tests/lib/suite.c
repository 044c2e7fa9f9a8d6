/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers and runs the tests of a program: see suite.h. main.c parses its arguments.
 */
#include "tests/lib/suite.h"
#include "tests/lib/at_exit.h"
#include "tests/lib/suite_run.h"

#include <fcntl.h>
#include <fnmatch.h>

static char folder[PATH_SIZE];

const char *suite_folder(void)
{
        return folder;
}

char *suite_path(const char *format, ...)
{
        char name[PATH_SIZE];
        FORMAT_ARGS(name, format);
        return format_text("%s/%s", folder, name);
}

char *suite_file(const char *name, const char *text)
{
        char *path = suite_path("%s", name);
        file_write(path, text, strlen(text));
        return path;
}

char *suite_stderr(void (*say)(void))
{
        char *path = suite_path("stderr-%d", (int)getpid());
        int saved = must(dup(STDERR_FILENO)), fd = must(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
        must(dup2(fd, STDERR_FILENO));
        say();
        must(dup2(saved, STDERR_FILENO));
        close(saved);
        close(fd);
        return file_read(path, NULL);
}

void suite_passed(const char *file, int line)
{
        static _Thread_local struct {
                const char *file;
                int line;
        } last[4];
        static _Thread_local unsigned n;

        for (unsigned i = 0; i < 4; i++)
                if (last[i].line == line && last[i].file == file)
                        return;
        last[n % 4].file = file;
        last[n++ % 4].line = line;
        (_mark_point)(file, line); /* Check's own */
}

bool suite_short(void)
{
        const char *word = getenv("STREAMERD_TEST_SHORT");
        return word && *word && strcmp(word, "0") != 0;
}

void skip(const char *name, const char *reason)
{
        printf("SKIP: %s: %s\n", name, reason);
        fflush(stdout);
}

void (*suite_on_failure)(void);

#undef _ck_assert_failed

void suite_fail(const char *file, int line, const char *expression, const char *format, ...)
{
        void (*explain)(void) = suite_on_failure;
        static char text[DIE_TEXT];
        va_list args;

        suite_on_failure = NULL; /* not again if it fails itself */
        if (explain)
                explain();
        if (!format)
                _ck_assert_failed(file, line, expression, NULL);
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        _ck_assert_failed(file, line, expression, "%s", text);
}

static void fail_check(const char *text)
{
        suite_fail(__FILE__, __LINE__, "Failed", "%s", text);
}

/* Test processes exit without freeing memory; the daemon is another program, which is checked for leaks. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
        return "detect_leaks=0";
}

/* Else a process with a second thread sleeps for a second at its end. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
        return "atexit_sleep_ms=0";
}

/* ---- the caller's settings ---- */

/* Prefixes of environment variables that are removed. */
static const char *const foreign[] = {"AWS_",       "HF_",         "HUGGINGFACE_", "http_proxy",
                                      "HTTP_PROXY", "https_proxy", "HTTPS_PROXY",  "all_proxy",
                                      "ALL_PROXY",  "no_proxy",    "NO_PROXY"};

static const char *find_foreign(void)
{
        for (char **e = environ; *e != NULL; e++)
                for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
                        if (strncmp(*e, foreign[i], strlen(foreign[i])) == 0)
                                return *e;
        return NULL;
}

static void forget_settings(void)
{
        for (const char *e; (e = find_foreign()) != NULL;)
                must(unsetenv(format_text("%.*s", (int)strcspn(e, "="), e)));
        must(setenv("AWS_CONFIG_FILE", suite_path("no-aws-config"), 1));
        must(setenv("AWS_SHARED_CREDENTIALS_FILE", suite_path("no-aws-credentials"), 1));
        must(setenv("AWS_EC2_METADATA_DISABLED", "true", 1));
}

/* ---- registered tests ---- */

#define TESTS_MAX 4096
#define FIXTURES_MAX 1024
#define TIMEOUT 60

static const struct suite_test *tests[TESTS_MAX];
static const struct suite_fixture *fixtures[FIXTURES_MAX];
static size_t n_tests, n_fixtures;

void suite_add_test(const struct suite_test *test)
{
        if (n_tests == TESTS_MAX)
                die("more than %d tests", TESTS_MAX);
        tests[n_tests++] = test;
}

void suite_add_fixture(const struct suite_fixture *fixture)
{
        if (n_fixtures == FIXTURES_MAX)
                die("more than %d fixtures", FIXTURES_MAX);
        fixtures[n_fixtures++] = fixture;
}

/* "tests/unit/base/quota_test.c": "quota". */
static char *file_name(const char *path)
{
        const char *name = strrchr(path, '/') + 1, *end = strstr(name, "_test.c");
        return format_text("%.*s", end ? (int)(end - name) : (int)strcspn(name, "."), name);
}

static char *full_name(const struct suite_test *test)
{
        return format_text("%s.%s", file_name(test->test.file), test->test.name);
}

static bool is_selected(const struct suite_test *test, char *const *patterns)
{
        const char *name = full_name(test);
        for (char *const *p = patterns; *p; p++)
                if (fnmatch(*p, name, 0) == 0)
                        return true;
        return *patterns == NULL;
}

static int by_place(const void *a, const void *b)
{
        const struct suite_test *left = *(const struct suite_test *const *)a,
                                *right = *(const struct suite_test *const *)b;
        int order = strcmp(left->test.file, right->test.file);
        return order ? order : left->test.line - right->test.line;
}

size_t suite_select(char *const *patterns)
{
        size_t n = 0;
        for (size_t i = 0; i < n_tests; i++)
                if (is_selected(tests[i], patterns))
                        tests[n++] = tests[i];
        n_tests = n;
        qsort(tests, n_tests, sizeof(tests[0]), by_place);
        return n;
}

void suite_list(void)
{
        for (size_t i = 0; i < n_tests; i++)
                printf("%s\n", full_name(tests[i]));
}

/* ---- the tests of one file ---- */

/* The last above the test; NULL: none. */
static const struct suite_fixture *fixture_of(const struct suite_test *test)
{
        const struct suite_fixture *found = NULL;
        for (size_t i = 0; i < n_fixtures; i++)
                if (fixtures[i]->timeout >= 0 && strcmp(fixtures[i]->file, test->test.file) == 0 &&
                    fixtures[i]->line < test->test.line && (!found || fixtures[i]->line > found->line))
                        found = fixtures[i];
        return found;
}

static void before_folder(const char *file)
{
        for (size_t i = 0; i < n_fixtures; i++)
                if (fixtures[i]->first && strcmp(fixtures[i]->file, file) == 0) {
                        fixtures[i]->first();
                        return;
                }
}

static void before_all(const char *file)
{
        for (size_t i = 0; i < n_fixtures; i++)
                if (fixtures[i]->timeout < 0 && strcmp(fixtures[i]->file, file) == 0)
                        fixtures[i]->all.begin();
}

static void add_pair(TCase *group, const struct suite_pair *pair)
{
        if (pair->begin || pair->end)
                tcase_add_checked_fixture(group, pair->begin, pair->end);
}

static TCase *group_new(Suite *suite, const char *name, const struct suite_fixture *fixture)
{
        TCase *group = tcase_create(name);
        suite_add_tcase(suite, group);
        tcase_set_timeout(group, fixture && fixture->timeout ? fixture->timeout : TIMEOUT);
        if (!fixture)
                return group;
        if (fixture->all.begin || fixture->all.end)
                tcase_add_unchecked_fixture(group, fixture->all.begin, fixture->all.end);
        add_pair(group, &fixture->outer);
        add_pair(group, &fixture->each);
        return group;
}

static void skip_slow(int row)
{
        SKIP("not in the short set");
}

/* `row`: the index of the test. */
static void skip_unavailable(int row)
{
        skip(file_name(tests[row]->test.file), fixture_of(tests[row])->unavailable());
}

/* It counts as one test. */
static void add_skipped(TCase *group, size_t i, void (*fn)(int row))
{
        TTest *check = must_alloc(sizeof(*check));
        *check = tests[i]->test;
        check->fn = fn;
        _tcase_add_test(group, check, 0, 0, (int)i, (int)i + 1);
}

static void add_to(TCase *group, const struct suite_test *test)
{
        int to = test->to > test->from ? test->to : test->from + 1;
        _tcase_add_test(group, &test->test, test->signal, test->exit, test->from, to);
}

static void add_file(Suite *suite, const char *file)
{
        const struct suite_fixture *last = NULL;
        bool available = true;
        TCase *group = NULL, *omitted = NULL; /* without a fixture */

        for (size_t i = 0; i < n_tests; i++) {
                if (strcmp(tests[i]->test.file, file) != 0)
                        continue;
                if (tests[i]->slow && suite_short()) {
                        omitted = omitted ? omitted : group_new(suite, file_name(file), NULL);
                        add_skipped(omitted, i, skip_slow);
                        continue;
                }
                const struct suite_fixture *fixture = fixture_of(tests[i]);
                if (!group || fixture != last) {
                        last = fixture;
                        available = !fixture || !fixture->unavailable || !fixture->unavailable();
                        group = group_new(suite, file_name(file), available ? fixture : NULL);
                }
                if (available)
                        add_to(group, tests[i]);
                else
                        add_skipped(group, i, skip_unavailable);
        }
}

static int run_file(const char *file, bool keep)
{
        char *name = file_name(file), *tap = getenv("TAP");
        before_folder(file);
        folder_make(folder, "streamerd-test");
        if (keep)
                printf("%s: %s\n", name, folder);
        else
                at_exit_remove(folder);
        forget_settings();
        signal(SIGPIPE, SIG_IGN);
        die_hook = fail_check;
        Suite *suite = suite_create(name);
        before_all(file);
        add_file(suite, file);
        SRunner *runner = srunner_create(suite);
        /* Check uses half of it for the text of a failure; a longer text would end the program without a message. */
        check_set_max_msg_size(4 * DIE_TEXT);
        if (tap && *tap)
                srunner_set_tap(runner, format_text("%s/%s.tap", tap, name));
        srunner_run_all(runner, CK_NORMAL);
        int failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Each file in a process of its own. */
static int run_forked(const char *file, bool keep)
{
        fflush(stdout);
        pid_t pid = must(fork());
        if (pid == 0)
                exit(run_file(file, keep));
        return child_wait(pid) ? EXIT_FAILURE : EXIT_SUCCESS;
}

int suite_run(bool keep)
{
        const char *file = n_tests ? tests[0]->test.file : NULL;
        int result = EXIT_SUCCESS;
        if (!file || strcmp(file, tests[n_tests - 1]->test.file) == 0)
                return file ? run_file(file, keep) : EXIT_FAILURE;
        for (size_t i = 0; i < n_tests; i++)
                if (i == 0 || strcmp(tests[i - 1]->test.file, tests[i]->test.file) != 0)
                        result |= run_forked(tests[i]->test.file, keep);
        return result;
}
