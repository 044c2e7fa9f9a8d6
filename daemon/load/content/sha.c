/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of whole files against published digests, over the bytes in the segments: the header as it was read, then
 * the tensors read back. The file is not read a second time, since it could have changed; only tensors that the model
 * does not use, and that were not read, are.
 */
#include "daemon/load/content/resolve.h"

#include "daemon/base/hash.h"
#include "daemon/base/util.h"
#include "daemon/io/readback.h"

#include <openssl/evp.h>
#include <string.h>

#define PIECE MiB

struct walk {
        EVP_MD_CTX *md;
        const struct object *object;
        const struct plan_tensor *first, *end; /* of the file's */
        const struct plan_tensor *asked;       /* the next that is read back */
        const struct segment *segments;
        struct readback readback;
        unsigned char *buffer; /* PIECE and a page, page-aligned */
        uint64_t at;           /* offset in the file that was hashed up to */
};

/* Any failure of the library means that it has no memory. */
static int update(EVP_MD_CTX *md, const void *data, size_t len, struct error *error)
{
        return EVP_DigestUpdate(md, data, len) == 1 ? 0 : error_no_memory(error);
}

/* Bytes of the file that no tensor of the model covers. */
static int hash_gap(struct walk *walk, uint64_t to, struct error *error)
{
        while (walk->at < to) {
                uint64_t head = walk->at % 4096;
                uint64_t n = to - walk->at < PIECE - head ? to - walk->at : PIECE - head;
                int r = object_read_range(walk->object, walk->at, n, walk->buffer + head, error);
                if (r == 0)
                        r = update(walk->md, walk->buffer + head, n, error);
                if (r < 0)
                        return r;
                walk->at += n;
        }
        return 0;
}

static bool next_run(void *context, struct readback_run *run)
{
        struct walk *walk = context;
        if (walk->asked == walk->end)
                return false;
        const struct plan_tensor *t = walk->asked++;
        *run = (struct readback_run){.segment = &walk->segments[t->segment], .offset = t->offset, .bytes = t->bytes};
        return true;
}

static int hash_file(struct walk *walk, uint64_t data_start, struct error *error)
{
        walk->at = data_start;
        int r = readback_begin(&walk->readback, next_run, walk, error);
        for (const struct plan_tensor *t = walk->first; r == 0 && t < walk->end; t++) {
                r = hash_gap(walk, t->file_off, error);
                for (uint64_t done = 0, len; r == 0 && done < t->bytes; done += len) {
                        const unsigned char *data;
                        r = readback_take(&walk->readback, &data, &len, error);
                        if (r == 0)
                                r = update(walk->md, data, len, error);
                        if (r < 0)
                                return r;
                }
                walk->at += t->bytes;
        }
        return r < 0 ? r : hash_gap(walk, walk->object->version.size, error);
}

int sha_check_file(struct reader *reader, const struct resolved *resolved, struct device *device,
                   const struct segment *segments, size_t file, struct error *error)
{
        const struct plan *plan = &resolved->plan;
        struct walk walk = {.md = EVP_MD_CTX_new(),
                            .object = &resolved->set.objects[file],
                            .first = plan->tensors,
                            .segments = segments,
                            .buffer = aligned_alloc(4096, PIECE + 4096)};
        unsigned char digest[32];
        const struct plan_tensor *all_end = plan->tensors + plan->n_tensors;
        while (walk.first < all_end && walk.first->file < file)
                walk.first++;
        walk.asked = walk.end = walk.first;
        while (walk.end < all_end && walk.end->file == file)
                walk.end++;
        int r = readback_init(&walk.readback, reader, device, error);
        /* The header's digest is where each target begins. */
        if (r == 0 &&
            (walk.buffer == NULL || walk.md == NULL || EVP_MD_CTX_copy_ex(walk.md, resolved->texts[file].sha256) != 1))
                r = error_no_memory(error);
        if (r == 0)
                r = hash_file(&walk, resolved->files[file].header.data_start, error);
        if (r == 0 && EVP_DigestFinal_ex(walk.md, digest, NULL) != 1)
                r = error_no_memory(error);
        readback_deinit(&walk.readback);
        EVP_MD_CTX_free(walk.md);
        free(walk.buffer);
        if (r < 0)
                return r;
        if (memcmp(digest, resolved->set.objects[file].sha256, sizeof(digest)) == 0)
                return 0;
        char got[65], want[65];
        hex_encode(got, digest, 32);
        hex_encode(want, resolved->set.objects[file].sha256, 32);
        return error_set(error, STREAMER_EFAILED, "SHA-256 differs: %s published, %s read (%s)", want, got,
                         resolved->set.objects[file].path);
}
