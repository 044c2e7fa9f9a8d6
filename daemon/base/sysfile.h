/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's own small files (/proc, /sys): one value in each. `root` stands before every path, ""
 * for the machine itself; tests have trees of their own.
 */
#ifndef DAEMON_BASE_SYSFILE_H
#define DAEMON_BASE_SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The file's first line without its end. False, and "", where it cannot be read. */
bool sysfile_line(char *line, size_t size, const char *root, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* A number by itself on that line. False where there is none ("max" among them). */
bool sysfile_number(int64_t *number, const char *root, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The word in brackets, as in "always [madvise] never". False where none is. */
bool sysfile_chosen(char *word, size_t size, const char *root, const char *path);

#endif
