/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that sleeps most of the time and is to run at once when it is woken: the loop, which would
 * else wait its turn behind the daemon's own readers, for as long as a tenth of a second on a machine
 * with more to do than processors.
 *
 *   a short slice   from the scheduler, which serves whoever asks for little first (Linux 6.12; no
 *                   privilege is needed)
 *   a nice value    below its own by PROMPT_STEP, where that is allowed: to root, or by RLIMIT_NICE, which
 *                   the unit grants (LimitNICE=)
 *
 * It is of the calling thread alone: those that it starts begin with neither.
 */
#ifndef DAEMON_BASE_PROMPT_H
#define DAEMON_BASE_PROMPT_H

#include <stdbool.h>

#define PROMPT_STEP 10

/* True: with the nice value. */
bool prompt_this_thread(void);

#endif
