/* SPDX-License-Identifier: Apache-2.0
 *
 * An intrusive hash table of objects by a number, of which several may have the same. It grows with them; where there
 * is no memory for that it becomes slower, so no operation fails. Zeroed, it is empty.
 */
#pragma once

#include "client/util.h"

struct table_node {
        struct table_node *prev, *next; /* of one bucket */
        uint64_t key;
        bool linked;
};

#define TABLE_FEW 8

struct table {
        struct table_node **buckets; /* NULL: `few`; malloc'd */
        struct table_node *few[TABLE_FEW];
        unsigned bits; /* of the number of `buckets` */
        size_t n;
};

/* The node is in no table. */
void table_add(struct table *table, struct table_node *node, uint64_t key);
/* Accepts one that is in no table. */
void table_remove(struct table *table, struct table_node *node);
/* The first of this key, and the next one of the same; NULL: none. */
struct table_node *table_find(const struct table *table, uint64_t key);
struct table_node *table_next(const struct table_node *node);
void table_deinit(struct table *table);

/* The object that contains a node that may be NULL. */
#define table_item(node, type, member)                                                                                 \
        ({                                                                                                             \
                struct table_node *node_ = (node);                                                                     \
                node_ ? (type *)(void *)((char *)node_ - offsetof(type, member)) : (type *)NULL;                       \
        })
