/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: its forms, where it goes, what is said again, and that nobody waits for it.
 */
#include "tests/lib/suite.h"

#include "daemon/base/log.h"
#include "daemon/base/log_line.h"

#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- standard error, as a file ---- */

/* What is written to standard error while say() runs. */
static char *captured(void (*say)(void))
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

static void set_output(enum log_format format)
{
        log_init(LOG_LEVEL_DEBUG);
        log_set_output(&(struct log_output){.format = format});
}

static void say_each_level(void)
{
        log_init(LOG_LEVEL_WARN);
        log_error("one %d", 1);
        log_warn("two");
        log_info("three");
        log_debug("four");
}

START_TEST(a_line_has_time_level_and_text)
{
        char *text = captured(say_each_level), level[8], message[16];
        int y, mo, d, h, mi, s, ms;
        ck_assert_int_eq(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %7[^:]: %15[^\n]", &y, &mo, &d, &h, &mi, &s, &ms,
                                level, message),
                         9);
        ck_assert_str_eq(level, "error");
        ck_assert_str_eq(message, "one 1");
}
END_TEST

START_TEST(what_is_below_the_level_is_not_written)
{
        char *text = captured(say_each_level);
        ck_assert_ptr_nonnull(strstr(text, " warn: two\n"));
        ck_assert_ptr_null(strstr(text, "three"));
        ck_assert_ptr_null(strstr(text, "four"));
}
END_TEST

static void say_two_lines(void)
{
        log_init(LOG_LEVEL_INFO);
        log_info("a name\nerror: forged");
}

START_TEST(a_name_cannot_forge_a_line)
{
        char *text = captured(say_two_lines);
        ck_assert_ptr_nonnull(strstr(text, "a name\\x0aerror: forged\n"));
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}
END_TEST

static void say_with_prefix(void)
{
        set_output(LOG_FORMAT_PREFIX);
        log_error("a");
        log_warn("b");
        log_info("c");
        log_debug("d");
}

START_TEST(a_prefix_is_the_priority_of_syslog)
{
        ck_assert_str_eq(captured(say_with_prefix), "<3>a\n<4>b\n<6>c\n<7>d\n");
}
END_TEST

/* ---- what AUTO takes ---- */

static void say_one(void)
{
        log_init(LOG_LEVEL_INFO);
        log_info("a");
}

START_TEST(a_process_that_the_manager_started_writes_prefixes)
{
        char *pid = format_text("%d", (int)getpid());
        setenv("SYSTEMD_EXEC_PID", pid, 1);
        free(pid);
        ck_assert_str_eq(captured(say_one), "<6>a\n");
}
END_TEST

START_TEST(a_process_that_inherited_the_managers_variable_does_not)
{
        setenv("SYSTEMD_EXEC_PID", "1", 1);
        ck_assert_ptr_nonnull(strstr(captured(say_one), "Z info: a\n"));
}
END_TEST

START_TEST(an_inherited_journal_variable_is_not_believed)
{
        setenv("JOURNAL_STREAM", "1:1", 1);
        ck_assert_ptr_nonnull(strstr(captured(say_one), "Z info: a\n"));
}
END_TEST

