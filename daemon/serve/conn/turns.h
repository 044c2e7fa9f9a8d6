/* SPDX-License-Identifier: Apache-2.0
 *
 * The turns of the loop, by which one user's requests do not delay another's, whatever the number of its connections:
 *
 * - In an iteration, what is polled first is served at once, for TURN_NS in all: reading, requests, sending, ends.
 * - What is polled after that waits in its user's queue, and while any queue has something, so does all that is polled.
 * - Users take turns of TURN_NS. Within its turn a user's connections are served in the order in which they queued; one
 *   that has more to do goes to the end of its user's queue. A request that has begun is completed, so a turn lasts
 *   longer by one request at the most: none may take more than some milliseconds.
 * - An iteration serves turns for LOOP_TASK_NS, and each other task of the loop (events, deferred replies) likewise.
 * - A connection in a queue is not polled.
 *
 * The end of a connection (its session, its leases, its descriptor) is a turn like a request, in the same order: it
 * precedes what the same user sends on another connection afterwards.
 *
 * Also here: tasks that are done in slices of an iteration, and the processor time of each, which is what the loop
 * itself costs its connections, whatever else the machine does. All handles close with the loop's others.
 */
#pragma once

#include "daemon/base/list.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define TURN_NS UINT64_C(1000000)

/* A task that is done in steps: for a millisecond of each turn, until no step is left. */
struct loop_task {
        uv_idle_t idle; /* runs once a turn while a step is left, so the loop does not sleep */
        /* One step; false: none was left. */
        bool (*step)(struct loop_task *loop_task);
};
void loop_task_init(struct loop_task *loop_task, uv_loop_t *loop, bool (*step)(struct loop_task *loop_task));
/* From the next turn on; has no effect on a task that runs. */
void loop_task_begin(struct loop_task *loop_task);

/* ---- the turns of users ---- */

/* Something that is served, for a user. */
struct turn {
        struct list link; /* in its user's queue; unlinked: it does not wait */
};

/* Users whose ids are equal modulo this share a queue, and so a turn. */
#define TURN_QUEUES 1024

struct turn_queue {
        struct list link;  /* in turns->users, while it has something */
        struct list items; /* of struct turn, first in first out */
        uint64_t until_ns; /* end of the turn that has begun; 0: none has */
};

struct turns {
        struct turn_queue queues[TURN_QUEUES]; /* by uid */
        struct list users;                     /* of queues; the first one has its turn */
        struct loop_task task;                 /* serves them */
        void (*serve)(struct turn *turn, uint64_t until_ns);
        struct list timed; /* of struct conn, by in_timed: those that conns_tick() examines */
        uv_check_t polled;
        uint64_t until_ns; /* end of the time for what is served as it is polled; 0: nothing was in this iteration */
};
/* serve() is called for what has its turn, which has left the queue and may enter it again. */
void turns_start(struct turns *turns, uv_loop_t *loop, void (*serve)(struct turn *turn, uint64_t until_ns));
/* Waits for a turn of the user; has no effect on what waits already. */
void turn_wait(struct turns *turns, struct turn *turn, uid_t uid);
/* May what was polled be served at once? Then until *until_ns. */
bool turns_are_free(struct turns *turns, uint64_t *until_ns);

/* ---- processor time ---- */

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
