/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes small files whole. The memory of a long text, which malloc() maps, returns to the system when it is
 * freed.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>

struct text {
        char *data; /* NUL-terminated, writable; NULL: nothing here */
        size_t size;
};

/* Zeros; `name` is for messages. */
int text_new(struct text *text, uint64_t size, const char *name, struct error *error);
/* Reads a regular file from its start. STREAMER_EFAILED: it is larger than max, cannot be read, or became shorter
 * meanwhile. */
int text_read_fd(struct text *text, int fd, uint64_t max, const char *name, struct error *error);
void text_deinit(struct text *text); /* accepts a zeroed one */

/* All of it; -1 with errno. */
int text_write_fd(int fd, const void *data, size_t size);
