/* SPDX-License-Identifier: Apache-2.0
 *
 * From completed blocks to tensors that clients can see: never before they are complete, never before the manifest
 * exists, in the order of completion, with the right digests.
 *
 * The tests complete blocks in any order and by several threads, and read the tables as a client does.
 */
#include "tests/lib/core.h"

#include "daemon/load/content/arrivals.h"

#define BLOCK (2 * MiB)

static const struct plan_layout layout = {.page = 4096, .align = 1, .granularity = 2 * MiB};

static struct model *model;
static struct resolved resolved;
static struct arrivals arrivals;
#define TARGETS 2
static struct read_target targets[TARGETS];
static struct read_target *const target_list[TARGETS] = {&targets[0], &targets[1]};
static unsigned char *images[8]; /* of the files */
static const struct plan *plan;

static void arrivals_open(const char *path, bool by_file)
{
        struct error error = {0};
        core_resolve(&resolved, path, &layout, BLOCK);
        plan = &resolved.plan;
        for (size_t i = 0; i < resolved.set.n_objects; i++)
                images[i] = (unsigned char *)file_read(resolved.set.objects[i].path, NULL);
        for (size_t i = 0; i < TARGETS; i++)
                targets[i] = (struct read_target){.dead = false};
        ck_assert_int_eq(arrivals_init(&arrivals, plan, target_list, TARGETS, by_file, &error), 0);
}

static void build(void)
{
        struct error error = {0};
        ck_assert_msg(arrivals_build(&arrivals, 42, true, &error) == 0, "%s", error.text);
}

/* Completes a block as a reader thread does. */
static bool land(size_t block)
{
        const struct plan_block *b = &plan->blocks[block];
        struct plan_cursor cursor;
        struct plan_piece piece;
        plan_pieces_begin(b, &cursor);
        while (plan_pieces_next(plan, b, &cursor, &piece))
                hash_bytes(images[b->file] + b->file_off + piece.in_block, piece.len, arrivals.leaves[piece.leaf]);
        return arrivals_block_landed(&arrivals, b);
}

static struct manifest_view view_of(void)
{
        struct manifest_view view;
        const char *why = "";
        int r = manifest_open(&view, arrivals.manifest.map, arrivals.manifest.size, &why);
        ck_assert_msg(r == 0, "%s", why);
        return view;
}

static const struct arrival_header *log_of(size_t target)
{
        return arrivals.targets[target].log.map;
}

static uint64_t visible_in(size_t target)
{
        return __atomic_load_n(&log_of(target)->count, __ATOMIC_ACQUIRE);
}

static uint64_t visible(void)
{
        return visible_in(0);
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
        arrivals_open(core_write(model, "one.safetensors"), false);
}

static void begin_by_file(void)
{
        begin_mixed();
        char *folder = suite_path("by-file");
        model_write_sharded(model, folder, 3, true);
        arrivals_open(folder, true);
        ck_assert_uint_eq(resolved.set.n_objects, 3);
}

/* Three tensors, a block each. */
static void begin_three_blocks(void)
{
        model = model_new(3);
        model_add(model, "c", "U8", (uint64_t[]){BLOCK}, 1);
        model_add(model, "a", "U8", (uint64_t[]){BLOCK}, 1);
        model_add(model, "b", "U8", (uint64_t[]){BLOCK}, 1);
        arrivals_open(core_write(model, "three.safetensors"), false);
        ck_assert_uint_eq(plan->n_blocks, 3);
}

static uint32_t arrival(uint64_t i)
{
        return ((const uint32_t *)(log_of(0) + 1))[i];
}

static bool arrived(const struct manifest_view *view, const char *name)
{
        for (uint64_t i = 0; i < visible(); i++)
                if (strcmp(view->strings + manifest_record(view, arrival(i))->name_off, name) == 0)
                        return true;
        return false;
}

/* ---- timing ---- */

CORE_FIXTURE(begin_one_file, NULL);

TEST(no_tensor_is_visible_before_the_manifest_is_built)
{
        for (size_t i = 0; i < plan->n_blocks; i++)
                land(i);
        ck_assert_uint_eq(arrivals_count(&arrivals), 0);
        build();
        ck_assert_uint_eq(arrivals_count(&arrivals), plan->n_tensors);
        ck_assert_uint_eq(visible(), plan->n_tensors);
}

