/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing: into a memfd by write(), since a writable map would make F_SEAL_WRITE fail; then the seals; then it is
 * opened again for reading, since kernels before 6.7 refuse shared maps of a write-sealed descriptor that is open for
 * writing.
 *
 * Reading accepts only a sealed record with a matching checksum: it may be of another version, or somebody else's
 * descriptor under the same name.
 */
#include "daemon/resident/persist/commit_record.h"

#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "strmrec2"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* ---- writing ---- */

int commit_record_pack(msgpack_sbuffer *details, const struct generation *g, uint64_t id)
{
        struct model_segment segments[GENERATION_SEGMENTS];
        struct model_record record = model_record_of(g);
        record.id = id;
        record.device = g->device->uuid;
        record.segments = segments;
        for (record.n_segments = 0; record.n_segments < g->n_segments; record.n_segments++) {
                const struct segment *s = &g->segments[record.n_segments];
                segments[record.n_segments] = (struct model_segment){
                        .size = s->size, .small_bytes = segment_small_bytes(s), .pages = s->pages};
        }
        struct writer w;
        writer_init(&w);
        model_record_write(&w, &record, STORE_COMMIT);
        *details = w.buf;
        if (w.failed)
                msgpack_sbuffer_destroy(details);
        return w.failed ? STREAMER_ENOMEM : 0;
}

int commit_record_write(msgpack_sbuffer *details, const struct table *manifest, int *fd, struct error *error)
{
        char path[64];
        cleanup_close int writing = memfd_create("streamerd-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (record_seal(details, manifest->map, manifest->size, MAGIC) < 0)
                return error_set(error, STREAMER_ENOMEM, "the record of a model: no memory");
        if (writing < 0 || text_write_fd(writing, manifest->map, manifest->size) < 0 ||
            text_write_fd(writing, details->data, details->size) < 0 || fcntl(writing, F_ADD_SEALS, SEALS) < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        snprintf(path, sizeof(path), "/proc/self/fd/%d", writing);
        *fd = open(path, O_RDONLY | O_CLOEXEC);
        return *fd >= 0 ? 0 : error_errno(error, STREAMER_EOS, errno, "the record of a model");
}

/* ---- reading ---- */

static int damaged(struct error *error, const char *what)
{
        return error_set(error, STREAMER_ECORRUPT, "its record is damaged: %s", what);
}

/* The segments, the details and the manifest agree. */
static int check(const struct model_record *r, const unsigned char *base, uint64_t size, struct error *error)
{
        struct manifest_view m;
        const char *why;
        uint64_t sum = 0;
        for (size_t i = 0; i < r->n_segments; i++)
                if (__builtin_add_overflow(sum, r->segments[i].size, &sum) ||
                    r->segments[i].small_bytes > r->segments[i].size)
                        return damaged(error, "wrong sizes of segments");
        if (sum > r->charged)
                return damaged(error, "wrong sizes of segments");
        if (manifest_open(&m, base, size, &why) < 0)
                return damaged(error, why);
        if (m.header->size != size || m.header->generation != r->number || m.header->n_records != r->n_tensors ||
            m.header->n_segments != r->n_segments || memcmp(m.header->digest, r->digest, DIGEST_SIZE) != 0)
                return damaged(error, "it is another model's");
        for (unsigned i = 0; i < r->n_segments; i++)
                if (manifest_segment(&m, i)->size != r->segments[i].size)
                        return damaged(error, "its segments are others");
        for (uint64_t i = 0; i < m.header->n_records; i++)
                if (manifest_check(&m, i, &why) < 0)
                        return damaged(error, why);
        return 0;
}

static int read_all(struct model_record *record, const unsigned char *base, uint64_t size, size_t *manifest_size,
                    struct error *error)
{
        struct message map;
        const char *wrong = record_open(base, size, MAGIC, manifest_size, &map);
        if (wrong != NULL)
                return damaged(error, wrong);
        wrong = model_record_read(record, &map.unpacked.data, STORE_COMMIT);
        message_deinit(&map);
        if (wrong != NULL)
                return error_set(error, STREAMER_ECORRUPT, "its record is damaged: '%s' is not valid", wrong);
        return check(record, base, *manifest_size, error);
}

int commit_record_read_consume_fd(struct model_record *record, int fd, struct table *out, struct error *error)
{
        cleanup_close int own = fd;
        struct stat st;
        size_t manifest_size = 0;
        *record = (struct model_record){.name = NULL};
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
                return damaged(error, "it is not sealed");
        if (fstat(fd, &st) < 0 || st.st_size <= 0)
                return damaged(error, "it is too short");
        uint64_t size = (uint64_t)st.st_size;
        void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        int r = read_all(record, map, size, &manifest_size, error);
        munmap(map, size);
        /* The manifest comes first; the rest is not used again. */
        map = r == 0 ? mmap(NULL, manifest_size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
        if (map == MAP_FAILED)
                r = error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        if (r < 0)
                model_record_deinit(record);
        else
                *out = (struct table){.fd = take_fd(&own), .map = map, .size = manifest_size};
        return r;
}
