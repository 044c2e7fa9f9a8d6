/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for files: a thread takes a block and fills it by pread.
 *
 * Each block asks the page cache first: by cachestat(2), or where the kernel does not answer that by
 * two 4 KiB RWF_NOWAIT probes on a descriptor with POSIX_FADV_RANDOM (a larger probe, or one without
 * the advice, starts read-ahead of the whole file). If it is there it is read buffered, in pieces
 * small enough to be hashed while they are in the CPU's cache; else with O_DIRECT, so that a cold
 * load leaves no page behind.
 *
 * A block in place is read by one preadv: whole pages go to where they belong, the partial pages at
 * its edges through the thread's bounce pages, so that no byte of a neighbour is touched.
 */
#ifndef DAEMON_IO_READER_PREAD_H
#define DAEMON_IO_READER_PREAD_H

#include "daemon/base/error.h"
#include "daemon/io/object.h"

#include <stdbool.h>
#include <stdint.h>

extern const struct engine_ops reader_pread_ops;

/* Reads [offset, offset + len) to `to` for other uses (headers), cache first, then O_DIRECT where
 * `to` is congruent to offset modulo 4096 and has room up to the end of its last page. */
int pread_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to, struct error *error);

#endif
