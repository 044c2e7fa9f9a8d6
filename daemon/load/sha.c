/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/sha.h"

#include "daemon/base/util.h"

#include <openssl/evp.h>
#include <string.h>

#define PIECE MiB

struct sha {
        size_t n;
        EVP_MD_CTX *contexts[];
};

struct sha *sha_new(size_t n_files)
{
        struct sha *sha = calloc(1, sizeof(*sha) + n_files * sizeof(sha->contexts[0]));
        if (sha != NULL)
                sha->n = n_files;
        return sha;
}

struct sha *sha_free(struct sha *sha)
{
        for (size_t i = 0; sha != NULL && i < sha->n; i++)
                EVP_MD_CTX_free(sha->contexts[i]);
        free(sha);
        return NULL;
}

int sha_header(void *context, size_t file, const void *data, size_t len, struct error *error)
{
        struct sha *sha = context;
        EVP_MD_CTX *md = EVP_MD_CTX_new();
        sha->contexts[file] = md;
        if (md == NULL || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1 || EVP_DigestUpdate(md, data, len) != 1)
                return error_set(error, STREAMER_ENOMEM, "SHA-256 could not be set up");
        return 0;
}

/* ---- one file ---- */

struct walk {
        EVP_MD_CTX *md;
        const struct object *object;
        unsigned char *buffer; /* PIECE and a page, page-aligned */
        uint64_t at;           /* offset in the file that was hashed up to */
};

/* Bytes of the file that no tensor of the model covers. */
static int hash_gap(struct walk *walk, uint64_t to, struct error *error)
{
        while (walk->at < to) {
                uint64_t head = walk->at % 4096;
                uint64_t n = to - walk->at < PIECE - head ? to - walk->at : PIECE - head;
                int r = object_read_range(walk->object, walk->at, n, walk->buffer + head, error);
                if (r < 0)
                        return r;
                EVP_DigestUpdate(walk->md, walk->buffer + head, n);
                walk->at += n;
        }
        return 0;
}

static int hash_tensor(struct walk *walk, const struct segment *segment, const struct plan_tensor *t,
                       struct error *error)
{
        for (uint64_t done = 0; done < t->bytes;) {
                uint64_t n = t->bytes - done < PIECE ? t->bytes - done : PIECE;
                const unsigned char *data = walk->buffer;
                if (segment->base != NULL)
                        data = segment->base + t->offset + done;
                else {
                        int r = segment->device->ops->read(segment, t->offset + done, walk->buffer, n, error);
                        if (r < 0)
                                return r;
                }
                EVP_DigestUpdate(walk->md, data, n);
                done += n;
        }
        walk->at += t->bytes;
        return 0;
}

static int hash_file(struct walk *walk, const struct resolved *resolved, const struct segment *segments, size_t file,
                     struct error *error)
{
        const struct plan *plan = &resolved->plan;
        walk->at = resolved->headers[file].data_start;
        for (size_t i = 0; i < plan->n_tensors; i++) {
                const struct plan_tensor *t = &plan->tensors[i];
                if (t->file != file || t->bytes == 0)
                        continue;
                int r = hash_gap(walk, t->file_off, error);
                if (r == 0)
                        r = hash_tensor(walk, &segments[t->segment], t, error);
                if (r < 0)
                        return r;
        }
        return hash_gap(walk, walk->object->version.size, error);
}

static void hex(char *out, const unsigned char *digest)
{
        for (size_t i = 0; i < 32; i++)
                snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

int sha_check_file(struct sha *sha, const struct resolved *resolved, const struct segment *segments, size_t file,
                   struct error *error)
{
        struct walk walk = {.md = EVP_MD_CTX_new(), .object = &resolved->set.objects[file]};
        cleanup_free unsigned char *buffer = aligned_alloc(4096, PIECE + 4096);
        unsigned char digest[32];
        walk.buffer = buffer;
        /* The header's digest is where each target begins. */
        int r = 0;
        if (buffer == NULL || walk.md == NULL || EVP_MD_CTX_copy_ex(walk.md, sha->contexts[file]) != 1)
                r = error_set(error, STREAMER_ENOMEM, "no memory");
        if (r == 0)
                r = hash_file(&walk, resolved, segments, file, error);
        if (r == 0)
                EVP_DigestFinal_ex(walk.md, digest, NULL);
        EVP_MD_CTX_free(walk.md);
        if (r < 0)
                return r;
        if (memcmp(digest, walk.object->sha256, sizeof(digest)) == 0)
                return 0;
        char got[65], want[65];
        hex(got, digest);
        hex(want, walk.object->sha256);
        return error_set(error, STREAMER_EFAILED, "SHA-256 differs: %s published, %s read (%s)", want, got,
                         walk.object->path);
}
