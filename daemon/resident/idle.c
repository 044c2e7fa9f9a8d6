/* SPDX-License-Identifier: Apache-2.0
 *
 * What generations count as where memory is needed: of each device those that may be evicted, by value
 * (unload/evict.h), with the sum of their bytes, and the bytes that are being freed or that a pin alone protects. And
 * generations by the time at which they may expire, or be revoked. So a change costs its own place in these, and
 * nothing walks over what is resident to find what is to be evicted, what will be free or what expires.
 *
 * Places are exact: place_for() says which one a generation has. Times are the earliest at which something may be due:
 * a use moves that time later, which is found out when it has come.
 */
#include "daemon/resident/model.h"

/* A failed load, or a verify, drops its reference soon; one that hangs in the kernel may not. */
#define HELD_UP_NS (UINT64_C(30) * 1000000000)

static struct generation *by_value(const struct tree_node *node)
{
        return container_of(node, struct generation, by_value);
}

static struct generation *by_deadline(const struct tree_node *node)
{
        return container_of(node, struct generation, by_deadline);
}

static int compare_values(const struct tree_node *a, const struct tree_node *b)
{
        const struct generation *x = by_value(a), *y = by_value(b);
        int r = ORDER(x->idle_priority, y->idle_priority);
        if (r == 0)
                r = ORDER(x->idle_since_ns, y->idle_since_ns);
        return r != 0 ? r : ORDER(x->sequence, y->sequence);
}

/* The one that was dropped last is the first. */
static int compare_held(const struct tree_node *a, const struct tree_node *b)
{
        const struct generation *x = by_value(a), *y = by_value(b);
        int r = ORDER(y->idle_since_ns, x->idle_since_ns);
        return r != 0 ? r : ORDER(x->sequence, y->sequence);
}

static int compare_deadlines(const struct tree_node *a, const struct tree_node *b)
{
        const struct generation *x = by_deadline(a), *y = by_deadline(b);
        int r = ORDER(x->deadline_ns, y->deadline_ns);
        return r != 0 ? r : ORDER(x->sequence, y->sequence);
}

void idle_init(struct resident *resident)
{
        require(resident->n_devices <= RESIDENT_DEVICES);
        for (size_t i = 0; i < RESIDENT_DEVICES; i++) {
                tree_init(&resident->idle[i].by_value, compare_values);
                tree_init(&resident->idle[i].held, compare_held);
        }
        tree_init(&resident->deadlines, compare_deadlines);
}

static struct idle *idle_of(const struct generation *g)
{
        require(g->device->number < RESIDENT_DEVICES);
        return &g->resident->idle[g->device->number];
}

static enum idle_place place_for(const struct generation *g)
{
        if (g->state == GENERATION_READY && !generation_is_held(g))
                return g->settings.pinned ? IDLE_PINNED : IDLE_EVICTABLE;
        if (g->state == GENERATION_LOADING || g->state == GENERATION_READY || g->n_leases > 0 || g->charged == 0)
                return IDLE_NOWHERE;
        return g->refs == 0 || g->state == GENERATION_CACHED ? IDLE_FREEING : IDLE_HELD;
}

/* NULL: its bytes are not summed up. */
static uint64_t *sum_of(struct idle *idle, enum idle_place place)
{
        return place == IDLE_EVICTABLE ? &idle->bytes
               : place == IDLE_FREEING ? &idle->freeing
               : place == IDLE_PINNED  ? &idle->pinned
                                       : NULL;
}

/* NULL: it is in none. */
static struct tree *tree_of(struct idle *idle, enum idle_place place)
{
        return place == IDLE_EVICTABLE ? &idle->by_value : place == IDLE_HELD ? &idle->held : NULL;
}

static void leave(struct generation *g)
{
        uint64_t *sum = sum_of(idle_of(g), g->idle_place);
        struct tree *tree = tree_of(idle_of(g), g->idle_place);
        require(tree_is_linked(&g->by_value) == (tree != NULL) && (sum == NULL || *sum >= g->idle_bytes));
        if (sum != NULL)
                *sum -= g->idle_bytes;
        if (tree != NULL)
                tree_remove(tree, &g->by_value);
        g->idle_place = IDLE_NOWHERE;
}

static void set_place(struct generation *g)
{
        enum idle_place place = place_for(g);
        uint64_t since = place == IDLE_HELD ? g->dropped_ns : g->last_used_ns;
        if (place == g->idle_place && g->idle_bytes == g->charged && g->idle_since_ns == since &&
            g->idle_priority == g->settings.priority)
                return;
        leave(g);
        g->idle_place = (unsigned char)place;
        g->idle_bytes = g->charged;
        g->idle_priority = g->settings.priority;
        g->idle_since_ns = since;
        uint64_t *sum = sum_of(idle_of(g), place);
        struct tree *tree = tree_of(idle_of(g), place);
        if (sum != NULL)
                *sum += g->idle_bytes;
        if (tree != NULL)
                tree_insert(tree, &g->by_value);
}

uint64_t idle_freeing(const struct resident *resident, const struct device *device, uint64_t now)
{
        const struct idle *idle = &resident->idle[device->number];
        uint64_t sum = idle->freeing;
        tree_each_item(const struct generation, g, &idle->held, by_value)
        {
                require(g->device == device && g->idle_place == IDLE_HELD && g->refs > 0);
                if (now - g->idle_since_ns >= HELD_UP_NS)
                        break;
                sum += g->idle_bytes;
        }
        return sum;
}

uint64_t idle_deadline(const struct generation *g)
{
        if (g->state == GENERATION_DRAINING)
                return g->n_leases > 0 ? g->drained_by_ns : 0;
        bool expires = g->settings.keep_alive_ns > 0 && generation_is_idle(g);
        return expires ? ns_after(g->last_used_ns, g->settings.keep_alive_ns) : 0;
}

/* A later one is noticed when this one has come. */
static void set_deadline(struct generation *g)
{
        uint64_t at = idle_deadline(g);
        bool linked = tree_is_linked(&g->by_deadline);
        if (at == 0 || (linked && g->deadline_ns <= at))
                return;
        tree_remove(&g->resident->deadlines, &g->by_deadline);
        g->deadline_ns = at;
        tree_insert(&g->resident->deadlines, &g->by_deadline);
}

void idle_add(struct generation *generation)
{
        tree_node_init(&generation->by_value);
        tree_node_init(&generation->by_deadline);
}

void idle_remove(struct generation *generation)
{
        leave(generation);
        tree_remove(&generation->resident->deadlines, &generation->by_deadline);
}

void idle_refresh(struct generation *generation)
{
        generation_each_rank(g, generation)
        {
                set_place(g);
                set_deadline(g);
        }
}

struct generation *idle_take_due(struct resident *resident, uint64_t now)
{
        struct generation *g;
        while ((g = tree_item(tree_first(&resident->deadlines), struct generation, by_deadline)) != NULL) {
                if (now < g->deadline_ns)
                        return NULL;
                tree_remove(&resident->deadlines, &g->by_deadline);
                uint64_t at = idle_deadline(g);
                if (at != 0 && now >= at)
                        return g;
                set_deadline(g);
        }
        return NULL;
}

uint64_t idle_next_due(const struct resident *resident)
{
        const struct generation *g = tree_item(tree_first(&resident->deadlines), struct generation, by_deadline);
        return g != NULL ? g->deadline_ns : UINT64_MAX;
}
