/* SPDX-License-Identifier: Apache-2.0
 *
 * How many blocks of a load are in flight, read or copied. reader_hangs_test tests loads that hang.
 */
#include "tests/lib/read_fixture.h"

static struct read_fixture r;

/* ---- jobs ---- */

CORE_FIXTURE(NULL, read_fixture_reader_end);

static void idle_soon(void)
{
        lock_scope(&reader.mutex);
        reader.opts.idle_ns = SECOND / 100;
}

/* Pages of the pool stay. */
static bool is_of_the_pool(void)
{
        return reader.staging.pages == PAGES_HUGETLB;
}

static bool in_memory(void)
{
        lock_scope(&reader.mutex);
        return staging_in_memory(&reader.staging);
}

TEST(a_job_without_blocks_ends_in_the_next_iteration)
{
        struct model *m = model_new(1);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        char *path = core_write(m, "empty");
        read_fixture_reader_begin(2, BLOCK);
        read_fixture_begin(&r, path, false);
        ck_assert_uint_eq(r.resolved.plan.n_blocks, 0);
        reader_start(&reader, &r.job);
        ck_assert(!r.ended);
        core_until(r.ended);
        ck_assert(!r.job.failed);
}

TEST(concurrency_one_reads_one_block_at_a_time, .to = 2)
{
        read_fixture_reader_begin(1, 4 * BLOCK);
        read_fixture_begin(&r, blocks_file("even", 5), _i == 1);
        struct gate *gate = _i == 1 ? &r.device.put : &r.device.prepare;
        gate_init(gate, false);
        reader_start(&reader, &r.job);
        for (unsigned i = 1; i <= 5; i++) {
                gate_await(gate, i);
                read_fixture_settle();
                ck_assert_uint_eq(gate_arrived(gate), i);
                gate_pass_more(gate, 1);
        }
        core_until(r.ended);
        all_read_once(&r);
}

TEST(a_thread_is_started_for_each_block_that_may_be_read_at_once)
{
        read_fixture_reader_begin(64, 64 * BLOCK);
        threads_await_asleep("reader", 1);
        read_fixture_begin(&r, blocks_file("one", 1), false);
        read_all(&r);
        threads_await_asleep("reader", 1);
        struct read_fixture five;
        read_fixture_begin(&five, blocks_file("five", 5), false);
        gate_init(&five.device.prepare, false);
        reader_start(&reader, &five.job);
        gate_await(&five.device.prepare, 5);
        threads_await_asleep("reader", 5);
        gate_open(&five.device.prepare);
        core_until(five.ended);
        all_read_once(&five);
}

/* The last thread stays, for the next load. */
TEST(without_work_threads_end_and_the_ring_takes_no_memory)
{
        read_fixture_reader_begin(4, 8 * BLOCK);
        ck_assert(!staging_in_memory(&reader.staging));
        idle_soon();
        for (int i = 0; i < 3; i++) {
                struct read_fixture hidden;
                read_fixture_begin(&hidden, blocks_file(format_text("h%d", i), 8), true);
                read_all(&hidden);
                ck_assert(segments_match(&hidden, hidden.resolved.plan.blocks, 8));
                AWAIT(!in_memory());
                threads_await_asleep("reader", 1);
        }
}

TEST(a_pinned_ring_stays_in_memory_until_it_is_unpinned)
{
        read_fixture_reader_begin(4, 8 * BLOCK);
        if (is_of_the_pool())
                return;
        idle_soon();
        store_relaxed(&reader.staging.pinned, RING_PINNED);
        read_fixture_begin(&r, blocks_file("h", 8), true);
        read_all(&r);
        threads_await_asleep("reader", 1);
        ck_assert(in_memory());
        store_relaxed(&reader.staging.pinned, RING_NOT_PINNED);
        reader_ring_unpinned(&reader);
        AWAIT(!in_memory());
}

static bool is_being_pinned = true;
static unsigned n_refused;

static void unless_it_is_being_pinned(void *context, void (*give_back)(void *arg), void *arg)
{
        ck_assert_ptr_eq(context, &n_refused);
        if (load_relaxed(&is_being_pinned))
                add_relaxed(&n_refused, 1);
        else
                give_back(arg);
}

TEST(a_ring_that_is_about_to_be_pinned_stays_in_memory)
{
        read_fixture_reader_begin(4, 8 * BLOCK);
        if (is_of_the_pool())
                return;
        idle_soon();
        reader.opts.if_unpinned = unless_it_is_being_pinned;
        reader.opts.pinning = &n_refused;
        read_fixture_begin(&r, blocks_file("h", 8), true);
        read_all(&r);
        AWAIT(load_relaxed(&n_refused) > 1);
        ck_assert(in_memory());
        store_relaxed(&is_being_pinned, false);
        AWAIT(!in_memory());
}