/* Standard error claims to be the journal's stream, and is. */
static void claim_journal(void)
{
        struct stat st;
        must(fstat(STDERR_FILENO, &st));
        char *name = format_text("%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        setenv("JOURNAL_STREAM", name, 1);
        free(name);
}

static void say_to_stderr_of_journal(void)
{
        claim_journal();
        log_set_output(&(struct log_output){.format = LOG_FORMAT_AUTO, .to_stderr = true});
        log_warn("a");
}

START_TEST(the_journals_stream_gets_prefixes_where_standard_error_is_wished)
{
        ck_assert_str_eq(captured(say_to_stderr_of_journal), "<4>a\n");
}
END_TEST

static void say_to_absent_journal(void)
{
        claim_journal();
        log_set_output(&(struct log_output){.format = LOG_FORMAT_AUTO, .journal = suite_path("no-journal")});
        log_warn("a");
}

START_TEST(without_its_socket_the_journal_is_reached_by_its_stream)
{
        ck_assert_str_eq(captured(say_to_absent_journal), "<4>a\n");
}
END_TEST

/* ---- the journal ---- */

static const char *journal_path(void)
{
        static char path[108];
        snprintf(path, sizeof(path), "%s", suite_path("journal-%d", (int)getpid()));
        return path;
}

static int journal_listen(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        int fd = must(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        must(bind(fd, (struct sockaddr *)&address, sizeof(address)));
        return fd;
}

static const char *datagram(int fd)
{
        static char text[LOG_LINE_MAX + 1];
        text[must(recv(fd, text, sizeof(text) - 1, 0))] = '\0';
        return text;
}

static int journal;

static void say_to_journal(void)
{
        claim_journal();
        log_init(LOG_LEVEL_INFO);
        log_set_output(&(struct log_output){.format = LOG_FORMAT_AUTO, .journal = journal_path()});
        log_event(
                LOG_LEVEL_WARN, LOG_MODEL_FAILED,
                LOG_FIELDS(LOG_TEXT("model", "a\nPRIORITY=0"), LOG_NUMBER("generation", 7), LOG_TEXT("code", "failed")),
                "it %s", "failed");
}

START_TEST(the_journal_gets_fields)
{
        journal = journal_listen(journal_path());
        ck_assert_str_eq(captured(say_to_journal), "");
        ck_assert_str_eq(datagram(journal), "MESSAGE=it failed\nPRIORITY=4\nSYSLOG_IDENTIFIER=streamerd\n"
                                            "MESSAGE_ID=623544edab8e4812a6fe71f8ef889b4e\n"
                                            "MODEL=a\\x0aPRIORITY=0\nGENERATION=7\nCODE=failed\n");
}
END_TEST

static void say_much_to_journal(void)
{
        log_set_output(&(struct log_output){.format = LOG_FORMAT_JOURNAL, .journal = journal_path()});
        for (int i = 0; i < 5000; i++)
                log_warn("line %d", i);
}

START_TEST(a_journal_that_stands_still_loses_lines_and_is_told_so)
{
        journal = journal_listen(journal_path());
        ck_assert_str_eq(captured(say_much_to_journal), "");
        ck_assert_uint_gt(log_lost(), 0);
        ck_assert_ptr_nonnull(strstr(datagram(journal), "MESSAGE=line 0\n"));
        datagram(journal);
        uint64_t lost = log_lost();
        log_warn("after");
        char *want = format_text("MESSAGE=log: %ju lines were lost: nobody took them\n", (uintmax_t)lost);
        bool told = false, after = false;
        for (char data[LOG_LINE_MAX + 1]; !after;) {
                ssize_t n = must(recv(journal, data, sizeof(data) - 1, 0));
                data[n] = '\0';
                told |= strncmp(data, want, strlen(want)) == 0;
                after = strncmp(data, "MESSAGE=after\n", 14) == 0;
        }
        ck_assert_msg(told, "%s", want);
        free(want);
}
END_TEST

/* ---- nobody waits ---- */

START_TEST(a_pipe_that_nobody_reads_loses_lines_and_is_told_so)
{
        int pipe_fds[2], saved = must(dup(STDERR_FILENO));
        must(pipe2(pipe_fds, O_CLOEXEC));
        must(dup2(pipe_fds[1], STDERR_FILENO));
        log_init(LOG_LEVEL_INFO);
        for (int i = 0; i < 5000; i++)
                log_info("line %d", i);
        uint64_t lost = log_lost();
        /* The open file is shared with others, who did not ask for this. */
        ck_assert_int_eq(must(fcntl(STDERR_FILENO, F_GETFL)) & O_NONBLOCK, 0);
        ck_assert_uint_gt(lost, 0);
        char *text = must_alloc(1 << 20);
        size_t len = (size_t)must(read(pipe_fds[0], text, 1 << 20));
        ck_assert_int_eq(text[len - 1], '\n'); /* lines are whole */
        log_info("after");
        must(dup2(saved, STDERR_FILENO));
        text[must(read(pipe_fds[0], text, 1 << 20))] = '\0';
        char *want = format_text(" warn: log: %ju lines were lost: nobody took them\n", (uintmax_t)lost);
        ck_assert_ptr_nonnull(strstr(text, want));
        ck_assert_ptr_nonnull(strstr(text, " info: after\n"));
        free(want);
        free(text);
}
END_TEST

static void say_to_socket(void)
{
        for (int i = 0; i < 5000; i++)
                log_info("line %d", i);
}

START_TEST(a_socket_that_nobody_reads_loses_lines)
{
        int pair[2], saved = must(dup(STDERR_FILENO));
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        must(dup2(pair[1], STDERR_FILENO));
        log_init(LOG_LEVEL_INFO);
        say_to_socket();
        must(dup2(saved, STDERR_FILENO));
        ck_assert_uint_gt(log_lost(), 0);
}
END_TEST

/* ---- JSON ---- */

static void say_json(void)
{
        set_output(LOG_FORMAT_JSON);
        log_event(
                LOG_LEVEL_INFO, LOG_MODEL_READY,
                LOG_FIELDS(LOG_TEXT("model", "a \"b\" \\ \x01 \xc3\xa9"), LOG_NUMBER("generation", UINT64_C(1) << 53)),
                "\"quoted\" \\ \t %s", "\xff");
}

START_TEST(a_json_line_is_one_object_with_its_fields)
{
        char *text = captured(say_json);
        json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        const char *time, *level, *message, *id, *model;
        json_int_t generation;
        ck_assert_msg(o != NULL, "%s", text);
        ck_assert_int_eq(json_unpack(o, "{s:s, s:s, s:s, s:s, s:s, s:I !}", "time", &time, "level", &level, "message",
                                     &message, "message_id", &id, "model", &model, "generation", &generation),
                         0);
        ck_assert_str_eq(level, "info");
        ck_assert_str_eq(message, "\"quoted\" \\ \\x09 \\xff");
        ck_assert_str_eq(model, "a \"b\" \\ \\x01 \xc3\xa9");
        ck_assert_int_eq(generation, (json_int_t)1 << 53);
        ck_assert_str_eq(id, "f556871bc85f4a2cb3e2fc44114610b9");
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
        json_decref(o);
}
END_TEST

/* Texts of quotes, backslashes, escapes and wide characters, of every length up to far too long. */
START_TEST(a_line_is_whole_and_bounded_whatever_its_texts)
{
        static const char *const units[] = {"x", "\"", "\\", "\xf0\x9f\x98\x80", "\x01"};
        char *unit_text = must_alloc(20000), line[LOG_LINE_MAX + 1];
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
                unit_text[0] = '\0';
                for (size_t n = 0; n < 3000; n += 37) {
                        for (size_t i = 0; i < 37; i++)
                                strcat(unit_text, units[u]);
                        struct log_record r = {
                                .level = LOG_LEVEL_INFO,
                                .message = LOG_MODEL_READY,
                                .fields = LOG_FIELDS(LOG_TEXT("model", unit_text), LOG_TEXT("device", unit_text),
                                                     LOG_TEXT("code", unit_text), LOG_NUMBER("lease", INT64_MAX)),
                                .text = u == 4 || n * strlen(units[u]) > 1900 ? "text" : unit_text,
                        };
                        size_t len = log_line(line, LOG_FORMAT_JSON, &r);
                        ck_assert_uint_le(len, LOG_LINE_MAX);
                        json_t *o = json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL);
                        ck_assert_msg(o != NULL, "%zu of '%s': %.*s", n, units[u], (int)len, line);
                        json_decref(o);
                        ck_assert_uint_le(log_line(line, LOG_FORMAT_JOURNAL, &r), LOG_LINE_MAX);
                }
        }
        free(unit_text);
}
END_TEST

