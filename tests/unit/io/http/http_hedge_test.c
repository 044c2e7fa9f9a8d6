/* SPDX-License-Identifier: Apache-2.0
 *
 * Two responses for one block that end in the same loop iteration of a network thread, and the choice of the block to
 * hedge. Without a network or a thread, so that the test controls the order.
 */
#include "daemon/io/remote/remote.h"
#include "tests/lib/read_fixture.h"
#include "tests/lib/suite.h"

#define SLOTS 2

static struct reader bare;
static struct http_thread *thread;
static struct range *range;

static void begin(void)
{
        read_fixture_bare_begin(&bare, SLOTS, SLOTS, SLOTS);
        thread = must_alloc(sizeof(*thread));
        thread->base.reader = &bare;
        range = aligned_alloc(_Alignof(struct range), sizeof(*range));
        ck_assert_ptr_nonnull(range);
        *range = (struct range){.thread = thread, .hedge = {.context = range}};
        range->hedge_slot = reader_slot_get(&bare);
        ck_assert_ptr_nonnull(range->hedge_slot);
        ck_assert_uint_eq(bare.staging.n_free, SLOTS - 1);
}

static void end(void)
{
        read_fixture_bare_end(&bare);
}

static void assert_no_leak(void)
{
        ck_assert_ptr_null(range->hedge_slot);
        ck_assert_uint_eq(bare.staging.n_free, SLOTS);
}

CORE_FIXTURE(begin, end);

/* Its block was given back when it landed, and may be another's by now. */
TEST(a_hedge_that_completes_second_is_discarded)
{
        range->has_block = false;
        hedge_done(&range->hedge, HTTP_OK);
        assert_no_leak();
        ck_assert(!range->has_block);
}

TEST(a_failed_hedge_leaves_the_block_to_the_first_request)
{
        range->has_block = true;
        hedge_done(&range->hedge, HTTP_RETRY);
        assert_no_leak();
        ck_assert(range->has_block);
}

/* ---- late blocks ---- */

static struct plan plan = {.n_blocks = 4};
static struct http_job own;
static struct read_job job;
static uint64_t now;

/* So many bytes by all requests together, in a tenth of a second. */
static bool late_after(uint64_t bytes)
{
        now += SECOND / 10;
        http_job_moved(&job, now, bytes);
        return http_block_late_locked(&job, SECOND, now);
}

/* A load whose blocks took a tenth of a second each, ten at once; all are reserved, and one has been in flight since
 * then. */
static void begin_late(void)
{
        read_fixture_bare_begin(&bare, SLOTS, SLOTS, SLOTS);
        thread = must_alloc(sizeof(*thread));
        *thread = (struct http_thread){.base.reader = &bare};
        own = (struct http_job){.received = 1};
        job = (struct read_job){.plan = &plan, .http = &own, .next = plan.n_blocks};
        now = SECOND;
        concurrency_init(&own.concurrency, SLOTS, now);
        concurrency_add_block(&own.concurrency, MiB, SECOND / 10, now);
        concurrency_add_bytes(&own.concurrency, own.received, now);
}

CORE_FIXTURE(begin_late, end);

TEST(a_block_is_not_late_while_the_server_is_busy)
{
        for (int i = 0; i < 50; i++)
                ck_assert(!late_after(10 * MiB));
        while (now < 10 * SECOND)
                ck_assert(!late_after(8 * MiB));
}

TEST(a_slow_block_is_late_if_no_other_delays_it)
{
        for (int i = 0; i < 4; i++)
                ck_assert(!late_after(10 * MiB));
        ck_assert(!late_after(KiB)); /* half a second is nothing yet */
        ck_assert(late_after(KiB));
}

TEST(no_block_is_late_while_unstarted_blocks_remain)
{
        job.next = plan.n_blocks - 1;
        for (int i = 0; i < 50; i++)
                ck_assert(!late_after(i < 4 ? 10 * MiB : 0));
}

/* ---- silent requests ---- */

TEST(four_silent_requests_are_repeated_at_a_time)
{
        for (int i = 0; i < 4; i++)
                ck_assert(http_try_repeat_locked(&job));
        ck_assert(!http_try_repeat_locked(&job));
        own.repeats--;
        ck_assert(http_try_repeat_locked(&job));
}

TEST(no_request_is_repeated_while_unstarted_blocks_remain)
{
        job.next = plan.n_blocks - 1;
        ck_assert(!http_try_repeat_locked(&job));
}

/* ---- repeated bytes ---- */

CORE_FIXTURE(begin, end);

TEST(bytes_that_find_no_block_do_not_count_yet)
{
        static const unsigned char data[100];
        struct http_transfer *t = &range->first;
        own = (struct http_job){.received = 1};
        job = (struct read_job){.plan = &plan, .http = &own};
        range->first.context = range;
        range->run = (struct read_run){.job = &job, .end = 1};
        bare.stopping = true; /* and grants no block */
        for (int i = 0; i < 2; i++) {
                range->state = RANGE_REQUESTED;
                own.requests = 1;
                ck_assert_int_eq(range_bytes(t, data, sizeof(data)), HTTP_PAUSE);
                ck_assert_int_eq(range->state, RANGE_PAUSED);
                ck_assert_uint_eq(own.requests, 0);
        }
        ck_assert_uint_eq(t->taken, 0);
        ck_assert_uint_eq(own.received, 1);
}

/* ---- threads ---- */

TEST(a_thread_that_waits_for_a_device_is_left_no_run)
{
        struct http_thread busy = {.base.reader = &bare, .n_ranges = 5}, waits = {.base.reader = &bare, .waits = true},
                           few = {.base.reader = &bare, .n_ranges = 2};
        struct list *threads = &bare.engines[READ_HTTP].threads;
        list_init(threads);
        list_append(threads, &busy.base.link);
        list_append(threads, &waits.base.link);
        ck_assert_ptr_eq(http_next_taker_locked(&busy), &busy);
        list_append(threads, &few.base.link);
        ck_assert_ptr_eq(http_next_taker_locked(&busy), &few);
        waits.waits = false;
        ck_assert_ptr_eq(http_next_taker_locked(&busy), &waits);
}
