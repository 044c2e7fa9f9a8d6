/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/journal.h"

#include "daemon/base/error.h"

#include <string.h>

static struct journal_row *row_of(const struct tree_node *node)
{
        return container_of(node, struct journal_row, by_key);
}

struct key {
        const char *name, *device;
};

static int compare_key(const void *key, const struct tree_node *node)
{
        const struct key *k = key;
        int r = strcmp(k->name, row_of(node)->name);
        return r != 0 ? r : strcmp(k->device, row_of(node)->device);
}

static int compare(const struct tree_node *a, const struct tree_node *b)
{
        const struct key key = {row_of(a)->name, row_of(a)->device};
        return compare_key(&key, b);
}

void journal_init(struct journal *journal)
{
        tree_init(&journal->rows, compare);
        list_init(&journal->due);
}

static void row_free(struct journal *journal, struct journal_row *row)
{
        tree_remove(&journal->rows, &row->by_key);
        list_remove(&row->in_due);
        free(row);
}

void journal_deinit(struct journal *journal)
{
        tree_each_item_safe(struct journal_row, row, &journal->rows, by_key) row_free(journal, row);
}

static struct journal_row *row_new(struct journal *journal, const struct key *key)
{
        size_t name_size = strlen(key->name) + 1, device_size = strlen(key->device) + 1;
        struct journal_row *row = calloc(1, sizeof(*row) + name_size + device_size);
        if (row == NULL)
                return NULL;
        memcpy(row->name, key->name, name_size);
        row->device = memcpy(row->name + name_size, key->device, device_size);
        list_init(&row->in_due);
        tree_node_init(&row->by_key);
        tree_insert(&journal->rows, &row->by_key);
        return row;
}

int journal_mark(struct journal *journal, const char *name, const char *device)
{
        const struct key key = {name, device};
        struct tree_node *node = tree_from(&journal->rows, &key, compare_key);
        bool exists = node != NULL && compare_key(&key, node) == 0;
        struct journal_row *row = exists ? row_of(node) : row_new(journal, &key);
        if (row == NULL)
                return STREAMER_ENOMEM;
        if (list_empty(&row->in_due))
                list_append(&journal->due, &row->in_due);
        return 0;
}

void journal_restart(struct journal *journal, bool stored, bool filed)
{
        tree_each_item(struct journal_row, row, &journal->rows, by_key)
        {
                row->stored = row->stored && !stored;
                row->filed = row->filed && !filed;
                if (list_empty(&row->in_due))
                        list_append(&journal->due, &row->in_due);
        }
}

void journal_settle(struct journal *journal, struct journal_row *row)
{
        list_remove(&row->in_due);
        if (!row->stored && !row->filed)
                row_free(journal, row);
}
