/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: a 4-byte big-endian length, then that many bytes (one msgpack map). A length of 0 or over
 * FRAME_MAX ends the connection. The buffer grows with the bytes that have arrived, not with the
 * length that a header claims, unless its owner trusts the sender with so much memory.
 *
 * File descriptors travel by SCM_RIGHTS with the first byte of their frame. frame_recv_fds() is the
 * client's side; the daemon reads with plain recv(), so that descriptors sent to it are dropped by
 * the kernel.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FRAME_MAX (1u << 20)
#define FRAME_HEADER 4u
#define FRAME_FDS_MAX 253 /* SCM_MAX_FD of Linux */

#define FRAME_FIRST_CAP 4096u /* the buffer of a reader that waits for short frames */
#define FRAME_AHEAD_CAP 1024u /* the same of one that makes room for a frame at once */

/* Cuts a stream of bytes into frames. */
struct frame_reader {
        unsigned char *buf;
        size_t start, end, cap; /* unread bytes are buf[start..end) */
        size_t max;             /* of a frame's body; FRAME_MAX, or what its owner has set */
        bool ahead;             /* set by its owner: makes room for a whole frame once its length is known */
};
void frame_reader_init(struct frame_reader *r);
void frame_reader_deinit(struct frame_reader *r);

/* Room for at least one more byte: *space and its size; NULL on ENOMEM. Then call _added(). */
void *frame_reader_space(struct frame_reader *r, size_t *size);
void frame_reader_added(struct frame_reader *r, size_t n);

/* 1: *data, *len is the next frame's body, valid until the next _space() or _next(); 0: more bytes
 * are needed; -1: the length is 0 or over `max` (*len holds it). */
int frame_reader_next(struct frame_reader *r, const void **data, size_t *len);

/* The next frame is there. */
bool frame_reader_whole(const struct frame_reader *r);

/* A frame has begun and is not whole. */
bool frame_reader_partial(const struct frame_reader *r);

void frame_put_header(unsigned char header[FRAME_HEADER], size_t len);

/* One recvmsg: bytes into buf, descriptors (O_CLOEXEC) appended to fds[*n_fds..cap). Returns bytes,
 * 0 at the end of the stream, or -1 with errno. *lost is set if descriptors were dropped: by the kernel,
 * because this process may open no more files, or here, because fds has no room. */
ssize_t frame_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *n_fds, size_t cap, bool *lost);

/* One sendmsg of iov-like pieces with descriptors attached to its first byte (n_fds may be 0).
 * Returns bytes sent or -1 with errno. MSG_NOSIGNAL. */
ssize_t frame_send_fds(int sock, const void *buf, size_t size, const int *fds, size_t n_fds);
