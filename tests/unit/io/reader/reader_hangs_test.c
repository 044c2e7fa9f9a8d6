/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers that hang: how loads share threads and slots with them, by weight, and threads that are replaced and
 * return.
 */
#include "tests/lib/read_fixture.h"

/* ---- a hanging load and others ---- */

CORE_FIXTURE(NULL, read_fixture_reader_end);

TEST(each_hanging_job_takes_half_of_the_rest_so_one_more_is_served)
{
        struct read_fixture hung[3], next;
        unsigned share[] = {4, 2, 1};
        read_fixture_reader_begin(4, 8 * BLOCK);
        for (size_t i = 0; i < 3; i++) {
                read_fixture_hang(&hung[i], blocks_file(format_text("h%zu", i), 12), share[i]);
                read_fixture_settle();
                ck_assert_uint_eq(gate_arrived(&hung[i].device.prepare), share[i]);
        }
        read_fixture_begin(&next, blocks_file("next", 12), false);
        read_all(&next);
        all_read_once(&next);
        for (size_t i = 0; i < 3; i++)
                read_fixture_resume(&hung[i]);
}

TEST(a_hanging_job_leaves_slots_for_the_next)
{
        struct read_fixture hung, next;
        read_fixture_reader_begin(4, 4 * BLOCK);
        read_fixture_begin(&hung, blocks_file("hung", 20), true);
        read_fixture_begin(&next, blocks_file("next", 20), true);
        gate_init(&hung.device.put, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.put, 2);
        read_fixture_settle();
        ck_assert_uint_eq(gate_arrived(&hung.device.put), 2);
        read_all(&next);
        all_read_once(&next);
        gate_open(&hung.device.put);
        core_until(hung.ended);
}

TEST(only_the_stalled_job_is_reported_as_stalled)
{
        struct read_fixture hung, fine;
        read_fixture_reader_begin(2, 4 * BLOCK);
        read_fixture_hang(&hung, blocks_file("hung", 4), 2);
        read_fixture_begin(&fine, blocks_file("fine", 4), false);
        ck_assert(!reader_job_stalled(&hung.job));
        read_all(&fine);
        read_fixture_watch();
        ck_assert(reader_job_stalled(&hung.job));
        ck_assert(!reader_job_stalled(&fine.job));
        read_fixture_resume(&hung);
        ck_assert(!reader_job_stalled(&hung.job));
}

TEST(threads_that_hang_are_replaced_up_to_the_cap)
{
        struct read_fixture hung[7];
        read_fixture_reader_begin(1, 4 * BLOCK); /* base 2, cap 6 */
        for (unsigned i = 0; i < 6; i++) {
                read_fixture_hang(&hung[i], blocks_file(format_text("h%u", i), 2), 1);
                read_fixture_watch();
                ck_assert_uint_eq(reader.engines[READ_PREAD].alive, i + 1);
                ck_assert_uint_eq(reader.engines[READ_PREAD].stuck, i + 1);
        }
        read_fixture_begin(&hung[6], blocks_file("h6", 2), false);
        reader_start(&reader, &hung[6].job);
        read_fixture_watch();
        ck_assert_uint_eq(reader.engines[READ_PREAD].alive, 6);
        ck_assert_uint_eq(hung[6].n_landed, 0);
        for (size_t i = 0; i < 6; i++)
                gate_open(&hung[i].device.prepare);
        for (size_t i = 0; i < 7; i++) {
                core_until(hung[i].ended);
                all_read_once(&hung[i]);
        }
}

