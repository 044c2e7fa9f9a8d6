/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/deadlines.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

void deadlines_deinit(struct deadlines *deadlines)
{
        free(deadlines->heap);
        *deadlines = (struct deadlines){0};
}

static struct deadline *at(const struct deadlines *deadlines, size_t place)
{
        return deadlines->heap[place - 1];
}

static void put(struct deadlines *deadlines, size_t place, struct deadline *deadline)
{
        deadlines->heap[place - 1] = deadline;
        deadline->place = place;
}

/* From this place, which is free, towards the first. */
static void rise(struct deadlines *deadlines, size_t place, struct deadline *deadline)
{
        for (; place > 1 && deadline->at_ns < at(deadlines, place / 2)->at_ns; place /= 2)
                put(deadlines, place, at(deadlines, place / 2));
        put(deadlines, place, deadline);
}

/* And away from it. */
static void sink(struct deadlines *deadlines, size_t place, struct deadline *deadline)
{
        for (size_t child; (child = 2 * place) <= deadlines->n; place = child) {
                if (child < deadlines->n && at(deadlines, child + 1)->at_ns < at(deadlines, child)->at_ns)
                        child++;
                if (deadline->at_ns <= at(deadlines, child)->at_ns)
                        break;
                put(deadlines, place, at(deadlines, child));
        }
        put(deadlines, place, deadline);
}

int deadlines_add(struct deadlines *deadlines, struct deadline *deadline, uint64_t at_ns)
{
        struct deadline **heap = with_room(deadlines->heap, deadlines->n, sizeof(struct deadline *));
        if (heap == NULL)
                return STREAMER_ENOMEM;
        deadlines->heap = heap;
        deadline->at_ns = at_ns;
        rise(deadlines, ++deadlines->n, deadline);
        return 0;
}

/* The last one takes its place, and goes from there to its own. */
void deadlines_remove(struct deadlines *deadlines, struct deadline *deadline)
{
        size_t place = deadline->place;
        if (place == 0)
                return;
        deadline->place = 0;
        struct deadline *last = at(deadlines, deadlines->n--);
        if (last == deadline)
                return;
        if (place > 1 && last->at_ns < at(deadlines, place / 2)->at_ns)
                rise(deadlines, place, last);
        else
                sink(deadlines, place, last);
}

struct deadline *deadlines_first(const struct deadlines *deadlines)
{
        return deadlines->n == 0 ? NULL : at(deadlines, 1);
}