TEST(a_ring_of_one_slot_serves_any_number_of_jobs)
{
        struct read_fixture three[3];
        read_fixture_reader_begin(4, 1);
        ck_assert_uint_eq(reader.staging.n_slots, 1);
        for (size_t i = 0; i < 3; i++) {
                read_fixture_begin(&three[i], odd_file(i == 0 ? "one" : i == 1 ? "two" : "three", i), true);
                reader_start(&reader, &three[i].job);
        }
        core_until(three[0].ended && three[1].ended && three[2].ended);
        for (size_t i = 0; i < 3; i++) {
                ck_assert(!three[i].job.failed);
                ck_assert(segments_match(&three[i], three[i].resolved.plan.blocks, three[i].resolved.plan.n_blocks));
        }
}

TEST(stopping_twice_or_after_the_end_has_no_effect)
{
        read_fixture_reader_begin(2, 4 * BLOCK);
        read_fixture_begin(&r, blocks_file("even", 3), false);
        reader_start(&reader, &r.job);
        reader_stop(&reader, &r.job);
        reader_stop(&reader, &r.job);
        core_until(r.ended);
        reader_stop(&reader, &r.job);
        core_settle();
}

/* ---- devices with asynchronous copies ---- */

/* A job whose copies, of which two have begun, all stay in flight until the gate opens. */
static void begin_copying(struct read_fixture *job, const char *path)
{
        read_fixture_begin(job, path, true);
        fake_device_copies(&job->device);
        gate_init(&job->device.event, false);
        reader_start(&reader, &job->job);
        AWAIT(__atomic_load_n(&job->device.copies, __ATOMIC_SEQ_CST) >= 2);
}

TEST(at_a_concurrency_of_one_a_block_is_read_while_one_is_copied)
{
        read_fixture_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, blocks_file("even", 6));
        ck_assert_uint_eq(r.n_landed, 0);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_read_once(&r);
        ck_assert_uint_eq(reader.engines[READ_PREAD].busy, 0);
}

TEST(a_block_of_many_small_tensors_is_one_asynchronous_copy)
{
        struct model *m = model_new(5);
        model_add_many(m, "small", 2500, 999);
        char *path = core_write(m, "small");
        read_fixture_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, path);
        ck_assert_uint_eq(r.resolved.plan.n_blocks, 2);
        ck_assert_uint_eq(r.device.events, 0);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_read_once(&r);
        ck_assert(segments_match(&r, r.resolved.plan.blocks, 2));
}

TEST(blocks_that_are_copied_hold_no_more_than_the_share_of_slots)
{
        read_fixture_reader_begin(2, 4 * BLOCK);
        begin_copying(&r, blocks_file("even", 8));
        threads_await_asleep("reader", 2); /* no third one was started for nothing */
        ck_assert_uint_eq(r.device.copies, 2);
        ck_assert_uint_eq(r.job.slots, 2);
        gate_open(&r.device.event);
        core_until(r.ended);
}

/* Excluded and included again while it waits for a copy, which is no read of its job. */
TEST(a_copy_that_hangs_is_counted_replaced_and_completes)
{
        read_fixture_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, blocks_file("even", 6));
        threads_await_asleep("reader", 2);
        /* A thread may still be on its way to the wait for its copy. */
        AWAIT((read_fixture_watch(), reader_job_stalled(&r.job)));
        ck_assert_uint_ge(reader.engines[READ_PREAD].stuck, 1);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_read_once(&r);
        threads_await_asleep("reader", 2);
        ck_assert_uint_eq(reader.engines[READ_PREAD].stuck, 0);
        ck_assert_uint_eq(reader.engines[READ_PREAD].busy, 0);
}

TEST(a_stalled_device_takes_no_slots_or_threads_of_other_loads)
{
        struct read_fixture stalled, other;
        read_fixture_reader_begin(2, 4 * BLOCK);
        begin_copying(&stalled, blocks_file("stalled", 6));
        read_fixture_begin(&other, blocks_file("other", 6), true);
        read_all(&other);
        all_read_once(&other);
        ck_assert_uint_eq(stalled.n_landed, 0);
        gate_open(&stalled.device.event);
        core_until(stalled.ended);
        all_read_once(&stalled);
}

/* One thread has a block of each load when the third load begins, and the first block to continue is the one whose copy
 * does not end. */
TEST(a_stalled_copy_does_not_stall_other_loads)
{
        struct read_fixture stalled, busy, other;
        read_fixture_reader_begin(1, 8 * BLOCK);
        read_fixture_begin(&stalled, blocks_file("stalled", 1), true);
        fake_device_copies(&stalled.device);
        gate_init(&stalled.device.put, false);
        gate_init(&stalled.device.event, false);
        reader_start(&reader, &stalled.job);
        gate_await(&stalled.device.put, 1);
        read_fixture_begin(&busy, blocks_file("busy", 1), true);
        gate_init(&busy.device.put, false);
        reader_start(&reader, &busy.job);
        gate_await(&busy.device.put, 1);
        read_fixture_begin(&other, blocks_file("other", 4), true);
        fake_device_copies(&other.device);
        reader_start(&reader, &other.job);

        gate_open(&stalled.device.put);
        gate_await(&stalled.device.event, 1);
        threads_await_asleep("reader", 2);
        gate_open(&busy.device.put);
        core_until(busy.ended && other.ended);
        all_read_once(&other);
        ck_assert(!stalled.ended);
        gate_open(&stalled.device.event);
        core_until(stalled.ended);
}
