/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots of the earlier form, which the first version of the daemon wrote: read once, and converted to rows.
 *
 *   models   which names lead to which sources, on which devices: each becomes a row for each device
 *   names    which names lead to which models in the fd store: each becomes a row without a source and a device
 */
#pragma once

#include "daemon/resident/persist/facts.h"
#include "daemon/resident/persist/name_row.h"

#define SNAPSHOT_V1_MAGIC "strmsnp1"

/* Appends the rows. */
void snapshot_v1_facts(struct facts *facts, struct name_row **rows, size_t *n);
