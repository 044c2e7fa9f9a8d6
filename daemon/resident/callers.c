/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/callers.h"

#include <string.h>

struct known_caller {
        struct tree_node in_order;
        unsigned refs;
        struct caller caller;
};

static struct known_caller *of_node(const struct tree_node *node)
{
        return container_of(node, struct known_caller, in_order);
}

static int order(const struct caller *a, const struct caller *b)
{
        int r = ORDER(a->uid, b->uid);
        if (r == 0)
                r = ORDER(a->gid, b->gid);
        if (r == 0)
                r = ORDER(a->n_groups, b->n_groups);
        return r != 0 ? r : memcmp(a->groups, b->groups, a->n_groups * sizeof(a->groups[0]));
}

static int compare_nodes(const struct tree_node *a, const struct tree_node *b)
{
        return order(&of_node(a)->caller, &of_node(b)->caller);
}

static int compare_with(const void *caller, const struct tree_node *node)
{
        return order(caller, &of_node(node)->caller);
}

void callers_init(struct tree *callers)
{
        tree_init(callers, compare_nodes);
}

const struct caller *callers_get(struct tree *callers, const struct caller *caller)
{
        struct known_caller *known = tree_item(tree_from(callers, caller, compare_with), struct known_caller, in_order);
        require(caller->n_groups <= CALLER_GROUPS);
        if (known == NULL || order(&known->caller, caller) != 0) {
                known = calloc(1, sizeof(*known));
                if (known == NULL)
                        return NULL;
                known->caller = *caller;
                tree_node_init(&known->in_order);
                tree_insert(callers, &known->in_order);
        }
        known->refs++;
        return &known->caller;
}

void callers_put(struct tree *callers, const struct caller *caller)
{
        if (caller == NULL)
                return;
        struct known_caller *known = container_of(caller, struct known_caller, caller);
        require(known->refs > 0 && tree_is_linked(&known->in_order));
        if (--known->refs > 0)
                return;
        tree_remove(callers, &known->in_order);
        free(known);
}
