/* SPDX-License-Identifier: Apache-2.0
 *
 * One load for several devices: shared reads and independent failures; loads of overlapping devices; ranks.
 */
#include "tests/lib/load_fixture.h"

#include "daemon/resident/model_set.h"

/* ---- replicas ---- */

CORE_FIXTURE(load_fixture_begin_multi, load_fixture_end);

TEST(a_device_read_in_place_is_a_separate_part)
{
        struct watched w;
        start_on(&w, small_file("small.safetensors", 1), ON("one", "fake", "two"), NULL);
        ck_assert_uint_eq(w.load->n_parts, 2);
        ck_assert_ptr_eq(w.load->targets[0].part, w.load->targets[2].part);
        ends(&w, LOAD_READY);
        serves_on("fake", 1);
        serves_on("one", 1);
        serves_on("two", 1);
        ck_assert_uint_eq(w.progress.total, 2 * SMALL_BYTES);
        ck_assert_uint_eq(w.progress.tensors, SMALL_TENSORS);
        ck_assert_uint_eq(w.progress.tensors_total, SMALL_TENSORS);
}

/* ---- one of several fails ---- */

/* A load of "one" and "two", the second of which fails while the first is held in its reading. */
static void lose_two(struct watched *w, void (*arrange)(void))
{
        arrange();
        fake_device_copies(&others[0]);
        gate_init(&others[0].event, false);
        start_on(w, blocks_file("blocks.safetensors", 4), ON("one", "two"), NULL);
        core_until(on("two", GENERATION_FAILED) != NULL);
        ck_assert(!w->ended);
}

static void fail_alloc(void)
{
        others[1].fail_alloc = 1;
}

static void fail_budget(void)
{
        others[1].device.budget = 2 * MiB;
}

static void fail_put(void)
{
        others[1].fail_put = 1;
}

/* Loop test over the ways in which a device fails. */
TEST(a_failed_device_frees_its_memory_and_the_other_continues, .to = 3)
{
        static const struct {
                void (*arrange)(void);
                const char *says;
        } ways[] = {{fail_alloc, "segment 1 fails"}, {fail_budget, "does not fit"}, {fail_put, "put 1 fails"}};
        struct watched w;
        struct model *m = model_new(4);
        lose_two(&w, ways[_i].arrange);
        failed_on("two", ways[_i].says);
        if (_i < 2) /* at once; blocks in flight to it complete before */
                core_until(others[1].device.used == 0);
        gate_open(&others[0].event);
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.progress.bytes, 4 * BLOCK);
        model_add_many(m, "t", 4, BLOCK);
        serves(on("one", GENERATION_READY), m);
        core_until(others[1].device.used == 0);
        ck_assert_uint_eq(others[1].allocs, others[1].freed);
}

/* Loop test: which of its events fails. */
TEST(a_copy_whose_event_fails_fails_its_device, .from = 1, .to = 5)
{
        struct watched w;
        struct model *m = model_new(4);
        fake_device_copies(&others[1]);
        others[1].fail_event = (unsigned)_i;
        start_on(&w, blocks_file("blocks.safetensors", 4), ON("one", "two"), NULL);
        ends(&w, LOAD_READY);
        failed_on("two", "fails");
        model_add_many(m, "t", 4, BLOCK);
        serves(on("one", GENERATION_READY), m);
        core_until(others[1].device.used == 0);
}

/* A client has attached to the failing one: its arrival log must not list missing tensors. */
TEST(no_tensor_arrives_on_a_failed_device)
{
        struct watched w;
        fake_device_copies(&others[0]);
        fake_device_copies(&others[1]);
        gate_init(&others[0].event, true);
        gate_init(&others[1].event, false);
        others[1].fail_event = 2;
        start_on(&w, blocks_file("blocks.safetensors", 4), ON("one", "two"), NULL);
        core_until(w.load->state == LOAD_READING && on("two", GENERATION_LOADING)->arrival.fd >= 0);
        struct generation *g = on("two", GENERATION_LOADING);
        generation_get(g);
        gate_pass_more(&others[1].event, 2); /* no copy completes after the one that fails */
        core_until(on("two", GENERATION_FAILED) != NULL);
        gate_open(&others[1].event);
        ends(&w, LOAD_READY);
        const struct arrival_header *log = g->arrival.map;
        ck_assert_uint_le(log->count, 1);
        ck_assert_uint_eq(generation_arrived(on("one", GENERATION_READY)), 4);
        generation_put(g);
}

TEST(a_load_that_loses_its_last_device_fails)
{
        struct watched w;
        others[0].fail_alloc = 1;
        others[1].fail_put = 2;
        start_on(&w, blocks_file("blocks.safetensors", 4), ON("one", "two"), NULL);
        ends(&w, LOAD_FAILED);
        failed_on("one", "segment 1 fails");
        failed_on("two", "put 2 fails");
        ck_assert_ptr_nonnull(strstr(w.error.text, "two: put 2 fails"));
        core_until(loads_empty(&loads) && others[0].device.used == 0 && others[1].device.used == 0);
}

TEST(a_failed_part_does_not_affect_the_other)
{
        struct watched w;
        fake.fail_prepare = 2; /* the device that is read in place */
        start_on(&w, small_file("small.safetensors", 1), ON("fake", "one", "two"), NULL);
        ends(&w, LOAD_READY);
        failed_on("fake", "no memory");
        serves_on("one", 1);
        serves_on("two", 1);
}

