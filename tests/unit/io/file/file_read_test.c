/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of a file: short ones, and those that a file system interrupts.
 */
#include "tests/lib/fuse_file.h"
#include "tests/lib/suite.h"

#include "daemon/io/file/file_object.h"
#include "daemon/io/file/file_read.h"

#include <fcntl.h>

static struct error error;

FIXTURE(.unavailable = fuse_file_unavailable);

static struct fuse_file fs;
static struct object object;

/* A file of 100,000 bytes that the file system shows in its own way, and its bytes. */
static char *open_odd(struct fuse_oddities odd)
{
        char *bytes = must_alloc(100000), *backing = suite_path("backing-%d", (int)getpid());
        for (int i = 0; i < 100000; i++)
                bytes[i] = (char)(i * 7 % 251);
        file_write(backing, bytes, 100000);
        fs.odd = odd;
        fuse_file_start(&fs, suite_path("fuse-%d", (int)getpid()), "m", backing);
        ck_assert_int_eq(object_init_consume_fd(&object, must(open(fs.path, O_RDONLY)), fs.path, &error), 0);
        return bytes;
}

static int read_all(int fd, void *to, const struct pread_watch *watch)
{
        struct pread_target t = pread_pages(to, 0, 100000);
        return pread_target(&object, fd, &t, watch, &error);
}

TEST(a_file_of_a_fuse_file_system_is_read_through_the_page_cache)
{
        open_odd((struct fuse_oddities){.read_max = 0});
        ck_assert(object.is_streamed);
        ck_assert_int_eq(object.direct, -1);
        ck_assert(pread_cached(&object, 0, 4096));
        fuse_file_stop(&fs);
}

/* Off the alignment of O_DIRECT, and of whole pages. */
static const uint32_t short_reads[] = {4097, 8192, 99999};

TEST(a_short_direct_read_is_not_the_end_of_the_file, EACH(short_reads))
{
        void *buffer;
        char *bytes = open_odd((struct fuse_oddities){.read_max = short_reads[_i]});
        object.direct = must(open(fs.path, O_RDONLY | O_DIRECT));
        object.direct_align = 4096;
        ck_assert_int_eq(posix_memalign(&buffer, 4096, 102400), 0);
        ck_assert_msg(read_all(object.direct, buffer, &pread_unwatched) == 0, "%s", error.text);
        ck_assert_mem_eq(buffer, bytes, 100000);
        fuse_file_stop(&fs);
}

static const int again[] = {EINTR, EAGAIN};

TEST(a_read_that_is_interrupted_again_and_again_fails_at_last, EACH(again))
{
        void *buffer;
        open_odd((struct fuse_oddities){.read_error = again[_i]});
        int fd = must(open(fs.path, O_RDONLY | O_DIRECT));
        ck_assert_int_eq(posix_memalign(&buffer, 4096, 102400), 0);
        const struct pread_watch impatient = {.patience_ns = 20000000};
        FAILS_WITH(error, read_all(fd, buffer, &impatient), STREAMER_EFAILED, "again and again for 0 s (");
        bool stopped = true;
        const struct pread_watch ended = {.patience_ns = UINT64_MAX, .stopped = &stopped};
        FAILS_WITH(error, read_all(fd, buffer, &ended), STREAMER_ECANCELED, "read at offset 0: stopped (");
        fuse_file_stop(&fs);
}
