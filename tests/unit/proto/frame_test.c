/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: splitting a stream, growing and shrinking buffers, descriptors.
 */
#include "proto/frame.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

static struct frame_reader r;
static int pair[2];
static bool lost;

static void begin(void)
{
        frame_reader_init(&r);
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
}

static void add(const void *data, size_t n)
{
        const unsigned char *p = data;
        while (n > 0) {
                size_t room;
                void *space = frame_reader_space(&r, &room);
                ck_assert_ptr_nonnull(space);
                size_t now = n < room ? n : room;
                memcpy(space, p, now);
                frame_reader_added(&r, now);
                p += now;
                n -= now;
        }
}

static void add_header(size_t len)
{
        unsigned char header[FRAME_HEADER];
        frame_put_header(header, len);
        add(header, sizeof(header));
}

#define NEXT_IS(text)                                                                                                  \
        do {                                                                                                           \
                const void *next_data;                                                                                 \
                size_t next_len;                                                                                       \
                ck_assert_int_eq(frame_reader_next(&r, &next_data, &next_len), 1);                                     \
                ck_assert_uint_eq(next_len, strlen(text));                                                             \
                ck_assert_mem_eq(next_data, text, next_len);                                                           \
        } while (0)

static int next(void)
{
        const void *data;
        size_t len;
        return frame_reader_next(&r, &data, &len);
}

FIXTURE(.each = {begin, NULL});

TEST(the_header_is_big_endian)
{
        unsigned char header[FRAME_HEADER];
        frame_put_header(header, 0x00012345);
        ck_assert_mem_eq(header, "\x00\x01\x23\x45", 4);
}

TEST(the_next_frame_may_begin_in_the_same_bytes)
{
        add("\0\0\0\1a\0\0\0\1b\0\0", 12);
        NEXT_IS("a");
        ck_assert(!frame_reader_partial(&r));
        NEXT_IS("b");
        ck_assert_int_eq(next(), 0);
        ck_assert(frame_reader_partial(&r));
        add("\0\1c", 3);
        NEXT_IS("c");
}

TEST(the_largest_frame_passes_and_its_memory_is_freed)
{
        const void *data;
        size_t len;
        char *body = must_alloc(FRAME_MAX);
        add_header(FRAME_MAX);
        add(body, FRAME_MAX);
        ck_assert_int_eq(frame_reader_next(&r, &data, &len), 1);
        ck_assert_uint_eq(len, FRAME_MAX);
        ck_assert_int_eq(next(), 0);
        ck_assert_uint_eq(r.cap, 0);
}

TEST(a_full_buffer_has_no_space_until_its_frame_is_consumed)
{
        size_t room;
        char *body = must_alloc(FRAME_MAX);
        add_header(FRAME_MAX);
        add(body, FRAME_MAX);
        ck_assert_ptr_null(frame_reader_space(&r, &room));
        ck_assert_int_eq(next(), 1);
        ck_assert_ptr_nonnull(frame_reader_space(&r, &room));
}

TEST(space_for_a_whole_frame_is_made_only_for_a_trusted_sender)
{
        size_t room;
        add_header(FRAME_MAX);
        frame_reader_space(&r, &room);
        ck_assert_uint_lt(room, 2 * FRAME_FIRST_CAP);
        frame_reader_deinit(&r);
        r.ahead = true;
        frame_reader_space(&r, &room);
        ck_assert_uint_eq(room, FRAME_AHEAD_CAP);
        add_header(FRAME_MAX / 2);
        frame_reader_space(&r, &room);
        ck_assert_uint_eq(room, FRAME_MAX / 2);
        char *body = must_alloc(FRAME_MAX / 2);
        add(body, FRAME_MAX / 2);
        ck_assert_int_eq(next(), 1);
        ck_assert_int_eq(next(), 0);
        ck_assert_uint_eq(r.cap, 0);
        ck_assert(r.ahead);
        add_header(FRAME_MAX + 1); /* refused, without memory for it */
        frame_reader_space(&r, &room);
        ck_assert_uint_lt(room, 2 * FRAME_FIRST_CAP);
        ck_assert_int_eq(next(), -1);
}

