/* SPDX-License-Identifier: Apache-2.0
 *
 * Round robin: notifies each member once a round, a few at a time. Members that join during a round take part from the
 * next one on. A round begins when the previous one has ended, so with many members each is notified less often.
 */
#ifndef DAEMON_SERVE_EVENTS_ROUND_ROBIN_H
#define DAEMON_SERVE_EVENTS_ROUND_ROBIN_H

#include "daemon/base/list.h"

struct round_robin {
        struct list members; /* members that this round has not reached yet are first */
        uint64_t number;
};

struct round_robin_member {
        struct list link;
        uint64_t notified; /* round_robin->number when it was notified last */
};

void round_robin_init(struct round_robin *round_robin);
/* list_remove() of its link removes it. */
void round_robin_add(struct round_robin *round_robin, struct round_robin_member *member);

/* Begins a round. False: the previous one has not ended, or there is no member. */
bool round_robin_begin(struct round_robin *round_robin);
/* The member to be notified next, which then counts as notified. NULL: the round has ended. */
struct round_robin_member *round_robin_next(struct round_robin *round_robin);

#endif
