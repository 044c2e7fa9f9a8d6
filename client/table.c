/* SPDX-License-Identifier: Apache-2.0 */
#include "client/table.h"

#include "proto/require.h"

#define FEW_BITS 3
_Static_assert(1u << FEW_BITS == TABLE_FEW, "their number is a power of two");

static unsigned bits_of(const struct table *table)
{
        return table->buckets ? table->bits : FEW_BITS;
}

/* Numbers that follow one another, and texts, differ in all bits of the product. */
static size_t place_of(uint64_t key, unsigned bits)
{
        return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
}

static struct table_node **bucket_of(const struct table *table, uint64_t key)
{
        struct table_node *const *buckets = table->buckets ? table->buckets : table->few;
        return (struct table_node **)(uintptr_t)&buckets[place_of(key, bits_of(table))];
}

static void link_to(struct table_node **bucket, struct table_node *node)
{
        node->prev = NULL;
        node->next = *bucket;
        if (*bucket)
                (*bucket)->prev = node;
        *bucket = node;
}

static void grow(struct table *table)
{
        unsigned bits = bits_of(table), more = bits + 1;
        struct table_node **buckets = calloc((size_t)1 << more, sizeof(struct table_node *));
        struct table_node **before = table->buckets ? table->buckets : table->few;
        if (!buckets)
                return;
        for (size_t i = 0; i < (size_t)1 << bits; i++)
                for (struct table_node *node = before[i], *next; node; node = next) {
                        next = node->next;
                        link_to(&buckets[place_of(node->key, more)], node);
                }
        memset(table->few, 0, sizeof(table->few));
        free(table->buckets);
        table->buckets = buckets;
        table->bits = more;
}

void table_add(struct table *table, struct table_node *node, uint64_t key)
{
        require(!node->linked);
        if (table->n >= (size_t)1 << bits_of(table))
                grow(table);
        node->key = key;
        node->linked = true;
        link_to(bucket_of(table, key), node);
        table->n++;
}

void table_remove(struct table *table, struct table_node *node)
{
        if (!node->linked)
                return;
        require(table->n > 0);
        if (node->prev)
                node->prev->next = node->next;
        else
                *bucket_of(table, node->key) = node->next;
        if (node->next)
                node->next->prev = node->prev;
        node->prev = node->next = NULL;
        node->linked = false;
        table->n--;
}

static struct table_node *of_key(struct table_node *node, uint64_t key)
{
        while (node && node->key != key)
                node = node->next;
        return node;
}

struct table_node *table_find(const struct table *table, uint64_t key)
{
        return of_key(*bucket_of(table, key), key);
}

struct table_node *table_next(const struct table_node *node)
{
        require(node->linked);
        return of_key(node->next, node->key);
}

void table_deinit(struct table *table)
{
        free(table->buckets);
        *table = (struct table){0};
}
