/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the reader alone:
 *
 *   reader.c    jobs, their targets and their end; threads
 *   schedule.c  whose block is next: tickets and runs
 *   ring_placement.c  NUMA placement of slots and threads
 */
#ifndef DAEMON_IO_READER_READER_PRIVATE_H
#define DAEMON_IO_READER_READER_PRIVATE_H

#include "daemon/io/reader/reader.h"

/* With the lock held, which is released meanwhile: until there may be work for a thread of files. */
void reader_wait(struct reader *reader);

/* Before a thread runs. */
void reader_bind_numa(struct reader *reader);
int reader_job_node(const struct read_job *job);

#endif
