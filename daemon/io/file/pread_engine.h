/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for files: a thread takes a block and fills it by pread.
 *
 * Each block asks the page cache first (direct_io.h). If it is there it is read buffered, in pieces
 * small enough to be hashed while they are in the CPU's cache; else with O_DIRECT, so that a cold
 * load leaves no page behind.
 *
 * A block in place is read by one preadv: whole pages are read to their place, the partial pages at
 * its edges through the thread's bounce pages, so that no byte of a neighbour is touched.
 */
#ifndef DAEMON_IO_FILE_PREAD_ENGINE_H
#define DAEMON_IO_FILE_PREAD_ENGINE_H

#include "daemon/io/reader/engine.h"

extern const struct engine_ops pread_engine_ops;

#endif
