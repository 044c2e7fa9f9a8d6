/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/publish/storage_hash.h"

#include "daemon/base/util.h"
#include "daemon/io/readback.h"

#include <string.h>

int storage_hash_init(struct storage_hash *hash, const struct generation *generation, const struct table *manifest,
                      struct reader *reader, const bool *stop, struct error *error)
{
        const struct manifest_view m = table_manifest(manifest);
        *hash = (struct storage_hash){.generation = generation, .manifest = manifest, .reader = reader, .stop = stop};
        hash->first_leaves = calloc(m.header->n_records + 1, sizeof(*hash->first_leaves));
        for (uint64_t i = 0; hash->first_leaves != NULL && i < m.header->n_records; i++) {
                hash->first_leaves[i] = hash->n_leaves;
                hash->n_leaves += plan_leaves(manifest_record(&m, i)->bytes);
        }
        hash->digests = calloc(hash->n_leaves + 1, sizeof(*hash->digests));
        if (hash->first_leaves == NULL || hash->digests == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to hash %llu MiB",
                                 (unsigned long long)hash->n_leaves);
        return 0;
}

void storage_hash_deinit(struct storage_hash *hash)
{
        free(hash->first_leaves);
        free(hash->digests);
        hash->first_leaves = NULL;
        hash->digests = NULL;
}

/* ---- leaves ---- */

/* One worker. The readback asks for one leaf ahead of the one that is hashed. */
struct leaves {
        struct storage_hash *hash;
        struct manifest_view manifest;
        struct readback readback;
        uint64_t asked[2], n_asked, n_taken;
};

/* The last record that begins at this leaf or before it; empty ones before it have no leaf. */
static uint64_t record_of(const struct leaves *leaves, uint64_t leaf)
{
        uint64_t from = 0, to = leaves->manifest.header->n_records;
        while (to - from > 1) {
                uint64_t middle = from + (to - from) / 2;
                if (leaves->hash->first_leaves[middle] <= leaf)
                        from = middle;
                else
                        to = middle;
        }
        return from;
}

static bool next_leaf(void *context, struct readback_run *run)
{
        struct leaves *leaves = context;
        struct storage_hash *hash = leaves->hash;
        if (__atomic_load_n(hash->stop, __ATOMIC_RELAXED))
                return false;
        uint64_t leaf = __atomic_fetch_add(&hash->next, 1, __ATOMIC_RELAXED);
        if (leaf >= hash->n_leaves)
                return false;
        uint64_t i = record_of(leaves, leaf), done = (leaf - hash->first_leaves[i]) * PLAN_LEAF;
        const struct manifest_record *r = manifest_record(&leaves->manifest, i);
        uint64_t left = r->bytes - done;
        leaves->asked[leaves->n_asked++ % 2] = leaf;
        *run = (struct readback_run){.segment = &hash->generation->segments[r->segment],
                                     .offset = r->offset + done,
                                     .bytes = left < PLAN_LEAF ? left : PLAN_LEAF};
        return true;
}

int storage_hash_run(struct storage_hash *hash, struct error *error)
{
        struct leaves leaves = {.hash = hash, .manifest = table_manifest(hash->manifest)};
        int r = readback_init(&leaves.readback, hash->reader, hash->generation->device, error);
        if (r == 0)
                r = readback_begin(&leaves.readback, next_leaf, &leaves, error);
        while (r == 0 && leaves.n_taken < leaves.n_asked) {
                const unsigned char *data;
                uint64_t len, leaf = leaves.asked[leaves.n_taken++ % 2];
                r = readback_take(&leaves.readback, &data, &len, error);
                if (r == 0)
                        hash_bytes(data, len, hash->digests[leaf]);
        }
        readback_deinit(&leaves.readback);
        if (r == 0 && __atomic_load_n(hash->stop, __ATOMIC_RELAXED))
                r = error_set(error, STREAMER_ECANCELED, "the publication was aborted");
        return r;
}

/* ---- the end ---- */

int storage_hash_finish(struct storage_hash *hash, unsigned char digest[DIGEST_SIZE], struct error *error)
{
        const struct manifest_view m = table_manifest(hash->manifest);
        struct manifest_header *header = hash->manifest->map;
        struct manifest_record *records = (void *)((unsigned char *)header + header->records_off);
        for (uint64_t i = 0; i < m.header->n_records; i++) {
                struct manifest_record *r = &records[i];
                hash_bytes(hash->digests[hash->first_leaves[i]], plan_leaves(r->bytes) * DIGEST_SIZE, r->digest);
        }
        if (!hash_model(&m, digest))
                return error_no_memory(error);
        memcpy(header->digest, digest, DIGEST_SIZE);
        return 0;
}
