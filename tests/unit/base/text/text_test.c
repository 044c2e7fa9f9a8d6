/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files that are read whole.
 */
#include "daemon/base/text/text.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

static struct text text;
static struct error error;

/* Files of sysfs state a page as their size, and end before. */
TEST(a_file_that_ends_before_its_size_is_not_read)
{
        int fd = must(open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC));
        ck_assert_int_eq(text_read_fd(&text, fd, 1 << 20, "FILE", &error), STREAMER_EFAILED);
        ck_assert_str_eq(error.text, "became shorter while it was read (FILE)");
        ck_assert_ptr_null(text.data);
        close(fd);
}
