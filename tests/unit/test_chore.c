/* SPDX-License-Identifier: Apache-2.0
 *
 * What a change makes the loop do for a crowd: all of it, and the loop turns meanwhile.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/serve/chore.h"

#define PIECE_NS (1 * UINT64_C(1000000))

static struct chore chore;
static uv_prepare_t prepare;
static unsigned left, done, turns;

static bool step(struct chore *of)
{
        ck_assert_ptr_eq(of, &chore);
        if (left == 0)
                return false;
        for (uint64_t until = now_ns() + PIECE_NS; now_ns() < until;)
                ;
        left--;
        done++;
        return true;
}

static void on_turn(uv_prepare_t *of)
{
        (void)of;
        turns++;
}

static void begin(void)
{
        chore_init(&chore, &core_loop, step);
        uv_prepare_init(&core_loop, &prepare);
        uv_prepare_start(&prepare, on_turn);
        uv_unref((uv_handle_t *)&prepare);
}

static void end(void)
{
        uv_close((uv_handle_t *)&chore.idle, NULL);
        uv_close((uv_handle_t *)&prepare, NULL);
}

START_TEST(the_loop_turns_while_a_long_one_is_done)
{
        left = 30;
        chore_begin(&chore);
        ck_assert_uint_eq(done, 0);
        core_until(left == 0);
        ck_assert_uint_eq(done, 30);
        ck_assert_uint_ge(turns, 5);
}
END_TEST

START_TEST(what_is_begun_again_goes_on)
{
        left = 1;
        chore_begin(&chore);
        chore_begin(&chore);
        core_until(left == 0);
        core_settle(); /* until it sleeps */
        left = 2;
        chore_begin(&chore);
        core_until(left == 0);
        ck_assert_uint_eq(done, 3);
        core_settle();
        ck_assert(!uv_is_active((uv_handle_t *)&chore.idle));
}
END_TEST

int main(void)
{
        suite_begin("chore");
        TCase *tests = core_group("chores", begin, end);
        tcase_add_test(tests, the_loop_turns_while_a_long_one_is_done);
        tcase_add_test(tests, what_is_begun_again_goes_on);
        return suite_run();
}
