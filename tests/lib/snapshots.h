/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots made by a test, as a daemon's earlier run would have.
 */
#pragma once

#include "daemon/resident/persist/snapshot_io.h"

/* Its bytes, of the test. */
msgpack_sbuffer snapshot_bytes(const struct snapshot *snapshot);
/* The state file in this folder. */
void snapshot_write_file(const struct snapshot *snapshot, const char *folder);