/* ---- said again ---- */

static void say_again(void)
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

START_TEST(a_message_said_again_is_counted)
{
        ck_assert_str_eq(captured(say_again), "<4>again\n<4>other\n<3>again\n<4>again (said 2 more times)\n<4>again\n");
}
END_TEST

static void say_many_between(void)
{
        set_output(LOG_FORMAT_PREFIX);
        log_warn("again");
        log_warn("again");
        for (int i = 0; i < 100; i++)
                log_info("line %d", i);
        log_warn("again");
}

START_TEST(what_is_remembered_is_bounded_and_no_count_is_lost)
{
        char *text = captured(say_many_between), *first = strstr(text, "<4>again\n");
        ck_assert_ptr_nonnull(strstr(text, "<4>again (said 1 more time)\n"));
        ck_assert_ptr_nonnull(first);
        ck_assert_ptr_nonnull(strstr(first + 1, "<4>again\n")); /* it was forgotten meanwhile */
}
END_TEST

/* ---- words, and the page ---- */

START_TEST(levels_and_formats_are_read_in_any_case)
{
        ck_assert_int_eq(log_level_parse("ERROR"), LOG_LEVEL_ERROR);
        ck_assert_int_eq(log_level_parse("warn"), LOG_LEVEL_WARN);
        ck_assert_int_eq(log_level_parse("Warning"), LOG_LEVEL_WARN);
        ck_assert_int_eq(log_level_parse("info"), LOG_LEVEL_INFO);
        ck_assert_int_eq(log_level_parse("debug"), LOG_LEVEL_DEBUG);
        ck_assert_int_eq(log_level_parse("loud"), -1);
        ck_assert_int_eq(log_level_parse(""), -1);
        ck_assert_int_eq(log_format_parse("JSON"), LOG_FORMAT_JSON);
        ck_assert_int_eq(log_format_parse("auto"), LOG_FORMAT_AUTO);
        ck_assert_int_eq(log_format_parse("xml"), -1);
}
END_TEST

