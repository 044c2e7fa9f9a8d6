/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of error codes and the page that documents it.
 */
#include "proto/codes.h"
#include "tests/lib/suite.h"

static const struct row {
        const char *wire, *name;
        int code, exit;
        const char *text;
} rows[] = {
#define X(wire, code, exit, text) {wire, #code, code, exit, text},
        CODES(X)
#undef X
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

TEST(a_code_survives_the_wire)
{
        for (size_t i = 0; i < N_ROWS; i++) {
                ck_assert_str_eq(code_wire(rows[i].code), rows[i].wire);
                ck_assert_int_eq(code_from_wire(rows[i].wire, strlen(rows[i].wire)), rows[i].code);
                ck_assert_int_eq(code_exit(rows[i].code), rows[i].exit);
        }
}

TEST(numbers_and_words_are_used_once)
{
        for (size_t i = 0; i < N_ROWS; i++) {
                ck_assert_int_eq(rows[i].code, -(int)i - 1);
                for (size_t k = 0; k < i; k++)
                        ck_assert_str_ne(rows[i].wire, rows[k].wire);
        }
}

TEST(an_unknown_word_or_number_reads_as_failed)
{
        ck_assert_int_eq(code_from_wire("no-such-code", 12), STREAMER_EFAILED);
        ck_assert_int_eq(code_from_wire("fail", 4), STREAMER_EFAILED);
        ck_assert_int_eq(code_from_wire("in-use ", 7), STREAMER_EFAILED);
        ck_assert_int_eq(code_from_wire("", 0), STREAMER_EFAILED);
        ck_assert_str_eq(code_wire(-999), "failed");
        ck_assert_int_eq(code_exit(-999), 1);
}

TEST(success_has_a_text_too)
{
        ck_assert_str_eq(code_text(0), "ok");
        ck_assert_int_eq(code_exit(0), 0);
        ck_assert_str_eq(streamer_strerror(STREAMER_EBUSY), "in use");
        ck_assert_str_eq(streamer_error_name(0), "ok");
        ck_assert_str_eq(streamer_error_name(STREAMER_EBUSY), "in-use");
        ck_assert_str_eq(streamer_error_name(-999), "failed");
}

TEST(the_page_of_errors_lists_every_row_and_no_other)
{
        size_t size, n = 0;
        char *page = file_read("docs/errors.md", &size);
        for (size_t i = 0; i < N_ROWS; i++) {
                char *line = format_text("| `%s` | `%s` | %d | %d | %s |\n", rows[i].wire, rows[i].name, rows[i].code,
                                         rows[i].exit, rows[i].text);
                ck_assert_msg(strstr(page, line) != NULL, "docs/errors.md lacks: %s", line);
        }
        for (const char *p = page; (p = strstr(p, "\n| `")); p++)
                n++;
        ck_assert_uint_eq(n, N_ROWS);
}
