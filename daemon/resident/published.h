/* SPDX-License-Identifier: Apache-2.0
 *
 * What identifies a published model: its key, and the model that it was made from. Two are the same if no field
 * differs. It is persisted in the model's manifest, as metadata, where clients read it, too; and how that is made.
 *
 * The records of the manifest are the storages and the client's table; or, `as_tensors`, the tensors of that table,
 * which are then those of an ordinary model, and the table itself is not part of it.
 */
#pragma once

#include "daemon/base/hash.h"
#include "daemon/device/device.h"
#include "daemon/source/source.h"
#include "proto/manifest.h"
#include "proto/published/table.h"

/* A model's source begins with this, then the uid of its publisher. */
#define PUBLISHED_SOURCE "published:"

/* The files of a model, as they were when it was published. */
struct published_base {
        char *source; /* canonical; NULL: none was named */
        struct source_identity identity;
        /* Of a source with a query, which may be a secret and is not persisted: what its server says of the files, by
         * which they are recognised without it. After a restart the source has lost it, and its identity is that of
         * another URL. */
        bool has_answers, query_lost;
        unsigned char answers[DIGEST_SIZE];
        bool has_digest;
        unsigned char digest[DIGEST_SIZE]; /* of the model that was loaded from these files */
};

struct published {
        char **key; /* "NAME=VALUE", in order of names */
        size_t n_key;
        bool as_tensors;
        struct published_base base;
};

/* A key from a request: sorts it. STREAMER_EINVAL for a field without a name and for two of one name. */
int published_new(struct published **out, const char *const *key, size_t n_key, struct error *error);
struct published *published_free(struct published *published); /* accepts NULL */

/* A field of the key that differs. `have`, `want`: NULL where it is absent. */
typedef void published_differs_fn(void *context, const char *name, size_t name_len, const char *have, const char *want);
/* Reports each in order of names. */
void published_key_differs(const struct published *have, const struct published *want, published_differs_fn *differs,
                           void *context);

/* ---- the manifest ---- */

/* Made from the client's table in the sealed memory: a record for each storage and one for the table, or one for each
 * tensor; and the key and base as metadata, in front of the attributes of a model that is made as tensors. It has no
 * digests yet. On a worker, which gives up once *stop is true. STREAMER_EINVAL where the table is refused. */
int published_manifest_build(struct table *manifest, const struct published *published, const struct segment *segments,
                             unsigned n_segments, const struct published_storage *table, const bool *stop,
                             struct error *error);
/* The key and base, and whether it was made as tensors. STREAMER_ECORRUPT. */
int published_read(struct published **out, const struct manifest_view *manifest, struct error *error);
