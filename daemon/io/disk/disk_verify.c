/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_verify.h"

#include "daemon/io/file/file_read.h"
#include "daemon/model/plan.h"

#include <inttypes.h>

struct verifying {
        const struct object_copy *copy;
        unsigned char *page; /* page-aligned: a leaf, and a page before and after it */
        uint64_t sum;        /* of the next leaf */
        const bool *stop;
};

static int differs(const struct object_copy *copy, uint64_t to, struct error *error)
{
        return error_set(error, STREAMER_EFAILED,
                         "the bytes up to offset %" PRIu64 " differ from those that were stored (%s)", to,
                         copy->file->path);
}

/* Bytes [from, from + n) of the file, at most a leaf. */
static int verify_leaf(struct verifying *v, uint64_t from, uint64_t n, struct error *error)
{
        const struct object_copy *copy = v->copy;
        unsigned char digest[DIGEST_SIZE];
        if (load_relaxed(v->stop))
                return error_set(error, STREAMER_ECANCELED, "given up: cancelled, or the daemon is ending");
        unsigned char *to = v->page + from % PREAD_PAGE;
        int r = object_read_range(copy->file, from, n, to, error);
        if (r < 0)
                return r;
        hash_bytes(to, n, digest);
        if (v->sum >= copy->n_sums || memcmp(digest, copy->sums[v->sum++], DIGEST_SIZE) != 0)
                return differs(copy, from + n, error);
        return 0;
}

static int verify_tensors(struct verifying *v, const struct st_header *header, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < header->n_tensors; i++) {
                const struct st_tensor *t = &header->tensors[i];
                for (uint64_t at = t->begin, n; r == 0 && at < t->end; at += n) {
                        n = t->end - at < PLAN_LEAF ? t->end - at : PLAN_LEAF;
                        r = verify_leaf(v, header->data_start + at, n, error);
                }
        }
        return r;
}

/* What is behind the header, which was compared when the copy was opened. */
static int verify_data(struct verifying *v, struct error *error)
{
        const struct object_copy *copy = v->copy;
        struct st_header header = {.n_tensors = 0};
        struct st_error st;
        uint64_t n, size = copy->file->version.size;
        if (copy->header == size)
                return 0;
        cleanup_free char *text = malloc(copy->header);
        if (text == NULL)
                return error_no_memory(error);
        memcpy(text, copy->first, copy->header);
        if (st_parse_prefix(copy->first, size, &n, &st) < 0 || n + ST_PREFIX != copy->header ||
            st_parse(&header, text + ST_PREFIX, n, size, &st) < 0)
                return differs(copy, copy->header, error);
        int r = verify_tensors(v, &header, error);
        st_header_deinit(&header);
        return r;
}

int disk_verify(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], const bool *stop, uint64_t *bytes,
                struct error *error)
{
        struct object_copy *copy;
        int r = disk_cache_examine(cache, id, &copy, error);
        if (r < 0)
                return r;
        struct verifying v = {
                .copy = copy, .stop = stop, .page = aligned_alloc(PREAD_PAGE, PLAN_LEAF + 2 * PREAD_PAGE)};
        r = v.page != NULL ? verify_data(&v, error) : error_no_memory(error);
        if (r == STREAMER_EFAILED)
                disk_copy_drop(copy, error->text);
        if (r == 0)
                *bytes += copy->file->version.size;
        copy->close(copy);
        free(v.page);
        return r;
}
