/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of blocks: who reserves what, when a run is over, and what becomes of it when others have nothing to
 * do. The reader has no threads of its own here, so that each step is the test's.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"

#define BLOCKS 24u
#define PARTS 4u
#define SLOTS 4u

static struct reader turns;
static struct fake_device device;
static struct segment segment;
static struct read_target target;
static struct plan_block blocks[BLOCKS];
static struct plan plan = {.blocks = blocks, .n_blocks = BLOCKS};
static struct read_job job;
static bool ended;

static void on_ended(struct read_job *j)
{
        (void)j;
        ended = true;
}

static void begin(void)
{
        reading_bare_begin(&turns, PARTS, SLOTS, 4 * PARTS);
        for (size_t i = 0; i < BLOCKS; i++)
                blocks[i] = (struct plan_block){.file_off = 100 + i * BLOCK, .len = BLOCK, .in_place = true};
        fake_device_init(&device, "fake", GiB, false);
        segment = (struct segment){.device = &device.device};
        target = (struct read_target){.segments = &segment};
        job = (struct read_job){.plan = &plan, .targets = {&target}, .n_targets = 1, .ended = on_ended};
        ended = false;
        reader_start(&turns, &job);
        job.run_parts = PARTS;
        job.run_most = BLOCKS;
}

static void end(void)
{
        reading_bare_end(&turns);
        fake_device_deinit(&device);
}

static bool take(struct read_run *run, struct ticket *ticket)
{
        return reader_run_begin_locked(&turns, READ_PREAD, NUMA_ANYWHERE, run, ticket);
}

static bool next(struct read_run *run, struct ticket *ticket)
{
        return reader_run_next_locked(&turns, run, ticket);
}

static size_t number(const struct ticket *ticket)
{
        return (size_t)(ticket->block - blocks);
}

/* Takes and gives back what is left of a run. */
static void finish(struct read_run *run, struct ticket *ticket)
{
        do
                reader_give(&turns, ticket, NULL);
        while (next(run, ticket));
        reader_run_end(&turns, run, NULL);
}

START_TEST(each_gets_an_even_part_in_order)
{
        struct read_run runs[PARTS];
        struct ticket tickets[PARTS], more;
        for (size_t i = 0; i < PARTS; i++) {
                ck_assert(take(&runs[i], &tickets[i]));
                ck_assert_uint_eq(number(&tickets[i]), i * BLOCKS / PARTS);
                ck_assert_uint_eq(runs[i].end, (i + 1) * BLOCKS / PARTS);
        }
        ck_assert(!take(&runs[0], &more));
        for (size_t i = 0; i < PARTS; i++) {
                for (size_t k = 1; k < BLOCKS / PARTS; k++) {
                        reader_give(&turns, &tickets[i], NULL);
                        ck_assert(next(&runs[i], &tickets[i]));
                        ck_assert_uint_eq(number(&tickets[i]), i * BLOCKS / PARTS + k);
                }
                ck_assert(reader_run_over_locked(&runs[i]));
                ck_assert(!next(&runs[i], &more));
                finish(&runs[i], &tickets[i]);
        }
        core_until(ended);
        ck_assert(!job.failed);
}
END_TEST

START_TEST(who_comes_when_the_limit_grows_finds_something_left)
{
        struct read_run run;
        struct ticket ticket;
        job.limit = PARTS / 2;
        for (size_t i = 0; i < PARTS / 2; i++) {
                ck_assert(take(must_alloc(sizeof(run)), &ticket));
        }
        ck_assert(!take(&run, &ticket));
        job.limit = PARTS;
        ck_assert(take(&run, &ticket));
        ck_assert_uint_eq(number(&ticket), BLOCKS / 2);
}
END_TEST

START_TEST(a_run_is_no_longer_than_its_engine_says)
{
        struct read_run run;
        struct ticket ticket;
        job.run_most = 2;
        ck_assert(take(&run, &ticket));
        ck_assert_uint_eq(run.end, 2);
}
END_TEST

/* A gap, where tensors are left out, and the next file. */
START_TEST(a_run_ends_where_blocks_do_not_follow)
{
        struct read_run runs[3];
        struct ticket ticket;
        for (size_t i = 2; i < BLOCKS; i++)
                blocks[i].file_off += 1;
        for (size_t i = 4; i < BLOCKS; i++)
                blocks[i].file = 1;
        for (size_t i = 0; i < 2; i++) {
                ck_assert(take(&runs[i], &ticket));
                ck_assert_uint_eq(runs[i].end, 2 * (i + 1));
        }
        ck_assert(take(&runs[2], &ticket));
        ck_assert_uint_gt(runs[2].end, 6);
}
END_TEST

