/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/published.h"

#include "daemon/base/util.h"
#include "proto/codec.h"
#include "proto/published/table.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

#define HEX_SIZE (2 * DIGEST_SIZE + 1)

/* Of a storage's name, with its NUL: its number has six digits. */
#define NAME_SIZE sizeof("streamerd.storage.000000")

/* ---- the key ---- */

static size_t name_len(const char *field)
{
        return strcspn(field, "=");
}

/* In order of names: the text before "=". */
static int compare_names(const char *a, const char *b)
{
        size_t x = name_len(a), y = name_len(b);
        int r = memcmp(a, b, x < y ? x : y);
        return r != 0 ? r : ORDER(x, y);
}

/* Takes over "NAME=VALUE" (NULL: no memory), also where it fails. */
static int add_field(struct published *p, char *field, struct error *error)
{
        char **key = field != NULL ? array_grow(p->key, p->n_key, sizeof(*key)) : NULL;
        if (key == NULL) {
                free(field);
                return error_no_memory(error);
        }
        size_t at = p->n_key++, len = name_len(field);
        for (; at > 0 && compare_names(key[at - 1], field) > 0; at--)
                key[at] = key[at - 1];
        key[at] = field;
        p->key = key;
        if (len == 0 || field[len] == '\0')
                return error_set(error, STREAMER_EINVAL, "key: '%s' is not NAME=VALUE", field);
        if (at > 0 && compare_names(key[at - 1], field) == 0)
                return error_set(error, STREAMER_EINVAL, "key: '%.*s' occurs twice", (int)len, field);
        return 0;
}

int published_new(struct published **out, const char *const *key, size_t n_key, struct error *error)
{
        struct published *p = calloc(1, sizeof(*p));
        int r = p != NULL ? 0 : error_no_memory(error);
        for (size_t i = 0; r == 0 && i < n_key; i++)
                r = add_field(p, strdup(key[i]), error);
        *out = r == 0 ? p : published_free(p);
        return r;
}

struct published *published_free(struct published *published)
{
        if (published == NULL)
                return NULL;
        for (size_t i = 0; i < published->n_key; i++)
                free(published->key[i]);
        free(published->key);
        free(published->base.source);
        free(published);
        return NULL;
}

void published_key_differs(const struct published *have, const struct published *want, published_differs_fn *differs,
                           void *context)
{
        for (size_t i = 0, k = 0; i < have->n_key || k < want->n_key;) {
                const char *a = i < have->n_key ? have->key[i] : NULL, *b = k < want->n_key ? want->key[k] : NULL;
                int order = a == NULL ? 1 : b == NULL ? -1 : compare_names(a, b);
                const char *name = order <= 0 ? a : b;
                size_t len = name_len(name);
                const char *x = order <= 0 ? a + len + 1 : NULL, *y = order >= 0 ? b + len + 1 : NULL;
                i += order <= 0;
                k += order >= 0;
                if (!same_text(x, y))
                        differs(context, name, len, x, y);
        }
}

/* ---- the manifest's metadata ---- */

/* Appends a pair, or (fill NULL) counts it. */
static void put_text(const char *key, const char *value, size_t value_len, struct manifest_counts *counts,
                     struct manifest_fill *fill)
{
        size_t key_len = strlen(key);
        if (fill != NULL) {
                manifest_add_pair(fill, key, key_len, value, value_len);
                return;
        }
        counts->n_metadata++;
        counts->strings_len += key_len + value_len + 2;
}

static void put_pair(const char *key, const char *value, struct manifest_counts *counts, struct manifest_fill *fill)
{
        put_text(key, value, strlen(value), counts, fill);
}

/* Both digests; without a sample the first one alone. */
static const char *identity_text(const struct source_identity *identity, char text[2 * HEX_SIZE])
{
        static const unsigned char none[DIGEST_SIZE];
        hex_encode(text, identity->digest, DIGEST_SIZE);
        if (memcmp(identity->sample, none, DIGEST_SIZE) != 0)
                hex_encode(text + strlen(text), identity->sample, DIGEST_SIZE);
        return text;
}

static void put_pairs(const struct published *published, struct manifest_counts *counts, struct manifest_fill *fill)
{
        const struct published_base *base = &published->base;
        char hex[HEX_SIZE], text[2 * HEX_SIZE];
        if (base->source != NULL) {
                /* Clients read the manifest, and the query of a URL may be a signature. */
                size_t len = source_has_query(base->source) ? strcspn(base->source, "?") : strlen(base->source);
                put_text(PUBLISHED_BASE, base->source, len, counts, fill);
                put_pair(PUBLISHED_BASE_IDENTITY, identity_text(&base->identity, text), counts, fill);
                if (source_has_query(base->source) && base->has_answers) {
                        hex_encode(hex, base->answers, DIGEST_SIZE);
                        put_pair(PUBLISHED_BASE_ANSWERS, hex, counts, fill);
                }
        }
        if (base->has_digest) {
                hex_encode(hex, base->digest, DIGEST_SIZE);
                put_pair(PUBLISHED_BASE_DIGEST, hex, counts, fill);
        }
        for (size_t i = 0; i < published->n_key; i++) {
                const char *field = published->key[i];
                char name[sizeof(PUBLISHED_KEY) + 256];
                snprintf(name, sizeof(name), PUBLISHED_KEY "%.*s", (int)name_len(field), field);
                put_pair(name, field + name_len(field) + 1, counts, fill);
        }
}

