/* SPDX-License-Identifier: Apache-2.0
 *
 * What a change makes the loop do for a crowd, in pieces: for some milliseconds of each turn, until nothing
 * is left of it.
 */
#ifndef DAEMON_SERVE_CHORE_H
#define DAEMON_SERVE_CHORE_H

#include <stdbool.h>
#include <uv.h>

struct chore {
        uv_idle_t idle; /* runs, once a turn, while something is left: the loop does not sleep then */
        /* One piece of it; false: there was nothing left to do. */
        bool (*step)(struct chore *chore);
};

/* Closed with the loop's other handles. */
void chore_init(struct chore *chore, uv_loop_t *loop, bool (*step)(struct chore *chore));
/* From the next turn on; as often as one likes. */
void chore_begin(struct chore *chore);

#endif
