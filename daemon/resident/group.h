/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as clients see it: what one name has of one number, on one device or several. Generations
 * that drain have lost their name and are a model apart.
 */
#ifndef DAEMON_RESIDENT_GROUP_H
#define DAEMON_RESIDENT_GROUP_H

#include "daemon/resident/resident.h"

#define GROUP_MAX 64

struct group {
        const char *name;
        struct generation *members[GROUP_MAX]; /* by rank, then as the daemon counts its devices */
        size_t n;
};

/* How groups, and the members within, are sorted. */
int group_compare(const struct generation *a, const struct generation *b);
bool group_same(const struct generation *a, const struct generation *b);

/* All that belongs to this generation under this name. */
void group_find(struct group *group, struct resident *resident, const char *name, const struct generation *of);
/* The member on a device; NULL: the first. NULL if there is none. */
struct generation *group_on(const struct group *group, const struct device *device);

/* It, and where it is one of several ranks the others, those of them that are in this state. */
size_t group_ranks(struct generation *generation, enum generation_state state, struct generation *ranks[GROUP_MAX]);

/* Ready if one of them is, else loading, else failed, else draining. */
enum generation_state group_state(const struct group *group);
/* A pin counts as long as unpin reaches it, by a name: not of what has failed, or drains. */
bool group_member_pinned(const struct generation *generation);
bool group_pinned(const struct group *group); /* any of them */
/* Of the model: once for replicas, of all ranks together. */
uint64_t group_bytes(const struct group *group);
uint64_t group_tensors(const struct group *group);
/* NULL where it is not known yet, or is each rank's own. */
const unsigned char *group_digest(const struct group *group);

#endif
