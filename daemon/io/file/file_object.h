/* SPDX-License-Identifier: Apache-2.0
 *
 * Files as objects: opened twice, with the version they had then.
 */
#ifndef DAEMON_IO_FILE_FILE_OBJECT_H
#define DAEMON_IO_FILE_FILE_OBJECT_H

#include "daemon/io/object.h"

extern const struct object_ops object_file_ops;

/* Takes over fd, an open regular file (refuses anything else), opens its O_DIRECT twin through
 * /proc/self/fd, asks alignment by STATX_DIOALIGN (512..4096; 4096 where the kernel does not say).
 * On failure fd is closed. `path` is copied. */
int object_init_consume_fd(struct object *object, int fd, const char *path, struct error *error);

/* Refuses what is not a regular file. */
int object_version_read(int fd, const char *path, struct object_version *version, struct error *error);
int object_version_check(int fd, const char *path, const struct object_version *opened, struct error *error);
bool object_version_equal(const struct object_version *a, const struct object_version *b);
const char *object_kind(mode_t mode); /* "a FIFO" */

#endif
