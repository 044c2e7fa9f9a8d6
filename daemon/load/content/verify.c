/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/verify.h"

#include "daemon/resident/digest_check.h"

#include <string.h>

static void check_tensors(struct verify *verify, struct digest_check *compare, struct hash *model)
{
        const struct manifest_view *m = &compare->manifest;
        for (uint64_t i = 0; i < m->header->n_records && !__atomic_load_n(&verify->stop, __ATOMIC_RELAXED); i++) {
                const struct manifest_record *r = manifest_record(m, i);
                if (digest_check_tensor(compare, &verify->error) < 0)
                        return;
                hash_model_tensor(model, m->strings + r->name_off, r->name_len, dtype_name(r->dtype),
                                  m->shapes + r->shape_off, r->rank, r->digest);
                verify->tensors++;
                verify->bytes += r->bytes;
        }
}

void verify_check(struct verify *verify)
{
        struct hash *model = hash_new();
        struct digest_check compare;
        unsigned char digest[DIGEST_SIZE];
        int r = digest_check_init(&compare, verify->generation, verify->reader, NULL, &verify->error);
        if (model == NULL) {
                error_set(&verify->error, STREAMER_ENOMEM, "no memory to verify");
        } else if (r == 0) {
                check_tensors(verify, &compare, model);
                hash_final(model, digest);
                if (verify->error.code == 0 && __atomic_load_n(&verify->stop, __ATOMIC_RELAXED))
                        error_set(&verify->error, STREAMER_ECANCELED, "verify stopped: the daemon ends");
                else if (verify->error.code == 0 && memcmp(digest, verify->generation->digest, DIGEST_SIZE) != 0)
                        error_set(&verify->error, STREAMER_EFAILED, "the model's digest differs");
        }
        digest_check_deinit(&compare);
        hash_free(model);
}

static void verify_run(struct work *work)
{
        verify_check(container_of(work, struct verify, work));
}

static void verify_done(struct work *work)
{
        struct verify *verify = container_of(work, struct verify, work);
        struct generation *generation = verify->generation;
        verify->done(verify);
        generation_put(generation);
}

void verify_init(struct verify *verify, struct reader *reader, struct generation *generation)
{
        *verify = (struct verify){.reader = reader, .generation = generation};
        generation_get(generation);
}

void verify_start(struct verify *verify, struct work_pool *pool, struct reader *reader, struct generation *generation,
                  void (*done)(struct verify *))
{
        verify_init(verify, reader, generation);
        verify->done = done;
        work_submit(pool, WORK_LANE_DEVICE(generation->device->number), &verify->work, verify_run, verify_done);
}

void verify_stop(struct verify *verify)
{
        __atomic_store_n(&verify->stop, true, __ATOMIC_RELAXED);
}
