/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/changes.h"

#include <stdlib.h>
#include <string.h>

/* ---- states ---- */

/* NULL `to`: their size. */
static size_t put_names(char *to, const struct generation *g, const char *removed)
{
        size_t used = 0;
        if (removed == NULL && list_empty(&g->names))
                removed = g->last_name;
        if (removed != NULL) {
                used = strlen(removed) + 1;
                if (to != NULL)
                        memcpy(to, removed, used);
                return used + 1;
        }
        list_each_item (const struct model_name, name, &g->names, link) {
                size_t len = strlen(name->text) + 1;
                if (to != NULL)
                        memcpy(to + used, name->text, len);
                used += len;
        }
        return used + 1;
}

static struct change *change_new(const struct generation *g, const char *removed)
{
        bool failed = g->error.code != 0;
        size_t names = put_names(NULL, g, removed), text = failed ? strlen(g->error.text) + 1 : 0;
        struct change *change = calloc(1, sizeof(*change) + names + text);
        if (change == NULL)
                return NULL;
        list_init(&change->by_key);
        change->names = (char *)(change + 1);
        put_names(change->names, g, removed);
        if (failed) {
                change->code = g->error.code;
                change->text = memcpy(change->names + names, g->error.text, text);
        }
        change->sequence = g->sequence;
        change->generation = g->number;
        change->bytes = g->data_bytes;
        change->tensors = g->n_tensors;
        change->device = g->device->name;
        change->state = generation_state_name(removed != NULL ? GENERATION_UNLOADED : g->state);
        return change;
}

static bool concerns(const struct change *change, const char *name)
{
        if (name == NULL)
                return true;
        for (const char *own = change->names; *own != '\0'; own += strlen(own) + 1)
                if (strcmp(own, name) == 0)
                        return true;
        return false;
}

static struct change *find(struct changes *changes, const struct generation *g)
{
        const struct list *all = bucket(&changes->by_sequence, g->sequence);
        list_each_item (struct change, change, all, by_key)
                if (change->sequence == g->sequence)
                        return change;
        return NULL;
}

static void drop(struct changes *changes, struct change *change)
{
        changes->n_stored -= change->removal != 0;
        list_remove(&change->link);
        list_remove(&change->by_key);
        free(change);
}

static void drop_all(struct changes *changes)
{
        list_each_item_safe (struct change, change, &changes->all, link)
                drop(changes, change);
}

static void drop_oldest_removal(struct changes *changes)
{
        list_each_item (struct change, change, &changes->all, link)
                if (change->removal != 0) {
                        drop(changes, change);
                        return;
                }
}

/* ---- changes ---- */

void changes_init(struct changes *changes)
{
        *changes = (struct changes){.last = 0};
        list_init(&changes->all);
        buckets_init(&changes->by_sequence);
}

void changes_deinit(struct changes *changes)
{
        drop_all(changes);
}

static void add(struct changes *changes, const struct generation *g, const char *removed, bool removal)
{
        struct change *change = change_new(g, removed);
        changes->last++;
        changes->n_removals += removal || change == NULL;
        if (change == NULL)
                return;
        change->number = changes->last;
        list_append(&changes->all, &change->link);
        if (!removal) {
                list_append(bucket(&changes->by_sequence, g->sequence), &change->by_key);
                return;
        }
        change->removal = changes->n_removals;
        if (++changes->n_stored > CHANGES_REMOVALS)
                drop_oldest_removal(changes);
}

void changes_add(struct changes *changes, const struct generation *generation)
{
        bool ends = generation->state == GENERATION_UNLOADED;
        if (changes->n_subscribers == 0)
                return;
        struct change *before = find(changes, generation);
        if (before != NULL)
                drop(changes, before);
        add(changes, generation, NULL, ends);
}

void changes_add_name_removal(struct changes *changes, const struct generation *generation, const char *name)
{
        if (changes->n_subscribers > 0)
                add(changes, generation, name, true);
}

/* ---- subscribers ---- */

void changes_subscribe(struct changes *changes, struct subscriber *subscriber, char *subject)
{
        changes_unsubscribe(changes, subscriber);
        changes->n_subscribers++;
        *subscriber = (struct subscriber){
                .active = true, .subject = subject, .number = changes->last, .n_removals = changes->n_removals};
}

void changes_unsubscribe(struct changes *changes, struct subscriber *subscriber)
{
        if (!subscriber->active)
                return;
        free(subscriber->subject);
        *subscriber = (struct subscriber){.active = false};
        if (--changes->n_subscribers == 0)
                drop_all(changes);
}

/* The oldest one after the subscriber's position; the newest are searched first, since most subscribers lack few. */
static const struct change *next_of(const struct changes *changes, const struct subscriber *subscriber)
{
        const struct change *next = NULL;
        for (const struct list *pos = changes->all.prev; pos != &changes->all; pos = pos->prev) {
                const struct change *change = container_of(pos, struct change, link);
                if (change->number <= subscriber->number)
                        break;
                next = change;
        }
        return next;
}

/* Removals up to this one, which it was not notified of, are lost. */
static void pass_removals(struct subscriber *subscriber, uint64_t removal)
{
        if (removal > subscriber->n_removals)
                subscriber->lost += removal - subscriber->n_removals;
        subscriber->n_removals = removal;
}

const struct change *changes_peek(const struct changes *changes, struct subscriber *subscriber)
{
        if (!subscriber->active || subscriber->number == changes->last)
                return NULL;
        const struct change *next = next_of(changes, subscriber);
        while (next != NULL) {
                if (next->removal != 0)
                        pass_removals(subscriber, next->removal - 1);
                if (concerns(next, subscriber->subject))
                        return next;
                changes_advance(subscriber, next);
                next = list_item(next->link.next, &changes->all, const struct change, link);
        }
        pass_removals(subscriber, changes->n_removals);
        subscriber->number = changes->last;
        return NULL;
}

void changes_advance(struct subscriber *subscriber, const struct change *change)
{
        subscriber->number = change->number;
        if (change->removal != 0)
                subscriber->n_removals = change->removal;
}
