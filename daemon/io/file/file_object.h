/* SPDX-License-Identifier: Apache-2.0
 *
 * Files as objects: opened twice, with the version they had then. And the engine that reads them (pread_engine.c).
 */
#pragma once

#include "daemon/base/util.h"
#include "daemon/io/object.h"

extern const struct object_ops object_file_ops;
extern const struct engine_ops pread_engine_ops;

/* Takes over fd, which must be a regular file, opens its second descriptor, and reads the alignment of O_DIRECT by
 * STATX_DIOALIGN (512..4096; 4096 if the kernel does not know it). On failure fd is closed. `path` is copied. */
int object_init_consume_fd(struct object *object, int fd, const char *path, struct error *error);

/* Of a file that is read in streams, one of n that are read together: opens it again for its other streams, with the
 * rights of the caller. As many as can be opened. */
void object_open_streams(struct object *object, size_t n_objects);
