/* SPDX-License-Identifier: Apache-2.0
 *
 * Who reads when: how many blocks of a load are in flight, how loads share threads and slots with
 * one that hangs, and threads that are counted out, replaced and counted back in.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"

#define SECOND UINT64_C(1000000000)

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
        reading_begin(&r, even_file("even", 8), false);
        gate_init(&r.device.prepare, false);
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 3);
        threads_await_asleep("reader", threads_named("reader"));
        ck_assert_uint_eq(gate_come(&r.device.prepare), 3);
        gate_open(&r.device.prepare);
        core_until(r.ended);
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
        reading_begin(&r, even_file("even", 8), false);
        gate_init(&r.device.prepare, false);
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 2);
        reader_stop(&reader, &r.job);
        core_settle();
        ck_assert(!r.ended);
        gate_open(&r.device.prepare);
        core_until(r.ended);
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

/* ---- one that hangs, and the others ---- */

START_TEST(a_job_that_hangs_leaves_threads_to_the_next)
{
        struct reading hung, next;
        reading_reader_begin(4, 8 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), false);
        reading_begin(&next, even_file("next", 20), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 4);
        read_all(&next);
        all_landed_once(&next);
        ck_assert(!hung.ended);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        all_landed_once(&hung);
        reading_end(&hung);
        reading_end(&next);
}
END_TEST

START_TEST(each_job_that_hangs_takes_half_of_what_is_left_so_that_one_more_is_served)
{
        struct reading hung[3], next;
        unsigned share[] = {4, 2, 1};
        reading_reader_begin(4, 8 * BLOCK);
        for (size_t i = 0; i < 3; i++) {
                reading_begin(&hung[i], even_file(i == 0 ? "h0" : i == 1 ? "h1" : "h2", 12), false);
                gate_init(&hung[i].device.prepare, false);
                reader_start(&reader, &hung[i].job);
                gate_await(&hung[i].device.prepare, share[i]);
                threads_await_asleep("reader", 8);
                ck_assert_uint_eq(gate_come(&hung[i].device.prepare), share[i]);
        }
        reading_begin(&next, even_file("next", 12), false);
        read_all(&next);
        all_landed_once(&next);
        reading_end(&next);
        for (size_t i = 0; i < 3; i++) {
                gate_open(&hung[i].device.prepare);
                core_until(hung[i].ended);
                reading_end(&hung[i]);
        }
}
END_TEST

START_TEST(a_job_that_hangs_leaves_slots_to_the_next)
{
        struct reading hung, next;
        reading_reader_begin(4, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), true);
        reading_begin(&next, even_file("next", 20), true);
        gate_init(&hung.device.put, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.put, 2);
        threads_await_asleep("reader", 8);
        ck_assert_uint_eq(gate_come(&hung.device.put), 2);
        read_all(&next);
        all_landed_once(&next);
        gate_open(&hung.device.put);
        core_until(hung.ended);
        reading_end(&hung);
        reading_end(&next);
}
END_TEST

START_TEST(a_stalled_job_is_known_and_the_others_are_not_blamed)
{
        struct reading hung, fine;
        reading_reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 4), false);
        reading_begin(&fine, even_file("fine", 4), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        ck_assert(!reader_job_stalled(&hung.job));
        read_all(&fine);
        reader_watch(&reader);
        ck_assert(reader_job_stalled(&hung.job));
        ck_assert(!reader_job_stalled(&fine.job));
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        ck_assert(!reader_job_stalled(&hung.job));
        reading_end(&hung);
        reading_end(&fine);
}
END_TEST

START_TEST(threads_that_hang_are_replaced_up_to_the_cap)
{
        struct reading hung[5];
        reading_reader_begin(1, 4 * BLOCK); /* base 2, cap 6 */
        threads_await_asleep("reader", 2);
        for (unsigned i = 0; i < 5; i++) {
                char *name = format_text("h%u", i);
                reading_begin(&hung[i], even_file(name, 2), false);
                free(name);
                gate_init(&hung[i].device.prepare, false);
                reader_start(&reader, &hung[i].job);
                gate_await(&hung[i].device.prepare, 1);
                reader_watch(&reader);
                unsigned want = i + 3 < 6 ? i + 3 : 6;
                threads_await_asleep("reader", want);
                ck_assert_uint_eq(reader.engines[READ_PREAD].alive, want);
                ck_assert_uint_eq(reader.engines[READ_PREAD].stuck, i + 1);
        }
        for (size_t i = 0; i < 5; i++)
                gate_open(&hung[i].device.prepare);
        for (size_t i = 0; i < 5; i++) {
                core_until(hung[i].ended);
                all_landed_once(&hung[i]);
                reading_end(&hung[i]);
        }
}
END_TEST

/* What was counted out comes home and finds its place taken: it goes, but its job must go on. */
START_TEST(a_job_that_hung_goes_on_when_its_storage_answers)
{
        struct reading hung;
        unsigned concurrency = (unsigned)_i;
        reading_reader_begin(concurrency, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, concurrency);
        reader_watch(&reader);
        threads_await_asleep("reader", 3 * concurrency);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        all_landed_once(&hung);
        threads_await_asleep("reader", 2 * concurrency);
        ck_assert_uint_eq(reader.engines[READ_PREAD].stuck, 0);
        ck_assert_uint_eq(reader.engines[READ_PREAD].busy, 0);
        reading_end(&hung);
}
END_TEST

