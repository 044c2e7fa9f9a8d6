/* SPDX-License-Identifier: Apache-2.0
 *
 * Small loads, whose files come whole with their headers: a worker does the work of several states in one step, and all
 * that holds for other loads holds for them.
 */
#include "tests/lib/load_fixture.h"

#include <sys/stat.h>

/* Aligned, so that all is read in place. */
static struct model *tiny_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add(m, "w", "U8", (uint64_t[]){5000}, 1);
        model_add(m, "b", "BF16", (uint64_t[]){4, 6}, 2);
        model_add(m, "none", "F32", (uint64_t[]){0}, 1);
        model_add_many(m, "x", 20, 336);
        return m;
}

static char *tiny_file(const char *name, uint64_t seed)
{
        return core_write(tiny_model(seed), name);
}

static void begin(void)
{
        load_fixture_begin();
        fake.device.caps |= DEVICE_SMALL_ANYWHERE;
        fake.device.layout.small = MiB;
}

CORE_FIXTURE(begin, load_fixture_end);

/* ---- steps ---- */

static struct held_work between;

/* The lane is held before each step. */
TEST(a_worker_loads_a_small_model_in_two_steps)
{
        struct watched w;
        char *path = tiny_file("tiny.safetensors", 1);
        load_hold_lane(path);
        load_start(&w, path, "m");
        core_until(!list_empty(&w.load->announced.link));
        ck_assert_int_eq((int)w.load->state, (int)LOAD_OPENING);
        held_work_submit(&between, loads.pool, source_lane(path), &lane_gate);
        gate_pass_more(&lane_gate, 1);
        core_until(w.load->state == LOAD_ALLOCATING);
        gate_await(&lane_gate, 2);
        ck_assert_uint_eq(fake.allocs, 0);
        ck_assert_uint_gt(w.load->parts[0].resolved.plan.n_blocks, 0);
        gate_open(&lane_gate);
        ends(&w, LOAD_READY);
        serves(w.generation, tiny_model(1));
        ck_assert_uint_eq(w.progress.tensors, tiny_model(1)->n);
        ck_assert_uint_eq(w.progress.bytes, tiny_model(1)->bytes);
        ck_assert_uint_eq(arrivals, 0);
        ck_assert_uint_eq(fake.prepares, 1);
}

TEST(small_files_of_one_model_are_loaded_together)
{
        struct model *m = tiny_model(1);
        char *folder = suite_path("shards");
        model_write_sharded(m, folder, 3, true);
        serves(load_ready(folder, "m"), m);
        ck_assert_uint_eq(arrivals, 0);
}

TEST(a_small_model_without_bytes_is_ready)
{
        struct model *m = model_new(1);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        serves(load_ready(core_write(m, "empty"), "m"), m);
}

/* The name serves, so the files may be those that are resident, and are not read before that is known. */
TEST(a_small_model_replaces_another_one_of_its_name)
{
        serves(load_ready(tiny_file("one", 1), "m"), tiny_model(1));
        serves(load_ready(tiny_file("two", 2), "m"), tiny_model(2));
        struct generation *two = resident_ready(&resident, "m");
        ck_assert_ptr_eq(load_ready(suite_path("two"), "m"), two);
        ck_assert_ptr_eq(load_ready(suite_path("two"), "alias"), two); /* read, and then found to be resident */
        ck_assert_uint_eq(fake.allocs, 2);
}

TEST(two_loads_of_one_small_file_are_one)
{
        struct watched a, b;
        char *path = tiny_file("tiny", 1);
        load_hold_lane(path);
        load_start(&a, path, "a");
        load_start(&b, path, "b");
        gate_open(&lane_gate);
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert_ptr_eq(a.generation, b.generation);
        ck_assert_uint_eq(fake.allocs, 1);
}

/* ---- ends ---- */

static struct gate *const gates[] = {&fake.alloc, &fake.prepare, &fake.read};

TEST(a_small_load_is_cancelled_at_once_whatever_its_worker_does, EACH(gates))
{
        struct watched w;
        gate_init(gates[_i], false);
        load_start(&w, tiny_file("tiny", 1), "m");
        core_until(w.load->state == LOAD_ALLOCATING);
        gate_await(gates[_i], 1);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        core_settle();
        ck_assert_uint_gt(fake.device.used, 0);
        gate_open(gates[_i]);
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.allocs, fake.freed);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
}

static const struct {
        unsigned alloc, prepare;
        bool lies;
        int code;
        const char *text;
} failures[] = {{1, 0, false, STREAMER_ENOMEM, "segment 1 fails"},
                {0, 1, false, STREAMER_ENOMEM, "no memory at"},
                {0, 0, true, STREAMER_EFAILED, "are not those that were read"}};

TEST(a_small_load_fails_with_the_step_that_fails, EACH(failures))
{
        fake.fail_alloc = failures[_i].alloc;
        fake.fail_prepare = failures[_i].prepare;
        __atomic_store_n(&fake.lies, failures[_i].lies, __ATOMIC_RELAXED);
        load_fails(tiny_file("tiny", 1), "m", failures[_i].code, failures[_i].text);
        ck_assert_uint_eq(fake.distrusted, failures[_i].lies);
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.allocs, fake.freed);
}

TEST(a_small_file_that_is_none_fails)
{
        char *path = suite_path("text");
        file_write(path, "weights", 7);
        load_fails(path, "m", STREAMER_EFAILED, "not a safetensors file");
}

static const bool replaces[] = {true, false};

TEST(a_small_file_that_changes_before_it_is_checked_is_not_served, EACH(replaces))
{
        struct watched w;
        char *path = tiny_file("tiny", 1);
        gate_init(&fake.prepare, false);
        load_start(&w, path, "m");
        core_until(w.load->state == LOAD_ALLOCATING);
        gate_await(&fake.prepare, 1);
        if (replaces[_i])
                must(rename(tiny_file("new", 2), path));
        else
                must(chmod(path, 0400));
        gate_open(&fake.prepare);
        ends(&w, replaces[_i] ? LOAD_READY : LOAD_FAILED);
        ck_assert_uint_eq(w.progress.restarts, replaces[_i]);
        if (replaces[_i])
                serves(resident_ready(&resident, "m"), tiny_model(2));
        else
                ck_assert_ptr_nonnull(strstr(w.error.text, "changed while it was read"));
}

/* ---- memory of a device that others use, too ---- */

TEST(a_device_is_not_asked_what_it_can_hold_for_a_small_model)
{
        fake_device_share(&fake, BUDGET);
        serves(load_ready(tiny_file("tiny", 1), "m"), tiny_model(1));
        ck_assert_uint_eq(fake.asked, 0);
}

TEST(a_device_that_had_no_memory_left_is_asked_again_for_a_small_model)
{
        fake_device_share(&fake, BUDGET);
        fake.device.ceiling = 1;
        serves(load_ready(tiny_file("tiny", 1), "m"), tiny_model(1));
        ck_assert_uint_gt(fake.asked, 0);
}

TEST(a_device_that_refuses_a_small_model_is_asked_before_it_is_tried_again)
{
        struct watched w;
        fake_device_share(&fake, BUDGET);
        fake.fail_alloc = 1;
        gate_init(&fake.answer, false);
        load_start(&w, tiny_file("tiny", 1), "m");
        core_until(w.load->state == LOAD_QUEUED && w.load->retries == 1);
        core_settle();
        gate_await(&fake.answer, 1);
        fake.fail_alloc = 0;
        gate_open(&fake.answer);
        ends(&w, LOAD_READY);
        serves(w.generation, tiny_model(1));
}
