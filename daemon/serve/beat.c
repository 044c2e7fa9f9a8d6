/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/beat.h"

void beat_init(struct beat *beat)
{
        list_init(&beat->members);
        beat->number = 0;
}

void beat_join(struct beat *beat, struct beat_member *member)
{
        member->told = beat->number;
        list_append(&beat->members, &member->link);
}

static struct beat_member *waiting(const struct beat *beat)
{
        if (list_empty(&beat->members))
                return NULL;
        struct beat_member *first = container_of(beat->members.next, struct beat_member, link);
        return first->told == beat->number ? NULL : first;
}

bool beat_begin(struct beat *beat)
{
        if (list_empty(&beat->members) || waiting(beat) != NULL)
                return false;
        beat->number++;
        return true;
}

struct beat_member *beat_next(struct beat *beat)
{
        struct beat_member *member = waiting(beat);
        if (member == NULL)
                return NULL;
        list_remove(&member->link);
        beat_join(beat, member);
        return member;
}
