/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and laying out manifests. The reader trusts nothing that it has not checked: the header
 * and the sections' bounds when the manifest is opened, each record when it is used. The sections
 * follow one another in a fixed order, so that none can lie over another.
 */
#include "proto/manifest.h"

#include "streamer/client.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct manifest_header) == 144, "the header is part of the format");
_Static_assert(sizeof(struct manifest_segment) == 16, "segments are part of the format");
_Static_assert(sizeof(struct manifest_record) == 64, "records are part of the format");
_Static_assert(sizeof(struct manifest_pair) == 24, "pairs are part of the format");
_Static_assert(sizeof(struct arrival_header) == 32, "the arrival log is part of the format");

static int refuse(const char **why, const char *text)
{
        *why = text;
        return -1;
}

/* ---- element types ---- */

static const struct dtype_desc {
        const char *name; /* NULL: not assigned */
        size_t len;
        unsigned bits;
} dtypes[DTYPE_END] = {
#define X(name, number, bits) [number] = {#name, sizeof(#name) - 1, bits},
        DTYPES(X)
#undef X
};

#define X(name, number, bits)                                                                                          \
        _Static_assert((int)STREAMER_DTYPE_##name == (number), "numbers of the library and of manifests are the "      \
                                                               "same");
DTYPES(X)
#undef X

const char *dtype_name(unsigned dtype)
{
        return dtype < DTYPE_END ? dtypes[dtype].name : NULL;
}

unsigned dtype_bits(unsigned dtype)
{
        return dtype < DTYPE_END ? dtypes[dtype].bits : 0;
}

int dtype_find(const char *name, size_t len)
{
        for (int i = 0; i < DTYPE_END; i++)
                if (dtypes[i].name && dtypes[i].len == len && memcmp(dtypes[i].name, name, len) == 0)
                        return i;
        return -1;
}

unsigned dtype_align(unsigned dtype)
{
        unsigned bits = dtype_bits(dtype);
        return bits < 8 ? 1 : bits / 8;
}

/* ---- reading ---- */

bool manifest_is_size(uint32_t size, size_t least)
{
        return size >= least && size % 8 == 0;
}

static const char *check_header(const struct manifest_header *h, size_t size)
{
        if (memcmp(h->magic, MANIFEST_MAGIC, sizeof(h->magic)) != 0)
                return "no manifest: wrong magic";
        if (h->version != MANIFEST_VERSION)
                return "unknown version of the manifest";
        if (!manifest_is_size(h->header_size, sizeof(*h)) ||
            !manifest_is_size(h->segment_size, sizeof(struct manifest_segment)) ||
            !manifest_is_size(h->record_size, sizeof(struct manifest_record)) ||
            !manifest_is_size(h->pair_size, sizeof(struct manifest_pair)))
                return "the size of the header or of an item is too small";
        if (h->size < h->header_size || h->size > size || h->size > MANIFEST_MAX_SIZE)
                return "the manifest's size is out of bounds";
        if (h->n_segments > MANIFEST_MAX_SEGMENTS)
                return "too many segments";
        return NULL;
}

bool manifest_section(uint64_t off, uint64_t n, uint64_t item, uint64_t size, uint64_t *end)
{
        if (off < *end || off > size || off % 8 != 0 || n > (size - off) / item)
                return false;
        *end = off + n * item;
        return true;
}

static const char *check_sections(const struct manifest_header *h)
{
        uint64_t end = h->header_size;
        if (!manifest_section(h->segments_off, h->n_segments, h->segment_size, h->size, &end))
                return "the segments are out of bounds";
        if (!manifest_section(h->records_off, h->n_records, h->record_size, h->size, &end))
                return "the records are out of bounds";
        if (!manifest_section(h->metadata_off, h->n_metadata, h->pair_size, h->size, &end))
                return "the metadata is out of bounds";
        if (!manifest_section(h->shapes_off, h->n_shapes, sizeof(uint64_t), h->size, &end))
                return "the shapes are out of bounds";
        if (!manifest_section(h->strings_off, h->strings_len, 1, h->size, &end))
                return "the strings are out of bounds";
        return NULL;
}

