/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files that are read whole.
 */
#include "daemon/base/text/text.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

static struct text text;
static struct error error;

static int read_text(const char *path, uint64_t max)
{
        int fd = must(open(path, O_RDONLY));
        int r = text_read_fd(&text, fd, max, path, &error);
        close(fd);
        return r;
}

TEST(a_file_is_read_whole_and_terminated, .to = 5)
{
        /* Sizes around a page, where the terminator needs one more. */
        static const size_t sizes[] = {0, 1, 4095, 4096, 4097};
        char *path = suite_path("text"), *data = must_alloc(8192);
        memset(data, 'x', 8192);
        file_write(path, data, sizes[_i]);
        ck_assert_int_eq(read_text(path, 4097), 0);
        ck_assert_uint_eq(text.size, sizes[_i]);
        ck_assert_mem_eq(text.data, data, text.size);
        ck_assert_int_eq(text.data[text.size], '\0');
        text_deinit(&text);
        ck_assert_ptr_null(text.data);
        text_deinit(&text);
}

TEST(a_file_over_its_limit_is_not_read)
{
        char *path = suite_path("large");
        file_write(path, "12345", 5);
        ck_assert_int_eq(read_text(path, 4), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "5 bytes, more than the 4 allowed"));
        ck_assert_ptr_null(text.data);
}

TEST(a_folder_is_no_text)
{
        ck_assert_int_eq(read_text(suite_folder(), 100), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
}

/* Files of sysfs state a page as their size, and end before. */
TEST(a_file_that_ends_before_its_size_is_not_read)
{
        ck_assert_int_eq(read_text("/sys/devices/system/cpu/online", 1 << 20), STREAMER_EFAILED);
        ck_assert_str_eq(error.text, "became shorter while it was read (/sys/devices/system/cpu/online)");
        ck_assert_ptr_null(text.data);
}
