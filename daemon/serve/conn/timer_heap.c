/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/conn/timer_heap.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

void timer_heap_deinit(struct timer_heap *deadlines)
{
        free(deadlines->heap);
        *deadlines = (struct timer_heap){0};
}

static struct heap_timer *at(const struct timer_heap *deadlines, size_t place)
{
        return deadlines->heap[place - 1];
}

static void put(struct timer_heap *deadlines, size_t place, struct heap_timer *deadline)
{
        deadlines->heap[place - 1] = deadline;
        deadline->place = place;
}

/* From this place, which is free, towards the first. */
static void rise(struct timer_heap *deadlines, size_t place, struct heap_timer *deadline)
{
        for (; place > 1 && deadline->at_ns < at(deadlines, place / 2)->at_ns; place /= 2)
                put(deadlines, place, at(deadlines, place / 2));
        put(deadlines, place, deadline);
}

/* And away from it. */
static void sink(struct timer_heap *deadlines, size_t place, struct heap_timer *deadline)
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

int timer_heap_add(struct timer_heap *deadlines, struct heap_timer *deadline, uint64_t at_ns)
{
        struct heap_timer **heap = array_grow(deadlines->heap, deadlines->n, sizeof(struct heap_timer *));
        if (heap == NULL)
                return STREAMER_ENOMEM;
        deadlines->heap = heap;
        deadline->at_ns = at_ns;
        rise(deadlines, ++deadlines->n, deadline);
        return 0;
}

/* The last one takes its place and moves from there to its own. */
void timer_heap_remove(struct timer_heap *deadlines, struct heap_timer *deadline)
{
        size_t place = deadline->place;
        if (place == 0)
                return;
        deadline->place = 0;
        struct heap_timer *last = at(deadlines, deadlines->n--);
        if (last == deadline)
                return;
        if (place > 1 && last->at_ns < at(deadlines, place / 2)->at_ns)
                rise(deadlines, place, last);
        else
                sink(deadlines, place, last);
}

struct heap_timer *timer_heap_first(const struct timer_heap *deadlines)
{
        return deadlines->n == 0 ? NULL : at(deadlines, 1);
}
