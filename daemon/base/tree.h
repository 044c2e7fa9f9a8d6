/* SPDX-License-Identifier: Apache-2.0
 *
 * An intrusive ordered tree: a treap. Nodes have weights as if at random, of which a parent has the larger one, so its
 * depth is logarithmic for every order in which keys arrive, and no operation allocates or fails. A weight follows from
 * where the node is in memory, which no client chooses, so a node has three words. An unlinked node is its own parent.
 */
#pragma once

#include "daemon/base/util.h"

struct tree_node {
        struct tree_node *parent, *left, *right;
};

/* As strcmp(). No two nodes of a tree are equal. */
typedef int tree_compare(const struct tree_node *a, const struct tree_node *b);
/* How a key compares with a node: a part of what orders the tree, so that several nodes may have it. */
typedef int tree_compare_key(const void *key, const struct tree_node *node);

struct tree {
        struct tree_node *root;
        tree_compare *compare;
        size_t n;
};

void tree_init(struct tree *tree, tree_compare *compare);

static inline void tree_node_init(struct tree_node *node)
{
        node->parent = node;
}
static inline bool tree_is_linked(const struct tree_node *node)
{
        return node->parent != node;
}
/* One that is in no tree; its key is constant until it is removed, and it does not move. */
void tree_insert(struct tree *tree, struct tree_node *node);
/* Accepts one that is in no tree. */
void tree_remove(struct tree *tree, struct tree_node *node);

/* In order; NULL: none. */
struct tree_node *tree_first(const struct tree *tree);
struct tree_node *tree_next(const struct tree_node *node);
/* The first node that does not precede the key. NULL: none. */
struct tree_node *tree_from(const struct tree *tree, const void *key, tree_compare_key *compare);
/* The first node that has the key, and the next one behind a node of it. NULL: none. */
struct tree_node *tree_find(const struct tree *tree, const void *key, tree_compare_key *compare);
struct tree_node *tree_find_next(const struct tree_node *node, const void *key, tree_compare_key *compare);

/* The object that contains a node that may be NULL. */
#define tree_item(node, type, member)                                                                                  \
        ({                                                                                                             \
                const struct tree_node *node_ = (node);                                                                \
                node_ != NULL ? container_of(node_, type, member) : (type *)NULL;                                      \
        })

/* Each object of a tree, in order; it may not be removed meanwhile. */
#define tree_each_item(type, item, tree, member)                                                                       \
        for (type *item = tree_item(tree_first(tree), type, member); item != NULL;                                     \
             item = tree_item(tree_next(&item->member), type, member))
/* The current object may be removed and freed. */
#define tree_each_item_safe(type, item, tree, member)                                                                  \
        for (type *item = tree_item(tree_first(tree), type, member),                                                   \
                  *item##_next = item != NULL ? tree_item(tree_next(&item->member), type, member) : NULL;              \
             item != NULL; item = item##_next,                                                                         \
                  item##_next = item != NULL ? tree_item(tree_next(&item->member), type, member) : NULL)