TEST(no_tensor_is_visible_before_its_bytes_are_in_place)
{
        build();
        struct manifest_view view = view_of();
        ck_assert_uint_eq(visible(), 1);
        ck_assert(arrived(&view, "empty"));
}

CORE_FIXTURE(begin_three_blocks, NULL);

/* Loop test: before which block the manifest is built. */
TEST(tensors_arrive_in_the_order_of_completion, .to = 3)
{
        static const size_t order[] = {2, 0, 1};
        static const char *const names[] = {"b", "c", "a"};
        for (int i = 0; i < 3; i++) {
                if (i == _i)
                        build();
                land(order[i]);
        }
        struct manifest_view view = view_of();
        ck_assert_uint_eq(visible(), 3);
        for (size_t i = 0; i < 3; i++)
                ck_assert_str_eq(view.strings + manifest_record(&view, arrival(i))->name_off, names[i]);
}

TEST(the_last_block_of_a_file_is_marked)
{
        ck_assert(!land(1));
        ck_assert(!land(0));
        ck_assert(land(2));
        ck_assert_uint_eq(arrivals.bytes, 3 * BLOCK);
}

/* ---- any order, several threads, a client that watches ---- */

#define LANDERS 4

struct race {
        size_t *order;
        size_t next;             /* atomic */
        uint64_t *blocks;        /* of each tensor */
        uint64_t started;        /* atomic: blocks whose bytes are in place, so that landed() may have been called */
        unsigned char *file_end; /* atomic, by file: how often landed() reported it complete */
};

static void *lander(void *arg)
{
        struct race *race = arg;
        for (size_t i; (i = __atomic_fetch_add(&race->next, 1, __ATOMIC_SEQ_CST)) < plan->n_blocks;) {
                size_t b = race->order[i];
                __atomic_or_fetch(&race->started, UINT64_C(1) << b, __ATOMIC_SEQ_CST);
                if (land(b))
                        __atomic_add_fetch(&race->file_end[plan->blocks[b].file], 1, __ATOMIC_SEQ_CST);
        }
        return NULL;
}

static void shuffle(size_t *order, size_t n, unsigned seed)
{
        for (size_t i = 0; i < n; i++)
                order[i] = i;
        for (size_t i = n; i > 1; i--) {
                size_t k = (size_t)rand_r(&seed) % i, t = order[i - 1];
                order[i - 1] = order[k];
                order[k] = t;
        }
}

/* The blocks that hold bytes of each of the model's tensors, a bit each. */
static uint64_t *blocks_of_tensors(void)
{
        uint64_t *blocks = must_alloc(model->n * sizeof(*blocks));
        ck_assert_uint_le(plan->n_blocks, 64);
        for (size_t b = 0; b < plan->n_blocks; b++) {
                struct plan_cursor cursor;
                struct plan_piece piece;
                plan_pieces_begin(&plan->blocks[b], &cursor);
                while (plan_pieces_next(plan, &plan->blocks[b], &cursor, &piece))
                        blocks[core_tensor(&resolved, model, piece.tensor)] |= UINT64_C(1) << b;
        }
        return blocks;
}

/* As a client follows the log: each tensor once, whole, with its digest. */
static void follow(const struct race *race)
{
        struct manifest_view view = view_of();
        unsigned char *seen = must_alloc(model->n);
        for (uint64_t told = 0; told < plan->n_tensors;) {
                for (uint64_t count = visible(); told < count; told++) {
                        size_t i = tensor_of(&view, arrival(told));
                        ck_assert_msg(!seen[i], "'%s' arrived twice", model->tensors[i].name);
                        seen[i] = 1;
                        uint64_t started = __atomic_load_n(&race->started, __ATOMIC_SEQ_CST);
                        ck_assert_msg((race->blocks[i] & ~started) == 0, "'%s' is not whole", model->tensors[i].name);
                        digest_is_right(&view, arrival(told));
                }
        }
}

CORE_FIXTURE(begin_one_file, NULL);

