/* SPDX-License-Identifier: Apache-2.0
 *
 * Incremental tasks of the loop: all work is done, and the loop keeps running.
 */
#include "tests/lib/core.h"

#include "daemon/serve/conn/loop_task.h"

#define PIECE_NS (1 * UINT64_C(1000000))

static struct loop_task loop_task;
static uv_prepare_t prepare;
static unsigned left, done, turns;

static bool step(struct loop_task *of)
{
        ck_assert_ptr_eq(of, &loop_task);
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
        turns++;
}

static void begin(void)
{
        loop_task_init(&loop_task, &core_loop, step);
        uv_prepare_init(&core_loop, &prepare);
        uv_prepare_start(&prepare, on_turn);
        uv_unref((uv_handle_t *)&prepare);
}

static void end(void)
{
        uv_close((uv_handle_t *)&loop_task.idle, NULL);
        uv_close((uv_handle_t *)&prepare, NULL);
}

CORE_FIXTURE(begin, end);

TEST(the_loop_iterates_during_a_long_task)
{
        left = 30;
        loop_task_begin(&loop_task);
        ck_assert_uint_eq(done, 0);
        core_until(left == 0);
        ck_assert_uint_eq(done, 30);
        ck_assert_uint_ge(turns, 5);
}

TEST(a_restarted_run_continues)
{
        left = 1;
        loop_task_begin(&loop_task);
        loop_task_begin(&loop_task);
        core_until(left == 0);
        core_settle(); /* until it sleeps */
        left = 2;
        loop_task_begin(&loop_task);
        core_until(left == 0);
        ck_assert_uint_eq(done, 3);
        core_settle();
        ck_assert(!uv_is_active((uv_handle_t *)&loop_task.idle));
}