/* Whole digests, `max` at the most. NULL: nothing to decode. */
static bool decode_digests(unsigned char *bytes, size_t max, const char *hex)
{
        size_t n;
        return hex == NULL ||
               (OPENSSL_hexstr2buf_ex(bytes, max * DIGEST_SIZE, &n, hex, '\0') == 1 && n > 0 && n % DIGEST_SIZE == 0);
}

static bool read_pairs(struct published *p, const struct manifest_view *manifest)
{
        const char *source = manifest_metadata(manifest, PUBLISHED_BASE),
                   *digest = manifest_metadata(manifest, PUBLISHED_BASE_DIGEST),
                   *answers = manifest_metadata(manifest, PUBLISHED_BASE_ANSWERS), *key, *value;
        unsigned char identity[sizeof(struct source_identity)] = {0};
        p->base.has_digest = digest != NULL;
        p->base.has_answers = p->base.query_lost = answers != NULL;
        if ((source != NULL && (p->base.source = strdup(source)) == NULL) ||
            !decode_digests(p->base.digest, 1, digest) || !decode_digests(p->base.answers, 1, answers) ||
            !decode_digests(identity, 2, manifest_metadata(manifest, PUBLISHED_BASE_IDENTITY)))
                return false;
        memcpy(&p->base.identity, identity, sizeof(identity));
        for (uint64_t i = 0; i < manifest->header->n_metadata; i++)
                if (!manifest_pair_get(manifest, i, &key, &value) ||
                    (strncmp(key, PUBLISHED_KEY, strlen(PUBLISHED_KEY)) == 0 &&
                     add_field(p, format_new("%s=%s", key + strlen(PUBLISHED_KEY), value), NULL) < 0))
                        return false;
        return true;
}

int published_read(struct published **out, const struct manifest_view *manifest, struct error *error)
{
        const char *why;
        *out = calloc(1, sizeof(**out));
        if (*out != NULL && read_pairs(*out, manifest)) {
                (*out)->as_tensors =
                        manifest_find(manifest, PUBLISHED_TABLE_NAME, strlen(PUBLISHED_TABLE_NAME), &why) == -1;
                return 0;
        }
        *out = published_free(*out);
        return error_set(error, STREAMER_ECORRUPT, "the key and base of a published model cannot be read");
}

/* ---- the client's table ---- */

/* Its bytes: in place on the host, else a copy in *copy. NULL with *error. */
static const void *read_table(const struct segment *segment, const struct published_storage *table, void **copy,
                              struct error *error)
{
        if (segment->base != NULL)
                return segment->base + table->offset;
        *copy = malloc(table->bytes + 1);
        if (*copy == NULL) {
                error_set(error, STREAMER_ENOMEM, "no memory for a table of %" PRIu64 " bytes", table->bytes);
                return NULL;
        }
        return segment->device->ops->read(segment, table->offset, *copy, table->bytes, error) == 0 ? *copy : NULL;
}

/* ---- the manifest ---- */

/* A manifest whose records are added in byte order of their names. */
struct build {
        struct manifest_fill fill;
        uint64_t n_records, n_shapes;
};

static int build_new(struct build *b, struct table *manifest, const struct manifest_counts *counts,
                     const struct segment *segments, struct error *error)
{
        uint64_t size = manifest_size(counts);
        if (size == 0)
                return error_set(error, STREAMER_EINVAL, "the table of tensors would exceed %" PRIu64 " bytes",
                                 MANIFEST_MAX_SIZE);
        int r = host_table_new(manifest, "streamerd-manifest", size, error);
        if (r < 0)
                return r;
        struct manifest_header *header = manifest_init(manifest->map, counts);
        struct manifest_segment *sizes = (void *)((unsigned char *)header + header->segments_off);
        for (unsigned i = 0; i < counts->n_segments; i++)
                sizes[i].size = segments[i].size;
        *b = (struct build){.fill.header = header};
        return 0;
}

