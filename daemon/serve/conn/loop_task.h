/* SPDX-License-Identifier: Apache-2.0
 *
 * A task of the loop that is done in steps: for a millisecond of each turn, until no step is left.
 */
#pragma once

#include <stdbool.h>
#include <uv.h>

struct loop_task {
        uv_idle_t idle; /* runs once a turn while a step is left, so the loop does not sleep */
        /* One step; false: none was left. */
        bool (*step)(struct loop_task *loop_task);
};

/* Closed with the loop's other handles. */
void loop_task_init(struct loop_task *loop_task, uv_loop_t *loop, bool (*step)(struct loop_task *loop_task));
/* From the next turn on; has no effect on a task that runs. */
void loop_task_begin(struct loop_task *loop_task);
