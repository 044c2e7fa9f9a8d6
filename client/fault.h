/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts of failures: the last one of each thread and client, and the last one of each client in any thread. A
 * thread has the texts of its last few clients; NULL instead of a fault stands for calls without a client.
 */
#pragma once

#include <stddef.h>

/* Of one client, over all its connections. */
struct fault;

struct fault *fault_new(void); /* NULL: no memory */
struct fault *fault_ref(struct fault *fault);
void fault_unref(struct fault *fault); /* accepts NULL */

/* Keeps the text for the calling thread and for the client, and returns code. A forked child keeps it for the thread
 * only. */
int fault_set(struct fault *fault, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The calling thread's; "" if none. Valid until its next failure. */
const char *fault_text(const struct fault *fault);

/* The last one of any thread, or as much of it as fits; "" if none, and in a forked child. */
void fault_copy(struct fault *fault, char *text, size_t size);
