/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlines in a binary heap, the earliest first. Objects embed their deadline.
 */
#ifndef DAEMON_SERVE_CONN_TIMER_HEAP_H
#define DAEMON_SERVE_CONN_TIMER_HEAP_H

#include <stddef.h>
#include <stdint.h>

struct heap_timer {
        uint64_t at_ns;
        size_t place; /* in the heap, from 1 on; 0: not in it */
};

struct timer_heap {
        struct heap_timer **heap; /* the parent of place i is at i / 2 */
        size_t n;
};

void timer_heap_deinit(struct timer_heap *deadlines); /* accepts a zeroed one */

/* A zeroed deadline. STREAMER_ENOMEM. */
int timer_heap_add(struct timer_heap *deadlines, struct heap_timer *deadline, uint64_t at_ns);
/* Accepts one that is not in the heap. */
void timer_heap_remove(struct timer_heap *deadlines, struct heap_timer *deadline);
/* NULL: the heap is empty. */
struct heap_timer *timer_heap_first(const struct timer_heap *deadlines);

#endif