TEST(storage_that_fails_fails_all)
{
        struct watched w;
        char *path = blocks_file("blocks.safetensors", 6);
        fake_device_copies(&others[0]);
        gate_init(&others[0].event, false);
        start_on(&w, path, ON("one", "two"), NULL);
        core_until(w.load->state == LOAD_READING);
        gate_await(&others[0].event, 1);
        must(truncate(path, 4096));
        gate_open(&others[0].event);
        ends(&w, LOAD_FAILED);
        failed_on("one", "cut short");
        failed_on("two", "cut short");
}

TEST(a_failure_is_replaced_on_its_device_alone)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        others[0].fail_alloc = others[1].fail_alloc = 1;
        start_on(&w, path, ON("one", "two"), NULL);
        ends(&w, LOAD_FAILED);
        others[0].fail_alloc = 0;
        start_on(&w, path, ON("one"), NULL);
        ends(&w, LOAD_READY);
        serves_on("one", 1);
        ck_assert_ptr_null(on("one", GENERATION_FAILED));
        failed_on("two", "segment 1 fails");
}

/* ---- coalescing loads ---- */

TEST(devices_of_a_load_are_joined_only_as_a_whole)
{
        struct watched a, b, c;
        char *path = small_file("small.safetensors", 1);
        gate_init(&others[0].put, false);
        start_on(&a, path, ON("one", "two"), NULL);
        core_until(a.load->state == LOAD_READING);
        start_on(&b, path, ON("one", "two"), NULL);
        start_on(&c, path, ON("one", "three"), NULL);
        ck_assert_ptr_eq(a.load, b.load);
        ck_assert_ptr_ne(a.load, c.load);
        gate_open(&others[0].put);
        ends(&a, LOAD_READY);
        ends(&c, LOAD_READY);
        serves_on("one", 1);
        serves_on("three", 1);
        ck_assert_uint_eq(others[0].allocs, 1); /* it waited for the other's generation */
        ck_assert_uint_eq(on("one", GENERATION_READY)->number, on("three", GENERATION_READY)->number);
}

/* Loop test: the other load fails, or the one that waits is cancelled. */
TEST(a_load_that_awaits_another_ends_independently, .to = 2)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        gate_init(&others[0].put, false);
        start_on(&a, path, ON("one", "two"), NULL);
        core_until(a.load->state == LOAD_READING);
        start_on(&b, path, ON("one"), NULL);
        core_until(b.load->state == LOAD_AWAITING);
        load_cancel(_i == 0 ? a.load : b.load);
        gate_open(&others[0].put);
        ends(&a, _i == 0 ? LOAD_CANCELLED : LOAD_READY);
        ends(&b, _i == 0 ? LOAD_READY : LOAD_CANCELLED);
        serves_on("one", 1);
}

/* ---- ranks ---- */

/* A client is answered in a later iteration of the loop, where it sees all of them or none. */
TEST(ranks_are_on_their_devices_and_become_ready_together)
{
        struct watched w;
        struct model_set group;
        start_on(&w, ranks_folder(3), ON("three", "fake", "one"), RANKS);
        ck_assert_uint_eq(w.load->n_parts, 3);
        while (!w.ended) {
                unsigned n = 0;
                uv_run(&core_loop, UV_RUN_ONCE);
                list_each_item (const struct generation, g, &resident.generations, link)
                        n += g->state == GENERATION_READY;
                ck_assert(n == 0 || n == 3);
        }
        ends(&w, LOAD_READY);
        serves_on("three", 50);
        serves_on("fake", 51);
        serves_on("one", 52);
        model_set_find(&group, &resident, "m", w.generation);
        ck_assert_uint_eq(group.n, 3);
        for (unsigned i = 0; i < 3; i++)
                ck_assert_uint_eq(group.members[i]->rank, i);
        ck_assert_uint_eq(model_set_size(&group).bytes, 3 * SMALL_BYTES);
        ck_assert_ptr_null(model_set_digest(&group));
        ck_assert_uint_eq(w.progress.tensors, 3 * SMALL_TENSORS);
}

static void rank_fails(const char *says)
{
        struct watched w;
        start_on(&w, ranks_folder(3), ON("one", "two", "three"), RANKS);
        ends(&w, LOAD_FAILED);
        ck_assert_msg(strstr(w.error.text, says) != NULL, "%s", w.error.text);
        failed_on("one", says);
        failed_on("two", says);
        failed_on("three", says);
        core_until(loads_empty(&loads));
        for (size_t i = 0; i < OTHERS; i++)
                core_until(others[i].device.used == 0);
}

TEST(all_ranks_are_charged_before_any_allocation)
{
        others[2].device.budget = 2 * MiB;
        rank_fails("three: nothing resident");
        ck_assert_uint_eq(others[0].allocs + others[1].allocs, 0);
}

TEST(a_ranks_files_alone_are_a_model_of_their_own)
{
        struct watched w;
        char *folder = ranks_folder(2), *path = format_text("%s/r0.safetensors", folder);
        start_on(&w, folder, ON("one", "two"), RANKS);
        ends(&w, LOAD_READY);
        uint64_t number = w.generation->number;
        start_on(&w, path, ON("three"), NULL);
        ends(&w, LOAD_READY);
        ck_assert_uint_ne(w.generation->number, number);
        serves_on("three", 50);
}
