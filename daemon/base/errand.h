/* SPDX-License-Identifier: Apache-2.0
 *
 * What is to be done under a lock, left to whoever has it: for a thread that must not wait for a lock, since
 * its holder may have lost the processor, and gets it back when others please. The loop is that thread.
 *
 *   errand_post(): left > (the lock is free: taken; else its holder lets it go) > run, in the order of posting
 *
 * Everybody who lets the lock go runs what was left first, and looks again when it is free:
 *
 *   do { errands_run(); unlock } while (errands_left() && trylock)
 *
 * and whoever posts does the same, from the trylock on. So an errand is run at once where nobody has the
 * lock, and by its holder where somebody does; none is forgotten, and none waits for anybody.
 *
 * Without a lock they are the stack by which others reach one thread (daemon/base/wake.h).
 */
#ifndef DAEMON_BASE_ERRAND_H
#define DAEMON_BASE_ERRAND_H

#include <stdbool.h>

/* Embedded in what it is about. Once it runs it is not touched again: it may be posted anew, or freed. */
struct errand {
        struct errand *next;
        void (*run)(struct errand *errand);
};

/* Zeroes: none. */
struct errands {
        struct errand *newest; /* atomic: a stack */
};

/* Any thread; not one that is left already. Whether it is the first since they were last run. */
bool errand_post(struct errands *errands, struct errand *errand);
/* With the lock, or on the one thread that ever runs them: all that were left by now, the oldest first. */
void errands_run(struct errands *errands);
bool errands_left(const struct errands *errands);

#endif
