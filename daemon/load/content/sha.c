/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of whole files against published digests, over the bytes in the segments: the header as it was read, then
 * the tensors read back. Where the store has published a crc32c alone, that is compared. The file is not read a second
 * time, since it could have changed; only tensors that the model does not use, and that were not read, are.
 */
#include "daemon/load/content/resolve.h"

#include "daemon/base/crc32c.h"
#include "daemon/base/hash.h"
#include "daemon/base/util.h"
#include "daemon/io/readback.h"

#include <openssl/evp.h>
#include <string.h>

#define PIECE MiB
#define PIECE_NS (UINT64_C(250) * 1000000)

struct sha_check {
        struct reader *reader;
        const struct resolved *resolved;
        struct device *device;
        const struct segment *segments;
        size_t file;
        const bool *stop;
        EVP_MD_CTX *md;
        uint32_t crc32c;
        size_t next, end; /* tensors of the plan: the first of the file that is not hashed, and behind its last */
        size_t asked;     /* the next that is read back, in this piece */
        struct readback readback;
        unsigned char *buffer; /* PIECE and a page, page-aligned */
        uint64_t at;           /* offset in the file that was hashed up to */
};

struct sha_check *sha_check_new(struct reader *reader, const struct resolved *resolved, struct device *device,
                                const struct segment *segments, size_t file, const bool *stop)
{
        struct sha_check *check = malloc(sizeof(*check));
        if (check == NULL)
                return NULL;
        *check = (struct sha_check){.reader = reader,
                                    .resolved = resolved,
                                    .device = device,
                                    .segments = segments,
                                    .file = file,
                                    .stop = stop,
                                    .md = EVP_MD_CTX_new(),
                                    .crc32c = resolved->texts[file].crc32c,
                                    .buffer = aligned_alloc(4096, PIECE + 4096),
                                    .at = resolved->files[file].header.data_start};
        plan_file_tensors(&resolved->plan, file, &check->next, &check->end);
        /* The header's digest is where each target begins. */
        if (check->buffer == NULL || check->md == NULL ||
            EVP_MD_CTX_copy_ex(check->md, resolved->texts[file].sha256) != 1)
                return sha_check_free(check);
        return check;
}

struct sha_check *sha_check_free(struct sha_check *check)
{
        if (check == NULL)
                return NULL;
        EVP_MD_CTX_free(check->md);
        free(check->buffer);
        free(check);
        return NULL;
}

static const struct object *object_of(const struct sha_check *check)
{
        return &check->resolved->set.objects[check->file];
}

/* Any failure of the library means that it has no memory. */
static int update(struct sha_check *check, const void *data, size_t len, struct error *error)
{
        if (!object_of(check)->has_sha256) {
                check->crc32c = crc32c(check->crc32c, data, len);
                return 0;
        }
        return EVP_DigestUpdate(check->md, data, len) == 1 ? 0 : error_no_memory(error);
}

/* Bytes of the file that no tensor of the model covers: as many as are read at once. */
static int hash_gap(struct sha_check *check, uint64_t to, struct error *error)
{
        const struct object *object = object_of(check);
        uint64_t head = check->at % 4096;
        uint64_t n = to - check->at < PIECE - head ? to - check->at : PIECE - head;
        int r = object_read_range(object, check->at, n, check->buffer + head, error);
        if (r == 0)
                r = update(check, check->buffer + head, n, error);
        check->at += n;
        return r;
}

static int stopped(struct error *error)
{
        return error_set(error, STREAMER_ECANCELED, "cancelled");
}

static int hash_tensor(struct sha_check *check, const struct plan_tensor *t, struct error *error)
{
        for (uint64_t done = 0, len; done < t->bytes; done += len) {
                const unsigned char *data;
                int r = load_relaxed(check->stop) ? stopped(error)
                                                  : readback_take(&check->readback, &data, &len, error);
                if (r == 0)
                        r = update(check, data, len, error);
                if (r < 0)
                        return r;
        }
        check->at += t->bytes;
        check->next++;
        return 0;
}

static bool next_run(void *context, struct readback_run *run)
{
        struct sha_check *check = context;
        if (check->asked == check->end)
                return false;
        const struct plan_tensor *t = &check->resolved->plan.tensors[check->asked++];
        *run = (struct readback_run){.segment = &check->segments[t->segment], .offset = t->offset, .bytes = t->bytes};
        return true;
}

static int compare(const struct sha_check *check, struct error *error)
{
        const struct object *object = object_of(check);
        unsigned char digest[32];
        require(object->has_sha256 || object->has_crc32c);
        if (!object->has_sha256)
                return check->crc32c == object->crc32c
                               ? 0
                               : error_set(error, STREAMER_EFAILED, "crc32c differs: %08x published, %08x read (%s)",
                                           object->crc32c, check->crc32c, object->path);
        if (EVP_DigestFinal_ex(check->md, digest, NULL) != 1)
                return error_no_memory(error);
        if (memcmp(digest, object->sha256, sizeof(digest)) == 0)
                return 0;
        return source_sum_differs(object->sha256, digest, object->path, error);
}

/* Until all is hashed, which is 0, or the time is over. */
static int hash_on(struct sha_check *check, struct error *error)
{
        uint64_t size = object_of(check)->version.size, until = now_ns() + PIECE_NS;
        int r = 0;
        while (r == 0 && (check->next < check->end || check->at < size)) {
                const struct plan_tensor *t = &check->resolved->plan.tensors[check->next];
                uint64_t to = check->next < check->end ? t->file_off : size;
                if (load_relaxed(check->stop))
                        r = stopped(error);
                else if (check->at < to)
                        r = hash_gap(check, to, error);
                else
                        r = hash_tensor(check, t, error);
                if (r == 0 && now_ns() >= until)
                        return SHA_MORE;
        }
        return r;
}

int sha_check_run(struct sha_check *check, struct error *error)
{
        int r = readback_init(&check->readback, check->reader, check->device, error);
        check->asked = check->next;
        if (r == 0)
                r = readback_begin(&check->readback, next_run, check, error);
        if (r == 0)
                r = hash_on(check, error);
        readback_deinit(&check->readback);
        return r == 0 ? compare(check, error) : r;
}
