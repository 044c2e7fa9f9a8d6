/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes in messages, with streamerctl's units.
 */
#ifndef DAEMON_BASE_TEXT_SIZE_TEXT_H
#define DAEMON_BASE_TEXT_SIZE_TEXT_H

#include <stdint.h>

#define SIZE_TEXT 16

/* "1.5 GiB", "12 B". Returns out. */
char *size_text(char out[SIZE_TEXT], uint64_t bytes);

#endif
