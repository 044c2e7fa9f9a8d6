/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that writes lines to a descriptor where a write may block: a file, or a pipe that cannot be made
 * non-blocking. Callers copy a line and continue; lines are written whole and in order.
 */
#ifndef DAEMON_BASE_LOG_WRITER_H
#define DAEMON_BASE_LOG_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_BATCH_MAX ((size_t)128 << 10) /* bytes; one batch fills while one is written */

struct log_writer;

/* NULL: no memory, or no thread. The descriptor stays the caller's and is not closed before the writer ended. */
struct log_writer *log_writer_new(int fd);

/* `reported` is the number of lost lines that this line reports: 0 for any other. False: the batch is full, and
 * the line is the caller's to count. Never waits for the descriptor. */
bool log_writer_put(struct log_writer *writer, const char *line, size_t len, uint64_t reported);
/* After put, when the caller holds no lock. */
void log_writer_call(struct log_writer *writer);

/* Lines that were accepted and could not be written, and how many lost ones those among them had reported. */
struct log_writer_lost {
        uint64_t lines, unreported;
};
struct log_writer_lost log_writer_lost(struct log_writer *writer);

/* Until all is written, or the deadline (monotonic): then false. */
bool log_writer_flush(struct log_writer *writer, uint64_t deadline_ns);
/* Once all is written, and nothing was put since. One that hangs in its descriptor is left to the end of the
 * process. */
struct log_writer *log_writer_free(struct log_writer *writer);

#endif
