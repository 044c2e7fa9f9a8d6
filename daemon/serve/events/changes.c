/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/changes.h"

#include <stdlib.h>
#include <string.h>

struct removal {
        struct list link;
        struct change change;
        char texts[]; /* of the change */
};

/* ---- changes ---- */

static struct change state_of(const struct generation *g)
{
        return (struct change){.number = g->change,
                               .generation = g->number,
                               .bytes = g->data_bytes,
                               .tensors = g->n_tensors,
                               .name = generation_name(g),
                               .device = g->device->name,
                               .state = generation_state_name(g->state),
                               .code = g->error.code,
                               .text = g->error.text};
}

static void drop_removal(struct changes *changes, struct removal *removal)
{
        changes->n_stored--;
        list_remove(&removal->link);
        free(removal);
}

void changes_deinit(struct changes *changes)
{
        list_each_item_safe (struct generation, g, &changes->generations, by_change)
                list_remove(&g->by_change);
        list_each_item_safe (struct removal, removal, &changes->removals, link)
                drop_removal(changes, removal);
}

void changes_init(struct changes *changes)
{
        *changes = (struct changes){.last = 0};
        list_init(&changes->generations);
        list_init(&changes->removals);
}

static void add_removal(struct changes *changes, const struct generation *g, const char *name)
{
        size_t name_size = strlen(name) + 1, text_size = strlen(g->error.text) + 1;
        struct removal *removal = malloc(sizeof(*removal) + name_size + text_size);
        changes->last++;
        changes->n_removals++;
        if (removal == NULL)
                return;
        removal->change = state_of(g);
        removal->change.number = changes->last;
        removal->change.removal = changes->n_removals;
        removal->change.state = generation_state_name(GENERATION_UNLOADED);
        removal->change.name = memcpy(removal->texts, name, name_size);
        removal->change.text = memcpy(removal->texts + name_size, g->error.text, text_size);
        list_append(&changes->removals, &removal->link);
        if (++changes->n_stored > CHANGES_REMOVALS)
                drop_removal(changes, container_of(changes->removals.next, struct removal, link));
}

void changes_add(struct changes *changes, struct generation *generation, const char *removed)
{
        if (changes->n_subscribers == 0)
                return;
        if (removed != NULL) {
                add_removal(changes, generation, removed);
                return;
        }
        list_remove(&generation->by_change);
        if (generation->state == GENERATION_UNLOADED) {
                add_removal(changes, generation, generation_name(generation));
                return;
        }
        generation->change = ++changes->last;
        list_append(&changes->generations, &generation->by_change);
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
                changes_deinit(changes);
}

/* The oldest after this number; the newest are searched first, since most subscribers lack few. */
static const struct generation *next_generation(const struct changes *changes, uint64_t number)
{
        const struct generation *next = NULL;
        for (const struct list *pos = changes->generations.prev; pos != &changes->generations; pos = pos->prev) {
                const struct generation *g = container_of(pos, struct generation, by_change);
                if (g->change <= number)
                        break;
                next = g;
        }
        return next;
}

/* Likewise. */
static const struct removal *next_removal(const struct changes *changes, uint64_t number)
{
        const struct removal *next = NULL;
        for (const struct list *pos = changes->removals.prev; pos != &changes->removals; pos = pos->prev) {
                const struct removal *removal = container_of(pos, struct removal, link);
                if (removal->change.number <= number)
                        break;
                next = removal;
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

bool changes_peek(const struct changes *changes, struct subscriber *subscriber, struct change *next)
{
        const char *subject = subscriber->subject;
        if (!subscriber->active || subscriber->number == changes->last)
                return false;
        const struct generation *g = next_generation(changes, subscriber->number);
        const struct removal *removal = next_removal(changes, subscriber->number);
        while (g != NULL || removal != NULL) {
                bool removed = g == NULL || (removal != NULL && removal->change.number < g->change);
                *next = removed ? removal->change : state_of(g);
                if (removed)
                        pass_removals(subscriber, next->removal - 1);
                if (subject == NULL || strcmp(next->name, subject) == 0 ||
                    (!removed && generation_has_name(g, subject)))
                        return true;
                changes_advance(subscriber, next);
                if (removed)
                        removal = list_item(removal->link.next, &changes->removals, const struct removal, link);
                else
                        g = list_item(g->by_change.next, &changes->generations, const struct generation, by_change);
        }
        pass_removals(subscriber, changes->n_removals);
        subscriber->number = changes->last;
        return false;
}

void changes_advance(struct subscriber *subscriber, const struct change *change)
{
        subscriber->number = change->number;
        if (change->removal != 0)
                subscriber->n_removals = change->removal;
}
