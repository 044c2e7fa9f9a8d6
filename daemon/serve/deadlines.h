/* SPDX-License-Identifier: Apache-2.0
 *
 * What is to happen at a time: a binary heap, in which the next is always first. Whatever has a deadline embeds
 * it.
 */
#ifndef DAEMON_SERVE_DEADLINES_H
#define DAEMON_SERVE_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

struct deadline {
        uint64_t at_ns;
        size_t place; /* in the heap, from 1 on; 0: it is not there */
};

struct deadlines {
        struct deadline **heap; /* the parent of place i is at i / 2 */
        size_t n;
};

void deadlines_deinit(struct deadlines *deadlines); /* accepts a zeroed one */

/* A zeroed deadline. STREAMER_ENOMEM. */
int deadlines_add(struct deadlines *deadlines, struct deadline *deadline, uint64_t at_ns);
/* Accepts one that is not there. */
void deadlines_remove(struct deadlines *deadlines, struct deadline *deadline);
/* NULL: there is none. */
struct deadline *deadlines_first(const struct deadlines *deadlines);

#endif
