/* SPDX-License-Identifier: Apache-2.0
 *
 * Log formats: the choice of `auto`, the journal with its fields, JSON.
 */
#include "tests/unit/log_fixture.h"

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

/* ---- the choice of `auto` ---- */

/* Standard error claims to be the journal's stream, and is. */
static void claim_journal(void)
{
        struct stat st;
        must(fstat(STDERR_FILENO, &st));
        setenv("JOURNAL_STREAM", format_text("%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino), 1);
}

static const struct row {
        const char *what, *variable, *value; /* NULL: the process's own */
        bool claims;
        struct log_output output; /* whose format is `auto` */
        const char *line;         /* its end, or all of it where it has a prefix */
} rows[] = {
        {"started by the manager", "SYSTEMD_EXEC_PID", NULL, false, {0}, "<4>a\n"},
        {"the variable is inherited", "SYSTEMD_EXEC_PID", "1", false, {0}, "Z warn: a\n"},
        {"another's stream", "JOURNAL_STREAM", "1:1", false, {0}, "Z warn: a\n"},
        {"standard error is configured", NULL, NULL, true, {.to_stderr = true, .journal = "/"}, "<4>a\n"},
        {"the journal has no socket", NULL, NULL, true, {.journal = "/nonexistent/socket"}, "<4>a\n"},
};
static const struct row *row;

static void log_one(void)
{
        if (row->claims)
                claim_journal();
        log_set_output(&row->output);
        log_warn("a");
}

TEST(a_process_of_the_manager_or_the_journal_writes_prefixes, EACH(rows))
{
        row = &rows[_i];
        if (row->variable != NULL)
                setenv(row->variable, row->value ?: format_text("%d", (int)getpid()), 1);
        const char *text = suite_stderr(log_one), *at = strstr(text, row->line);
        ck_assert_msg(at != NULL && (at == text || row->line[0] != '<'), "%s: %s", row->what, text);
}

/* ---- the journal ---- */

static char sent[2 * LOG_LINE_MAX];
static int journal_result;

/* In place of libsystemd's: the fields of the last message, one a line. */
int sd_journal_sendv(const struct iovec *fields, int n)
{
        size_t len = 0;
        for (int i = 0; i < n; i++)
                len += (size_t)snprintf(sent + len, sizeof(sent) - len, "%.*s\n", (int)fields[i].iov_len,
                                        (const char *)fields[i].iov_base);
        return journal_result;
}

static void log_to_journal(void)
{
        claim_journal();
        log_set_level(LOG_LEVEL_INFO);
        log_set_output(&(struct log_output){.format = LOG_FORMAT_AUTO, .journal = "/"});
        log_start();
        log_event(
                LOG_LEVEL_WARN, LOG_MODEL_FAILED,
                LOG_FIELDS(LOG_TEXT("model", "a\nPRIORITY=0"), LOG_NUMBER("generation", 7), LOG_TEXT("code", "failed")),
                "it %s", "failed");
        log_stop();
}

TEST(the_journal_gets_fields)
{
        ck_assert_str_eq(suite_stderr(log_to_journal), "");
        ck_assert_str_eq(sent, "MESSAGE=it failed\nPRIORITY=4\nSYSLOG_IDENTIFIER=streamerd\n"
                               "MESSAGE_ID=623544edab8e4812a6fe71f8ef889b4e\n"
                               "MODEL=a\\x0aPRIORITY=0\nGENERATION=7\nCODE=failed\n");
}

TEST(what_the_journal_refuses_is_counted_and_reported)
{
        journal_result = -EPERM;
        ck_assert_str_eq(suite_stderr(log_to_journal), "");
        ck_assert_uint_eq(log_lost(), 1);
        journal_result = 0;
        log_to_journal();
        ck_assert_uint_eq(log_lost(), 1);
        ck_assert_ptr_nonnull(strstr(sent, "MESSAGE=it failed\n"));
}

/* ---- JSON ---- */

static void log_json(void)
{
        set_output(LOG_FORMAT_JSON);
        log_event(
                LOG_LEVEL_INFO, LOG_MODEL_READY,
                LOG_FIELDS(LOG_TEXT("model", "a \"b\" \\ \x01 \xc3\xa9"), LOG_NUMBER("generation", UINT64_C(1) << 53)),
                "\"quoted\" \\ \t %s", "\xff");
}

TEST(a_json_line_is_one_object_with_its_fields)
{
        char *text = suite_stderr(log_json);
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
}

/* ---- long texts ---- */

static size_t longest; /* of the journal's messages */

/* Texts of quotes, backslashes, escapes and wide characters, of every length up to far too long. */
static void log_long_texts(void)
{
        static const char *const units[] = {"x", "\"", "\\", "\xf0\x9f\x98\x80", "\x01"};
        char *text = must_alloc(20000);
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
                text[0] = '\0';
                for (size_t n = 0; n < 3000; n += 37) {
                        for (size_t i = 0; i < 37; i++)
                                strcat(text, units[u]);
                        log_event(LOG_LEVEL_INFO, LOG_MODEL_READY,
                                  LOG_FIELDS(LOG_TEXT("model", text), LOG_TEXT("device", text), LOG_TEXT("code", text),
                                             LOG_NUMBER("lease", INT64_MAX)),
                                  "%zu %zu %s", u, n, text);
                        longest = strlen(sent) + 1 > longest ? strlen(sent) + 1 : longest;
                }
        }
}

static void log_long_json(void)
{
        set_output(LOG_FORMAT_JSON);
        log_long_texts();
}

static void log_long_journal(void)
{
        log_set_output(&(struct log_output){.format = LOG_FORMAT_JOURNAL, .journal = "/"});
        log_long_texts();
}

TEST(a_line_is_whole_and_bounded_whatever_its_texts)
{
        char *text = suite_stderr(log_long_json), *save = NULL;
        int n = 0;
        for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save), n++) {
                ck_assert_uint_lt(strlen(line), LOG_LINE_MAX);
                ck_assert_msg(json_loads(line, JSON_REJECT_DUPLICATES, NULL) != NULL, "%s", line);
        }
        ck_assert_int_eq(n, 5 * 82);
        suite_stderr(log_long_journal);
        ck_assert_uint_gt(longest, 3000);
        ck_assert_uint_le(longest, LOG_LINE_MAX);
}
