/* SPDX-License-Identifier: Apache-2.0
 *
 * Published SHA-256 digests: who says what a file's bytes should be. They are looked up here and
 * compared by those who read the bytes.
 */
#ifndef DAEMON_SOURCE_SUMS_H
#define DAEMON_SOURCE_SUMS_H

#include "daemon/source/roots.h"

/* Fills in sha256 of each object, files of one folder in byte order of their names. */
int sums_find(const struct place *folder, struct object *objects, size_t n, struct error *error);

#endif
