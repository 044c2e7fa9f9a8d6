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
 * Every test runs in a process of its own. What the setup of a group starts lives in the program's
 * process, is shared by the group's tests, and ends with the program even where a test crashes.
 */
#ifndef TESTS_LIB_SUITE_H
#define TESTS_LIB_SUITE_H

#include "tests/lib/base.h"

#include <check.h>

/* Begins the program's one suite. What the caller has set for AWS, Hugging Face and proxies reaches none of its
 * tests, and none has credentials of AWS that it does not set. */
void suite_begin(const char *name);
/* A group of tests on one stage; either function may be NULL. `timeout` in seconds, for each test. */
TCase *suite_group(const char *name, void (*setup)(void), void (*teardown)(void), int timeout);
/* A test for each row of a table, which it finds by _i. */
#define LOOP(group, test, table) tcase_add_loop_test(group, test, 0, (int)(sizeof(table) / sizeof((table)[0])))
/* Runs all and removes the folder: the exit code of main(). */
int suite_run(void);

/* The program's folder, for everything that it writes; removed at the end. */
const char *suite_folder(void);
/* A path in it; never freed. */
char *suite_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A file of this name there, which holds the text: its path. */
char *suite_file(const char *name, const char *text);
/* What is written to standard error while say() runs. */
char *suite_stderr(void (*say)(void));

/* STREAMERD_TEST_SHORT=1: the long cases are left off (sanitizer builds). */
bool suite_short(void);

/* Prints "SKIP: name: reason" on a line of its own. */
void skip(const char *name, const char *reason);
/* Ends a test as passed, having said why it was not done. */
#define SKIP(reason)                                                                                                   \
        do {                                                                                                           \
                skip(tcase_name(), (reason));                                                                          \
                return;                                                                                                \
        } while (0)

#endif
