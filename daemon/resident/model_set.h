/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as clients see it: the generations of one name and one number, on one device or several. Generations
 * that drain have lost their name and form a set of their own.
 */
#pragma once

#include "daemon/resident/model.h"

#define MODEL_SET_MAX 64

struct model_set {
        const char *name;
        struct generation *members[MODEL_SET_MAX]; /* by rank, then by device number */
        size_t n;
};

/* The order of sets, and of the members of one. */
int model_set_compare(const struct generation *a, const struct generation *b);
bool model_set_same(const struct generation *a, const struct generation *b);

/* The set of this generation under this name. */
void model_set_find(struct model_set *set, struct resident *resident, const char *name, const struct generation *of);
/* The member on a device (NULL: the first), or NULL. */
struct generation *model_set_on(const struct model_set *set, const struct device *device);

/* Removes all names of the generation, or of all ranks it belongs to, as far as they are in this state. */
void model_set_drop_ranks(struct generation *generation, enum generation_state state, enum end end, const char *why);

/* Whose state and settings are the model's. */
const struct generation *model_set_leading(const struct model_set *set);
/* A pin counts while unpin can reach it by a name: not after a failure or while draining. */
/* Under the name of the set; ranks are pinned together. */
bool model_set_member_pinned(const struct model_set *set, const struct generation *generation);
bool model_set_pinned(const struct model_set *set); /* any of them */
/* Of the model: one replica, or the sum of all ranks. */
struct model_size {
        uint64_t bytes, tensors;
};
struct model_size model_set_size(const struct model_set *set);
/* NULL where it is not known yet, or differs between ranks. */
const unsigned char *model_set_digest(const struct model_set *set);
