/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of blocks: their reservation, their end, and how idle threads share them. The reader has no threads here,
 * so that the test controls each step.
 */
#include "tests/lib/read_fixture.h"

#define BLOCKS 24u
#define PARTS 4u
#define SLOTS 4u

static struct reader turns;
static struct reader_thread thread = {.reader = &turns, .node = NUMA_ANYWHERE};
static struct read_fixture r;

static void begin(void)
{
        read_fixture_bare_begin(&turns, PARTS, SLOTS, 4 * PARTS);
        read_fixture_plan(&r, blocks_file("even", BLOCKS), false);
        reader_start(&turns, &r.job);
        r.job.run_blocks = BLOCKS / PARTS;
}

static void end(void)
{
        read_fixture_bare_end(&turns);
}

static bool take(struct read_run *run, struct ticket *ticket)
{
        return reader_run_begin_locked(&thread, run, ticket);
}

static bool next(struct read_run *run, struct ticket *ticket)
{
        return reader_run_next_locked(&thread, run, ticket);
}

static size_t number(const struct ticket *ticket)
{
        return (size_t)(ticket->block - r.resolved.plan.blocks);
}

/* Takes and returns the rest of a run. */
static void finish(struct read_run *run, struct ticket *ticket)
{
        do
                reader_return_ticket(&thread, ticket, NULL);
        while (next(run, ticket));
        reader_run_end(&turns, run, NULL);
}

CORE_FIXTURE(begin, end);

TEST(each_thread_gets_an_equal_contiguous_part)
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
                        reader_return_ticket(&thread, &tickets[i], NULL);
                        ck_assert(next(&runs[i], &tickets[i]));
                        ck_assert_uint_eq(number(&tickets[i]), i * BLOCKS / PARTS + k);
                }
                ck_assert(reader_run_over_locked(&runs[i]));
                ck_assert(!next(&runs[i], &more));
                finish(&runs[i], &tickets[i]);
        }
        core_until(r.ended);
        ck_assert(!r.job.failed);
}

TEST(a_new_request_finds_work_when_the_limit_grows)
{
        struct read_run run;
        struct ticket ticket;
        r.job.limit = PARTS / 2;
        for (size_t i = 0; i < PARTS / 2; i++)
                ck_assert(take(must_alloc(sizeof(run)), &ticket));
        ck_assert(!take(&run, &ticket));
        r.job.limit = PARTS;
        ck_assert(take(&run, &ticket));
        ck_assert_uint_eq(number(&ticket), BLOCKS / 2);
}

TEST(the_rest_of_a_run_moves_to_another_thread)
{
        struct read_run run, other;
        struct ticket ticket, its;
        ck_assert(take(&run, &ticket));
        ck_assert(reader_run_move_locked(&run, &other));
        ck_assert(reader_run_over_locked(&run));
        ck_assert(next(&other, &its));
        ck_assert_uint_eq(number(&its), 1);
        ck_assert_uint_eq(other.end, BLOCKS / PARTS);
}

TEST(a_stopped_job_ends_with_the_last_of_its_runs)
{
        struct read_run runs[2];
        struct ticket tickets[2], ticket;
        for (size_t i = 0; i < 2; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        reader_stop(&turns, &r.job);
        for (size_t i = 0; i < 2; i++) {
                ck_assert(reader_run_over_locked(&runs[i]));
                ck_assert(!next(&runs[i], &ticket));
                reader_return_ticket(&thread, &tickets[i], NULL);
                ck_assert(!r.job.over);
                reader_run_end(&turns, &runs[i], NULL);
        }
        core_until(r.ended);
}

TEST(a_failed_run_ends_its_job)
{
        struct read_run runs[2];
        struct ticket tickets[2];
        struct error error = {0};
        for (size_t i = 0; i < 2; i++)
                ck_assert(take(&runs[i], &tickets[i]));
        error_set(&error, STREAMER_EFAILED, "gone");
        reader_return_ticket(&thread, &tickets[0], NULL);
        reader_run_end(&turns, &runs[0], &error);
        ck_assert(reader_run_over_locked(&runs[1]));
        reader_return_ticket(&thread, &tickets[1], NULL);
        reader_run_end(&turns, &runs[1], NULL);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_str_eq(r.job.error.text, "gone");
}

/* A load holds at most half of the slots; a run waits until its own are recycled. */
TEST(a_run_waits_for_a_slot)
{
        struct read_run runs[SLOTS];
        struct ticket tickets[SLOTS], ticket;
        for (size_t i = 0; i < BLOCKS; i++)
                r.resolved.plan.blocks[i].in_place = false;
        size_t n = 0;
        while (take(&runs[n], &tickets[n]))
                n++;
        ck_assert_uint_eq(n, SLOTS / 2);
        ck_assert(!next(&runs[0], &ticket));
        reader_return_ticket(&thread, &tickets[1], NULL);
        ck_assert(next(&runs[0], &ticket));
        ck_assert_uint_eq(number(&ticket), 1);
}
