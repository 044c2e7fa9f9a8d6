/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of bytes becomes frames: the caller asks for space, receives into it, says how much came
 * and takes whole frames out until there is none. The buffer starts small, doubles as bytes arrive
 * and is given back once a long frame has been read, so that an idle connection holds nothing much.
 */
#include "proto/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define LAST_CAP (FRAME_HEADER + FRAME_MAX)

void frame_reader_init(struct frame_reader *r)
{
        *r = (struct frame_reader){.max = FRAME_MAX};
}

void frame_reader_deinit(struct frame_reader *r)
{
        free(r->buf);
        *r = (struct frame_reader){.max = r->max, .ahead = r->ahead};
}

static size_t get_header(const unsigned char *p)
{
        return (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
}

/* Bytes of the frame that has begun, as far as they are known. */
static size_t known_size(const struct frame_reader *r)
{
        if (!r->ahead || r->end - r->start < FRAME_HEADER)
                return 0;
        size_t body = get_header(r->buf + r->start);
        return body <= r->max ? FRAME_HEADER + body : 0;
}

static size_t first_cap(const struct frame_reader *r)
{
        return r->ahead ? FRAME_AHEAD_CAP : FRAME_FIRST_CAP;
}

static bool grow(struct frame_reader *r, size_t at_least)
{
        size_t cap = r->cap == 0 ? first_cap(r) : r->cap * 2;
        if (cap < at_least)
                cap = at_least;
        if (cap > LAST_CAP)
                cap = LAST_CAP;
        unsigned char *buf = realloc(r->buf, cap);
        if (!buf)
                return false;
        r->buf = buf;
        r->cap = cap;
        return true;
}

void *frame_reader_space(struct frame_reader *r, size_t *size)
{
        size_t known = known_size(r);
        if (r->start > 0) {
                memmove(r->buf, r->buf + r->start, r->end - r->start);
                r->end -= r->start;
                r->start = 0;
        }
        /* A buffer of LAST_CAP that is full holds a whole frame: the caller has not taken it. */
        if (r->end == r->cap && r->cap == LAST_CAP)
                return NULL;
        if ((r->end == r->cap || r->cap < known) && !grow(r, known))
                return NULL;
        *size = r->cap - r->end;
        return r->buf + r->end;
}

void frame_reader_added(struct frame_reader *r, size_t n)
{
        r->end += n;
}

static void release_if_drained(struct frame_reader *r)
{
        if (r->start != r->end)
                return;
        r->start = r->end = 0;
        if (r->cap > first_cap(r))
                frame_reader_deinit(r);
}

int frame_reader_next(struct frame_reader *r, const void **data, size_t *len)
{
        size_t have = r->end - r->start;
        if (have < FRAME_HEADER) {
                release_if_drained(r);
                return 0;
        }
        size_t body = get_header(r->buf + r->start);
        if (body == 0 || body > r->max) {
                *len = body;
                return -1;
        }
        if (have - FRAME_HEADER < body)
                return 0;
        *data = r->buf + r->start + FRAME_HEADER;
        *len = body;
        r->start += FRAME_HEADER + body;
        return 1;
}

bool frame_reader_whole(const struct frame_reader *r)
{
        return r->end > r->start && !frame_reader_partial(r);
}

bool frame_reader_partial(const struct frame_reader *r)
{
        size_t have = r->end - r->start;
        if (have < FRAME_HEADER)
                return have > 0;
        return have - FRAME_HEADER < get_header(r->buf + r->start);
}

void frame_put_header(unsigned char header[FRAME_HEADER], size_t len)
{
        header[0] = (unsigned char)(len >> 24);
        header[1] = (unsigned char)(len >> 16);
        header[2] = (unsigned char)(len >> 8);
        header[3] = (unsigned char)len;
}

/* Room for every descriptor that one message may carry, aligned as the CMSG macros want it. */
union control {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * FRAME_FDS_MAX)];
};

/* Keeps what fits and closes the rest; true if nothing was lost. */
static bool take_fds(const struct cmsghdr *c, int *fds, size_t *n_fds, size_t cap)
{
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        bool fit = true;
        for (size_t i = 0; i < n; i++) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                if (*n_fds < cap) {
                        fds[(*n_fds)++] = fd;
                } else {
                        close(fd);
                        fit = false;
                }
        }
        return fit;
}

ssize_t frame_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *n_fds, size_t cap, bool *lost)
{
        union control control;
        struct iovec iov = {.iov_base = buf, .iov_len = size};
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
        if (n < 0)
                return -1;

        bool whole = (msg.msg_flags & MSG_CTRUNC) == 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
                        whole = take_fds(c, fds, n_fds, cap) && whole;
        *lost = *lost || !whole;
        return n;
}

ssize_t frame_send_fds(int sock, const void *buf, size_t size, const int *fds, size_t n_fds)
{
        union control control;
        struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = size};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_fds > FRAME_FDS_MAX) {
                errno = EINVAL;
                return -1;
        }
        if (n_fds > 0) {
                memset(&control, 0, sizeof(control));
                msg.msg_control = &control;
                msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
                struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
                memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
        }
        return sendmsg(sock, &msg, MSG_NOSIGNAL);
}
