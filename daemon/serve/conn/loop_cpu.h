/* SPDX-License-Identifier: Apache-2.0
 *
 * The processor time of each iteration of the loop: what the loop itself costs its connections, whatever
 * else the machine does. Kept as the longest of all and as a histogram, shown by `status`, and handed to the metrics.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

#define LOOP_CPU_BUCKETS 8
struct loop_cpu {
        uint64_t iterations, longest_ns;
        uint64_t counts[LOOP_CPU_BUCKETS];
        uint64_t last_ns; /* the thread's clock at the end of the iteration before; 0: none yet */
        uv_prepare_t prepare;
};

/* A bucket counts iterations shorter than this; UINT64_MAX for the last. */
extern const uint64_t loop_cpu_bounds_ns[LOOP_CPU_BUCKETS];

/* The loop is about to wait; `now_ns` is its thread's processor time. Returns that of the iteration. */
uint64_t loop_cpu_iteration(struct loop_cpu *loop_cpu, uint64_t now_ns);

/* By the loop's thread. The handle is closed with the loop's others. */
void loop_cpu_start(struct loop_cpu *loop_cpu, uv_loop_t *loop);
