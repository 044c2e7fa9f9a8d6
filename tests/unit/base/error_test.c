/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts.
 */
#include "tests/lib/suite.h"

#include "daemon/base/error.h"

#include <errno.h>
#include <sys/resource.h>

/* ---- error_set, error_errno ---- */

TEST(a_failure_stores_its_code_and_text)
{
        struct error error = {0};
        ck_assert_int_eq(error_set(&error, STREAMER_ENOENT, "inner"), STREAMER_ENOENT);
        ck_assert_int_eq(error.code, STREAMER_ENOENT);
        error_set(&error, STREAMER_EFAILED, "outer: %s", error.text);
        ck_assert_str_eq(error.text, "outer: inner");
        FAILS_SAYING(error, error_errno(&error, STREAMER_EPERM, ENOENT, "open of %s", "x"), STREAMER_EPERM,
                     "open of x: No such file or directory");
        FAILS_SAYING(error, error_no_memory(&error), STREAMER_ENOMEM, "no memory");
        ck_assert_int_eq(error_set(NULL, STREAMER_EBUSY, "text"), STREAMER_EBUSY);
}

TEST(a_limit_of_descriptors_is_a_limit_whose_value_is_named)
{
        struct error error = {0};
        struct rlimit files;
        must(getrlimit(RLIMIT_NOFILE, &files));
        char *text =
                format_text("table of 8 bytes: Too many open files: the daemon may open %llu (ulimit -n, LimitNOFILE=)",
                            (unsigned long long)files.rlim_cur);
        FAILS_SAYING(error, error_errno(&error, STREAMER_ENOMEM, EMFILE, "table of %d bytes", 8), STREAMER_ELIMIT,
                     text);
        FAILS_SAYING(error, error_errno(&error, STREAMER_EFAILED, ENOMEM, "open of %s", "x"), STREAMER_ENOMEM,
                     "open of x: Cannot allocate memory");
        ck_assert(error_is_lack(STREAMER_ENOMEM) && error_is_lack(STREAMER_ELIMIT) && !error_is_lack(STREAMER_EFAILED));
        FAILS_SAYING(error, error_errno(&error, STREAMER_ENOMEM, ENFILE, "table"), STREAMER_ELIMIT,
                     "table: Too many open files in system");
}

TEST(a_long_text_is_cut_with_dots)
{
        struct error error = {0};
        char *path = must_alloc(5000);
        memset(path, 'x', 4999);
        error_set(&error, STREAMER_EFAILED, "%s", path);
        ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
        ck_assert_str_eq(error.text + sizeof(error.text) - 4, "...");
}

/* ---- error_escape ---- */

static const struct {
        const char *in, *out;
} escapes[] = {
        {"", ""},
        {"plain /path with spaces \\ and 'quotes'", "plain /path with spaces \\ and 'quotes'"},
        {"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"},
        {"a\nb\tc\x1b[2Jd\x7f", "a\\x0ab\\x09c\\x1b[2Jd\\x7f"},
        {"c1 \xc2\x9b!", "c1 \\xc2\\x9b!"},
        {"no-break \xc2\xa0 space", "no-break \xc2\xa0 space"},
        {"line \xe2\x80\xa8 separator", "line \\xe2\\x80\\xa8 separator"},
        {"turned \xe2\x80\xae and \xe2\x81\xa6", "turned \\xe2\\x80\\xae and \\xe2\\x81\\xa6"},
        {"bad \xff \x80 \xc3", "bad \\xff \\x80 \\xc3"},
        {"overlong \xc0\xaf", "overlong \\xc0\\xaf"},
        {"surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80"},
        {"cut \xe4\xb8", "cut \\xe4\\xb8"},
};

TEST(text_becomes_one_printable_line, EACH(escapes))
{
        char out[200];
        error_escape(out, sizeof(out), escapes[_i].in);
        ck_assert_str_eq(out, escapes[_i].out);
}

/* The text, and what 8 bytes hold of it. */
static const char *const cut[][2] = {
        {"1234567", "1234567"},        {"12345678", "1234..."}, {"123\xc3\xa9 and more", "123..."},
        {"1234567890\xc3", "1234..."}, {"12\n345", "12..."},
};

TEST(a_text_is_cut_between_characters, EACH(cut))
{
        char out[8];
        error_escape(out, sizeof(out), cut[_i][0]);
        ck_assert_str_eq(out, cut[_i][1]);
}
