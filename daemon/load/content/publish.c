/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/publish.h"

#include "daemon/base/util.h"

#include <inttypes.h>
#include <string.h>

int publish_init(struct publish *publish, const struct plan *plan, struct read_target *const *targets, size_t n_targets,
                 bool by_file, struct error *error)
{
        *publish = (struct publish){.plan = plan, .by_file = by_file, .manifest = {.fd = -1}};
        pthread_mutex_init(&publish->mutex, NULL);
        size_t n = plan->n_tensors + 1; /* never zero bytes */
        publish->leaves = malloc((plan->n_leaves + 1) * DIGEST_SIZE);
        publish->remaining = malloc(n * sizeof(*publish->remaining));
        publish->arrived = malloc(n * sizeof(*publish->arrived));
        publish->file_left = calloc(plan->n_files + 1, sizeof(*publish->file_left));
        publish->targets = calloc(n_targets, sizeof(*publish->targets));
        if (publish->leaves == NULL || publish->remaining == NULL || publish->arrived == NULL ||
            publish->file_left == NULL || publish->targets == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to track %zu tensors", plan->n_tensors);
        for (; publish->n_targets < n_targets; publish->n_targets++)
                publish->targets[publish->n_targets] = (struct publish_target){.copy = targets[publish->n_targets],
                                                                               .log = {.fd = -1},
                                                                               .manifest = {.fd = -1},
                                                                               .arrival = {.fd = -1}};
        for (size_t i = 0; i < plan->n_tensors; i++) {
                publish->remaining[i] = (uint32_t)plan_leaves(plan->tensors[i].bytes);
                publish->file_left[plan->tensors[i].file] += plan->tensors[i].bytes;
                if (publish->remaining[i] == 0 && !by_file)
                        publish->arrived[publish->n_arrived++] = (uint32_t)i;
        }
        return 0;
}

void publish_deinit(struct publish *publish)
{
        if (publish->plan == NULL)
                return;
        table_drop(&publish->manifest);
        for (size_t i = 0; i < publish->n_targets; i++) {
                table_drop(&publish->targets[i].log);
                table_drop(&publish->targets[i].manifest);
                table_drop(&publish->targets[i].arrival);
        }
        free(publish->targets);
        free(publish->leaves);
        free(publish->remaining);
        free(publish->arrived);
        free(publish->file_left);
        free(publish->record_of);
        pthread_mutex_destroy(&publish->mutex);
}

/* ---- arrival ---- */

/* With the lock held. The thread that completed a tensor has seen the failures of its blocks: a target that lacks
 * one is dead here. */
static void publish_pending(struct publish *publish)
{
        if (publish->record_of == NULL || publish->n_published == publish->n_arrived)
                return;
        struct manifest_header *manifest = publish->manifest.map;
        struct manifest_record *records = (void *)((unsigned char *)manifest + manifest->records_off);
        for (size_t i = publish->n_published; i < publish->n_arrived; i++) {
                const struct plan_tensor *t = &publish->plan->tensors[publish->arrived[i]];
                hash_bytes(publish->leaves + t->leaf, plan_leaves(t->bytes) * DIGEST_SIZE,
                           records[publish->record_of[publish->arrived[i]]].digest);
        }
        for (size_t i = 0; i < publish->n_targets; i++) {
                struct arrival_header *header = publish->targets[i].log.map;
                if (read_target_dead(publish->targets[i].copy))
                        continue;
                uint32_t *log = (uint32_t *)(header + 1);
                for (size_t k = publish->n_published; k < publish->n_arrived; k++)
                        log[k] = publish->record_of[publish->arrived[k]];
                /* Last, with release order: a client that sees the count sees the index and the digest, too. */
                __atomic_store_n(&header->count, publish->n_arrived, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&publish->n_published, publish->n_arrived, __ATOMIC_RELEASE);
}

bool publish_landed(struct publish *publish, const struct plan_block *block)
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        uint64_t *file_left = &publish->file_left[block->file];
        lock_scope(&publish->mutex);
        plan_pieces_begin(block, &cursor);
        while (plan_pieces_next(publish->plan, block, &cursor, &piece))
                if (--publish->remaining[piece.tensor] == 0 && !publish->by_file)
                        publish->arrived[publish->n_arrived++] = piece.tensor;
        publish_pending(publish);
        add_relaxed(&publish->bytes, block->len);
        *file_left -= block->len;
        return *file_left == 0;
}

void publish_file(struct publish *publish, size_t file)
{
        lock_scope(&publish->mutex);
        for (size_t i = 0; i < publish->plan->n_tensors; i++)
                if (publish->plan->tensors[i].file == file)
                        publish->arrived[publish->n_arrived++] = (uint32_t)i;
        publish_pending(publish);
}

/* ---- the manifest ---- */

/* The model's metadata is that of the first file that has any. */
static const struct st_header *metadata_of(const struct plan *plan)
{
        size_t i = 0;
        while (i + 1 < plan->n_files && plan->files[i].header.n_metadata == 0)
                i++;
        return &plan->files[i].header;
}

static struct manifest_counts count(const struct plan *plan, const struct st_header *meta)
{
        struct manifest_counts counts = {.n_records = plan->n_tensors,
                                         .n_segments = (uint32_t)plan->n_segments,
                                         .n_metadata = (uint32_t)meta->n_metadata};
        for (const struct plan_tensor *placed = plan->tensors; placed < plan->tensors + plan->n_tensors; placed++) {
                const struct st_tensor *t = plan_in_file(plan, placed);
                counts.n_shapes += t->rank;
                counts.strings_len += t->name_len + UINT64_C(1);
        }
        for (size_t i = 0; i < counts.n_metadata; i++)
                counts.strings_len += (uint64_t)meta->metadata[i].key_len + meta->metadata[i].value_len + 2;
        return counts;
}

static void fill_records(struct publish *publish, const uint32_t *order, uint32_t *record_of,
                         struct manifest_fill *fill)
{
        const struct manifest_header *manifest = publish->manifest.map;
        unsigned char *base = publish->manifest.map;
        struct manifest_record *records = (void *)(base + manifest->records_off);
        uint64_t *shapes = (void *)(base + manifest->shapes_off);
        uint64_t n_shapes = 0;
        for (size_t i = 0; i < publish->plan->n_tensors; i++) {
                const struct plan_tensor *placed = &publish->plan->tensors[order[i]];
                const struct st_header *header = &publish->plan->files[placed->file].header;
                const struct st_tensor *t = plan_in_file(publish->plan, placed);
                records[i] = (struct manifest_record){
                        .name_off = manifest_add_text(fill, st_name(header, t), t->name_len),
                        .name_len = t->name_len,
                        .dtype = t->dtype,
                        .shape_off = n_shapes,
                        .rank = t->rank,
                        .segment = placed->segment,
                        .offset = placed->offset,
                        .bytes = placed->bytes,
                };
                st_shape(header, t, shapes + n_shapes);
                n_shapes += t->rank;
                record_of[order[i]] = (uint32_t)i;
        }
}

static int make_tables(struct publish *publish, const struct manifest_counts *counts, struct error *error)
{
        uint64_t size = manifest_size(counts);
        if (size == 0)
                return error_set(error, STREAMER_EFAILED, "the table of tensors would exceed %" PRIu64 " bytes",
                                 MANIFEST_MAX_SIZE);
        int r = host_table_new(&publish->manifest, "streamerd-manifest", size, error);
        if (r == 0)
                manifest_init(publish->manifest.map, counts);
        uint64_t log_size = sizeof(struct arrival_header) + counts->n_records * sizeof(uint32_t);
        for (size_t i = 0; r == 0 && i < publish->n_targets; i++) {
                struct publish_target *target = &publish->targets[i];
                if (read_target_dead(target->copy))
                        continue;
                r = host_table_new(&target->log, "streamerd-arrival", log_size, error)
                            ?: host_table_share(&target->log, &target->arrival, error)
                            ?: host_table_share(&publish->manifest, &target->manifest, error);
                if (r < 0)
                        return r;
                struct arrival_header *header = target->log.map;
                memcpy(header->magic, ARRIVAL_MAGIC, sizeof(header->magic));
                header->header_size = sizeof(*header);
                header->capacity = counts->n_records;
        }
        return r;
}

int publish_build(struct publish *publish, uint64_t generation, struct error *error)
{
        const struct plan *plan = publish->plan;
        const struct st_header *meta = metadata_of(plan);
        const struct manifest_counts counts = count(plan, meta);
        int r = make_tables(publish, &counts, error);
        if (r < 0)
                return r;
        cleanup_free uint32_t *order = plan_sort_names(plan);
        cleanup_free uint32_t *record_of = malloc((plan->n_tensors + 1) * sizeof(*record_of));
        if (order == NULL || record_of == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to sort %zu names", plan->n_tensors);
        struct manifest_header *header = publish->manifest.map;
        header->generation = generation;
        header->data_bytes = plan->bytes;
        struct manifest_segment *segments = (void *)((unsigned char *)header + header->segments_off);
        for (size_t i = 0; i < plan->n_segments; i++)
                segments[i].size = plan->segments[i];
        struct manifest_fill fill = {.header = header};
        fill_records(publish, order, record_of, &fill);
        for (size_t i = 0; i < counts.n_metadata; i++) {
                const struct st_pair *p = &meta->metadata[i];
                manifest_add_pair(&fill, meta->text + p->key, p->key_len, meta->text + p->value, p->value_len);
        }
        require(fill.used == counts.strings_len);
        lock_scope(&publish->mutex);
        publish->record_of = record_of;
        record_of = NULL;
        publish_pending(publish);
        return 0;
}

void publish_finish(struct publish *publish)
{
        const struct manifest_view m = table_manifest(&publish->manifest);
        struct manifest_header *header = publish->manifest.map;
        hash_model(&m, header->digest);
}
