/* SPDX-License-Identifier: Apache-2.0
 *
 * How much two names differ, to find the one that was meant: a file, a model, a command's verb. The Python package and
 * streamerctl use it by the library's streamer_nearest().
 */
#pragma once

#include <stddef.h>

#define DISTANCE_MAX 63

/* The number of bytes to change, add, remove or exchange with the next one, without a ".safetensors" at the end of
 * either; SIZE_MAX where a name is longer than DISTANCE_MAX. */
size_t name_distance(const char *a, const char *b);
/* A name that differs by less is similar. */
size_t name_distance_limit(const char *name);
/* The first of the names that differ least from this one, if it is similar; NULL: none is. */
const char *name_nearest(const char *name, const char *const *names, size_t n);
