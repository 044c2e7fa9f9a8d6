/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/conn/turns.h"

#include "daemon/base/metric/metric.h"
#include "daemon/base/util.h"

/* A task's time in one turn of the loop. */
#define LOOP_TASK_NS UINT64_C(1000000)
/* The metrics count from here on: most iterations are far shorter. */
#define LOOP_CPU_OBSERVED_NS UINT64_C(1000000)

/* ---- tasks ---- */

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

/* ---- processor time ---- */

const uint64_t loop_cpu_bounds_ns[LOOP_CPU_BUCKETS] = {100000,  500000,   1000000,  2000000,
                                                       5000000, 10000000, 50000000, UINT64_MAX};

uint64_t loop_cpu_iteration(struct loop_cpu *loop_cpu, uint64_t now_ns)
{
        uint64_t last = loop_cpu->last_ns, ns = now_ns - last;
        unsigned bucket = 0;
        loop_cpu->last_ns = now_ns;
        if (last == 0)
                return 0;
        while (ns >= loop_cpu_bounds_ns[bucket])
                bucket++;
        loop_cpu->counts[bucket]++;
        loop_cpu->iterations++;
        if (ns > loop_cpu->longest_ns)
                loop_cpu->longest_ns = ns;
        return ns;
}

/* An iteration is from one wait for events to the next: callbacks run inside the loop's poll. */
static void on_about_to_wait(uv_prepare_t *prepare)
{
        struct loop_cpu *loop_cpu = container_of(prepare, struct loop_cpu, prepare);
        uint64_t ns = loop_cpu_iteration(loop_cpu, read_clock_ns(CLOCK_THREAD_CPUTIME_ID));
        if (ns >= LOOP_CPU_OBSERVED_NS)
                metric_observe(METRIC_LOOP_CPU, ns);
}

void loop_cpu_start(struct loop_cpu *loop_cpu, uv_loop_t *loop)
{
        *loop_cpu = (struct loop_cpu){.iterations = 0};
        uv_prepare_init(loop, &loop_cpu->prepare);
        uv_prepare_start(&loop_cpu->prepare, on_about_to_wait);
        uv_unref((uv_handle_t *)&loop_cpu->prepare);
}
