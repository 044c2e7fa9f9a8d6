/* SPDX-License-Identifier: Apache-2.0
 *
 * For how long the daemon has had nothing to do (exit_idle). Pure.
 */
#ifndef DAEMON_SERVE_IDLE_H
#define DAEMON_SERVE_IDLE_H

#include <stdbool.h>
#include <stdint.h>

struct idle {
        uint64_t limit_ns; /* 0: none */
        uint64_t since_ns; /* of the last activity */
};

/* Activity that has ended, or is under way. */
static inline void idle_reset(struct idle *idle, uint64_t now_ns)
{
        idle->since_ns = now_ns;
}

/* Has nothing happened for as long as the limit? What is `busy` counts as activity. */
static inline bool idle_elapsed(struct idle *idle, bool busy, uint64_t now_ns)
{
        if (busy)
                idle_reset(idle, now_ns);
        return idle->limit_ns > 0 && now_ns - idle->since_ns >= idle->limit_ns;
}

#endif
