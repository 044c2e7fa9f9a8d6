/* SPDX-License-Identifier: Apache-2.0
 *
 * Two answers for one block that end in the same turn of a network thread's loop: it is told of one after
 * the other, and bytes of the one may have landed before it is told of the other. Neither a network nor a
 * thread here, so that the order is the test's.
 */
#include "daemon/io/http_range.h"
#include "tests/lib/reading.h"
#include "tests/lib/suite.h"

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

int main(void)
{
        suite_begin("http hedges");
        TCase *t = core_group("two answers", begin, end);
        tcase_add_test(t, a_hedge_that_is_whole_when_the_first_has_landed_is_thrown_away);
        tcase_add_test(t, a_hedge_that_failed_leaves_the_block_to_the_first);
        return suite_run();
}
