/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants, for the daemon and the client library: a broken one is a bug of this process, which aborts with the place
 * and the condition on standard error.
 */
#pragma once

/* An invariant, checked in release builds, too. */
#define require(cond)                                                                                                  \
        do {                                                                                                           \
                if (__builtin_expect(!(cond), 0))                                                                      \
                        broken_invariant(__FILE__, __LINE__, #cond);                                                   \
        } while (0)

/* Changes the state of a state machine. allowed[s] has a bit for each state that may follow s; states without a row are
 * final. */
#define change_state(state, to, allowed)                                                                               \
        do {                                                                                                           \
                require((state) < sizeof(allowed) / sizeof((allowed)[0]) && (allowed)[state] & 1u << (to));            \
                (state) = (to);                                                                                        \
        } while (0)

_Noreturn void broken_invariant(const char *file, int line, const char *what);
/* Called before the process aborts: flushes the log. NULL: nothing. */
extern void (*invariant_broken_hook)(void);
