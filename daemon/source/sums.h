/* SPDX-License-Identifier: Apache-2.0
 *
 * Published SHA-256 digests of files. They are looked up here and compared where the bytes are read.
 */
#pragma once

#include "daemon/source/roots/roots.h"

/* Fills in sha256 of each object, files of one folder in byte order of their names. */
int sums_find(const struct root_path *folder, struct object *objects, size_t n, struct error *error);

/* A list as sha256sum writes it; `shown` is its name in messages. */
int sums_apply(struct text *text, const char *shown, struct object *objects, size_t n, struct error *error);
/* STREAMER_EFAILED: an object has none, and no crc32c of its store's. */
int sums_require(const struct object *objects, size_t n, const char *where, struct error *error);
/* Ignores text that is not a hexadecimal digest. Fails if two publishers give different digests. */
int sums_set_digest(struct object *object, const char *hex, const char *publisher, struct error *error);

#define SUMS_NAME "SHA256SUMS"
#define SUMS_MAX (16 * MiB)
