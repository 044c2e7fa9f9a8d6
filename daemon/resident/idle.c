/* SPDX-License-Identifier: Apache-2.0
 *
 * Idle generations: of each device by value, as they are evicted (unload/evict.h), with the sum of their bytes; and by
 * the time at which they may expire, or be revoked. So a change costs its own place in these, and nothing walks over
 * what is resident to find what is to be evicted or what expires.
 *
 * The first is exact: it has those that are generation_is_idle(). The second has the earliest time at which something
 * may be due: a use moves that time later, which is found out when it has come.
 */
#include "daemon/resident/model.h"

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

static int compare_deadlines(const struct tree_node *a, const struct tree_node *b)
{
        const struct generation *x = by_deadline(a), *y = by_deadline(b);
        int r = ORDER(x->deadline_ns, y->deadline_ns);
        return r != 0 ? r : ORDER(x->sequence, y->sequence);
}

void idle_init(struct resident *resident)
{
        require(resident->n_devices <= RESIDENT_DEVICES);
        for (size_t i = 0; i < RESIDENT_DEVICES; i++)
                tree_init(&resident->idle[i].by_value, compare_values);
        tree_init(&resident->deadlines, compare_deadlines);
}

static struct idle *idle_of(const struct generation *g)
{
        require(g->device->number < RESIDENT_DEVICES);
        return &g->resident->idle[g->device->number];
}

static void leave(struct generation *g)
{
        struct idle *idle = idle_of(g);
        if (!tree_is_linked(&g->by_value))
                return;
        require(idle->bytes >= g->idle_bytes);
        idle->bytes -= g->idle_bytes;
        tree_remove(&idle->by_value, &g->by_value);
}

static void set_value(struct generation *g)
{
        struct idle *idle = idle_of(g);
        bool is_idle = generation_is_idle(g);
        if (is_idle && tree_is_linked(&g->by_value) && g->idle_bytes == g->charged &&
            g->idle_priority == g->settings.priority && g->idle_since_ns == g->last_used_ns)
                return;
        leave(g);
        if (!is_idle)
                return;
        g->idle_bytes = g->charged;
        g->idle_priority = g->settings.priority;
        g->idle_since_ns = g->last_used_ns;
        idle->bytes += g->idle_bytes;
        tree_insert(&idle->by_value, &g->by_value);
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
                set_value(g);
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
