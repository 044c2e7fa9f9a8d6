/* SPDX-License-Identifier: Apache-2.0
 *
 * How much two names differ, to find the one that was meant.
 */
#ifndef PROTO_DISTANCE_H
#define PROTO_DISTANCE_H

#include <stddef.h>

#define DISTANCE_MAX 63

/* The number of bytes to change, add or remove; SIZE_MAX where a name is longer than DISTANCE_MAX. */
size_t name_distance(const char *a, const char *b);

#endif
