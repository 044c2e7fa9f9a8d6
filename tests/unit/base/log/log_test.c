/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: its lines, repeated lines and the documented events.
 */
#include "tests/unit/log_fixture.h"

/* ---- lines ---- */

static void log_each_level(void)
{
        log_set_level(LOG_LEVEL_WARN);
        log_error("one %d", 1);
        log_warn("two");
        log_info("three");
        log_debug("four");
}

BEFORE_ALL()
{
        unsetenv("JOURNAL_STREAM");
        unsetenv("SYSTEMD_EXEC_PID");
}

TEST(a_line_has_time_level_and_text_if_its_level_is_written)
{
        char *text = suite_stderr(log_each_level), level[8], message[16];
        int y, mo, d, h, mi, s, ms;
        ck_assert_int_eq(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %7[^:]: %15[^\n]", &y, &mo, &d, &h, &mi, &s, &ms,
                                level, message),
                         9);
        ck_assert_str_eq(level, "error");
        ck_assert_str_eq(message, "one 1");
        ck_assert_ptr_nonnull(strstr(text, " warn: two\n"));
        ck_assert_ptr_null(strstr(text, "three"));
        ck_assert_ptr_null(strstr(text, "four"));
}

static void log_two_lines(void)
{
        log_set_level(LOG_LEVEL_INFO);
        log_info("a name\nerror: forged");
}

TEST(a_name_cannot_forge_a_line)
{
        char *text = suite_stderr(log_two_lines);
        ck_assert_ptr_nonnull(strstr(text, "a name\\x0aerror: forged\n"));
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}

static void log_with_prefix(void)
{
        set_output(LOG_FORMAT_PREFIX);
        log_error("a");
        log_warn("b");
        log_info("c");
        log_debug("d");
}

TEST(a_prefix_is_the_priority_of_syslog)
{
        ck_assert_str_eq(suite_stderr(log_with_prefix), "<3>a\n<4>b\n<6>c\n<7>d\n");
}

/* ---- repeated messages ---- */

static void log_repeated(void)
{
        set_output(LOG_FORMAT_PREFIX);
        log_warn("again");
        log_warn("other");
        log_warn("again");
        log_error("again");
        log_warn("again");
        log_flush();
        log_flush();
        log_warn("again");
}

TEST(a_repeated_message_is_counted)
{
        ck_assert_str_eq(suite_stderr(log_repeated),
                         "<4>again\n<4>other\n<3>again\n<4>again (repeated 2 times)\n<4>again\n");
}

static void log_many_between(void)
{
        set_output(LOG_FORMAT_PREFIX);
        log_warn("again");
        log_warn("again");
        for (int i = 0; i < 100; i++)
                log_info("line %d", i);
        log_warn("again");
}

TEST(the_table_of_repeated_messages_is_bounded_and_loses_no_count)
{
        char *text = suite_stderr(log_many_between), *first = strstr(text, "<4>again\n");
        ck_assert_ptr_nonnull(strstr(text, "<4>again (repeated 1 time)\n"));
        ck_assert_ptr_nonnull(first);
        ck_assert_ptr_nonnull(strstr(first + 1, "<4>again\n")); /* its count was dropped */
}

/* ---- the page ---- */

TEST(the_page_lists_every_message_id)
{
        static const char *const rows[][3] = {
#define X(name, id, what) {#name, id, what},
                LOG_MESSAGES(X)
#undef X
        };
        char *page = file_read("docs/logging.md", NULL);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
                ck_assert_uint_eq(strlen(rows[i][1]), 32);
                ck_assert_uint_eq(strspn(rows[i][1], "0123456789abcdef"), 32);
                for (size_t k = 0; k < i; k++)
                        ck_assert_str_ne(rows[i][1], rows[k][1]);
                char *row = format_text("| `%s` | %s |\n", rows[i][1], rows[i][2]);
                ck_assert_msg(strstr(page, row) != NULL, "docs/logging.md has no row %s", row);
        }
}
