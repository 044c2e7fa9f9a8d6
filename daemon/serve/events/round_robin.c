/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/round_robin.h"

void round_robin_init(struct round_robin *round_robin)
{
        list_init(&round_robin->members);
        round_robin->number = 0;
}

void round_robin_add(struct round_robin *round_robin, struct round_robin_member *member)
{
        member->notified = round_robin->number;
        list_append(&round_robin->members, &member->link);
}

static struct round_robin_member *waiting(const struct round_robin *round_robin)
{
        if (list_empty(&round_robin->members))
                return NULL;
        struct round_robin_member *first = container_of(round_robin->members.next, struct round_robin_member, link);
        return first->notified == round_robin->number ? NULL : first;
}

bool round_robin_begin(struct round_robin *round_robin)
{
        if (list_empty(&round_robin->members) || waiting(round_robin) != NULL)
                return false;
        round_robin->number++;
        return true;
}

struct round_robin_member *round_robin_next(struct round_robin *round_robin)
{
        struct round_robin_member *member = waiting(round_robin);
        if (member == NULL)
                return NULL;
        list_remove(&member->link);
        round_robin_add(round_robin, member);
        return member;
}
