/* SPDX-License-Identifier: Apache-2.0
 *
 * Two answers for one block that end in the same turn of a network thread's loop: it is told of one after
 * the other, and bytes of the one may have landed before it is told of the other. And which block is late enough
 * for a second answer. Neither a network nor a thread here, so that the order is the test's.
 */
#include "daemon/io/http_range.h"
#include "tests/lib/reading.h"
#include "tests/lib/suite.h"

#include "daemon/base/util.h"

#include <stdlib.h>

#define SLOTS 2

static struct reader bare;
static struct http_thread *thread;
static struct range *range;

static void begin(void)
{
        reading_bare_begin(&bare, SLOTS, SLOTS, SLOTS);
        thread = must_alloc(sizeof(*thread));
        thread->reader = &bare;
        range = must_alloc(sizeof(*range));
        *range = (struct range){.thread = thread, .hedge = {.range = range, .busy = true}};
        range->hedge_to = reader_slot_get(&bare);
        ck_assert_ptr_nonnull(range->hedge_to);
        ck_assert_uint_eq(bare.staging.n_free, SLOTS - 1);
}

static void end(void)
{
        reading_bare_end(&bare);
        free(range);
        free(thread);
}

static void came_to_nothing(void)
{
        ck_assert(!range->hedge.busy);
        ck_assert_ptr_null(range->hedge_to);
        ck_assert_uint_eq(bare.staging.n_free, SLOTS);
}

/* Its block was given back when it landed, and may be another's by now. */
START_TEST(a_hedge_that_is_whole_when_the_first_has_landed_is_thrown_away)
{
        range->held = false;
        hedge_done(&range->hedge.transfer, HTTP_OK);
        came_to_nothing();
        ck_assert(!range->held);
}
END_TEST

START_TEST(a_hedge_that_failed_leaves_the_block_to_the_first)
{
        range->held = true;
        hedge_done(&range->hedge.transfer, HTTP_AGAIN);
        came_to_nothing();
        ck_assert(range->held);
}
END_TEST

/* ---- blocks that are late ---- */

#define SECOND UINT64_C(1000000000)

static struct plan plan = {.n_blocks = 4};
static struct http_job own;
static struct read_job job;
static uint64_t now;

/* So many bytes by all requests together, in a tenth of a second. */
static bool late_after(uint64_t bytes)
{
        now += SECOND / 10;
        http_job_moved(&own, now, bytes);
        return http_block_late_locked(thread, &job, SECOND, now);
}

/* A load whose blocks took a tenth of a second each, ten at once; all are taken, and one is on its way since
 * then. */
static void begin_late(void)
{
        reading_bare_begin(&bare, SLOTS, SLOTS, SLOTS);
        thread = must_alloc(sizeof(*thread));
        *thread = (struct http_thread){.reader = &bare};
        own = (struct http_job){.came = 1};
        job = (struct read_job){.plan = &plan, .pace = &own, .next = plan.n_blocks};
        now = SECOND;
        http_pace_init(&own.pace, SLOTS, now);
        http_pace_landed(&own.pace, MiB, SECOND / 10, now);
        http_pace_came(&own.pace, own.came, now);
}

static void end_late(void)
{
        reading_bare_end(&bare);
        free(thread);
}

START_TEST(a_block_is_not_late_while_the_server_is_busy)
{
        for (int i = 0; i < 50; i++)
                ck_assert(!late_after(10 * MiB));
        while (now < 10 * SECOND)
                ck_assert(!late_after(8 * MiB));
}
END_TEST

START_TEST(a_block_is_late_that_others_do_not_hold_up)
{
        for (int i = 0; i < 4; i++)
                ck_assert(!late_after(10 * MiB));
        ck_assert(!late_after(KiB)); /* half a second is nothing yet */
        ck_assert(late_after(KiB));
}
END_TEST

START_TEST(no_block_is_late_while_there_is_another_to_take)
{
        job.next = plan.n_blocks - 1;
        for (int i = 0; i < 50; i++)
                ck_assert(!late_after(i < 4 ? 10 * MiB : 0));
}
END_TEST

/* Who has nothing to do looks again: there may be runs to split by now. */
START_TEST(a_thread_looks_again_with_each_sample)
{
        late_after(10 * MiB);
        ck_assert(thread->look);
        thread->look = false;
        http_block_late_locked(thread, &job, SECOND, now);
        ck_assert(!thread->look);
        late_after(10 * MiB);
        ck_assert(thread->look);
        ck_assert_uint_eq(job.split_from, SIZE_MAX);
        late_after(0);
        late_after(0);
        ck_assert_uint_eq(job.split_from, 11);
}
END_TEST

/* ---- bytes that come again ---- */

START_TEST(bytes_that_find_no_block_do_not_count_yet)
{
        static const unsigned char data[100];
        struct http_transfer *t = &range->first.transfer;
        own = (struct http_job){.came = 1};
        job = (struct read_job){.plan = &plan, .pace = &own};
        range->first.range = range;
        range->run = (struct read_run){.job = &job, .end = 1};
        bare.stopping = true; /* and gives no block to anybody */
        ck_assert_int_eq(range_bytes(t, data, sizeof(data)), HTTP_PAUSE);
        ck_assert_int_eq(range_bytes(t, data, sizeof(data)), HTTP_PAUSE);
        ck_assert_uint_eq(t->taken, 0);
        ck_assert_uint_eq(own.came, 1);
}
END_TEST

int main(void)
{
        suite_begin("http hedges");
        TCase *t = core_group("two answers", begin, end);
        tcase_add_test(t, a_hedge_that_is_whole_when_the_first_has_landed_is_thrown_away);
        tcase_add_test(t, a_hedge_that_failed_leaves_the_block_to_the_first);
        tcase_add_test(t, bytes_that_find_no_block_do_not_count_yet);
        t = core_group("late blocks", begin_late, end_late);
        tcase_add_test(t, a_block_is_not_late_while_the_server_is_busy);
        tcase_add_test(t, a_block_is_late_that_others_do_not_hold_up);
        tcase_add_test(t, no_block_is_late_while_there_is_another_to_take);
        tcase_add_test(t, a_thread_looks_again_with_each_sample);
        return suite_run();
}
