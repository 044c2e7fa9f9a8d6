/* SPDX-License-Identifier: Apache-2.0
 *
 * An intrusive, circular, doubly linked list, and a hash table of such lists. An unlinked node points to itself.
 */
#pragma once

#include "daemon/base/util.h"

struct list {
        struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
        l->prev = l->next = l;
}
static inline bool list_empty(const struct list *l)
{
        return l->next == l;
}
static inline void list_append(struct list *head, struct list *node)
{
        node->prev = head->prev;
        node->next = head;
        head->prev->next = node;
        head->prev = node;
}
static inline void list_remove(struct list *node)
{
        node->prev->next = node->next;
        node->next->prev = node->prev;
        list_init(node);
}
/* Appends all nodes of `from`, which is empty afterwards. */
static inline void list_append_all(struct list *head, struct list *from)
{
        if (list_empty(from))
                return;
        from->next->prev = head->prev;
        from->prev->next = head;
        head->prev->next = from->next;
        head->prev = from->prev;
        list_init(from);
}

#define list_each(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* The object that contains `node`; NULL at the head, the end of the list. */
#define list_item(node, head, type, member) ((node) == (head) ? NULL : container_of(node, type, member))

/* Each object of a list, which contains its node as `member`. */
#define list_each_item(type, item, head, member)                                                                       \
        for (type *item = list_item((head)->next, head, type, member); item != NULL;                                   \
             item = list_item(item->member.next, head, type, member))
/* The current object may be removed and freed. */
#define list_each_item_safe(type, item, head, member)                                                                  \
        for (type *item = list_item((head)->next, head, type, member),                                                 \
                  *item##_next = item != NULL ? list_item(item->member.next, head, type, member) : NULL;               \
             item != NULL;                                                                                             \
             item = item##_next, item##_next = item != NULL ? list_item(item->member.next, head, type, member) : NULL)

/* ---- a hash table of a fixed number of lists ---- */

/* It never grows, so no operation can fail and no turn of the loop is spent on growing. The daemon's objects of one
 * kind are limited by descriptors or memory to some tens of thousands, about a dozen in a list. */
#define BUCKETS 4096
struct buckets {
        struct list of[BUCKETS];
};

static inline void buckets_init(struct buckets *buckets)
{
        for (size_t i = 0; i < BUCKETS; i++)
                list_init(&buckets->of[i]);
}
/* The list for this key, shared with other keys. The low bits of `key` must be evenly distributed. */
static inline struct list *bucket(struct buckets *buckets, uint64_t key)
{
        return &buckets->of[key % BUCKETS];
}
