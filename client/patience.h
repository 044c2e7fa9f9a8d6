/* SPDX-License-Identifier: Apache-2.0
 *
 * Attempts to reach a daemon that restarts: for a while, and with pauses between them that grow.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct patience {
        int64_t end; /* a deadline */
        int64_t pause_ns;
};

/* Up to 3 s from now on, and not beyond the deadline. */
struct patience patience_begin(int64_t deadline);
/* Sleeps before another attempt. False: there is no time for one. */
bool patience_pause(struct patience *patience);
