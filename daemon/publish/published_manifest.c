/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/publish/published_manifest.h"

#include "daemon/base/util.h"

#include <inttypes.h>
#include <string.h>

/* Of a storage's name, with its NUL: its number has six digits. */
#define NAME_SIZE sizeof("streamerd.storage.000000")

/* ---- the client's table ---- */

/* Its bytes: in place on the host, else a copy in *copy. NULL with *error. */
static const void *read_table(const struct generation *g, const struct published_storage *table, void **copy,
                              struct error *error)
{
        const struct segment *segment = &g->segments[table->segment];
        if (segment->base != NULL)
                return segment->base + table->offset;
        *copy = malloc(table->bytes + 1);
        if (*copy == NULL) {
                error_set(error, STREAMER_ENOMEM, "no memory for a table of %" PRIu64 " bytes", table->bytes);
                return NULL;
        }
        return segment->device->ops->read(segment, table->offset, *copy, table->bytes, error) == 0 ? *copy : NULL;
}

static int open_table(struct published_view *view, const void *bytes, const struct generation *g,
                      const struct published_storage *table, struct error *error)
{
        uint64_t sizes[GENERATION_SEGMENTS];
        char text[400];
        for (unsigned i = 0; i < g->n_segments; i++)
                sizes[i] = g->segments[i].size;
        const struct published_place place = {sizes, g->n_segments, *table};
        int r = published_open(view, bytes, table->bytes, &place, text, sizeof(text));
        if (r == -2)
                return error_set(error, STREAMER_ENOMEM, "no memory to check the table");
        return r == 0 ? 0 : error_set(error, STREAMER_EINVAL, "the table is refused: %s", text);
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
static int build_manifest(struct table *manifest, const struct generation *g, const struct published_view *view,
                          const struct published_storage *table, struct error *error)
{
        char name[2 * NAME_SIZE];
        uint64_t n = view->header->n_storages;
        struct manifest_counts counts = {.n_records = n + 1,
                                         .n_shapes = n + 1,
                                         .n_segments = g->n_segments,
                                         .strings_len = n * NAME_SIZE + sizeof(PUBLISHED_TABLE_NAME)};
        published_put(g->published, &counts, NULL);
        uint64_t size = manifest_size(&counts);
        if (size == 0)
                return error_set(error, STREAMER_EINVAL, "the table of storages would exceed %" PRIu64 " bytes",
                                 MANIFEST_MAX_SIZE);
        int r = host_table_new(manifest, "streamerd-manifest", size, error);
        if (r < 0)
                return r;
        struct manifest_header *header = manifest_init(manifest->map, &counts);
        struct manifest_fill fill = {.header = header};
        header->generation = g->number;
        struct manifest_segment *segments = (void *)((unsigned char *)header + header->segments_off);
        for (unsigned i = 0; i < g->n_segments; i++)
                segments[i].size = g->segments[i].size;
        for (uint64_t i = 0; i < n; i++) {
                snprintf(name, sizeof(name), PUBLISHED_STORAGE_NAME, (unsigned long long)i);
                add_record(&fill, i, name, published_storage(view, i));
        }
        add_record(&fill, n, PUBLISHED_TABLE_NAME, table);
        published_put(g->published, NULL, &fill);
        require(fill.used == counts.strings_len);
        return 0;
}

int published_manifest_build(struct table *manifest, const struct generation *generation,
                             const struct published_storage *table, struct error *error)
{
        struct published_view view;
        cleanup_free void *copy = NULL;
        const struct segment *segment =
                table->segment < generation->n_segments ? &generation->segments[table->segment] : NULL;
        if (segment == NULL || table->offset % PUBLISHED_ALIGN != 0 || table->bytes > PUBLISHED_MAX_SIZE ||
            table->offset > segment->size || table->bytes > segment->size - table->offset)
                return error_set(error, STREAMER_EINVAL,
                                 "the table is refused: it is not aligned, or outside its segment");
        const void *bytes = read_table(generation, table, &copy, error);
        if (bytes == NULL)
                return error->code;
        return open_table(&view, bytes, generation, table, error)
                       ?: build_manifest(manifest, generation, &view, table, error);
}
