/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots made by a test, as a daemon's earlier run would have.
 */
#pragma once

#include "daemon/resident/persist/snapshot_io.h"

/* Adds a row like this one. */
struct name_row *snapshot_add(struct snapshot *snapshot, const struct name_row *row);
/* The first row of the name, or NULL. */
struct name_row *snapshot_find(const struct snapshot *snapshot, const char *name);

/* Its bytes, of the test. */
msgpack_sbuffer snapshot_bytes(const struct snapshot *snapshot);
/* The state file in this folder. */
void snapshot_write_file(const struct snapshot *snapshot, const char *folder);
