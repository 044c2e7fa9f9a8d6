/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/conn/loop_task.h"

#include "daemon/base/util.h"

/* Its time in one turn of the loop. */
#define LOOP_TASK_NS (1 * UINT64_C(1000000))

static void on_turn(uv_idle_t *idle)
{
        struct loop_task *loop_task = container_of(idle, struct loop_task, idle);
        uint64_t until = now_ns() + LOOP_TASK_NS;
        while (loop_task->step(loop_task))
                if (now_ns() >= until)
                        return;
        uv_idle_stop(idle);
}

void loop_task_init(struct loop_task *loop_task, uv_loop_t *loop, bool (*step)(struct loop_task *loop_task))
{
        loop_task->step = step;
        uv_idle_init(loop, &loop_task->idle);
}

void loop_task_begin(struct loop_task *loop_task)
{
        uv_idle_start(&loop_task->idle, on_turn);
}
