/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/arrivals.h"

#include "daemon/base/util.h"

#include <inttypes.h>
#include <string.h>

int arrivals_init(struct arrivals *arrivals, const struct plan *plan, struct read_target *const *targets,
                  size_t n_targets, bool by_file, struct error *error)
{
        *arrivals = (struct arrivals){.plan = plan, .by_file = by_file, .manifest = {.fd = -1}};
        pthread_mutex_init(&arrivals->mutex, NULL);
        size_t n = plan->n_tensors + 1; /* never zero bytes */
        arrivals->leaves = malloc((plan->n_leaves + 1) * DIGEST_SIZE);
        arrivals->remaining = malloc(n * sizeof(*arrivals->remaining));
        arrivals->complete = malloc(n * sizeof(*arrivals->complete));
        arrivals->file_left = calloc(plan->n_files + 1, sizeof(*arrivals->file_left));
        arrivals->targets = calloc(n_targets, sizeof(*arrivals->targets));
        if (arrivals->leaves == NULL || arrivals->remaining == NULL || arrivals->complete == NULL ||
            arrivals->file_left == NULL || arrivals->targets == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to track %zu tensors", plan->n_tensors);
        for (; arrivals->n_targets < n_targets; arrivals->n_targets++)
                arrivals->targets[arrivals->n_targets] = (struct arrivals_target){.copy = targets[arrivals->n_targets],
                                                                                  .log = {.fd = -1},
                                                                                  .manifest = {.fd = -1},
                                                                                  .arrival = {.fd = -1}};
        for (size_t i = 0; i < plan->n_tensors; i++) {
                arrivals->remaining[i] = (uint32_t)plan_leaves(plan->tensors[i].bytes);
                arrivals->file_left[plan->tensors[i].file] += plan->tensors[i].bytes;
                if (arrivals->remaining[i] == 0 && !by_file)
                        arrivals->complete[arrivals->n_complete++] = (uint32_t)i;
        }
        return 0;
}

void arrivals_deinit(struct arrivals *arrivals)
{
        if (arrivals->plan == NULL)
                return;
        table_drop(&arrivals->manifest);
        for (size_t i = 0; i < arrivals->n_targets; i++) {
                table_drop(&arrivals->targets[i].log);
                table_drop(&arrivals->targets[i].manifest);
                table_drop(&arrivals->targets[i].arrival);
        }
        free(arrivals->targets);
        free(arrivals->leaves);
        free(arrivals->remaining);
        free(arrivals->complete);
        free(arrivals->file_left);
        free(arrivals->record_of);
        pthread_mutex_destroy(&arrivals->mutex);
}

/* ---- arrival ---- */

/* With the lock held. The thread that completed a tensor has seen the failures of its blocks: a target that lacks
 * one is dead here. */
static void log_complete(struct arrivals *arrivals)
{
        if (arrivals->record_of == NULL || arrivals->n_logged == arrivals->n_complete)
                return;
        require(arrivals->n_logged < arrivals->n_complete && arrivals->n_complete <= arrivals->plan->n_tensors);
        struct manifest_header *manifest = arrivals->manifest.map;
        struct manifest_record *records = (void *)((unsigned char *)manifest + manifest->records_off);
        for (size_t i = arrivals->n_logged; i < arrivals->n_complete; i++) {
                const struct plan_tensor *t = &arrivals->plan->tensors[arrivals->complete[i]];
                hash_bytes(arrivals->leaves + t->leaf, plan_leaves(t->bytes) * DIGEST_SIZE,
                           records[arrivals->record_of[arrivals->complete[i]]].digest);
        }
        for (size_t i = 0; i < arrivals->n_targets; i++) {
                struct arrival_header *header = arrivals->targets[i].log.map;
                if (header == NULL || read_target_dead(arrivals->targets[i].copy))
                        continue;
                uint32_t *log = (uint32_t *)(header + 1);
                for (size_t k = arrivals->n_logged; k < arrivals->n_complete; k++)
                        log[k] = arrivals->record_of[arrivals->complete[k]];
                /* Last, with release order: a client that sees the count sees the index and the digest, too. */
                __atomic_store_n(&header->count, arrivals->n_complete, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&arrivals->n_logged, arrivals->n_complete, __ATOMIC_RELEASE);
}

bool arrivals_block_landed(struct arrivals *arrivals, const struct plan_block *block)
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        uint64_t *file_left = &arrivals->file_left[block->file];
        lock_scope(&arrivals->mutex);
        plan_pieces_begin(block, &cursor);
        while (plan_pieces_next(arrivals->plan, block, &cursor, &piece)) {
                require(arrivals->remaining[piece.tensor] > 0);
                if (--arrivals->remaining[piece.tensor] == 0 && !arrivals->by_file)
                        arrivals->complete[arrivals->n_complete++] = piece.tensor;
        }
        log_complete(arrivals);
        add_relaxed(&arrivals->bytes, block->len);
        require(*file_left >= block->len);
        *file_left -= block->len;
        return *file_left == 0;
}

void arrivals_release_file(struct arrivals *arrivals, size_t file)
{
        size_t i, end;
        plan_file_tensors(arrivals->plan, file, &i, &end);
        lock_scope(&arrivals->mutex);
        require(arrivals->by_file && arrivals->file_left[file] == 0);
        for (; i < end; i++)
                arrivals->complete[arrivals->n_complete++] = (uint32_t)i;
        log_complete(arrivals);
}

/* ---- the manifest ---- */

/* Any file has a `__metadata__`, be it empty. */
static bool has_metadata(const struct plan *plan)
{
        bool has = false;
        for (size_t i = 0; i < plan->n_files; i++)
                has = has || plan->files[i].header.has_metadata;
        return has;
}

/* The model's metadata is that of the first file that has any pairs. */
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

static void fill_records(struct arrivals *arrivals, const uint32_t *order, uint32_t *record_of,
                         struct manifest_fill *fill)
{
        const struct manifest_header *manifest = arrivals->manifest.map;
        unsigned char *base = arrivals->manifest.map;
        struct manifest_record *records = (void *)(base + manifest->records_off);
        uint64_t *shapes = (void *)(base + manifest->shapes_off);
        uint64_t n_shapes = 0;
        for (size_t i = 0; i < arrivals->plan->n_tensors; i++) {
                const struct plan_tensor *placed = &arrivals->plan->tensors[order[i]];
                const struct st_header *header = &arrivals->plan->files[placed->file].header;
                const struct st_tensor *t = plan_in_file(arrivals->plan, placed);
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

int arrivals_measure(const struct plan *plan, uint64_t *size, struct error *error)
{
        const struct manifest_counts counts = count(plan, metadata_of(plan));
        *size = manifest_size(&counts);
        return *size > 0 ? 0
                         : error_set(error, STREAMER_EFAILED, "the table of tensors would exceed %" PRIu64 " bytes",
                                     MANIFEST_MAX_SIZE);
}

static int make_tables(struct arrivals *arrivals, const struct manifest_counts *counts, bool followed,
                       struct error *error)
{
        uint64_t size = manifest_size(counts);
        require(size > 0); /* it was measured */
        int r = host_table_new(&arrivals->manifest, "streamerd-manifest", size, error);
        if (r == 0)
                manifest_init(arrivals->manifest.map, counts);
        uint64_t log_size = sizeof(struct arrival_header) + counts->n_records * sizeof(uint32_t);
        for (size_t i = 0; r == 0 && followed && i < arrivals->n_targets; i++) {
                struct arrivals_target *target = &arrivals->targets[i];
                if (read_target_dead(target->copy))
                        continue;
                r = host_table_new(&target->log, "streamerd-arrival", log_size, error)
                            ?: host_table_share(&target->log, &target->arrival, error)
                            ?: host_table_share(&arrivals->manifest, &target->manifest, error);
                if (r < 0)
                        return r;
                struct arrival_header *header = target->log.map;
                memcpy(header->magic, ARRIVAL_MAGIC, sizeof(header->magic));
                header->header_size = sizeof(*header);
                header->capacity = counts->n_records;
        }
        return r;
}

int arrivals_build(struct arrivals *arrivals, uint64_t generation, bool followed, struct error *error)
{
        const struct plan *plan = arrivals->plan;
        const struct st_header *meta = metadata_of(plan);
        const struct manifest_counts counts = count(plan, meta);
        int r = make_tables(arrivals, &counts, followed, error);
        if (r < 0)
                return r;
        cleanup_free uint32_t *order = plan_sort_names(plan);
        cleanup_free uint32_t *record_of = malloc((plan->n_tensors + 1) * sizeof(*record_of));
        if (order == NULL || record_of == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory to sort %zu names", plan->n_tensors);
        struct manifest_header *header = arrivals->manifest.map;
        header->generation = generation;
        header->data_bytes = plan->bytes;
        header->flags = has_metadata(plan) ? MANIFEST_HAS_METADATA : 0;
        struct manifest_segment *segments = (void *)((unsigned char *)header + header->segments_off);
        for (size_t i = 0; i < plan->n_segments; i++)
                segments[i].size = plan->segments[i];
        struct manifest_fill fill = {.header = header};
        fill_records(arrivals, order, record_of, &fill);
        for (size_t i = 0; i < counts.n_metadata; i++) {
                const struct st_pair *p = &meta->metadata[i];
                manifest_add_pair(&fill, meta->text + p->key, p->key_len, meta->text + p->value, p->value_len);
        }
        require(fill.used == counts.strings_len);
        lock_scope(&arrivals->mutex);
        require(arrivals->record_of == NULL);
        arrivals->record_of = record_of;
        record_of = NULL;
        log_complete(arrivals);
        return 0;
}

void arrivals_finish(struct arrivals *arrivals)
{
        require(arrivals_count(arrivals) == arrivals->plan->n_tensors);
        const struct manifest_view m = table_manifest(&arrivals->manifest);
        struct manifest_header *header = arrivals->manifest.map;
        hash_model(&m, header->digest);
}
