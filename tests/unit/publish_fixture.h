/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of publishing: a model whose blocks the test completes itself. The test reads the manifest and
 * the arrival log as a client does.
 */
#ifndef TESTS_UNIT_PUBLISH_FIXTURE_H
#define TESTS_UNIT_PUBLISH_FIXTURE_H

#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/load/content/publish.h"

#define BLOCK (2 * MiB)

static const struct plan_layout layout = {.page = 4096, .align = 1, .granularity = 2 * MiB};

static struct model *model;
static struct resolved resolved;
static struct publish publish;
#define TARGETS 2
static struct read_target targets[TARGETS];
static struct read_target *const target_list[TARGETS] = {&targets[0], &targets[1]};
static unsigned char *images[8]; /* of the files */
static const struct plan *plan;

static void publish_open(const char *path, bool by_file)
{
        struct error error = {0};
        core_resolve(&resolved, path, &layout, BLOCK);
        plan = &resolved.plan;
        for (size_t i = 0; i < resolved.set.n_objects; i++)
                images[i] = (unsigned char *)file_read(resolved.set.objects[i].path, NULL);
        for (size_t i = 0; i < TARGETS; i++)
                targets[i] = (struct read_target){.dead = false};
        ck_assert_int_eq(publish_init(&publish, &resolved, target_list, TARGETS, by_file, &error), 0);
}

static void build(void)
{
        struct error error = {0};
        ck_assert_msg(publish_build(&publish, 42, &error) == 0, "%s", error.text);
}

static void end(void)
{
        publish_deinit(&publish);
        for (size_t i = 0; i < resolved.set.n_objects; i++)
                free(images[i]);
        resolve_deinit(&resolved);
        model = model_free(model);
}

/* Completes a block as a reader thread does. */
static bool land(size_t block)
{
        const struct plan_block *b = &plan->blocks[block];
        struct plan_cursor cursor;
        struct plan_piece piece;
        plan_pieces_begin(b, &cursor);
        while (plan_pieces_next(plan, b, &cursor, &piece))
                hash_bytes(images[b->file] + b->file_off + piece.in_block, piece.len, publish.leaves[piece.leaf]);
        return publish_landed(&publish, b);
}

static struct manifest_view view_of(void)
{
        struct manifest_view view;
        const char *why = "";
        int r = manifest_open(&view, publish.manifest.map, publish.manifest.size, &why);
        ck_assert_msg(r == 0, "%s", why);
        return view;
}

static const struct arrival_header *log_of(size_t target)
{
        return publish.logs[target].map;
}

static uint64_t visible(void)
{
        return __atomic_load_n(&log_of(0)->count, __ATOMIC_ACQUIRE);
}

/* The model's own number of a record. */
static size_t tensor_of(const struct manifest_view *view, uint64_t record)
{
        const char *why = "";
        ck_assert_msg(manifest_check(view, record, &why) == 0, "%s", why);
        size_t i = model_index(model, view->strings + manifest_record(view, record)->name_off);
        ck_assert_uint_lt(i, model->n);
        return i;
}

static void digest_is_right(const struct manifest_view *view, uint64_t record)
{
        unsigned char want[DIGEST_SIZE];
        model_tensor_digest(model, tensor_of(view, record), want);
        ck_assert_mem_eq(manifest_record(view, record)->digest, want, DIGEST_SIZE);
}

/* ---- models ---- */

/* Tensors of less than a leaf, of several, of several blocks; many in one block; empty ones. */
static void begin_mixed(void)
{
        model = model_new(11);
        model_set_metadata(model, "{\"format\":\"pt\",\"note\":\"\\u00e4\"}");
        model_add(model, "zeta", "U8", (uint64_t[]){5 * MiB + 3}, 1);
        model_add(model, "alpha", "BF16", (uint64_t[]){4, 300, 2}, 3);
        model_add(model, "empty", "F32", (uint64_t[]){0, 9}, 2);
        model_add_many(model, "small", 600, 500);
        model_add(model, "mid", "F32", (uint64_t[]){MiB}, 1);
        model_add(model, "scalar", "F64", NULL, 0);
        model_add(model, "last", "U8", (uint64_t[]){MiB + 1}, 1);
}

static void begin_one_file(void)
{
        begin_mixed();
        publish_open(core_write(model, "one.safetensors"), false);
}

static void begin_by_file(void)
{
        begin_mixed();
        char *folder = suite_path("by-file");
        model_write_sharded(model, folder, 3, true);
        publish_open(folder, true);
        ck_assert_uint_eq(resolved.set.n_objects, 3);
}

#endif
