/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a small file whole. The text lies in a mapping of its own, so that it goes back to the
 * system at once when it is done with, however large it was.
 */
#ifndef DAEMON_BASE_FD_H
#define DAEMON_BASE_FD_H

#include "daemon/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct text {
        char *data; /* NUL-terminated, writable; NULL: nothing here */
        size_t size;
        size_t mapped;
};

/* Zeros. */
int text_new(struct text *text, uint64_t size, struct error *error);
/* Reads a regular file from its start. STREAMER_EFAILED where it is larger than max, cannot be
 * read, or changed its size meanwhile; `name` is for messages. */
int text_read_fd(struct text *text, int fd, uint64_t max, const char *name, struct error *error);
void text_deinit(struct text *text); /* accepts a zeroed one */

#endif