/* The record's place, dtype and rank are the caller's. `last`: the factor of the last dimension. */
static void add_record(struct build *b, const char *name, struct manifest_record record, const uint64_t *shape,
                       uint64_t last)
{
        struct manifest_header *header = b->fill.header;
        unsigned char *base = (unsigned char *)header;
        uint64_t *shapes = (uint64_t *)(void *)(base + header->shapes_off) + b->n_shapes;
        struct manifest_record *records = (void *)(base + header->records_off);
        record.name_len = (uint32_t)strlen(name);
        record.name_off = manifest_add_text(&b->fill, name, record.name_len);
        record.shape_off = b->n_shapes;
        for (uint32_t d = 0; d < record.rank; d++)
                shapes[d] = shape[d] * (d + 1 == record.rank ? last : 1);
        b->n_shapes += record.rank;
        records[b->n_records++] = record;
        header->data_bytes += record.bytes;
}

static void check_complete(const struct build *b, const struct manifest_counts *counts)
{
        require(b->fill.used == counts->strings_len && b->n_records == counts->n_records &&
                b->n_shapes == counts->n_shapes && b->fill.n_pairs == counts->n_metadata);
}

/* ---- of storages ---- */

static void add_bytes(struct build *b, const char *name, const struct published_storage *storage)
{
        const struct manifest_record record = {.dtype = DTYPE_U8,
                                               .rank = 1,
                                               .segment = storage->segment,
                                               .offset = storage->offset,
                                               .bytes = storage->bytes};
        add_record(b, name, record, &storage->bytes, 1);
}

/* The table's name follows those of all storages. */
static int build_storages(struct table *manifest, const struct published *published, const struct segment *segments,
                          unsigned n_segments, const struct published_view *view, const struct published_storage *table,
                          struct error *error)
{
        char name[2 * NAME_SIZE];
        struct build b;
        uint64_t n = view->header->n_storages;
        struct manifest_counts counts = {.n_records = n + 1,
                                         .n_shapes = n + 1,
                                         .n_segments = n_segments,
                                         .strings_len = n * NAME_SIZE + sizeof(PUBLISHED_TABLE_NAME)};
        put_pairs(published, &counts, NULL);
        int r = build_new(&b, manifest, &counts, segments, error);
        if (r < 0)
                return r;
        for (uint64_t i = 0; i < n; i++) {
                snprintf(name, sizeof(name), PUBLISHED_STORAGE_NAME, (unsigned long long)i);
                add_bytes(&b, name, published_storage(view, i));
        }
        add_bytes(&b, PUBLISHED_TABLE_NAME, table);
        put_pairs(published, NULL, &b.fill);
        check_complete(&b, &counts);
        return 0;
}

/* ---- of tensors ---- */

static const char *name_of(const struct published_view *view, const struct published_tensor *t)
{
        return view->strings + t->name_off;
}

static bool is_reserved(const char *name)
{
        return strncmp(name, PUBLISHED_OWN, strlen(PUBLISHED_OWN)) == 0;
}

static bool is_contiguous(const struct published_tensor *t, const uint64_t *shape, const uint64_t *strides)
{
        uint64_t step = 1;
        for (uint32_t d = t->rank; d-- > 0;) {
                if (shape[d] == 0)
                        return true;
                if (shape[d] > 1 && strides[d] != step)
                        return false;
                step *= shape[d];
        }
        return true;
}

/* Elements of the dtype in one of the table's, which has whole bytes: two of F4, else one. 0: they do not fit. */
static unsigned elements_in_item(unsigned dtype, const struct published_tensor *t)
{
        unsigned bits = dtype_bits(dtype), item = 8 * t->item;
        if (bits >= 8)
                return item == bits;
        return item == 8 && item % bits == 0 && t->rank > 0 ? item / bits : 0;
}

/* A tensor as safetensors has them: the record of one, or STREAMER_EINVAL. */
static int tensor_record(const struct published_view *view, const struct published_tensor *t,
                         struct manifest_record *record, struct error *error)
{
        const char *name = name_of(view, t), *dtype = view->strings + t->dtype_off, *why = NULL;
        const uint64_t *shape = view->numbers + t->numbers_off;
        const struct published_storage *storage = published_storage(view, t->storage);
        int number = dtype_find(dtype, t->dtype_len);
        unsigned elements = number < 0 ? 0 : elements_in_item((unsigned)number, t);
        if (elements == 0)
                return error_set(error, STREAMER_EINVAL,
                                 "the table is refused: tensor '%.200s': %.60s of %u bytes is no dtype of safetensors",
                                 name, dtype, t->item);
        if (is_reserved(name) || !codec_utf8(name, t->name_len))
                why = "its name is reserved, or not UTF-8";
        else if (t->alias != 0)
                why = "it shares bytes with others";
        else if (!is_contiguous(t, shape, shape + t->rank))
                why = "it is not contiguous";
        else if (t->rank > 0 && shape[t->rank - 1] > UINT64_MAX / elements)
                why = "its last dimension is too large";
        if (why != NULL)
                return error_set(error, STREAMER_EINVAL, "the table is refused: tensor '%.200s': %s", name, why);
        *record = (struct manifest_record){.dtype = (uint32_t)number,
                                           .rank = t->rank,
                                           .segment = storage->segment,
                                           .offset = storage->offset + t->offset,
                                           .bytes = t->item};
        for (uint32_t d = 0; d < t->rank; d++) /* an extent: it does not overflow, unless it is empty */
                record->bytes = shape[d] == 0 || record->bytes == 0 ? 0 : record->bytes * shape[d];
        return 0;
}

