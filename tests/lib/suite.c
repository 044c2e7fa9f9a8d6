/* SPDX-License-Identifier: Apache-2.0
 *
 * The main() of a program of Check suites: see suite.h.
 */
#include "tests/lib/suite.h"
#include "tests/lib/at_exit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[PATH_SIZE];
static Suite *suite;

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

static void fail_check(const char *text)
{
        ck_abort_msg("%s", text);
}

/* Test processes exit without freeing memory; the daemon is another program, which is checked for leaks. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
        return "detect_leaks=0";
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

/* ---- the program ---- */

void suite_begin(const char *name)
{
        folder_make(folder, "streamerd-test");
        at_exit_remove(folder);
        forget_settings();
        signal(SIGPIPE, SIG_IGN);
        die_hook = fail_check;
        suite = suite_create(name);
}

TCase *suite_group(const char *name, void (*setup)(void), void (*teardown)(void), int timeout)
{
        TCase *group = tcase_create(name);

        if (setup || teardown)
                tcase_add_unchecked_fixture(group, setup, teardown);
        tcase_set_timeout(group, timeout);
        suite_add_tcase(suite, group);
        return group;
}

int suite_run(void)
{
        SRunner *runner = srunner_create(suite);

        /* Check uses half of it for the text of a failure; a longer text would end the program without a message. */
        check_set_max_msg_size(4 * DIE_TEXT);
        srunner_run_all(runner, CK_NORMAL);
        int failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