START_TEST(the_second_half_of_the_longest_run_goes_to_who_has_nothing_else)
{
        struct read_run runs[PARTS], thief;
        struct ticket tickets[PARTS], ticket;
        for (size_t i = 0; i < PARTS; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        finish(&runs[0], &tickets[0]);
        ck_assert(!take(&thief, &ticket)); /* not worth it */
        job.split_from = 5;
        ck_assert(take(&thief, &ticket));
        ck_assert_uint_eq(number(&ticket), 9); /* of 6 to 11 the first is in flight */
        ck_assert_uint_eq(runs[1].end, 9);
        ck_assert_uint_eq(thief.end, 12);
        job.split_from = 6;
        finish(&thief, &ticket);
        ck_assert(!take(&thief, &ticket));
        finish(&runs[1], &tickets[1]);
        finish(&runs[2], &tickets[2]);
        ck_assert(!ended);
        finish(&runs[3], &tickets[3]);
        core_until(ended);
}
END_TEST

START_TEST(the_last_block_of_a_run_may_be_split_off)
{
        struct read_run runs[PARTS], thief;
        struct ticket tickets[PARTS], ticket;
        job.run_parts = BLOCKS / 2;
        for (size_t i = 0; i < PARTS; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        job.next = BLOCKS; /* as if the rest was there */
        finish(&runs[0], &tickets[0]);
        job.split_from = 1;
        ck_assert(take(&thief, &ticket));
        ck_assert(reader_run_over_locked(&runs[1]));
        ck_assert_uint_eq(number(&ticket), number(&tickets[1]) + 1);
}
END_TEST

START_TEST(what_is_left_of_a_run_moves_to_another)
{
        struct read_run run, other;
        struct ticket ticket, its;
        ck_assert(take(&run, &ticket));
        reader_run_move_locked(&run, &other);
        ck_assert(reader_run_over_locked(&run));
        ck_assert(next(&other, &its));
        ck_assert_uint_eq(number(&its), 1);
        ck_assert_uint_eq(other.end, BLOCKS / PARTS);
}
END_TEST

START_TEST(a_stopped_job_ends_with_the_last_of_its_runs)
{
        struct read_run runs[2];
        struct ticket tickets[2], ticket;
        for (size_t i = 0; i < 2; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        reader_stop(&turns, &job);
        for (size_t i = 0; i < 2; i++) {
                ck_assert(reader_run_over_locked(&runs[i]));
                ck_assert(!next(&runs[i], &ticket));
                reader_give(&turns, &tickets[i], NULL);
                ck_assert(!job.over);
                reader_run_end(&turns, &runs[i], NULL);
        }
        core_until(ended);
}
END_TEST

START_TEST(a_run_that_fails_is_the_end_of_its_job)
{
        struct read_run runs[2];
        struct ticket tickets[2];
        struct error error = {0};
        for (size_t i = 0; i < 2; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        error_set(&error, STREAMER_EFAILED, "gone");
        reader_give(&turns, &tickets[0], NULL);
        reader_run_end(&turns, &runs[0], &error);
        ck_assert(reader_run_over_locked(&runs[1]));
        reader_give(&turns, &tickets[1], NULL);
        reader_run_end(&turns, &runs[1], NULL);
        core_until(ended);
        ck_assert(job.failed);
        ck_assert_str_eq(job.error.text, "gone");
}
END_TEST

/* A load holds at most half of the slots; a run waits for its own to come back. */
START_TEST(a_run_waits_for_a_slot)
{
        struct read_run runs[SLOTS];
        struct ticket tickets[SLOTS], ticket;
        for (size_t i = 0; i < BLOCKS; i++)
                blocks[i].in_place = false;
        size_t n = 0;
        while (take(&runs[n], &tickets[n]))
                n++;
        ck_assert_uint_eq(n, SLOTS / 2);
        ck_assert(!next(&runs[0], &ticket));
        reader_give(&turns, &tickets[1], NULL);
        ck_assert(next(&runs[0], &ticket));
        ck_assert_uint_eq(number(&ticket), 1);
}
END_TEST

int main(void)
{
        suite_begin("reader runs");
        TCase *t = core_group("runs", begin, end);
        tcase_add_test(t, each_gets_an_even_part_in_order);
        tcase_add_test(t, who_comes_when_the_limit_grows_finds_something_left);
        tcase_add_test(t, a_run_is_no_longer_than_its_engine_says);
        tcase_add_test(t, a_run_ends_where_blocks_do_not_follow);
        tcase_add_test(t, the_second_half_of_the_longest_run_goes_to_who_has_nothing_else);
        tcase_add_test(t, the_last_block_of_a_run_may_be_split_off);
        tcase_add_test(t, what_is_left_of_a_run_moves_to_another);
        tcase_add_test(t, a_stopped_job_ends_with_the_last_of_its_runs);
        tcase_add_test(t, a_run_that_fails_is_the_end_of_its_job);
        tcase_add_test(t, a_run_waits_for_a_slot);
        return suite_run();
}