TEST(no_tensor_is_visible_before_it_is_complete_in_any_order, .to = suite_short() ? 4 : 24)
{
        struct race race = {.order = must_alloc(plan->n_blocks * sizeof(size_t)),
                            .blocks = blocks_of_tensors(),
                            .file_end = must_alloc(1)};
        pthread_t threads[LANDERS];
        shuffle(race.order, plan->n_blocks, (unsigned)_i);
        if (_i % 2 == 0)
                build();
        for (size_t i = 0; i < LANDERS; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, lander, &race), 0);
        if (_i % 2 == 1)
                build();
        follow(&race);
        for (size_t i = 0; i < LANDERS; i++)
                pthread_join(threads[i], NULL);
        ck_assert_uint_eq(race.file_end[0], 1);
        ck_assert_uint_eq(arrivals_count(&arrivals), plan->n_tensors);
        ck_assert_uint_eq(arrivals.bytes, plan->bytes);
}

/* ---- by file ---- */

static void land_file(size_t file)
{
        for (size_t i = 0; i < plan->n_blocks; i++)
                if (plan->blocks[i].file == file)
                        land(i);
}

static size_t tensors_in(size_t file)
{
        size_t n = 0;
        for (size_t i = 0; i < plan->n_tensors; i++)
                n += plan->tensors[i].file == file;
        return n;
}

CORE_FIXTURE(begin_by_file, NULL);

TEST(tensors_are_withheld_until_their_file_is_released)
{
        build();
        for (size_t i = 0; i < 3; i++)
                land_file(i);
        ck_assert_uint_eq(visible(), 0);
        arrivals_release_file(&arrivals, 1);
        ck_assert_uint_eq(visible(), tensors_in(1));
        struct manifest_view view = view_of();
        for (uint64_t i = 0; i < visible(); i++)
                digest_is_right(&view, arrival(i));
        arrivals_release_file(&arrivals, 0);
        arrivals_release_file(&arrivals, 2);
        ck_assert_uint_eq(visible(), plan->n_tensors);
        for (uint64_t i = 0; i < visible(); i++)
                digest_is_right(&view, arrival(i));
}

TEST(a_file_released_before_the_manifest_is_seen_with_it)
{
        land_file(2);
        arrivals_release_file(&arrivals, 2);
        ck_assert_uint_eq(arrivals_count(&arrivals), 0);
        build();
        ck_assert_uint_eq(visible(), tensors_in(2));
}

TEST(each_file_is_whole_once_and_stale_tensors_do_not_count)
{
        unsigned whole[3] = {0};
        for (size_t i = 0; i < plan->n_blocks; i++)
                whole[plan->blocks[i].file] += land(i);
        for (size_t i = 0; i < 3; i++)
                ck_assert_uint_eq(whole[i], 1);
        ck_assert_uint_eq(plan->n_tensors, model->n);
}

/* ---- several targets ---- */

CORE_FIXTURE(begin_three_blocks, NULL);

TEST(each_target_has_its_own_log)
{
        build();
        for (size_t i = 0; i < plan->n_blocks; i++)
                land(i);
        for (size_t i = 0; i < TARGETS; i++) {
                const struct arrivals_target *t = &arrivals.targets[i];
                ck_assert_uint_eq(((const struct arrival_header *)t->arrival.map)->count, plan->n_tensors);
                ck_assert_mem_eq(t->manifest.map, arrivals.manifest.map, arrivals.manifest.size);
        }
        ck_assert_ptr_ne(arrivals.targets[0].arrival.map, arrivals.targets[1].arrival.map);
}

/* Loop test: dead from the start, before the tables, or after them. */
TEST(the_log_of_a_failed_target_stops, .to = 3)
{
        if (_i == 0)
                targets[1].dead = true;
        land(0);
        if (_i == 1)
                targets[1].dead = true;
        build();
        if (_i == 2)
                targets[1].dead = true;
        for (size_t i = 1; i < plan->n_blocks; i++)
                land(i);
        ck_assert_uint_eq(visible(), plan->n_tensors);
        ck_assert_uint_eq(arrivals_count(&arrivals), plan->n_tensors);
        if (_i < 2)
                ck_assert_int_lt(arrivals.targets[1].log.fd, 0);
        else
                ck_assert_uint_eq(visible_in(1), 1);
}