START_TEST(stopping_a_job_that_hangs_waits_for_its_threads)
{
        struct reading hung;
        reading_reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 8), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        reader_watch(&reader);
        reader_stop(&reader, &hung.job);
        core_settle();
        ck_assert(!hung.ended);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        ck_assert_uint_eq(hung.n_landed, 2);
        reading_end(&hung);
}
END_TEST

START_TEST(a_reader_whose_threads_hang_gives_up_at_its_deadline)
{
        struct reading hung;
        reading_reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 8), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        reader_stop(&reader, &hung.job);
        reading_reader_left();
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        reading_reader_end();
        reading_end(&hung);
}
END_TEST

/* ---- shares ---- */

/* Both at once, each to where it may take no more; what they then have in flight. */
static void hold_both(struct reading r[2], unsigned first, unsigned second)
{
        reading_reader_begin(16, 32 * BLOCK);
        threads_await_asleep("reader", 32);
        for (unsigned i = 0; i < 2; i++) {
                reading_begin(&r[i], even_file(i == 0 ? "first" : "second", 40), false);
                gate_init(&r[i].device.prepare, false);
                r[i].job.weight = i == 0 ? first : second;
                reader_start(&reader, &r[i].job);
                gate_await(&r[i].device.prepare, i == 0 ? 16 : 1);
        }
        threads_await_asleep("reader", 32);
}

static void let_both_go(struct reading r[2])
{
        for (unsigned i = 0; i < 2; i++)
                gate_open(&r[i].device.prepare);
        for (unsigned i = 0; i < 2; i++) {
                core_until(r[i].ended);
                all_landed_once(&r[i]);
                reading_end(&r[i]);
        }
}

START_TEST(a_heavy_job_leaves_a_light_one_its_share)
{
        struct reading r[2];
        hold_both(r, 1000, 100);
        ck_assert_uint_eq(gate_come(&r[0].device.prepare), 16);
        ck_assert_uint_eq(gate_come(&r[1].device.prepare), 1);
        let_both_go(r);
}
END_TEST

START_TEST(a_weight_that_is_raised_meanwhile_counts_at_once)
{
        struct reading r[2];
        hold_both(r, 1000, 100);
        reader_set_weight(&reader, &r[1].job, 1000);
        gate_await(&r[1].device.prepare, 8);
        threads_await_asleep("reader", 32);
        ck_assert_uint_eq(gate_come(&r[1].device.prepare), 8);
        let_both_go(r);
}
END_TEST

START_TEST(a_heavy_job_that_hangs_does_not_make_the_others_small)
{
        struct reading r[2];
        reading_reader_begin(16, 32 * BLOCK);
        for (unsigned i = 0; i < 2; i++) {
                reading_begin(&r[i], even_file(i == 0 ? "first" : "second", 40), false);
                gate_init(&r[i].device.prepare, false);
                r[i].job.weight = i == 0 ? 1000 : 100;
                reader_start(&reader, &r[i].job);
                gate_await(&r[i].device.prepare, 16);
                reader_watch(&reader);
        }
        let_both_go(r);
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
        reader_watch(&reader);
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
        TCase *hanging = core_group("one that hangs", NULL, reading_reader_end);
        tcase_add_test(hanging, a_job_that_hangs_leaves_threads_to_the_next);
        tcase_add_test(hanging, each_job_that_hangs_takes_half_of_what_is_left_so_that_one_more_is_served);
        tcase_add_test(hanging, a_job_that_hangs_leaves_slots_to_the_next);
        tcase_add_test(hanging, a_stalled_job_is_known_and_the_others_are_not_blamed);
        tcase_add_test(hanging, threads_that_hang_are_replaced_up_to_the_cap);
        tcase_add_loop_test(hanging, a_job_that_hung_goes_on_when_its_storage_answers, 1, 5);
        tcase_add_test(hanging, stopping_a_job_that_hangs_waits_for_its_threads);
        tcase_add_test(hanging, a_reader_whose_threads_hang_gives_up_at_its_deadline);
        TCase *shares = core_group("shares", NULL, reading_reader_end);
        tcase_add_test(shares, a_heavy_job_leaves_a_light_one_its_share);
        tcase_add_test(shares, a_weight_that_is_raised_meanwhile_counts_at_once);
        tcase_add_test(shares, a_heavy_job_that_hangs_does_not_make_the_others_small);
        TCase *copies = core_group("devices that copy", NULL, reading_reader_end);
        tcase_add_test(copies, the_next_block_is_read_while_one_is_copied);
        tcase_add_test(copies, at_a_concurrency_of_one_a_block_is_read_while_one_is_copied);
        tcase_add_test(copies, blocks_that_are_copied_hold_no_more_than_the_share_of_slots);
        tcase_add_test(copies, a_copy_that_hangs_is_known_and_replaced_and_comes_home);
        tcase_add_test(copies, a_device_that_stalls_keeps_neither_slots_nor_threads_from_another_load);
        return suite_run();
}
