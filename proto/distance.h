/* SPDX-License-Identifier: Apache-2.0
 *
 * How much two names differ, to find the one that was meant. The Python package has the same rule (_source.py).
 */
#pragma once

#include <stddef.h>

#define DISTANCE_MAX 63

/* The number of bytes to change, add, remove or exchange with the next one, without a ".safetensors" at the end of
 * either; SIZE_MAX where a name is longer than DISTANCE_MAX. */
size_t name_distance(const char *a, const char *b);
/* A name that differs by less is similar. */
size_t name_distance_limit(const char *name);
