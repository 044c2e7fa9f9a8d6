/* SPDX-License-Identifier: Apache-2.0
 *
 * The manifest of a published model, made from the client's table in the sealed memory: a record for each storage and
 * one for the table, and the key and base as metadata. It has no digests yet.
 */
#pragma once

#include "daemon/resident/model.h"
#include "proto/published/table.h"

/* On a worker. STREAMER_EINVAL where the table is refused. */
int published_manifest_build(struct table *manifest, const struct generation *generation,
                             const struct published_storage *table, struct error *error);
