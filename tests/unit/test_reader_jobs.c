/* SPDX-License-Identifier: Apache-2.0
 *
 * Who reads when: how many blocks of a load are in flight, read or copied. Loads that hang, and what they
 * leave to others: test_reader_hangs.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"

/* ---- jobs ---- */

START_TEST(a_job_without_blocks_ends_on_the_next_turn)
{
        struct reading r;
        struct model *m = model_new(1);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        char *path = core_write(m, "empty");
        model_free(m);
        reading_reader_begin(2, BLOCK);
        reading_begin(&r, path, false);
        ck_assert_uint_eq(r.resolved.plan.n_blocks, 0);
        reader_start(&reader, &r.job);
        ck_assert(!r.ended);
        core_until(r.ended);
        ck_assert(!r.job.failed);
        reading_end(&r);
}
END_TEST

START_TEST(concurrency_one_reads_one_block_at_a_time)
{
        struct reading r;
        reading_reader_begin(1, 4 * BLOCK);
        reading_begin(&r, even_file("even", 5), _i == 1);
        struct gate *gate = _i == 1 ? &r.device.put : &r.device.prepare;
        gate_init(gate, false);
        reader_start(&reader, &r.job);
        for (unsigned i = 1; i <= 5; i++) {
                gate_await(gate, i);
                threads_await_asleep("reader", threads_named("reader"));
                ck_assert_uint_eq(gate_come(gate), i);
                gate_let(gate, 1);
        }
        core_until(r.ended);
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(a_job_has_no_more_blocks_in_flight_than_the_concurrency)
{
        struct reading r;
        reading_reader_begin(3, 4 * BLOCK);
        reading_hang(&r, even_file("even", 8), 3);
        threads_await_asleep("reader", threads_named("reader"));
        ck_assert_uint_eq(gate_come(&r.device.prepare), 3);
        reading_go_on(&r);
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(a_ring_of_one_slot_serves_any_number_of_jobs)
{
        struct reading r[3];
        reading_reader_begin(4, 1);
        ck_assert_uint_eq(reader.staging.n_slots, 1);
        for (size_t i = 0; i < 3; i++) {
                reading_begin(&r[i], odd_file(i == 0 ? "one" : i == 1 ? "two" : "three", i), true);
                reader_start(&reader, &r[i].job);
        }
        core_until(r[0].ended && r[1].ended && r[2].ended);
        for (size_t i = 0; i < 3; i++) {
                ck_assert(!r[i].job.failed);
                ck_assert(as_expected(&r[i], r[i].resolved.plan.blocks, r[i].resolved.plan.n_blocks));
                reading_end(&r[i]);
        }
}
END_TEST

START_TEST(stopping_lets_what_is_in_flight_come_home_and_takes_no_more)
{
        struct reading r;
        reading_reader_begin(2, 4 * BLOCK);
        reading_hang(&r, even_file("even", 8), 2);
        reader_stop(&reader, &r.job);
        core_settle();
        ck_assert(!r.ended);
        reading_go_on(&r);
        ck_assert(!r.job.failed);
        ck_assert_uint_eq(r.n_landed, 2);
        reading_end(&r);
}
END_TEST

START_TEST(stopping_twice_or_after_the_end_is_nothing)
{
        struct reading r;
        reading_reader_begin(2, 4 * BLOCK);
        reading_begin(&r, even_file("even", 3), false);
        reader_start(&reader, &r.job);
        reader_stop(&reader, &r.job);
        reader_stop(&reader, &r.job);
        core_until(r.ended);
        reader_stop(&reader, &r.job);
        core_settle();
        reading_end(&r);
}
END_TEST

/* ---- devices that copy ---- */

/* A job whose copies all stay on their way until the gate opens. */
static void begin_copying(struct reading *r, const char *path)
{
        reading_begin(r, path, true);
        fake_device_copies(&r->device);
        gate_init(&r->device.event, false);
        reader_start(&reader, &r->job);
}

static bool two_copies_fly(void *arg)
{
        const struct reading *r = arg;
        return __atomic_load_n(&r->device.copies, __ATOMIC_SEQ_CST) >= 2;
}

START_TEST(the_next_block_is_read_while_one_is_copied)
{
        struct reading r;
        reading_reader_begin(2, 4 * BLOCK);
        begin_copying(&r, even_file("even", 6));
        ck_assert(eventually(two_copies_fly, &r, 10000));
        ck_assert_uint_eq(r.n_landed, 0);
        ck_assert_uint_eq(r.device.events, 0);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(at_a_concurrency_of_one_a_block_is_read_while_one_is_copied)
{
        struct reading r;
        reading_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, even_file("even", 6));
        ck_assert(eventually(two_copies_fly, &r, 10000));
        ck_assert_uint_eq(r.n_landed, 0);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_landed_once(&r);
        ck_assert_uint_eq(reader.engines[READ_PREAD].busy, 0);
        reading_end(&r);
}
END_TEST

START_TEST(a_block_of_many_small_tensors_is_one_copy_that_nobody_waits_for)
{
        struct reading r;
        struct model *m = model_new(5);
        model_add_many(m, "small", 2500, 999);
        char *path = core_write(m, "small");
        model_free(m);
        reading_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, path);
        ck_assert_uint_eq(r.resolved.plan.n_blocks, 2);
        ck_assert(eventually(two_copies_fly, &r, 10000));
        ck_assert_uint_eq(r.device.events, 0);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_landed_once(&r);
        ck_assert(as_expected(&r, r.resolved.plan.blocks, 2));
        reading_end(&r);
}
END_TEST

START_TEST(blocks_that_are_copied_hold_no_more_than_the_share_of_slots)
{
        struct reading r;
        reading_reader_begin(2, 4 * BLOCK);
        begin_copying(&r, even_file("even", 8));
        ck_assert(eventually(two_copies_fly, &r, 10000));
        threads_await_asleep("reader", 4);
        ck_assert_uint_eq(r.device.copies, 2);
        ck_assert_uint_eq(r.job.slots, 2);
        gate_open(&r.device.event);
        core_until(r.ended);
        reading_end(&r);
}
END_TEST

/* Counted out and in again while it waits for a copy, which is no read of its job. */
START_TEST(a_copy_that_hangs_is_known_and_replaced_and_comes_home)
{
        struct reading r;
        reading_reader_begin(1, 8 * BLOCK);
        begin_copying(&r, even_file("even", 6));
        ck_assert(eventually(two_copies_fly, &r, 10000));
        threads_await_asleep("reader", 2);
        reading_watch();
        ck_assert(reader_job_stalled(&r.job));
        ck_assert_uint_ge(reader.engines[READ_PREAD].stuck, 1);
        gate_open(&r.device.event);
        core_until(r.ended);
        all_landed_once(&r);
        threads_await_asleep("reader", 2);
        ck_assert_uint_eq(reader.engines[READ_PREAD].stuck, 0);
        ck_assert_uint_eq(reader.engines[READ_PREAD].busy, 0);
        reading_end(&r);
}
END_TEST

START_TEST(a_device_that_stalls_keeps_neither_slots_nor_threads_from_another_load)
{
        struct reading stalled, other;
        reading_reader_begin(2, 4 * BLOCK);
        begin_copying(&stalled, even_file("stalled", 6));
        ck_assert(eventually(two_copies_fly, &stalled, 10000));
        reading_begin(&other, even_file("other", 6), true);
        read_all(&other);
        all_landed_once(&other);
        ck_assert_uint_eq(stalled.n_landed, 0);
        gate_open(&stalled.device.event);
        core_until(stalled.ended);
        all_landed_once(&stalled);
        reading_end(&stalled);
        reading_end(&other);
}
END_TEST

/* One thread has a block of each load in its hands when the third one comes, and the first to go on is the one whose
 * copy does not end. */
START_TEST(a_thread_whose_copy_stalls_takes_no_other_load_along)
{
        struct reading stalled, busy, other;
        reading_reader_begin(1, 8 * BLOCK);
        reading_begin(&stalled, even_file("stalled", 1), true);
        fake_device_copies(&stalled.device);
        gate_init(&stalled.device.put, false);
        gate_init(&stalled.device.event, false);
        reader_start(&reader, &stalled.job);
        gate_await(&stalled.device.put, 1);
        reading_begin(&busy, even_file("busy", 1), true);
        gate_init(&busy.device.put, false);
        reader_start(&reader, &busy.job);
        gate_await(&busy.device.put, 1);
        reading_begin(&other, even_file("other", 4), true);
        fake_device_copies(&other.device);
        reader_start(&reader, &other.job);

        gate_open(&stalled.device.put);
        gate_await(&stalled.device.event, 1);
        threads_await_asleep("reader", 2);
        gate_open(&busy.device.put);
        core_until(busy.ended && other.ended);
        all_landed_once(&other);
        ck_assert(!stalled.ended);
        gate_open(&stalled.device.event);
        core_until(stalled.ended);
        reading_end(&stalled);
        reading_end(&busy);
        reading_end(&other);
}
END_TEST

int main(void)
{
        suite_begin("reader jobs");
        TCase *jobs = core_group("jobs", NULL, reading_reader_end);
        tcase_add_test(jobs, a_job_without_blocks_ends_on_the_next_turn);
        tcase_add_loop_test(jobs, concurrency_one_reads_one_block_at_a_time, 0, 2);
        tcase_add_test(jobs, a_job_has_no_more_blocks_in_flight_than_the_concurrency);
        tcase_add_test(jobs, a_ring_of_one_slot_serves_any_number_of_jobs);
        tcase_add_test(jobs, stopping_lets_what_is_in_flight_come_home_and_takes_no_more);
        tcase_add_test(jobs, stopping_twice_or_after_the_end_is_nothing);
        TCase *copies = core_group("devices that copy", NULL, reading_reader_end);
        tcase_add_test(copies, the_next_block_is_read_while_one_is_copied);
        tcase_add_test(copies, at_a_concurrency_of_one_a_block_is_read_while_one_is_copied);
        tcase_add_test(copies, a_block_of_many_small_tensors_is_one_copy_that_nobody_waits_for);
        tcase_add_test(copies, blocks_that_are_copied_hold_no_more_than_the_share_of_slots);
        tcase_add_test(copies, a_copy_that_hangs_is_known_and_replaced_and_comes_home);
        tcase_add_test(copies, a_device_that_stalls_keeps_neither_slots_nor_threads_from_another_load);
        tcase_add_test(copies, a_thread_whose_copy_stalls_takes_no_other_load_along);
        return suite_run();
}
