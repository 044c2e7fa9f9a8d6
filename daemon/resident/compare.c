/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/compare.h"

#include <string.h>

static bool next_run(void *context, struct readback_run *run)
{
        struct compare *compare = context;
        if (compare->asked == compare->manifest.header->n_records)
                return false;
        const struct manifest_record *r = &compare->manifest.records[compare->asked++];
        *run = (struct readback_run){
                .segment = &compare->generation->segments[r->segment], .offset = r->offset, .bytes = r->bytes};
        if (compare->bases != NULL && r->bytes > 0)
                run->to = compare->bases[r->segment] + r->offset;
        return true;
}

int compare_init(struct compare *compare, const struct generation *generation, struct reader *reader,
                 unsigned char *const *bases, struct error *error)
{
        *compare = (struct compare){
                .generation = generation, .manifest = table_manifest(&generation->manifest), .bases = bases};
        int r = readback_init(&compare->readback, reader, generation->device, error);
        if (r < 0)
                return r;
        compare->hash = hash_new();
        if (compare->hash == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to compare");
        return readback_begin(&compare->readback, next_run, compare, error);
}

void compare_deinit(struct compare *compare)
{
        readback_deinit(&compare->readback);
        hash_free(compare->hash);
        compare->hash = NULL;
}

int compare_tensor(struct compare *compare, struct error *error)
{
        const struct manifest_record *r = &compare->manifest.records[compare->done++];
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
