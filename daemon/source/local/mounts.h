/* SPDX-License-Identifier: Apache-2.0
 *
 * The mounts of this process's mount namespace, from /proc/self/mountinfo, which does not touch the file systems. A
 * node may have thousands: they are read again only when the kernel says that they have changed (proc(5): a change is
 * an error or priority event for poll).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct mount {
        uint64_t dev;  /* major << 32 | minor */
        char type[32]; /* "ext4"; "": not known */
};

/* The mount that holds an absolute path without "." and ".."; zeroes: not known. Any thread. */
struct mount mounts_find(const char *path);
/* The same without reading the table or waiting for a thread that reads it. False: then mounts_find() is needed. */
bool mounts_find_known(const char *path, struct mount *mount);
