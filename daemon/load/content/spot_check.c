/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/spot_check.h"

#include "daemon/base/hash.h"
#include "daemon/io/readback.h"

#include <inttypes.h>
#include <string.h>

#define SAMPLES_MIN 3u

/* ---- positions ---- */

void samples_init(struct samples *samples, uint64_t bytes, uint64_t interval, uint64_t seed)
{
        uint64_t n = interval > 0 ? (bytes + interval - 1) / interval : 0;
        if (n > 0 && n < SAMPLES_MIN)
                n = SAMPLES_MIN;
        *samples = (struct samples){.bytes = bytes, .n = n < bytes ? n : bytes, .random = seed};
}

/* Splitmix64: https://prng.di.unimi.it/splitmix64.c */
static uint64_t next_random(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

/* One in each of n equal parts: the first byte, the last byte, and any byte of the parts between. */
bool samples_next(struct samples *samples, uint64_t *position)
{
        uint64_t part = samples->n > 0 ? samples->bytes / samples->n : 0, i = samples->next;
        if (i == samples->n)
                return false;
        samples->next++;
        if (i == 0)
                *position = 0;
        else if (i + 1 == samples->n)
                *position = samples->bytes - 1;
        else
                *position = i * part + next_random(&samples->random) % part;
        return true;
}

/* ---- reading them back ---- */

/* What a sample is compared with. */
struct expected {
        struct readback_run run;
        const unsigned char *digest; /* of the plan's leaf; or NULL */
        const unsigned char *bytes;  /* of the copy; or NULL */
        const struct plan_tensor *tensor;
};

struct walk {
        const struct spot_check_job *job;
        struct samples samples;
        /* Of what was read: */
        const struct plan *plan;
        unsigned char (*leaves)[DIGEST_SIZE];
        const struct plan_tensor *tensor;
        uint64_t before; /* bytes of the tensors before it */
        uint64_t last;   /* one past the leaf of the last sample */
        /* Of a copy: */
        const struct host_copy *copy;
        /* The sample that is compared, and the next one of the readback. */
        struct expected asked[2];
        uint64_t n_asked, n_taken;
};

/* Two positions may be in one leaf. */
static bool next_leaf(void *context, struct readback_run *run)
{
        struct walk *walk = context;
        uint64_t position;
        while (samples_next(&walk->samples, &position)) {
                while (position - walk->before >= walk->tensor->bytes) {
                        walk->before += walk->tensor->bytes;
                        walk->tensor++;
                }
                const struct plan_tensor *t = walk->tensor;
                uint64_t in_tensor = (position - walk->before) / PLAN_LEAF, skip = in_tensor * PLAN_LEAF;
                uint64_t leaf = t->leaf + in_tensor, left = t->bytes - skip;
                require(t < walk->plan->tensors + walk->plan->n_tensors && leaf < walk->plan->n_leaves);
                if (leaf < walk->last)
                        continue;
                walk->last = leaf + 1;
                *run = (struct readback_run){.segment = &walk->job->segments[t->segment],
                                             .offset = t->offset + skip,
                                             .bytes = left < PLAN_LEAF ? left : PLAN_LEAF};
                walk->asked[walk->n_asked++ % 2] =
                        (struct expected){.run = *run, .digest = walk->leaves[leaf], .tensor = t};
                return true;
        }
        return false;
}

static bool next_piece(void *context, struct readback_run *run)
{
        struct walk *walk = context;
        const struct host_copy *copy = walk->copy;
        uint64_t position;
        unsigned i = 0;
        if (!samples_next(&walk->samples, &position))
                return false;
        for (; position >= copy->sizes[i]; i++)
                position -= copy->sizes[i];
        require(i < copy->n_segments);
        uint64_t offset = position / PLAN_LEAF * PLAN_LEAF, left = copy->sizes[i] - offset;
        *run = (struct readback_run){
                .segment = &walk->job->segments[i], .offset = offset, .bytes = left < PLAN_LEAF ? left : PLAN_LEAF};
        walk->asked[walk->n_asked++ % 2] = (struct expected){.run = *run, .bytes = copy->bases[i] + offset};
        return true;
}

static int differs(const struct walk *walk, const struct expected *expected, enum page_kind *pages, struct error *error)
{
        const struct segment *segment = expected->run.segment;
        *pages = segment->pages;
        if (expected->tensor == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "%s: bytes at offset %" PRIu64 " of segment %zu are not those of the host cache",
                                 segment->device->name, expected->run.offset, (size_t)(segment - walk->job->segments));
        const struct plan_file *file = &walk->plan->files[expected->tensor->file];
        return error_set(error, STREAMER_EFAILED,
                         "tensor '%s': its bytes on %s are not those that were read (%s pages)",
                         st_name(&file->header, plan_in_file(walk->plan, expected->tensor)), segment->device->name,
                         page_kind_name(segment->pages));
}

static int compare(struct walk *walk, struct readback *readback, enum page_kind *pages, struct error *error)
{
        const struct expected expected = walk->asked[walk->n_taken++ % 2];
        const unsigned char *data;
        unsigned char digest[DIGEST_SIZE];
        uint64_t len;
        if (load_relaxed(walk->job->stop))
                return error_set(error, STREAMER_ECANCELED, "cancelled");
        int r = readback_take(readback, &data, &len, error);
        if (r < 0)
                return r;
        require(len == expected.run.bytes);
        if (expected.bytes != NULL)
                return memcmp(data, expected.bytes, len) == 0 ? 0 : differs(walk, &expected, pages, error);
        hash_bytes(data, len, digest);
        return memcmp(digest, expected.digest, DIGEST_SIZE) == 0 ? 0 : differs(walk, &expected, pages, error);
}

static int check(struct walk *walk, uint64_t bytes, readback_runs_fn *runs, enum page_kind *pages, struct error *error)
{
        const struct spot_check_job *job = walk->job;
        struct readback readback;
        samples_init(&walk->samples, bytes, job->device->sample_interval, job->seed);
        if (walk->samples.n == 0)
                return 0;
        int r = readback_init(&readback, job->reader, job->device, error);
        if (r == 0)
                r = readback_begin(&readback, runs, walk, error);
        while (r == 0 && walk->n_taken < walk->n_asked)
                r = compare(walk, &readback, pages, error);
        readback_deinit(&readback);
        return r;
}

int spot_check(const struct spot_check_job *job, const struct plan *plan, unsigned char (*leaves)[DIGEST_SIZE],
               enum page_kind *pages, struct error *error)
{
        struct walk walk = {.job = job, .plan = plan, .leaves = leaves, .tensor = plan->tensors};
        return check(&walk, plan->bytes, next_leaf, pages, error);
}

int spot_check_copy(const struct spot_check_job *job, const struct host_copy *copy, enum page_kind *pages,
                    struct error *error)
{
        struct walk walk = {.job = job, .copy = copy};
        uint64_t bytes = 0; /* copy->bytes has those of the manifest, too */
        for (unsigned i = 0; i < copy->n_segments; i++)
                bytes += copy->sizes[i];
        return check(&walk, bytes, next_piece, pages, error);
}
