/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that register themselves, their program's folder, skipping by name.
 *
 *   FIXTURE(.all = {start_daemon, stop_daemon}, .each = {connect, disconnect});
 *
 *   TEST(a_file_is_loaded) { ... }
 *   TEST(an_invalid_size_is_refused, EACH(sizes)) { ... sizes[_i] ... }
 *
 * tests/unit/base/quota_test.c has the tests "quota.*" of the program tests/unit; main.c runs those that its arguments
 * select. The tests of a file run in the order of the file, each in a process of its own.
 */
#pragma once

#include "tests/lib/base.h"

#include <check.h>

/* Each assertion that holds sends its place to the parent, which names the last one after a crash. A loop of a million
 * assertions sends those of its body once. */
void suite_passed(const char *file, int line);
#define _mark_point(file, line) suite_passed(file, line)

/* ---- a test ---- */

struct suite_test {
        TTest test; /* name, function, file, line */
        int from, to;
        int signal, exit;
        bool slow;
};

/* A test with these options: `.to = n` and `.from = n`: one run for each _i from `from` to `to` - 1; EACH(table): one
 * for each row; `.signal`, `.exit`: the signal or exit status by which it has to end; `.slow = true`: omitted from the
 * short set. */
#define TEST(NAME, ...)                                                                                                \
        static void NAME(int);                                                                                         \
        __attribute__((constructor)) static void register_##NAME(void)                                                 \
        {                                                                                                              \
                static struct suite_test test;                                                                         \
                test = (struct suite_test){.test = {#NAME, NAME, __FILE__, __LINE__}, __VA_ARGS__};                    \
                suite_add_test(&test);                                                                                 \
        }                                                                                                              \
        static void NAME(int _i __attribute__((unused)))

#define EACH(table) .to = (int)(sizeof(table) / sizeof((table)[0]))

void suite_add_test(const struct suite_test *test);

/* ---- a fixture ---- */

struct suite_pair {
        void (*begin)(void), (*end)(void);
};

struct suite_fixture {
        const char *file;
        int line;
        void (*first)(void);     /* before the program's folder exists and any process is started */
        struct suite_pair all;   /* once, in the process of the file: what it starts is shared by the tests */
        struct suite_pair outer; /* in the process of each test, around `each` */
        struct suite_pair each;
        int timeout;                      /* seconds for each test; 0: 60 */
        const char *(*unavailable)(void); /* if it returns a reason, the tests are skipped */
};

#define SUITE_JOIN_(a, b) a##b
#define SUITE_JOIN(a, b) SUITE_JOIN_(a, b)

/* The fixture of the tests that follow in the file, up to the next FIXTURE. */
#define FIXTURE(...)                                                                                                   \
        __attribute__((constructor)) static void SUITE_JOIN(register_fixture_, __LINE__)(void)                         \
        {                                                                                                              \
                static struct suite_fixture fixture;                                                                   \
                fixture = (struct suite_fixture){.file = __FILE__, .line = __LINE__, __VA_ARGS__};                     \
                suite_add_fixture(&fixture);                                                                           \
        }                                                                                                              \
        struct suite_fixture

void suite_add_fixture(const struct suite_fixture *fixture);

/* BEFORE_ALL() { ... } runs once before all fixtures of the file, in the file's process. */
#define BEFORE_ALL()                                                                                                   \
        static void suite_before(void);                                                                                \
        FIXTURE(.all = {suite_before, NULL}, .timeout = -1);                                                           \
        static void suite_before(void)

/* The program's folder, for all its files; removed at the end. */
const char *suite_folder(void);
/* A path in the folder; never freed. */
char *suite_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes a text to a file of this name in the folder; returns its path. */
char *suite_file(const char *name, const char *text);
/* Returns the standard error output of say(). */
char *suite_stderr(void (*say)(void));

/* Called in the process of a failing test, before it ends: prints what explains the failure. */
extern void (*suite_on_failure)(void);
_Noreturn void suite_fail(const char *file, int line, const char *expression, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
#define _ck_assert_failed suite_fail

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

/* ---- failures of the code under test, which fill a struct error ---- */

/* The call returns this code, and the error's text has this part, or is this text. */
#define FAILS_WITH(error, call, code, part)                                                                            \
        do {                                                                                                           \
                ck_assert_int_eq((call), (code));                                                                      \
                ck_assert_msg(strstr((error).text, (part)) != NULL, "'%s' is not in: %s", (part), (error).text);       \
        } while (0)
#define FAILS_SAYING(error, call, code, says)                                                                          \
        do {                                                                                                           \
                ck_assert_int_eq((call), (code));                                                                      \
                ck_assert_str_eq((error).text, (says));                                                                \
        } while (0)