int manifest_open(struct manifest_view *view, const void *base, size_t size, const char **why)
{
        const struct manifest_header *h = base;
        if (size < sizeof(*h) || (uintptr_t)base % 8 != 0)
                return refuse(why, "too small for a manifest");
        const char *fault = check_header(h, size);
        if (!fault)
                fault = check_sections(h);
        if (fault)
                return refuse(why, fault);

        const unsigned char *p = base;
        *view = (struct manifest_view){
                .base = p,
                .header = h,
                .segments = p + h->segments_off,
                .records = p + h->records_off,
                .metadata = p + h->metadata_off,
                .shapes = (const void *)(p + h->shapes_off),
                .strings = (const char *)(p + h->strings_off),
        };
        return 0;
}

const char *manifest_text(const char *strings, uint64_t total, uint64_t off, uint64_t len)
{
        if (off >= total || len >= total - off)
                return NULL;
        const char *s = strings + off;
        return memchr(s, 0, (size_t)len + 1) == s + len ? s : NULL;
}

static const char *string_at(const struct manifest_view *view, uint64_t off, uint64_t len)
{
        return manifest_text(view->strings, view->header->strings_len, off, len);
}

/* The shape's size in bytes is the record's. Dimensions are multiplied left to right, as the file
 * format has it: an overflow before a zero is still an overflow. */
static bool shape_matches(const struct manifest_view *view, const struct manifest_record *r)
{
        uint64_t n = 1;
        for (uint32_t i = 0; i < r->rank; i++)
                if (__builtin_mul_overflow(n, view->shapes[r->shape_off + i], &n))
                        return false;
        if (__builtin_mul_overflow(n, dtype_bits(r->dtype), &n))
                return false;
        return n % 8 == 0 && n / 8 == r->bytes;
}

static const char *check_place(const struct manifest_view *view, const struct manifest_record *r)
{
        /* A model of empty tensors alone has no segment. */
        if (view->header->n_segments == 0)
                return r->bytes == 0 && r->segment == 0 ? NULL : "a record's segment does not exist";
        if (r->segment >= view->header->n_segments)
                return "a record's segment does not exist";
        uint64_t size = manifest_segment(view, r->segment)->size;
        if (r->offset > size || r->bytes > size - r->offset)
                return "a record lies outside its segment";
        return NULL;
}

int manifest_check(const struct manifest_view *view, uint64_t i, const char **why)
{
        if (i >= view->header->n_records)
                return refuse(why, "no such record");
        const struct manifest_record *r = manifest_record(view, i);
        if (!string_at(view, r->name_off, r->name_len))
                return refuse(why, "a record's name is out of bounds");
        if (!dtype_name(r->dtype))
                return refuse(why, "a record's dtype is unknown");
        if (r->shape_off > view->header->n_shapes || r->rank > view->header->n_shapes - r->shape_off)
                return refuse(why, "a record's shape is out of bounds");
        if (!shape_matches(view, r))
                return refuse(why, "a record's shape does not make up its bytes");
        const char *fault = check_place(view, r);
        return fault ? refuse(why, fault) : 0;
}

static int compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
        int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
        if (c != 0)
                return c;
        return a_len < b_len ? -1 : a_len > b_len;
}

