/* SPDX-License-Identifier: Apache-2.0
 *
 * The turns of the loop: tasks that are done in slices of a turn, and the processor time of each turn, which is what
 * the loop itself costs its connections, whatever else the machine does. All handles close with the loop's others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* A task that is done in steps: for a millisecond of each turn, until no step is left. */
struct loop_task {
        uv_idle_t idle; /* runs once a turn while a step is left, so the loop does not sleep */
        /* One step; false: none was left. */
        bool (*step)(struct loop_task *loop_task);
};
void loop_task_init(struct loop_task *loop_task, uv_loop_t *loop, bool (*step)(struct loop_task *loop_task));
/* From the next turn on; has no effect on a task that runs. */
void loop_task_begin(struct loop_task *loop_task);

/* Processor time: the longest of all and a histogram, for `status`; it is handed to the metrics, too. */
#define LOOP_CPU_BUCKETS 8
struct loop_cpu {
        uint64_t iterations, longest_ns;
        uint64_t counts[LOOP_CPU_BUCKETS];
        uint64_t last_ns; /* the thread's clock at the end of the iteration before; 0: none yet */
        uv_prepare_t prepare;
};
/* A bucket counts iterations shorter than this; UINT64_MAX for the last. */
extern const uint64_t loop_cpu_bounds_ns[LOOP_CPU_BUCKETS];
/* By the loop's thread. */
void loop_cpu_start(struct loop_cpu *loop_cpu, uv_loop_t *loop);
/* The loop is about to wait; `now_ns` is its thread's processor time. Returns that of the iteration. */
uint64_t loop_cpu_iteration(struct loop_cpu *loop_cpu, uint64_t now_ns);
