/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/tree.h"

void tree_init(struct tree *tree, tree_compare *compare)
{
        *tree = (struct tree){.compare = compare};
}

/* Distinct for distinct nodes, and evenly distributed also for nodes of one array (MurmurHash3's finalizer, which is
 * invertible). */
static uint64_t weight_of(const struct tree_node *node)
{
        uint64_t x = (uintptr_t)node;
        x ^= x >> 33;
        x *= UINT64_C(0xff51afd7ed558ccd);
        x ^= x >> 33;
        x *= UINT64_C(0xc4ceb9fe1a85ec53);
        return x ^ x >> 33;
}

/* The pointer that leads to the node. */
static struct tree_node **link_of(struct tree *tree, const struct tree_node *node)
{
        if (node->parent == NULL)
                return &tree->root;
        return node->parent->left == node ? &node->parent->left : &node->parent->right;
}

/* Puts the node in its parent's place, and the parent below it. */
static void rotate_up(struct tree *tree, struct tree_node *node)
{
        struct tree_node *parent = node->parent, *inner;
        *link_of(tree, parent) = node;
        node->parent = parent->parent;
        if (parent->left == node) {
                inner = parent->left = node->right;
                node->right = parent;
        } else {
                inner = parent->right = node->left;
                node->left = parent;
        }
        parent->parent = node;
        if (inner != NULL)
                inner->parent = parent;
}

void tree_insert(struct tree *tree, struct tree_node *node)
{
        struct tree_node **link = &tree->root, *parent = NULL;
        require(!tree_is_linked(node));
        while (*link != NULL) {
                int r = tree->compare(node, *link);
                require(r != 0);
                parent = *link;
                link = r < 0 ? &parent->left : &parent->right;
        }
        *node = (struct tree_node){.parent = parent};
        *link = node;
        tree->n++;
        uint64_t weight = weight_of(node);
        while (node->parent != NULL && weight_of(node->parent) < weight)
                rotate_up(tree, node);
}

void tree_remove(struct tree *tree, struct tree_node *node)
{
        if (!tree_is_linked(node))
                return;
        require(tree->n > 0);
        while (node->left != NULL && node->right != NULL)
                rotate_up(tree, weight_of(node->left) > weight_of(node->right) ? node->left : node->right);
        struct tree_node *child = node->left != NULL ? node->left : node->right;
        *link_of(tree, node) = child;
        if (child != NULL)
                child->parent = node->parent;
        tree->n--;
        tree_node_init(node);
}

struct tree_node *tree_first(const struct tree *tree)
{
        struct tree_node *node = tree->root;
        while (node != NULL && node->left != NULL)
                node = node->left;
        return node;
}

struct tree_node *tree_next(const struct tree_node *node)
{
        struct tree_node *next = node->right;
        require(tree_is_linked(node));
        if (next != NULL) {
                while (next->left != NULL)
                        next = next->left;
                return next;
        }
        while (node->parent != NULL && node->parent->right == node)
                node = node->parent;
        return node->parent;
}

struct tree_node *tree_from(const struct tree *tree, const void *key, tree_compare_key *compare)
{
        struct tree_node *node = tree->root, *found = NULL;
        while (node != NULL) {
                bool precedes = compare(key, node) > 0;
                if (!precedes)
                        found = node;
                node = precedes ? node->right : node->left;
        }
        return found;
}

static struct tree_node *if_equal(struct tree_node *node, const void *key, tree_compare_key *compare)
{
        return node != NULL && compare(key, node) == 0 ? node : NULL;
}

struct tree_node *tree_find(const struct tree *tree, const void *key, tree_compare_key *compare)
{
        return if_equal(tree_from(tree, key, compare), key, compare);
}

struct tree_node *tree_find_next(const struct tree_node *node, const void *key, tree_compare_key *compare)
{
        return if_equal(tree_next(node), key, compare);
}