static int check_attributes(const struct published_view *view, struct error *error)
{
        for (uint64_t i = 0; i < view->header->n_attributes; i++) {
                const struct published_attribute *a = published_attribute(view, i);
                const char *name = view->strings + a->name_off, *value = view->strings + a->value_off;
                if (is_reserved(name) || !codec_utf8(name, a->name_len) || !codec_utf8(value, a->value_len))
                        return error_set(error, STREAMER_EINVAL,
                                         "the table is refused: metadata '%.200s': its name is reserved, or a text is "
                                         "not UTF-8",
                                         name);
        }
        return 0;
}

static int by_name(const void *a, const void *b, void *view)
{
        return strcmp(name_of(view, *(const struct published_tensor *const *)a),
                      name_of(view, *(const struct published_tensor *const *)b));
}

static void put_attributes(const struct published_view *view, struct manifest_counts *counts,
                           struct manifest_fill *fill)
{
        for (uint64_t i = 0; i < view->header->n_attributes; i++) {
                const struct published_attribute *a = published_attribute(view, i);
                put_text(view->strings + a->name_off, view->strings + a->value_off, a->value_len, counts, fill);
        }
}

static int build_tensors(struct table *manifest, const struct published *published, const struct segment *segments,
                         unsigned n_segments, struct published_view *view, struct error *error)
{
        struct build b;
        struct manifest_record record;
        uint64_t n = view->header->n_tensors;
        struct manifest_counts counts = {.n_records = n, .n_segments = n_segments};
        cleanup_free const struct published_tensor **sorted = malloc((n + 1) * sizeof(*sorted));
        int r = sorted != NULL ? check_attributes(view, error) : error_no_memory(error);
        for (uint64_t i = 0; r == 0 && i < n; i++) {
                const struct published_tensor *t = sorted[i] = published_tensor(view, i);
                r = tensor_record(view, t, &record, error);
                counts.n_shapes += t->rank;
                counts.strings_len += t->name_len + 1;
        }
        put_pairs(published, &counts, NULL);
        put_attributes(view, &counts, NULL);
        if (r == 0)
                r = build_new(&b, manifest, &counts, segments, error);
        if (r < 0)
                return r;
        if (n > 0)
                qsort_r(sorted, n, sizeof(*sorted), by_name, view);
        for (uint64_t i = 0; i < n; i++) {
                const struct published_tensor *t = sorted[i];
                require(tensor_record(view, t, &record, NULL) == 0);
                add_record(&b, name_of(view, t), record, view->numbers + t->numbers_off,
                           elements_in_item(record.dtype, t));
        }
        put_pairs(published, NULL, &b.fill);
        put_attributes(view, NULL, &b.fill);
        check_complete(&b, &counts);
        return 0;
}

int published_manifest_build(struct table *manifest, const struct published *published, const struct segment *segments,
                             unsigned n_segments, const struct published_storage *table, const bool *stop,
                             struct error *error)
{
        struct published_view view;
        cleanup_free void *copy = NULL;
        uint64_t sizes[MANIFEST_MAX_SEGMENTS];
        char text[400];
        const struct segment *segment = table->segment < n_segments ? &segments[table->segment] : NULL;
        if (segment == NULL || table->offset % PUBLISHED_ALIGN != 0 || table->bytes > PUBLISHED_MAX_SIZE ||
            table->offset > segment->size || table->bytes > segment->size - table->offset)
                return error_set(error, STREAMER_EINVAL,
                                 "the table is refused: it is not aligned, or outside its segment");
        const void *bytes = read_table(segment, table, &copy, error);
        if (bytes == NULL)
                return error->code;
        for (unsigned i = 0; i < n_segments; i++)
                sizes[i] = segments[i].size;
        const struct published_place place = {sizes, n_segments, *table, stop};
        int r = published_open(&view, bytes, table->bytes, &place, text, sizeof(text));
        if (r == -2)
                return error_set(error, STREAMER_ENOMEM, "no memory to check the table");
        if (r < 0)
                return error_set(error, STREAMER_EINVAL, "the table is refused: %s", text);
        return published->as_tensors ? build_tensors(manifest, published, segments, n_segments, &view, error)
                                     : build_storages(manifest, published, segments, n_segments, &view, table, error);
}
