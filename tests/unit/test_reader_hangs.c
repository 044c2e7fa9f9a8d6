/* SPDX-License-Identifier: Apache-2.0
 *
 * Who reads when some cannot: how loads share threads and slots with one that hangs, by their weights, and
 * threads that are counted out, replaced and counted back in.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"

/* ---- one that hangs, and the others ---- */

START_TEST(a_job_that_hangs_leaves_threads_to_the_next)
{
        struct reading hung, next;
        reading_reader_begin(4, 8 * BLOCK);
        reading_hang(&hung, even_file("hung", 20), 4);
        reading_begin(&next, even_file("next", 20), false);
        read_all(&next);
        all_landed_once(&next);
        ck_assert(!hung.ended);
        reading_go_on(&hung);
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
                reading_hang(&hung[i], even_file(i == 0 ? "h0" : i == 1 ? "h1" : "h2", 12), share[i]);
                threads_await_asleep("reader", 8);
                ck_assert_uint_eq(gate_come(&hung[i].device.prepare), share[i]);
        }
        reading_begin(&next, even_file("next", 12), false);
        read_all(&next);
        all_landed_once(&next);
        reading_end(&next);
        for (size_t i = 0; i < 3; i++) {
                reading_go_on(&hung[i]);
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
        reading_hang(&hung, even_file("hung", 4), 2);
        reading_begin(&fine, even_file("fine", 4), false);
        ck_assert(!reader_job_stalled(&hung.job));
        read_all(&fine);
        reading_watch();
        ck_assert(reader_job_stalled(&hung.job));
        ck_assert(!reader_job_stalled(&fine.job));
        reading_go_on(&hung);
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
                reading_hang(&hung[i], even_file(name, 2), 1);
                free(name);
                reading_watch();
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
        reading_hang(&hung, even_file("hung", 20), concurrency);
        reading_watch();
        threads_await_asleep("reader", 3 * concurrency);
        reading_go_on(&hung);
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
        reading_hang(&hung, even_file("hung", 8), 2);
        reading_watch();
        reader_stop(&reader, &hung.job);
        core_settle();
        ck_assert(!hung.ended);
        reading_go_on(&hung);
        ck_assert_uint_eq(hung.n_landed, 2);
        reading_end(&hung);
}
END_TEST

START_TEST(a_reader_whose_threads_hang_gives_up_at_its_deadline)
{
        struct reading hung;
        reading_reader_begin(2, 4 * BLOCK);
        reading_hang(&hung, even_file("hung", 8), 2);
        reader_stop(&reader, &hung.job);
        reading_reader_left();
        reading_go_on(&hung);
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
                reading_watch();
        }
        let_both_go(r);
}
END_TEST

int main(void)
{
        suite_begin("reader hangs");
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
        return suite_run();
}
