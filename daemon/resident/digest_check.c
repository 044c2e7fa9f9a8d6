/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/digest_check.h"

#include <string.h>

static bool next_run(void *context, struct readback_run *run)
{
        struct digest_check *compare = context;
        if (compare->asked == compare->manifest.header->n_records)
                return false;
        const struct manifest_record *r = manifest_record(&compare->manifest, compare->asked++);
        *run = (struct readback_run){
                .segment = &compare->generation->segments[r->segment], .offset = r->offset, .bytes = r->bytes};
        if (compare->bases != NULL && r->bytes > 0)
                run->to = compare->bases[r->segment] + r->offset;
        return true;
}

int digest_check_init(struct digest_check *compare, const struct generation *generation, struct reader *reader,
                      unsigned char *const *bases, struct error *error)
{
        *compare = (struct digest_check){
                .generation = generation, .manifest = table_manifest(&generation->manifest), .bases = bases};
        int r = readback_init(&compare->readback, reader, generation->device, error);
        if (r < 0)
                return r;
        compare->hash = hash_new();
        if (compare->hash == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to compare");
        return readback_begin(&compare->readback, next_run, compare, error);
}

void digest_check_deinit(struct digest_check *compare)
{
        readback_deinit(&compare->readback);
        hash_free(compare->hash);
        compare->hash = NULL;
}

int digest_check_tensor(struct digest_check *compare, struct error *error)
{
        const struct manifest_record *r = manifest_record(&compare->manifest, compare->done++);
        unsigned char digest[DIGEST_SIZE];
        hash_reset(compare->hash);
        for (uint64_t done = 0, len; done < r->bytes; done += len) {
                const unsigned char *data;
                int e = readback_take(&compare->readback, &data, &len, error);
                if (e < 0)
                        return e;
                hash_bytes(data, len, digest);
                hash_update(compare->hash, digest, sizeof(digest));
        }
        hash_final(compare->hash, digest);
        if (memcmp(digest, r->digest, DIGEST_SIZE) == 0)
                return 0;
        return error_set(error, STREAMER_EFAILED, "tensor '%s': resident bytes differ from those that were loaded",
                         compare->manifest.strings + r->name_off);
}
