/* SPDX-License-Identifier: Apache-2.0
 *
 * Common to the fuzz targets. A target is LLVMFuzzerTestOneInput(); it is linked with libFuzzer, or with driver.c,
 * which replays the corpus.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks an invariant of the fuzzed code. */
#define holds(what)                                                                                                    \
        do {                                                                                                           \
                if (!(what)) {                                                                                         \
                        fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #what);                             \
                        abort();                                                                                       \
                }                                                                                                      \
        } while (0)

#endif
