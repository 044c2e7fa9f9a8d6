/* SPDX-License-Identifier: Apache-2.0
 *
 * A crowd that is told something again and again, each of it once a beat, in pieces. Who comes during a beat is
 * told from the next on. A beat begins when the last is over: where the crowd is too large for the time between
 * two, each of it is told less often, and nobody is left out.
 */
#ifndef DAEMON_SERVE_BEAT_H
#define DAEMON_SERVE_BEAT_H

#include "daemon/base/list.h"

struct beat {
        struct list members; /* those that this beat has yet to come to are first */
        uint64_t number;
};

struct beat_member {
        struct list link;
        uint64_t told; /* beat->number then */
};

void beat_init(struct beat *beat);
/* It leaves by list_remove() of its link. */
void beat_join(struct beat *beat, struct beat_member *member);

/* False: the last one is not over, or there is nobody. */
bool beat_begin(struct beat *beat);
/* Who is to be told next; it counts as told. NULL: the beat is over. */
struct beat_member *beat_next(struct beat *beat);

#endif
