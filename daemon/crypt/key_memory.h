/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for keys while they are used: an arena that is locked where the system allows it, and left out of core dumps
 * and forked children. What is freed is wiped. OpenSSL's contexts, which have keys in them, are taken from it, too.
 *
 * If it is full, or before it is opened, ordinary memory takes its place. Any thread.
 */
#pragma once

#include <stddef.h>

/* Before OpenSSL is used for the first time. Without it, OpenSSL's contexts are in ordinary memory. */
void key_memory_init(void);
/* When the process gets its first keys. Later calls do nothing. */
void key_memory_open(void);

void *key_memory_alloc(size_t size); /* NULL: no memory */
void key_memory_free(void *memory, size_t size);

/* In between, what OpenSSL allocates on this thread is in the arena. */
void key_memory_begin(void);
void key_memory_end(void);
