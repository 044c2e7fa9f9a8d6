/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of Check tests: its main(), its folder, skipping by name.
 *
 *   START_TEST(a_file_is_loaded) { ... } END_TEST
 *
 *   int main(void)
 *   {
 *           suite_begin("load");
 *           TCase *tests = suite_group("one file", start_daemon, stop_daemon, 30);
 *           tcase_add_test(tests, a_file_is_loaded);
 *           return suite_run();
 *   }
 *
 * Every test runs in a process of its own. The setup of a group runs in the program's process; what it starts is shared
 * by the group's tests and ends with the program, even if a test crashes.
 */
#ifndef TESTS_LIB_SUITE_H
#define TESTS_LIB_SUITE_H

#include "tests/lib/base.h"

#include <check.h>

/* Begins the program's suite. Removes the caller's settings for AWS, Hugging Face and proxies from the environment, so
 * that tests have no credentials but their own. */
void suite_begin(const char *name);
/* A group of tests with one fixture; either function may be NULL. `timeout` in seconds, for each test. */
TCase *suite_group(const char *name, void (*setup)(void), void (*teardown)(void), int timeout);
/* A loop test with one iteration per row of a table; _i is the row. */
#define LOOP(group, test, table) tcase_add_loop_test(group, test, 0, (int)(sizeof(table) / sizeof((table)[0])))
/* Runs all tests and removes the folder; returns the exit code of main(). */
int suite_run(void);

/* The program's folder, for all its files; removed at the end. */
const char *suite_folder(void);
/* A path in the folder; never freed. */
char *suite_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes a text to a file of this name in the folder; returns its path. */
char *suite_file(const char *name, const char *text);
/* Returns the standard error output of say(). */
char *suite_stderr(void (*say)(void));

/* STREAMERD_TEST_SHORT=1: the long cases are skipped (sanitizer builds). */
bool suite_short(void);

/* Prints "SKIP: name: reason" on a line of its own. */
void skip(const char *name, const char *reason);
/* Skips a test: prints the reason and ends it as passed. */
#define SKIP(reason)                                                                                                   \
        do {                                                                                                           \
                skip(tcase_name(), (reason));                                                                          \
                return;                                                                                                \
        } while (0)

#endif