int64_t manifest_find(const struct manifest_view *view, const char *name, size_t len, const char **why)
{
        uint64_t lo = 0, hi = view->header->n_records;
        while (lo < hi) {
                uint64_t mid = lo + (hi - lo) / 2;
                const struct manifest_record *r = manifest_record(view, mid);
                const char *s = string_at(view, r->name_off, r->name_len);
                if (!s) {
                        *why = "a record's name is out of bounds";
                        return -2;
                }
                int c = compare(name, len, s, r->name_len);
                if (c == 0)
                        return (int64_t)mid;
                if (c < 0)
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return -1;
}

const char *manifest_metadata(const struct manifest_view *view, const char *key)
{
        size_t len = strlen(key);
        for (uint32_t i = 0; i < view->header->n_metadata; i++) {
                const struct manifest_pair *p = manifest_pair(view, i);
                const char *k = p->key_len == len ? string_at(view, p->key_off, p->key_len) : NULL;
                if (k && memcmp(k, key, len) == 0)
                        return string_at(view, p->value_off, p->value_len);
        }
        return NULL;
}

bool manifest_pair_get(const struct manifest_view *view, uint64_t i, const char **key, const char **value)
{
        const struct manifest_pair *p = manifest_pair(view, i);
        *key = string_at(view, p->key_off, p->key_len);
        *value = string_at(view, p->value_off, p->value_len);
        return *key && *value;
}

const uint32_t *arrival_entries(const struct arrival_header *log, uint64_t size, uint64_t n_records)
{
        if (size < sizeof(*log) || memcmp(log->magic, ARRIVAL_MAGIC, sizeof(log->magic)) != 0)
                return NULL;
        if (!manifest_is_size(log->header_size, sizeof(*log)) || log->header_size > size ||
            log->capacity != n_records || (size - log->header_size) / sizeof(uint32_t) < n_records)
                return NULL;
        return (const void *)((const unsigned char *)log + log->header_size);
}

/* ---- writing ---- */

/* Where each section begins; false if the sum overflows or is too large. */
static bool lay_out(const struct manifest_counts *c, struct manifest_header *h)
{
        if (c->n_records > MANIFEST_MAX_SIZE || c->n_shapes > MANIFEST_MAX_SIZE || c->strings_len > MANIFEST_MAX_SIZE ||
            c->n_segments > MANIFEST_MAX_SEGMENTS)
                return false; /* so that nothing below can overflow */
        h->segments_off = sizeof(*h);
        h->records_off = h->segments_off + c->n_segments * sizeof(struct manifest_segment);
        h->metadata_off = h->records_off + c->n_records * sizeof(struct manifest_record);
        h->shapes_off = h->metadata_off + c->n_metadata * sizeof(struct manifest_pair);
        h->strings_off = h->shapes_off + c->n_shapes * sizeof(uint64_t);
        h->size = h->strings_off + c->strings_len;
        return h->size <= MANIFEST_MAX_SIZE;
}

uint64_t manifest_size(const struct manifest_counts *counts)
{
        struct manifest_header h;
        return lay_out(counts, &h) ? h.size : 0;
}

struct manifest_header *manifest_init(void *base, const struct manifest_counts *counts)
{
        struct manifest_header *h = base;
        if (!lay_out(counts, h))
                abort(); /* manifest_size() has returned the size to the caller */
        memcpy(h->magic, MANIFEST_MAGIC, sizeof(h->magic));
        h->version = MANIFEST_VERSION;
        h->header_size = sizeof(*h);
        h->segment_size = sizeof(struct manifest_segment);
        h->record_size = sizeof(struct manifest_record);
        h->pair_size = sizeof(struct manifest_pair);
        h->n_records = counts->n_records;
        h->n_shapes = counts->n_shapes;
        h->strings_len = counts->strings_len;
        h->n_segments = counts->n_segments;
        h->n_metadata = counts->n_metadata;
        return h;
}

uint64_t manifest_add_text(struct manifest_fill *fill, const char *text, size_t len)
{
        char *to = (char *)fill->header + fill->header->strings_off + fill->used;
        uint64_t at = fill->used;
        memcpy(to, text, len);
        to[len] = '\0';
        fill->used += len + 1;
        return at;
}

void manifest_add_pair(struct manifest_fill *fill, const char *key, size_t key_len, const char *value, size_t value_len)
{
        struct manifest_pair *pairs = (void *)((unsigned char *)fill->header + fill->header->metadata_off);
        struct manifest_pair *pair = &pairs[fill->n_pairs++];
        pair->key_len = (uint32_t)key_len;
        pair->value_len = (uint32_t)value_len;
        pair->key_off = manifest_add_text(fill, key, key_len);
        pair->value_off = manifest_add_text(fill, value, value_len);
}
