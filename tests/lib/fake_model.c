/* SPDX-License-Identifier: Apache-2.0
 *
 * Real memfds with a real manifest, built by hand so that each field can be made invalid.
 */
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

#include "daemon/base/util.h"

#include <fcntl.h>

enum { FD_MANIFEST, FD_SEGMENT, FD_ARRIVAL };

#define N 3
#define MORE 16 /* bytes of a larger header or item */
#define ARRIVAL_SIZE (sizeof(struct arrival_header) + MORE + N * sizeof(uint32_t))

static void *make(int *fd, size_t size)
{
        *fd = must(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        must(ftruncate(*fd, (off_t)size));
        must(fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK));
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (p == MAP_FAILED)
                die_errno("mmap");
        return p;
}

static void make_manifest(struct fake_model *m)
{
        struct manifest_counts counts = {
                .n_records = N, .n_shapes = 3, .strings_len = 16, .n_segments = 1, .n_metadata = 1};
        unsigned char *base = make(&m->fds[FD_MANIFEST], (size_t)manifest_size(&counts));
        m->manifest = manifest_init(base, &counts);
        m->records = (void *)(base + m->manifest->records_off);
        m->records[0] = (struct manifest_record){.name_len = 1, .dtype = DTYPE_U8, .rank = 1, .bytes = 4};
        m->records[1] = (struct manifest_record){
                .name_off = 2, .name_len = 1, .dtype = DTYPE_U8, .shape_off = 1, .rank = 1, .offset = 16, .bytes = 8};
        m->records[2] = (struct manifest_record){
                .name_off = 4, .name_len = 1, .dtype = DTYPE_U8, .shape_off = 2, .rank = 1, .offset = 24};
        *(struct manifest_segment *)(void *)(base + m->manifest->segments_off) =
                (struct manifest_segment){.size = FAKE_SEGMENT};
        *(struct manifest_pair *)(void *)(base + m->manifest->metadata_off) =
                (struct manifest_pair){.key_off = 6, .key_len = 6, .value_off = 13, .value_len = 2};
        memcpy(base + m->manifest->shapes_off, (uint64_t[]){4, 8, 0}, 24);
        memcpy(base + m->manifest->strings_off, "a\0b\0e\0format\0pt", 16);
}

void fake_model_init(struct fake_model *m)
{
        *m = (struct fake_model){.kind = "memfd",
                                 .state = "ready",
                                 .lease = FAKE_LEASE,
                                 .segment_size = FAKE_SEGMENT,
                                 .n_segments = 1,
                                 .n_fds = 3};
        make_manifest(m);
        m->segment = make(&m->fds[FD_SEGMENT], FAKE_SEGMENT);
        memcpy(m->segment, "AAAA", 4);
        memcpy(m->segment + 16, "BBBBBBBB", 8);
        m->arrival = make(&m->fds[FD_ARRIVAL], ARRIVAL_SIZE);
        memcpy(m->arrival->magic, ARRIVAL_MAGIC, sizeof(m->arrival->magic));
        m->arrival->capacity = N;
        m->arrival->header_size = sizeof(*m->arrival);
}

/* Copies n items of `size` bytes, each to a larger place; what is behind them is not 0. */
static uint64_t copy_items(unsigned char *to, uint64_t *at, const unsigned char *from, uint64_t off, uint64_t n,
                           uint32_t *size)
{
        uint64_t begin = *at;
        for (uint64_t i = 0; i < n; i++, *at += *size + MORE) {
                memcpy(to + *at, from + off + i * *size, *size);
                memset(to + *at + *size, 0xee, MORE);
        }
        *size += MORE;
        return begin;
}

void fake_model_enlarge(struct fake_model *m)
{
        const unsigned char *from = (const void *)m->manifest;
        struct manifest_header h = *m->manifest;
        uint64_t at = h.header_size + MORE;
        unsigned char *to = make(&m->fds[FD_MANIFEST], 2 * (size_t)h.size + 1024);
        h.segments_off = copy_items(to, &at, from, h.segments_off, h.n_segments, &h.segment_size);
        h.records_off = copy_items(to, &at, from, h.records_off, h.n_records, &h.record_size);
        h.metadata_off = copy_items(to, &at, from, h.metadata_off, h.n_metadata, &h.pair_size);
        memcpy(to + at, from + h.shapes_off, h.n_shapes * 8);
        h.shapes_off = at;
        h.strings_off = at + h.n_shapes * 8;
        memcpy(to + h.strings_off, from + m->manifest->strings_off, h.strings_len);
        h.size = h.strings_off + h.strings_len;
        h.header_size += MORE;
        memcpy(to, &h, sizeof(h));
        m->manifest = (void *)to;
        m->records = NULL;
        m->arrival->header_size += MORE;
}

void fake_model_arrive(struct fake_model *m, uint32_t i)
{
        ((uint32_t *)(void *)((char *)m->arrival + m->arrival->header_size))[m->arrival->count] = i;
        __atomic_store_n(&m->arrival->count, m->arrival->count + 1, __ATOMIC_RELEASE);
}

/* ---- the reply to an attach ---- */

char *fake_model_fields(const struct fake_model *m, int fds[3], size_t *n_fds)
{
        char *text = must_alloc(4096), handle[2 * 64 + 1] = "";
        for (size_t i = 0; m->handle && i < 64; i++)
                snprintf(handle + 2 * i, 3, "%02x", ((const unsigned char *)m->handle)[i]);
        format_append(text, 4096, " lease=%llu model=m generation=%d digest='%s' state=%s",
                      (unsigned long long)m->lease, FAKE_GENERATION, m->loading ? "" : FAKE_DIGEST,
                      m->loading ? "loading" : m->state);
        if (m->token)
                format_append(text, 4096, " token='%s'", m->token);
        format_append(text, 4096, " manifest={fd=%d size=%llu}", FD_MANIFEST, (unsigned long long)m->manifest->size);
        if (m->loading)
                format_append(text, 4096, " arrival={fd=%d size=%zu}", FD_ARRIVAL, ARRIVAL_SIZE);
        format_append(text, 4096, " segments=[");
        for (uint64_t i = 0; i < m->n_segments; i++) {
                format_append(text, 4096, "{kind=%s size=%llu offset=0 ", m->kind, (unsigned long long)m->segment_size);
                if (m->handle)
                        format_append(text, 4096, "handle=#%s uuid=%s}", handle, m->uuid);
                else
                        format_append(text, 4096, "fd=%d}", FD_SEGMENT);
        }
        format_append(text, 4096, "]\n");
        memcpy(fds, m->fds, sizeof(m->fds));
        *n_fds = m->loading ? m->n_fds : m->handle ? FD_SEGMENT : FD_SEGMENT + 1;
        return text;
}
