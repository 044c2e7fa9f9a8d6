/* SPDX-License-Identifier: Apache-2.0
 *
 * An open file: which files are accepted, and which changes are detected.
 */
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include "daemon/io/file/file_object.h"
#include "daemon/io/object.h"

#include <fcntl.h>

static struct object object;
static struct error error;
static char *path;

/* A file of 8 KiB, opened. It is made old, so that a write changes its times whatever the clock's
 * grain. */
static void open_object(void)
{
        static const char zeros[8192];
        path = suite_path("file-%d", (int)getpid());
        file_write(path, zeros, sizeof(zeros));
        must(utimensat(AT_FDCWD, path, (struct timespec[]){{.tv_sec = 1000000}, {.tv_sec = 1000000}}, 0));
        file_uncache(path); /* one that is cached needs no direct twin */
        ck_assert_int_eq(object_init_consume_fd(&object, must(open(path, O_RDONLY)), path, &error), 0);
}

FIXTURE(.each = {open_object, NULL});

TEST(an_object_knows_its_version)
{
        struct stat st;
        must(stat(path, &st));
        ck_assert_uint_eq(object.version.dev, st.st_dev);
        ck_assert_uint_eq(object.version.ino, st.st_ino);
        ck_assert_uint_eq(object.version.size, 8192);
        ck_assert_uint_eq(object.version.mtime_ns, UINT64_C(1000000000000000));
        ck_assert_str_eq(object.path, path);
        ck_assert(!object.has_sha256);
}

TEST(the_direct_twin_is_the_same_file)
{
        struct stat st;
        if (object.direct < 0)
                SKIP("no O_DIRECT on the file system of the temporary folder");
        must(fstat(object.direct, &st));
        ck_assert_uint_eq(st.st_ino, object.version.ino);
        ck_assert_int_ne(must(fcntl(object.direct, F_GETFL)) & O_DIRECT, 0);
        ck_assert_int_eq(must(fcntl(object.fd, F_GETFL)) & O_DIRECT, 0);
        ck_assert_uint_ge(object.direct_align, 512);
        ck_assert_uint_le(object.direct_align, 4096);
        ck_assert_uint_eq(object.direct_align & (object.direct_align - 1), 0);
}

TEST(the_direct_twin_reads_at_its_alignment)
{
        void *buffer;
        if (object.direct < 0)
                SKIP("no O_DIRECT on the file system of the temporary folder");
        ck_assert_int_eq(posix_memalign(&buffer, object.direct_align, object.direct_align), 0);
        ck_assert_int_eq(pread(object.direct, buffer, object.direct_align, object.direct_align), object.direct_align);
}

TEST(both_descriptors_close_on_exec_and_with_the_object)
{
        int fd = object.fd, direct = object.direct;
        ck_assert(direct < 0 || must(fcntl(direct, F_GETFD)) == FD_CLOEXEC);
        object_deinit(&object);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
        ck_assert(direct < 0 || fcntl(direct, F_GETFD) == -1);
}

/* ---- refusals ---- */

static void assert_refused(int fd, const char *what)
{
        struct object refused;
        FAILS_WITH(error, object_init_consume_fd(&refused, fd, "/x", &error), STREAMER_EFAILED, what);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
        ck_assert_int_eq(errno, EBADF);
}

TEST(a_path_that_is_no_file_is_named_and_closed)
{
        int ends[2];
        assert_refused(must(open("/", O_RDONLY)), "a folder, not a regular file (/x)");
        assert_refused(must(open("/dev/null", O_RDONLY)), "a character device, not a regular file (/x)");
        must(pipe(ends));
        assert_refused(ends[0], "a FIFO, not a regular file (/x)");
}

/* ---- changes ---- */

static void assert_changed(const char *what)
{
        const struct object *one = &object;
        FAILS_WITH(error, object_check_versions(&one, 1, &error), STREAMER_EFAILED, what);
        ck_assert_str_eq(strrchr(error.text, '('), format_text("(%s)", path));
}

TEST(a_file_of_another_size_has_changed)
{
        must(truncate(path, 8193));
        assert_changed("its size was 8192 and is 8193");
        must(truncate(path, 0));
        assert_changed("its size was 8192 and is 0");
}

TEST(a_file_written_in_place_has_changed)
{
        int fd = must(open(path, O_WRONLY));
        must((int)pwrite(fd, "x", 1, 100));
        assert_changed("another mtime");
}

/* The writer put the old times back, as rsync and cp -p do: ctime cannot be set. */
TEST(a_file_with_reset_times_has_changed)
{
        must(utimensat(AT_FDCWD, path, (struct timespec[]){{.tv_sec = 1000000}, {.tv_sec = 1000000}}, 0));
        object.version.ctime_ns--;
        assert_changed("another ctime");
}

TEST(another_file_in_its_place_has_changed)
{
        object.version.ino++;
        assert_changed("another inode");
        object.version.ino--;
        object.version.dev++;
        assert_changed("another inode");
}
