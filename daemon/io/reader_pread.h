/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for files: a thread takes a block and fills it by pread.
 *
 * Each block asks the page cache first (pread_file.h). If it is there it is read buffered, in pieces
 * small enough to be hashed while they are in the CPU's cache; else with O_DIRECT, so that a cold
 * load leaves no page behind.
 *
 * A block in place is read by one preadv: whole pages go to where they belong, the partial pages at
 * its edges through the thread's bounce pages, so that no byte of a neighbour is touched.
 */
#ifndef DAEMON_IO_READER_PREAD_H
#define DAEMON_IO_READER_PREAD_H

#include "daemon/io/reader.h"

extern const struct engine_ops reader_pread_ops;

#endif
