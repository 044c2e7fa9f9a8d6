/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's small files (/proc, /sys), one value in each.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Precedes every path: "", or a test's own tree. */
extern const char *sysfile_root;

FILE *sysfile_open(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The first line of the file at a path, without its end. False, and "", where it cannot be read. */
#define sysfile_line(line, size, ...) sysfile_line_consume(line, size, sysfile_open(__VA_ARGS__))
bool sysfile_line_consume(char *line, size_t size, FILE *f); /* accepts NULL */

/* The command name of a process, with '?' for what is not printable ASCII: a process names itself as it likes, and
 * replies are UTF-8. "" where there is no such process. Does not block. */
#define SYSFILE_COMM 32
void sysfile_comm(char comm[SYSFILE_COMM], pid_t pid);

/* A number by itself on that line. False where there is none ("max" among them). */
#define sysfile_number(number, ...) sysfile_number_consume(number, sysfile_open(__VA_ARGS__))
bool sysfile_number_consume(int64_t *number, FILE *f);

/* The word in brackets, as in "always [madvise] never". False where none is. */
bool sysfile_chosen(char *word, size_t size, const char *path);
