/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/verify.h"

#include "daemon/load/readback.h"

#include <string.h>

/* How far it has been asked for: one piece further than was looked at. */
struct ahead {
        uint64_t record, done;
};

static int ask_ahead(struct verify *verify, struct readback *readback, const struct manifest_view *m,
                     struct ahead *ahead)
{
        while (ahead->record < m->header->n_records && ahead->done == m->records[ahead->record].bytes)
                *ahead = (struct ahead){.record = ahead->record + 1};
        if (ahead->record == m->header->n_records)
                return 0;
        const struct manifest_record *r = &m->records[ahead->record];
        uint64_t at = ahead->done, n = r->bytes - at < PLAN_LEAF ? r->bytes - at : PLAN_LEAF;
        ahead->done += n;
        return readback_ask(readback, &verify->generation->segments[r->segment], r->offset + at, n, &verify->error);
}

/* 1: as it was; 0: differs; negative: could not be read. */
static int tensor_intact(struct verify *verify, struct readback *readback, const struct manifest_view *m,
                         const struct manifest_record *r, struct ahead *ahead, struct hash *hash,
                         unsigned char digest[DIGEST_SIZE])
{
        unsigned char leaf[DIGEST_SIZE];
        hash_reset(hash);
        for (uint64_t done = 0; done < r->bytes;) {
                uint64_t n = r->bytes - done < PLAN_LEAF ? r->bytes - done : PLAN_LEAF;
                const unsigned char *data;
                if (readback_take(readback, &data, &verify->error) < 0 || ask_ahead(verify, readback, m, ahead) < 0)
                        return -1;
                hash_bytes(data, n, leaf);
                hash_update(hash, leaf, sizeof(leaf));
                done += n;
        }
        hash_final(hash, digest);
        return memcmp(digest, r->digest, DIGEST_SIZE) == 0;
}

static void check_tensors(struct verify *verify, struct readback *readback, struct hash *hash, struct hash *model)
{
        const struct manifest_view m = table_manifest(&verify->generation->manifest);
        struct ahead ahead = {0};
        if (ask_ahead(verify, readback, &m, &ahead) < 0)
                return;
        for (uint64_t i = 0; i < m.header->n_records && !__atomic_load_n(&verify->stop, __ATOMIC_RELAXED); i++) {
                const struct manifest_record *r = &m.records[i];
                unsigned char digest[DIGEST_SIZE];
                int intact = tensor_intact(verify, readback, &m, r, &ahead, hash, digest);
                if (intact < 0)
                        return;
                if (intact == 0) {
                        error_set(&verify->error, STREAMER_EFAILED,
                                  "tensor '%s': resident bytes differ from those that were loaded",
                                  m.strings + r->name_off);
                        return;
                }
                hash_model_tensor(model, m.strings + r->name_off, r->name_len, dtype_name(r->dtype),
                                  m.shapes + r->shape_off, r->rank, digest);
                verify->tensors++;
                verify->bytes += r->bytes;
        }
}

static void check(struct verify *verify, struct readback *readback, struct hash *hash, struct hash *model)
{
        unsigned char digest[DIGEST_SIZE];
        check_tensors(verify, readback, hash, model);
        hash_final(model, digest);
        if (verify->error.code == 0 && __atomic_load_n(&verify->stop, __ATOMIC_RELAXED))
                error_set(&verify->error, STREAMER_ECANCELED, "verify stopped: the daemon ends");
        else if (verify->error.code == 0 && memcmp(digest, verify->generation->digest, DIGEST_SIZE) != 0)
                error_set(&verify->error, STREAMER_EFAILED, "the model's digest differs");
}

static void verify_run(struct work *work)
{
        struct verify *verify = container_of(work, struct verify, work);
        struct hash *hash = hash_new(), *model = hash_new();
        struct readback readback;
        int r = readback_init(&readback, verify->reader, verify->generation->device, &verify->error);
        if (hash == NULL || model == NULL)
                error_set(&verify->error, STREAMER_ENOMEM, "no memory to verify");
        else if (r == 0)
                check(verify, &readback, hash, model);
        readback_deinit(&readback);
        hash_free(hash);
        hash_free(model);
}

static void verify_done(struct work *work)
{
        struct verify *verify = container_of(work, struct verify, work);
        struct generation *generation = verify->generation;
        verify->done(verify);
        generation_unpin(generation);
}

void verify_start(struct verify *verify, struct work_pool *pool, struct reader *reader, struct generation *generation,
                  void (*done)(struct verify *))
{
        *verify = (struct verify){.reader = reader, .generation = generation, .done = done};
        generation_pin(generation);
        work_submit(pool, WORK_LANE_MEMORY, &verify->work, verify_run, verify_done);
}

void verify_stop(struct verify *verify)
{
        __atomic_store_n(&verify->stop, true, __ATOMIC_RELAXED);
}
