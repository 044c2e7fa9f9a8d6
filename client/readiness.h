/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptor of streamer_fd(): an epoll set of the socket and of an eventfd, which is readable while
 * something is pending that was read from the socket already. The descriptors are made by the first
 * streamer_fd(), since most clients wait in calls.
 *
 *   pending   events in the queue                               until streamer_event_next() returns them
 *             a note: an operation, a lease, the lost connection  until the call that reports it, or streamer_process()
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct streamer_client;

/* A note of something that streamer_process() has to report; it belongs to what it is about. Zeroed, it is not set. */
typedef struct readiness_note {
        struct readiness_note *prev, *next; /* in readiness->notes */
        bool set;
} readiness_note;

struct readiness {
        int epoll_fd, event_fd; /* -1: not made yet */
        bool raised;            /* event_fd is readable */
        uint32_t watched;       /* what the set waits for on the socket; 0: it is not in the set */
        readiness_note *notes;  /* that are set */
        readiness_note loss;    /* the connection was lost */
};

void readiness_init(struct readiness *r);
void readiness_close(struct readiness *r); /* the descriptors */

/* All with the client's lock held. */

void readiness_add(struct streamer_client *c, readiness_note *note);
void readiness_drop(struct streamer_client *c, readiness_note *note); /* reported, or its object ends */

/* After the queue of events, the output or the connection has changed. */
void readiness_update(struct streamer_client *c);