/* A replaced thread returns and finds its place taken: the thread exits, but its job must continue. */
TEST(a_hung_job_continues_when_its_storage_answers, .from = 1, .to = 5)
{
        struct read_fixture hung, others[2];
        const struct engine *files = &reader.engines[READ_PREAD];
        unsigned concurrency = (unsigned)_i;
        read_fixture_reader_begin(concurrency, 4 * BLOCK);
        read_fixture_hang(&hung, blocks_file("hung", 20), concurrency);
        read_fixture_watch();
        for (size_t i = 0; i < 2; i++)
                read_fixture_hang(&others[i], blocks_file(format_text("o%zu", i), 20), 1);
        read_fixture_settle();
        ck_assert_uint_gt(files->alive, 2 * concurrency);
        for (size_t i = 0; i < 2; i++)
                gate_open(&others[i].device.prepare);
        read_fixture_resume(&hung);
        all_read_once(&hung);
        for (size_t i = 0; i < 2; i++)
                core_until(others[i].ended);
        read_fixture_settle();
        ck_assert_uint_le(files->alive, 2 * concurrency);
        ck_assert_uint_eq(files->stuck, 0);
        ck_assert_uint_eq(files->busy, 0);
}

TEST(stopping_a_hanging_job_waits_for_its_threads)
{
        struct read_fixture hung;
        read_fixture_reader_begin(2, 4 * BLOCK);
        read_fixture_hang(&hung, blocks_file("hung", 8), 2);
        read_fixture_watch();
        reader_stop(&reader, &hung.job);
        core_settle();
        ck_assert(!hung.ended);
        read_fixture_resume(&hung);
        ck_assert_uint_eq(hung.n_landed, 2);
}

TEST(a_reader_whose_threads_hang_gives_up_at_its_deadline)
{
        struct read_fixture hung;
        read_fixture_reader_begin(2, 4 * BLOCK);
        read_fixture_hang(&hung, blocks_file("hung", 8), 2);
        reader_stop(&reader, &hung.job);
        read_fixture_reader_abandon();
        read_fixture_resume(&hung);
        read_fixture_reader_end();
}

/* ---- shares ---- */

/* Fills both jobs up to their limits; returns their blocks in flight. */
static void hang_both(struct read_fixture r[2], unsigned first, unsigned second)
{
        read_fixture_reader_begin(16, 32 * BLOCK);
        for (unsigned i = 0; i < 2; i++) {
                read_fixture_begin(&r[i], blocks_file(i == 0 ? "first" : "second", 40), false);
                gate_init(&r[i].device.prepare, false);
                r[i].job.weight = i == 0 ? first : second;
                reader_start(&reader, &r[i].job);
                gate_await(&r[i].device.prepare, i == 0 ? 16 : 1);
        }
        read_fixture_settle();
}

static void release_both(struct read_fixture r[2])
{
        for (unsigned i = 0; i < 2; i++)
                gate_open(&r[i].device.prepare);
        for (unsigned i = 0; i < 2; i++) {
                core_until(r[i].ended);
                all_read_once(&r[i]);
        }
}

TEST(a_heavy_job_does_not_take_a_light_ones_share)
{
        struct read_fixture r[2];
        hang_both(r, 1000, 100);
        ck_assert_uint_eq(gate_arrived(&r[0].device.prepare), 16);
        ck_assert_uint_eq(gate_arrived(&r[1].device.prepare), 1);
        release_both(r);
}

TEST(a_raised_weight_applies_at_once)
{
        struct read_fixture r[2];
        hang_both(r, 1000, 100);
        reader_set_weight(&reader, &r[1].job, 1000);
        gate_await(&r[1].device.prepare, 8);
        read_fixture_settle();
        ck_assert_uint_eq(gate_arrived(&r[1].device.prepare), 8);
        release_both(r);
}

TEST(a_hanging_heavy_job_does_not_shrink_the_others)
{
        struct read_fixture r[2];
        read_fixture_reader_begin(16, 32 * BLOCK);
        for (unsigned i = 0; i < 2; i++) {
                read_fixture_begin(&r[i], blocks_file(i == 0 ? "first" : "second", 40), false);
                gate_init(&r[i].device.prepare, false);
                r[i].job.weight = i == 0 ? 1000 : 100;
                reader_start(&reader, &r[i].job);
                gate_await(&r[i].device.prepare, 16);
                read_fixture_watch();
        }
        release_both(r);
}
