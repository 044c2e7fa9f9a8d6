/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/published.h"

#include "daemon/base/util.h"
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
static bool hex_decode(unsigned char *bytes, size_t max, const char *hex)
{
        size_t n;
        return hex == NULL ||
               (OPENSSL_hexstr2buf_ex(bytes, max * DIGEST_SIZE, &n, hex, '\0') == 1 && n > 0 && n % DIGEST_SIZE == 0);
}

static bool read_pairs(struct published *p, const struct manifest_view *manifest)
{
        const char *source = manifest_metadata(manifest, PUBLISHED_BASE),
                   *digest = manifest_metadata(manifest, PUBLISHED_BASE_DIGEST), *key, *value;
        unsigned char identity[sizeof(struct source_identity)] = {0};
        p->base.has_digest = digest != NULL;
        if ((source != NULL && (p->base.source = strdup(source)) == NULL) || !hex_decode(p->base.digest, 1, digest) ||
            !hex_decode(identity, 2, manifest_metadata(manifest, PUBLISHED_BASE_IDENTITY)))
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
        *out = calloc(1, sizeof(**out));
        if (*out != NULL && read_pairs(*out, manifest))
                return 0;
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

static void add_record(struct manifest_fill *fill, uint64_t i, const char *name,
                       const struct published_storage *storage)
{
        size_t len = strlen(name);
        struct manifest_header *header = fill->header;
        unsigned char *base = (unsigned char *)header;
        struct manifest_record *records = (void *)(base + header->records_off);
        uint64_t *shapes = (void *)(base + header->shapes_off);
        shapes[i] = storage->bytes;
        records[i] = (struct manifest_record){.name_off = manifest_add_text(fill, name, len),
                                              .name_len = (uint32_t)len,
                                              .dtype = DTYPE_U8,
                                              .shape_off = i,
                                              .rank = 1,
                                              .segment = storage->segment,
                                              .offset = storage->offset,
                                              .bytes = storage->bytes};
        header->data_bytes += storage->bytes;
}

/* The names are in byte order; the table's name follows those of all storages. */
static int build_manifest(struct table *manifest, const struct published *published, const struct segment *segments,
                          unsigned n_segments, const struct published_view *view, const struct published_storage *table,
                          struct error *error)
{
        char name[2 * NAME_SIZE];
        uint64_t n = view->header->n_storages;
        struct manifest_counts counts = {.n_records = n + 1,
                                         .n_shapes = n + 1,
                                         .n_segments = n_segments,
                                         .strings_len = n * NAME_SIZE + sizeof(PUBLISHED_TABLE_NAME)};
        put_pairs(published, &counts, NULL);
        uint64_t size = manifest_size(&counts);
        if (size == 0)
                return error_set(error, STREAMER_EINVAL, "the table of storages would exceed %" PRIu64 " bytes",
                                 MANIFEST_MAX_SIZE);
        int r = host_table_new(manifest, "streamerd-manifest", size, error);
        if (r < 0)
                return r;
        struct manifest_header *header = manifest_init(manifest->map, &counts);
        struct manifest_fill fill = {.header = header};
        struct manifest_segment *sizes = (void *)((unsigned char *)header + header->segments_off);
        for (unsigned i = 0; i < n_segments; i++)
                sizes[i].size = segments[i].size;
        for (uint64_t i = 0; i < n; i++) {
                snprintf(name, sizeof(name), PUBLISHED_STORAGE_NAME, (unsigned long long)i);
                add_record(&fill, i, name, published_storage(view, i));
        }
        add_record(&fill, n, PUBLISHED_TABLE_NAME, table);
        put_pairs(published, NULL, &fill);
        require(fill.used == counts.strings_len);
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
        return build_manifest(manifest, published, segments, n_segments, &view, table, error);
}
