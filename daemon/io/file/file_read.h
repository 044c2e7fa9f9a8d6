/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of files: all bytes of a range, however many a call returns, and whether they are cached.
 */
#pragma once

#include "daemon/base/util.h"
#include "daemon/io/object.h"

#include <sys/uio.h>

#define PREAD_PAGE UINT64_C(4096)

/* The destination of bytes, piece by piece, and how many are wanted: O_DIRECT may deliver a few more. */
struct pread_target {
        struct iovec iov[3];
        int n;
        uint64_t offset; /* in the file, of iov[0] */
        uint64_t want;   /* bytes from there */
};

/* Whole pages that contain these bytes; the first one goes to `to`. */
static inline struct pread_target pread_pages(void *to, uint64_t offset, uint64_t len)
{
        uint64_t head = offset % PREAD_PAGE;
        return (struct pread_target){
                .iov = {{to, round_up(head + len, PREAD_PAGE)}}, .n = 1, .offset = offset - head, .want = head + len};
}

/* All of it is in the page cache, or has to be read through it. By cachestat(2) (Linux 6.5), or if the kernel refuses
 * that, as it does unless this process owns the file or may write to it, by two probes of 4 KiB, which start no
 * read-ahead on a descriptor with POSIX_FADV_RANDOM. On an overlay by mincore(2): the pages are those of a layer's
 * file, which a mapping shows and these calls do not. */
bool pread_cached(const struct object *object, uint64_t offset, uint64_t len);

/* All of the file is in the page cache; false also where cachestat(2) does not say. */
bool file_is_cached(const struct object *object);

/* Who waits for a read. A file system that answers EINTR or EAGAIN is asked again until `patience_ns` have passed
 * without a byte, or *stopped is true. */
struct pread_watch {
        uint64_t *moved_ns;  /* atomic; set whenever bytes have been moved; NULL: not desired */
        const bool *stopped; /* atomic; NULL: never */
        uint64_t patience_ns;
};
extern const struct pread_watch pread_unwatched; /* with a patience of 30 s */

/* Reads all desired bytes, by one of the object's descriptors. -1 without an error: the file system refuses O_DIRECT
 * for them after all. STREAMER_ECANCELED: stopped. */
int pread_target(const struct object *object, int fd, struct pread_target *t, const struct pread_watch *watch,
                 struct error *error);
