/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be read: one regular file, open, with the version it had when it was opened.
 *
 * Two descriptors: `fd` reads through the page cache (POSIX_FADV_RANDOM, so that a 4 KiB probe
 * starts no read-ahead), `direct` past it (O_DIRECT; -1 where the file system refuses it).
 */
#ifndef DAEMON_IO_OBJECT_H
#define DAEMON_IO_OBJECT_H

#include "daemon/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct object_version {
        uint64_t dev, ino, size;
        uint64_t mtime_ns, ctime_ns;
};

struct object {
        char *path; /* for messages */
        int fd, direct;
        uint32_t direct_align; /* of offset, length and memory; at most 4096 where direct >= 0 */
        struct object_version version;
        unsigned char sha256[32]; /* published digest, where has_sha256 */
        bool has_sha256;
};

/* Takes over fd, an open regular file (refuses anything else), opens its O_DIRECT twin through
 * /proc/self/fd, asks alignment by STATX_DIOALIGN (512..4096; 4096 where the kernel does not say).
 * On failure fd is closed. `path` is copied. */
int object_init_consume_fd(struct object *object, int fd, const char *path, struct error *error);
void object_deinit(struct object *object); /* accepts a zeroed object */

/* STREAMER_EFAILED if the file is not what it was when opened (which field changed). */
int object_check_version(const struct object *object, struct error *error);

/* ---- versions of files that are not objects ---- */

/* Refuses what is not a regular file. */
int object_version_read(int fd, const char *path, struct object_version *version, struct error *error);
int object_version_check(int fd, const char *path, const struct object_version *opened, struct error *error);
bool object_version_equal(const struct object_version *a, const struct object_version *b);
const char *object_kind(mode_t mode); /* "a FIFO" */

#endif
