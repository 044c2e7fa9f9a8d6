/* SPDX-License-Identifier: Apache-2.0
 *
 * Common to the fuzz targets. A target is LLVMFuzzerTestOneInput(); it is linked with libFuzzer, or with driver.c,
 * which replays the corpus.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks an invariant of the fuzzed code. */
#define holds(what)                                                                                                    \
        do {                                                                                                           \
                if (!(what)) {                                                                                         \
                        fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #what);                             \
                        abort();                                                                                       \
                }                                                                                                      \
        } while (0)

/* The input in memory of its own size, whose end sanitizers watch; with `more`, terminated in so many bytes beyond it.
 */
static inline void *fuzz_copy(const uint8_t *data, size_t size, size_t more)
{
        char *copy = calloc(1, size + more > 0 ? size + more : 1);
        holds(copy != NULL);
        memcpy(copy, data, size);
        return copy;
}
