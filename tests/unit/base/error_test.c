/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts, and reading small files.
 */
#include "tests/lib/suite.h"

#include "daemon/base/error.h"
#include "daemon/base/text/text.h"

#include <fcntl.h>

/* ---- error_set, error_errno ---- */

TEST(a_failure_stores_its_code_and_text)
{
        struct error error = {0};
        ck_assert_int_eq(error_set(&error, STREAMER_ENOENT, "%s: %d", "what", 7), STREAMER_ENOENT);
        ck_assert_int_eq(error.code, STREAMER_ENOENT);
        ck_assert_str_eq(error.text, "what: 7");
}

TEST(a_failure_is_stored_with_its_code)
{
        ck_assert_int_eq(error_set(NULL, STREAMER_EBUSY, "text"), STREAMER_EBUSY);
        ck_assert_int_eq(error_errno(NULL, STREAMER_EPERM, EACCES, "text"), STREAMER_EPERM);
}

TEST(a_failed_allocation_has_a_code_and_a_text)
{
        struct error error = {0};
        ck_assert_int_eq(error_no_memory(&error), STREAMER_ENOMEM);
        ck_assert_int_eq(error.code, STREAMER_ENOMEM);
        ck_assert_str_eq(error.text, "no memory");
}

TEST(a_text_may_be_formatted_from_the_one_it_replaces)
{
        struct error error = {0};
        error_set(&error, STREAMER_EFAILED, "inner");
        error_set(&error, STREAMER_EFAILED, "outer: %s", error.text);
        ck_assert_str_eq(error.text, "outer: inner");
}

TEST(the_systems_error_is_last)
{
        struct error error = {0};
        error_errno(&error, STREAMER_ENOENT, ENOENT, "open of %s", "x");
        ck_assert_str_eq(error.text, "open of x: No such file or directory");
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

TEST(text_that_just_fits_is_not_cut)
{
        char out[8];
        error_escape(out, sizeof(out), "1234567");
        ck_assert_str_eq(out, "1234567");
        error_escape(out, sizeof(out), "12345678");
        ck_assert_str_eq(out, "1234...");
}

TEST(truncation_does_not_split_a_character)
{
        char out[8];
        error_escape(out, sizeof(out), "123\xc3\xa9 and more");
        ck_assert_str_eq(out, "123...");
        error_escape(out, sizeof(out),
                     "1234567890"
                     "\xc3");
        ck_assert_str_eq(out, "1234...");
        error_escape(out, sizeof(out), "12\n345");
        ck_assert_str_eq(out, "12...");
}

/* ---- text_read_fd ---- */

static int read_text(const char *path, uint64_t max, struct text *text, struct error *error)
{
        int fd = must(open(path, O_RDONLY));
        int r = text_read_fd(text, fd, max, path, error);
        close(fd);
        return r;
}

TEST(a_file_is_read_whole_and_terminated, .to = 5)
{
        /* Sizes around a page, where the terminator needs one more. */
        static const size_t sizes[] = {0, 1, 4095, 4096, 4097};
        struct text text;
        struct error error;
        char *path = suite_path("text"), *data = must_alloc(8192);
        memset(data, 'x', 8192);
        file_write(path, data, sizes[_i]);
        ck_assert_int_eq(read_text(path, 4097, &text, &error), 0);
        ck_assert_uint_eq(text.size, sizes[_i]);
        ck_assert_mem_eq(text.data, data, text.size);
        ck_assert_int_eq(text.data[text.size], '\0');
        text_deinit(&text);
        ck_assert_ptr_null(text.data);
        text_deinit(&text);
}

TEST(a_file_over_its_limit_is_not_read)
{
        struct text text;
        struct error error;
        char *path = suite_path("large");
        file_write(path, "12345", 5);
        ck_assert_int_eq(read_text(path, 4, &text, &error), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "5 bytes, more than the 4 allowed"));
        ck_assert_ptr_null(text.data);
}

TEST(a_folder_is_no_text)
{
        struct text text;
        struct error error;
        ck_assert_int_eq(read_text(suite_folder(), 100, &text, &error), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
}
