/* SPDX-License-Identifier: Apache-2.0
 *
 * Coalescing of loads on overlapping devices, and models of several ranks.
 */
#include "tests/lib/load_fixture.h"

#include "daemon/base/util.h"
#include "daemon/resident/model_set.h"

/* ---- coalescing loads ---- */

CORE_FIXTURE(load_fixture_begin_multi, load_fixture_end);

TEST(a_replica_is_added_under_the_same_number)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        start_on(&w, path, ON("one"), NULL);
        ends(&w, LOAD_READY);
        struct generation *first = w.generation;
        start_on(&w, path, ON("one", "two"), NULL);
        ends(&w, LOAD_READY);
        ck_assert_ptr_eq(on("one", GENERATION_READY), first);
        serves_on("two", 1);
        ck_assert_uint_eq(on("two", GENERATION_READY)->number, first->number);
        ck_assert_uint_eq(others[0].allocs, 1);
        core_until(loads_empty(&loads));
        ck_assert_uint_eq(first->refs, 0);
}

TEST(a_load_of_a_serving_model_sets_its_priority)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        start_on(&w, path, ON("one"), NULL);
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.generation->settings.priority, PROTO_PRIORITY_DEFAULT);
        ask_for(&w, (struct load_request){.source = path, .retention = {.priority = 9}, ON_FIELDS("one")});
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.generation->settings.priority, 9);
        core_until(loads_empty(&loads));
}

TEST(a_number_is_not_reused_while_a_part_of_it_remains)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        start_on(&w, path, ON("one", "two"), NULL);
        ends(&w, LOAD_READY);
        struct generation *leased = on("two", GENERATION_READY);
        core_until(loads_empty(&loads));
        generation_get(leased);
        generation_drop_name(leased, "m");
        start_on(&w, path, ON("two"), NULL);
        ends(&w, LOAD_READY);
        ck_assert_uint_ne(w.generation->number, leased->number);
        serves_on("two", 1);
        generation_put(leased);
}

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
        core_until(!list_empty(&b.load->awaited.link) && b.load->awaited.load != NULL);
        load_cancel(_i == 0 ? a.load : b.load);
        gate_open(&others[0].put);
        ends(&a, _i == 0 ? LOAD_CANCELLED : LOAD_READY);
        ends(&b, _i == 0 ? LOAD_READY : LOAD_CANCELLED);
        serves_on("one", 1);
}

TEST(a_device_cannot_be_named_twice)
{
        struct watched w;
        const char *const twice[] = {"one", "uuid-of-one"};
        int r = load_request(
                &w, &(struct load_request){.source = "/x", .devices = twice, .n_devices = 2, .caller = &core_caller});
        ck_assert_int_eq(r, STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(w.error.text, "named twice"));
}

/* ---- ranks ---- */

#define PATTERN "r{rank}.safetensors"

static char *write_ranks(size_t n)
{
        char *folder = suite_path("ranks-%d", (int)getpid());
        mkdir(folder, 0755);
        for (size_t i = 0; i < n; i++) {
                struct model *m = small_model(50 + i);
                char *path = format_text("%s/r%zu.safetensors", folder, i);
                model_write(m, path);
                free(path);
                model_free(m);
        }
        return folder;
}

static unsigned ready_alone; /* changes at which only some ranks were ready */

/* A client is answered in a later iteration of the loop, where it sees all of them or none. */
static void count_ready(void)
{
        unsigned n = 0;
        list_each (pos, &resident.generations)
                n += container_of(pos, struct generation, link)->state == GENERATION_READY;
        ready_alone += n != 0 && n != 3;
}

TEST(ranks_are_on_their_devices_and_become_ready_together)
{
        struct watched w;
        struct model_set group;
        start_on(&w, write_ranks(3), ON("three", "fake", "one"), PATTERN);
        ck_assert_uint_eq(w.load->n_parts, 3);
        while (!w.ended) {
                uv_run(&core_loop, UV_RUN_ONCE);
                count_ready();
        }
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(ready_alone, 0);
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
        start_on(&w, write_ranks(3), ON("one", "two", "three"), PATTERN);
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

TEST(resident_ranks_are_not_read_again)
{
        struct watched w;
        char *folder = write_ranks(2);
        start_on(&w, folder, ON("one", "two"), PATTERN);
        ends(&w, LOAD_READY);
        struct generation *first = w.generation;
        start_on(&w, folder, ON("one", "two"), PATTERN);
        ends(&w, LOAD_READY);
        ck_assert_ptr_eq(w.generation, first);
        ck_assert_uint_eq(others[0].allocs, 1);
        /* On other devices they are a separate model, which takes over the name on the devices in common. */
        start_on(&w, folder, ON("two", "three"), PATTERN);
        ends(&w, LOAD_READY);
        ck_assert_uint_ne(w.generation->number, first->number);
        serves_on("two", 50);
}

TEST(a_ranks_files_alone_are_a_model_of_their_own)
{
        struct watched w;
        char *folder = write_ranks(2), *path = format_text("%s/r0.safetensors", folder);
        start_on(&w, folder, ON("one", "two"), PATTERN);
        ends(&w, LOAD_READY);
        uint64_t number = w.generation->number;
        start_on(&w, path, ON("three"), NULL);
        ends(&w, LOAD_READY);
        ck_assert_uint_ne(w.generation->number, number);
        serves_on("three", 50);
}
