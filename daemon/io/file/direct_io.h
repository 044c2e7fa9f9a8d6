/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading of files. Whether bytes are in the page cache is asked by cachestat(2), or where the kernel does
 * not answer that by two 4 KiB RWF_NOWAIT probes on a descriptor with POSIX_FADV_RANDOM (a larger probe, or
 * one without the advice, starts read-ahead of the whole file).
 */
#ifndef DAEMON_IO_FILE_DIRECT_IO_H
#define DAEMON_IO_FILE_DIRECT_IO_H

#include "daemon/base/error.h"
#include "daemon/io/object.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define PREAD_PAGE UINT64_C(4096)

/* The destination of bytes, piece by piece, and how many are wanted: O_DIRECT may deliver a few more. */
struct pread_target {
        struct iovec iov[3];
        int n;
        uint64_t offset; /* in the file, of iov[0] */
        uint64_t want;   /* bytes from there */
};

/* Of a reading thread. */
struct pread_clock {
        uint64_t moved_ns;             /* atomic: when a byte was last moved */
        uint64_t direct_ns, cached_ns; /* in reads of the current block: by O_DIRECT, and through the page cache */
};

/* All of it is in the page cache. */
bool pread_cached(const struct object *object, uint64_t offset, uint64_t len);
/* Reads all wanted bytes, by one of the object's descriptors. -1 without an error: the file system refuses O_DIRECT for
 * them after all. `clock` may be NULL. */
int pread_target(const struct object *object, int fd, struct pread_target *t, struct pread_clock *clock,
                 struct error *error);

/* Reads [offset, offset + len) to `to` for other uses (headers), cache first, then O_DIRECT where
 * `to` is congruent to offset modulo 4096 and has space up to the end of its last page. */
int pread_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to, struct error *error);

#endif