START_TEST(the_page_lists_every_message_id)
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
                free(row);
        }
        free(page);
}
END_TEST

int main(void)
{
        unsetenv("JOURNAL_STREAM");
        unsetenv("SYSTEMD_EXEC_PID");
        suite_begin("log");
        TCase *lines = suite_group("lines", NULL, NULL, 10);
        tcase_add_test(lines, a_line_has_time_level_and_text);
        tcase_add_test(lines, what_is_below_the_level_is_not_written);
        tcase_add_test(lines, a_name_cannot_forge_a_line);
        tcase_add_test(lines, a_prefix_is_the_priority_of_syslog);
        tcase_add_test(lines, a_json_line_is_one_object_with_its_fields);
        tcase_add_test(lines, a_line_is_whole_and_bounded_whatever_its_texts);
        TCase *where = suite_group("where it goes", NULL, NULL, 10);
        tcase_add_test(where, a_process_that_the_manager_started_writes_prefixes);
        tcase_add_test(where, a_process_that_inherited_the_managers_variable_does_not);
        tcase_add_test(where, an_inherited_journal_variable_is_not_believed);
        tcase_add_test(where, the_journals_stream_gets_prefixes_where_standard_error_is_wished);
        tcase_add_test(where, without_its_socket_the_journal_is_reached_by_its_stream);
        tcase_add_test(where, the_journal_gets_fields);
        TCase *lost = suite_group("nobody waits", NULL, NULL, 10);
        tcase_add_test(lost, a_journal_that_stands_still_loses_lines_and_is_told_so);
        tcase_add_test(lost, a_pipe_that_nobody_reads_loses_lines_and_is_told_so);
        tcase_add_test(lost, a_socket_that_nobody_reads_loses_lines);
        TCase *again = suite_group("said again", NULL, NULL, 10);
        tcase_add_test(again, a_message_said_again_is_counted);
        tcase_add_test(again, what_is_remembered_is_bounded_and_no_count_is_lost);
        TCase *words = suite_group("words", NULL, NULL, 10);
        tcase_add_test(words, levels_and_formats_are_read_in_any_case);
        tcase_add_test(words, the_page_lists_every_message_id);
        return suite_run();
}
