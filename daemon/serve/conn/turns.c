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

/* ---- the turns of users ---- */

static bool serve_next(struct loop_task *task)
{
        struct turns *turns = container_of(task, struct turns, task);
        struct turn_queue *queue = list_item(turns->users.next, &turns->users, struct turn_queue, link);
        if (queue == NULL)
                return false;
        struct turn *turn = list_item(queue->items.next, &queue->items, struct turn, link);
        if (queue->until_ns == 0)
                queue->until_ns = now_ns() + TURN_NS;
        if (turn != NULL) { /* else what waited has ended */
                list_remove(&turn->link);
                turns->serve(turn, queue->until_ns);
        }
        bool waits = !list_empty(&queue->items);
        if (waits && now_ns() < queue->until_ns)
                return true;
        list_remove(&queue->link);
        queue->until_ns = 0;
        if (waits)
                list_append(&turns->users, &queue->link);
        return true;
}

/* libuv polls several times within an iteration and updates its time each time, so there is a clock of its own. */
static void on_polled(uv_check_t *polled)
{
        container_of(polled, struct turns, polled)->until_ns = 0;
}

void turns_start(struct turns *turns, uv_loop_t *loop, void (*serve)(struct turn *turn, uint64_t until_ns))
{
        turns->serve = serve;
        turns->until_ns = 0;
        list_init(&turns->users);
        list_init(&turns->timed);
        for (size_t i = 0; i < TURN_QUEUES; i++) {
                turns->queues[i] = (struct turn_queue){.until_ns = 0};
                list_init(&turns->queues[i].link);
                list_init(&turns->queues[i].items);
        }
        loop_task_init(&turns->task, loop, serve_next);
        uv_check_init(loop, &turns->polled);
        uv_check_start(&turns->polled, on_polled);
        uv_unref((uv_handle_t *)&turns->polled);
}

void turn_wait(struct turns *turns, struct turn *turn, uid_t uid)
{
        struct turn_queue *queue = &turns->queues[uid % TURN_QUEUES];
        if (!list_empty(&turn->link))
                return;
        list_append(&queue->items, &turn->link);
        if (list_empty(&queue->link))
                list_append(&turns->users, &queue->link);
        loop_task_begin(&turns->task);
}

bool turns_are_free(struct turns *turns, uint64_t *until_ns)
{
        uint64_t now = now_ns();
        if (turns->until_ns == 0)
                turns->until_ns = now + TURN_NS;
        *until_ns = turns->until_ns;
        return list_empty(&turns->users) && now < turns->until_ns;
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
