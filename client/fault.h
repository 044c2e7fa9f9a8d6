/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of the last failure, for each client and thread. A thread remembers its last few
 * clients; serial 0 stands for connects that brought no client.
 */
#ifndef CLIENT_FAULT_H
#define CLIENT_FAULT_H

#include <stdint.h>

/* Keeps the text for the calling thread and returns code. */
int fault_set(uint64_t serial, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *fault_text(uint64_t serial); /* "" if none */

#endif
