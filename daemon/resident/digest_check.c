/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/digest_check.h"

#include <string.h>

struct check {
        const struct generation *generation;
        struct manifest_view manifest;
        unsigned char *const *bases;
        struct readback readback;
        struct hash *hash;
        uint64_t asked; /* manifest records that were requested from the readback */
};

static bool next_run(void *context, struct readback_run *run)
{
        struct check *check = context;
        if (check->asked == check->manifest.header->n_records)
                return false;
        const struct manifest_record *r = manifest_record(&check->manifest, check->asked++);
        *run = (struct readback_run){
                .segment = &check->generation->segments[r->segment], .offset = r->offset, .bytes = r->bytes};
        if (check->bases != NULL && r->bytes > 0)
                run->to = check->bases[r->segment] + r->offset;
        return true;
}

static int check_tensor(struct check *check, const struct manifest_record *r, struct error *error)
{
        unsigned char digest[DIGEST_SIZE];
        hash_reset(check->hash);
        for (uint64_t done = 0, len; done < r->bytes; done += len) {
                const unsigned char *data;
                int e = readback_take(&check->readback, &data, &len, error);
                if (e < 0)
                        return e;
                hash_bytes(data, len, digest);
                hash_update(check->hash, digest, sizeof(digest));
        }
        hash_final(check->hash, digest);
        if (memcmp(digest, r->digest, DIGEST_SIZE) == 0)
                return 0;
        return error_set(error, STREAMER_EFAILED, "tensor '%s': resident bytes differ from those that were loaded",
                         check->manifest.strings + r->name_off);
}

int digest_check(const struct generation *generation, struct reader *reader, unsigned char *const *bases,
                 const bool *stop, struct error *error)
{
        struct check check = {
                .generation = generation, .manifest = table_manifest(&generation->manifest), .bases = bases};
        int r = readback_init(&check.readback, reader, generation->device, error);
        if (r == 0 && (check.hash = hash_new()) == NULL)
                r = error_set(error, STREAMER_ENOMEM, "no memory to compare");
        if (r == 0)
                r = readback_begin(&check.readback, next_run, &check, error);
        for (uint64_t i = 0; r == 0 && i < check.manifest.header->n_records; i++)
                r = __atomic_load_n(stop, __ATOMIC_RELAXED)
                            ? STREAMER_ECANCELED
                            : check_tensor(&check, manifest_record(&check.manifest, i), error);
        readback_deinit(&check.readback);
        hash_free(check.hash);
        return r;
}

int verify_generation(const struct generation *generation, struct reader *reader, const bool *stop, struct error *error)
{
        const struct manifest_view manifest = table_manifest(&generation->manifest);
        unsigned char digest[DIGEST_SIZE];
        int r = digest_check(generation, reader, NULL, stop, error);
        if (r == STREAMER_ECANCELED)
                return error_set(error, STREAMER_ECANCELED, "verify stopped: the daemon ends");
        if (r < 0)
                return r;
        if (!hash_model(&manifest, digest))
                return error_set(error, STREAMER_ENOMEM, "no memory to verify");
        if (memcmp(digest, generation->digest, DIGEST_SIZE) != 0)
                return error_set(error, STREAMER_EFAILED, "the model's digest differs");
        return 0;
}