/* ---- descriptors ---- */

TEST(descriptors_arrive_with_the_bytes_and_close_on_exec)
{
        char buf[8];
        int sent[3] = {pair[0], pair[1], STDERR_FILENO}, got[4];
        size_t n = 0;
        ck_assert_int_eq(frame_send_fds(pair[0], "frame", 5, sent, 3), 5);
        ck_assert_int_eq(frame_recv_fds(pair[1], buf, sizeof(buf), got, &n, 4, &lost), 5);
        ck_assert_mem_eq(buf, "frame", 5);
        ck_assert_uint_eq(n, 3);
        for (size_t i = 0; i < n; i++)
                ck_assert_int_ne(fcntl(got[i], F_GETFD) & FD_CLOEXEC, 0);
}

TEST(descriptors_are_appended_to_earlier_ones)
{
        char buf[8];
        int got[2] = {-7, -7};
        size_t n = 1;
        frame_send_fds(pair[0], "x", 1, pair, 1);
        frame_recv_fds(pair[1], buf, sizeof(buf), got, &n, 2, &lost);
        ck_assert_uint_eq(n, 2);
        ck_assert_int_eq(got[0], -7);
        ck_assert_int_ge(got[1], 0);
}

static int lowest_free(void)
{
        int fd = must(open("/dev/null", O_RDONLY));
        close(fd);
        return fd;
}

TEST(surplus_descriptors_are_closed_and_reported)
{
        char buf[8];
        int sent[2] = {pair[0], pair[1]}, got[1];
        size_t n = 0;
        frame_send_fds(pair[0], "x", 1, sent, 2);
        int before = lowest_free();
        ck_assert_int_eq(frame_recv_fds(pair[1], buf, sizeof(buf), got, &n, 1, &lost), 1);
        ck_assert(lost);
        ck_assert_uint_eq(n, 1);
        close(got[0]);
        ck_assert_int_eq(lowest_free(), before);
}

TEST(descriptors_that_the_process_may_not_have_are_reported)
{
        char buf[8];
        int sent[2] = {pair[0], pair[1]}, got[2];
        size_t n = 0;
        struct rlimit limit;
        frame_send_fds(pair[0], "x", 1, sent, 2);
        must(getrlimit(RLIMIT_NOFILE, &limit));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest_free(), limit.rlim_max}));
        ck_assert_int_eq(frame_recv_fds(pair[1], buf, sizeof(buf), got, &n, 2, &lost), 1);
        must(setrlimit(RLIMIT_NOFILE, &limit));
        ck_assert(lost);
        ck_assert_uint_eq(n, 0);
}

TEST(the_maximum_number_of_descriptors_passes)
{
        char buf[8];
        int sent[FRAME_FDS_MAX], got[FRAME_FDS_MAX];
        size_t n = 0;
        for (size_t i = 0; i < FRAME_FDS_MAX; i++)
                sent[i] = pair[0];
        ck_assert_int_eq(frame_send_fds(pair[0], "x", 1, sent, FRAME_FDS_MAX), 1);
        ck_assert_int_eq(frame_recv_fds(pair[1], buf, sizeof(buf), got, &n, FRAME_FDS_MAX, &lost), 1);
        ck_assert_uint_eq(n, FRAME_FDS_MAX);
        ck_assert_int_eq(frame_send_fds(pair[0], "x", 1, sent, FRAME_FDS_MAX + 1), -1);
        ck_assert_int_eq(errno, EINVAL);
}

TEST(the_end_of_the_stream_is_0_and_a_closed_other_end_an_error)
{
        char buf[8];
        int got[1], alone[2];
        size_t n = 0;
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, alone));
        close(alone[0]);
        ck_assert_int_eq(frame_recv_fds(alone[1], buf, sizeof(buf), got, &n, 1, &lost), 0);
        ck_assert_int_eq(frame_send_fds(alone[1], "x", 1, NULL, 0), -1);
        ck_assert_int_eq(errno, EPIPE);
}
