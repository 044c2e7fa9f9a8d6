/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies in flight of one reader thread: blocks that are filled and hashed and on their way from
 * their slot to a device. While one is copied the thread fills the next, so that storage and bus
 * work at the same time. A block has landed when its own event has fired; nobody waits for a whole
 * stream.
 */
#ifndef DAEMON_IO_FLIGHT_H
#define DAEMON_IO_FLIGHT_H

#include "daemon/io/reader.h"

#define FLIGHTS_MAX 2 /* slots of one thread: one filled, one copied */
#define FLIGHT_DEVICES 64

struct flight {
        struct ticket ticket;
        struct copier *copier;
        void *event; /* NULL: `copied` says how it went */
        int copied;
        struct error error;
};

struct flights {
        struct reader *reader;
        struct copier *copiers[FLIGHT_DEVICES]; /* by device number, made when first used */
        struct flight oldest_first[FLIGHTS_MAX];
        unsigned n;
};

void flights_deinit(struct flights *flights); /* none may be in flight */

/* Starts the copies of a slot's block, whose bytes begin at `data`. 1: in flight, and the ticket is
 * taken over; 0: the device copied at once; negative: failed. */
int flights_start(struct flights *flights, const struct ticket *ticket, const unsigned char *data, struct error *error);

/* Until the oldest has arrived, or failed; then reap. At least one is in flight. */
void flights_wait(struct flights *flights);
/* Lands and gives back what has arrived. */
void flights_reap(struct flights *flights);

#endif
