/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/digest_check.h"

#include "daemon/io/readback.h"

#include <string.h>

#define PIECE_NS (UINT64_C(250) * 1000000)

/* A piece of a job, on one worker. */
struct check {
        struct digest_job *job;
        struct readback readback;
        struct hash hash;
        uint64_t asked[2], n_asked, n_taken; /* the tensor that is hashed, and the next one of the readback */
        uint64_t until_ns;
};

static bool next_run(void *context, struct readback_run *run)
{
        struct check *check = context;
        struct digest_job *job = check->job;
        if (check->n_asked > 0 && now_ns() >= check->until_ns)
                return false;
        for (uint64_t i; (i = add_relaxed(&job->next, 1) - 1) < job->manifest.header->n_records;) {
                const struct manifest_record *r = manifest_record(&job->manifest, i);
                if (r->bytes > 0) {
                        *run = (struct readback_run){.segment = &job->generation->segments[r->segment],
                                                     .offset = r->offset,
                                                     .bytes = r->bytes,
                                                     .to = job->bases != NULL ? job->bases[r->segment] + r->offset
                                                                              : NULL};
                        check->asked[check->n_asked++ % 2] = i;
                        return true;
                }
                if (job->records != NULL)
                        hash_bytes("", 0, job->records[i].digest);
        }
        return false;
}

static int hash_tensor(struct check *check, uint64_t i, struct error *error)
{
        const struct digest_job *job = check->job;
        const struct manifest_record *r = manifest_record(&job->manifest, i);
        unsigned char digest[DIGEST_SIZE];
        hash_init(&check->hash);
        for (uint64_t done = 0, len; done < r->bytes; done += len) {
                const unsigned char *data;
                if (load_relaxed(job->stop))
                        return STREAMER_ECANCELED;
                int e = readback_take(&check->readback, &data, &len, error);
                if (e < 0)
                        return e;
                hash_bytes(data, len, digest);
                hash_update(&check->hash, digest, sizeof(digest));
        }
        hash_final(&check->hash, digest);
        if (job->records != NULL)
                memcpy(job->records[i].digest, digest, DIGEST_SIZE);
        else if (memcmp(digest, r->digest, DIGEST_SIZE) != 0)
                return error_set(error, STREAMER_EFAILED,
                                 "tensor '%s': resident bytes differ from those that were loaded",
                                 job->manifest.strings + r->name_off);
        return 0;
}

int digest_job_run(struct digest_job *job, struct error *error)
{
        struct check check = {.job = job, .until_ns = now_ns() + PIECE_NS};
        int r = readback_init(&check.readback, job->reader, job->generation->device, error);
        if (r == 0)
                r = readback_begin(&check.readback, next_run, &check, error);
        while (r == 0 && check.n_taken < check.n_asked)
                r = hash_tensor(&check, check.asked[check.n_taken++ % 2], error);
        readback_deinit(&check.readback);
        return r == 0 && load_relaxed(&job->next) < job->manifest.header->n_records ? DIGEST_MORE : r;
}

void verify_begin(struct digest_job *job, const struct generation *generation, struct reader *reader, const bool *stop)
{
        *job = (struct digest_job){.generation = generation,
                                   .manifest = table_manifest(&generation->manifest),
                                   .reader = reader,
                                   .stop = stop};
}

int verify_run(struct digest_job *job, struct error *error)
{
        unsigned char digest[DIGEST_SIZE];
        int r = digest_job_run(job, error);
        if (r == STREAMER_ECANCELED)
                return error_set(error, STREAMER_ECANCELED, "verify stopped: the daemon ends");
        if (r != 0)
                return r;
        hash_model(&job->manifest, digest);
        if (memcmp(digest, job->generation->digest, DIGEST_SIZE) != 0)
                return error_set(error, STREAMER_EFAILED, "the model's digest differs");
        return 0;
}
