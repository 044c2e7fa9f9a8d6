/* SPDX-License-Identifier: Apache-2.0
 *
 * The ordered tree: in order for every order of insertion, and flat.
 */
#include "daemon/base/tree.h"
#include "tests/lib/suite.h"

#define N 4096

struct number {
        struct tree_node node;
        unsigned value;
};

static struct tree tree;
static struct number numbers[N];

static unsigned value_of(const struct tree_node *node)
{
        return container_of(node, struct number, node)->value;
}

static int compare(const struct tree_node *a, const struct tree_node *b)
{
        return ORDER(value_of(a), value_of(b));
}

static int compare_value(const void *value, const struct tree_node *node)
{
        return ORDER(*(const unsigned *)value, value_of(node));
}

static void begin(void)
{
        tree_init(&tree, compare);
        for (unsigned i = 0; i < N; i++) {
                numbers[i].value = 2 * i;
                tree_node_init(&numbers[i].node);
        }
}

static unsigned depth_of(const struct tree_node *node)
{
        if (node == NULL)
                return 0;
        unsigned left = depth_of(node->left), right = depth_of(node->right);
        ck_assert(node->left == NULL || node->left->parent == node);
        ck_assert(node->right == NULL || node->right->parent == node);
        return 1 + (left > right ? left : right);
}

/* Of these numbers, by step: ascending, descending, mixed. */
static const unsigned steps[] = {1, N - 1, 1237};

static void insert_all(unsigned step)
{
        for (unsigned i = 0; i < N; i++)
                tree_insert(&tree, &numbers[i * step % N].node);
}

static void is_in_order(unsigned n)
{
        unsigned seen = 0, last = 0;
        tree_each_item(struct number, number, &tree, node)
        {
                ck_assert(seen == 0 || number->value > last);
                last = number->value;
                seen++;
        }
        ck_assert_uint_eq(seen, n);
        ck_assert_uint_eq(tree.n, n);
}

FIXTURE(.each = {begin, NULL});

TEST(nodes_are_in_order_and_the_depth_is_logarithmic, EACH(steps))
{
        insert_all(steps[_i]);
        is_in_order(N);
        ck_assert_uint_le(depth_of(tree.root), 48);
}

TEST(nodes_are_removed_in_any_order, EACH(steps))
{
        insert_all(1237);
        for (unsigned i = 0; i < N; i++) {
                struct tree_node *node = &numbers[i * steps[_i] % N].node;
                tree_remove(&tree, node);
                ck_assert(!tree_is_linked(node));
                tree_remove(&tree, node);
                if (i % 512 == 0)
                        is_in_order(N - 1 - i);
        }
        ck_assert_ptr_null(tree.root);
        ck_assert_ptr_null(tree_first(&tree));
}

TEST(the_first_node_from_a_key_on_is_found)
{
        unsigned beyond = 2 * N;
        insert_all(1237);
        for (unsigned key = 0; key < 2 * N - 1; key++)
                ck_assert_uint_eq(value_of(tree_from(&tree, &key, compare_value)), round_up(key, 2));
        ck_assert_ptr_null(tree_from(&tree, &beyond, compare_value));
}

static int compare_tens(const void *tens, const struct tree_node *node)
{
        return ORDER(*(const unsigned *)tens, value_of(node) / 10);
}

TEST(all_nodes_of_a_key_are_found)
{
        const unsigned tens = 7, none = N;
        unsigned value = 70;
        insert_all(1237);
        for (const struct tree_node *node = tree_find(&tree, &tens, compare_tens); node != NULL;
             node = tree_find_next(node, &tens, compare_tens), value += 2)
                ck_assert_uint_eq(value_of(node), value);
        ck_assert_uint_eq(value, 80);
        ck_assert_ptr_null(tree_find(&tree, &none, compare_tens));
        for (value = 70; value < 80; value += 2)
                tree_remove(&tree, &numbers[value / 2].node);
        ck_assert_ptr_null(tree_find(&tree, &tens, compare_tens)); /* there are larger ones */
}

TEST(all_are_removed_while_they_are_visited)
{
        insert_all(1);
        tree_each_item_safe(struct number, number, &tree, node) tree_remove(&tree, &number->node);
        is_in_order(0);
}
