/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies in flight of one reader thread: blocks that are filled and hashed and on their way from
 * their slot to a device, or to several. While one is copied the thread fills the next, so that
 * storage and bus work at the same time. A block has landed when the event of each of its copies has
 * fired; nobody waits for a whole stream. A copy that fails costs its target, not the block.
 */
#ifndef DAEMON_IO_FLIGHT_H
#define DAEMON_IO_FLIGHT_H

#include "daemon/io/reader.h"

#define FLIGHT_DEVICES 64

struct flight_copy {
        struct read_target *target;
        struct copier *copier;
        void *event;
};

struct flight {
        struct ticket ticket;
        struct flight_copy copies[READ_TARGETS]; /* not done yet */
        size_t n;
};

struct flights {
        struct reader *reader;
        struct copier *copiers[FLIGHT_DEVICES]; /* by device number, made when first used */
        struct flight *oldest_first;
        unsigned n, most;
        struct device_span *spans; /* of the block whose copies are started */
        size_t room;
};

/* 0, or -1: no memory. */
int flights_init(struct flights *flights, struct reader *reader, unsigned most);
void flights_deinit(struct flights *flights); /* none may be in flight; accepts a zeroed one */

/* There is no place for another. */
static inline bool flights_full(const struct flights *flights)
{
        return flights->n == flights->most;
}

/* Starts the copies of a slot's block, whose bytes begin at `data`. 1: in flight, and the ticket is
 * taken over; 0: nothing of it is (copied at once, or failed). */
int flights_start(struct flights *flights, const struct ticket *ticket, const unsigned char *data);

/* The youngest takes no place any more: its thread has done with it. */
void flights_leave_place(struct flights *flights);

/* Until the oldest has arrived everywhere, or failed; then reap. At least one is in flight. */
void flights_wait(struct flights *flights);
/* Lands and gives back what has arrived. */
void flights_reap(struct flights *flights);

#endif
