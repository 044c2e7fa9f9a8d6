/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources in the disk cache: what a source consists of is noted once all of it is stored, and opened again without a
 * request, by its copies alone. Not of sources with a query, which may be secret.
 */
#pragma once

#include "daemon/source/source.h"

struct disk_source;

struct source_reach;

/* Of an open set, all of whose objects have labels. `file_uri`: source_file_uri(). NULL: one has none, or no memory. */
typedef char *source_file_uri_fn(const char *canonical, const char *name);
struct disk_source *source_describe(const char *canonical, const struct source_set *set, source_file_uri_fn *file_uri);
/* What a copy lacks is requested as `reach` says (zeroed: without credentials). False: it is not stored, or not all of
 * it any more; nothing is left open. */
bool source_open_stored(const struct sources *sources, const char *canonical, const struct source_reach *reach,
                        struct source_set *set);
/* Before a set that was opened so is used without the store's word: each object is asked for once. An error: the store
 * refuses one. 0: it cannot be asked, or has them. */
int source_ask(const struct source_set *set, const struct source_reach *reach, struct error *error);
