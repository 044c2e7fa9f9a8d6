/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/changes.h"

#include <stdlib.h>
#include <string.h>

struct removal {
        struct change_link link;
        struct change change;
        char texts[]; /* of the change */
};

/* ---- changes ---- */

static struct change state_of(const struct change_link *link)
{
        if (link->removal)
                return container_of(link, struct removal, link)->change;
        const struct generation *g = container_of(link, struct generation, change);
        return (struct change){.number = link->number,
                               .generation = g->number,
                               .bytes = g->data_bytes,
                               .tensors = g->n_tensors,
                               .name = generation_name(g),
                               .device = g->device->name,
                               .state = generation_state_name(g->state),
                               .code = g->error.code,
                               .text = g->error.text};
}

static void removal_free(struct removal *removal)
{
        if (removal != NULL)
                list_remove(&removal->link.in_changes);
        free(removal);
}

void changes_deinit(struct changes *changes)
{
        for (size_t i = 0; i < CHANGES_REMOVALS; i++)
                removal_free(changes->removals[i]);
        memset(changes->removals, 0, sizeof(changes->removals));
        list_each_item_safe (struct change_link, link, &changes->all, in_changes)
                list_remove(&link->in_changes);
}

void changes_init(struct changes *changes)
{
        *changes = (struct changes){.last = 0};
        list_init(&changes->all);
}

static void add_removal(struct changes *changes, const struct generation *g, const char *name)
{
        size_t name_size = strlen(name) + 1, text_size = strlen(g->error.text) + 1;
        struct removal *removal = malloc(sizeof(*removal) + name_size + text_size);
        struct removal **oldest = &changes->removals[changes->n_removals++ % CHANGES_REMOVALS];
        removal_free(*oldest);
        *oldest = removal;
        changes->last++;
        if (removal == NULL)
                return;
        removal->link = (struct change_link){.number = changes->last, .removal = true};
        removal->change = state_of(&g->change);
        removal->change.number = changes->last;
        removal->change.removal = changes->n_removals;
        removal->change.state = generation_state_name(GENERATION_UNLOADED);
        removal->change.name = memcpy(removal->texts, name, name_size);
        removal->change.text = memcpy(removal->texts + name_size, g->error.text, text_size);
        list_append(&changes->all, &removal->link.in_changes);
}

void changes_add(struct changes *changes, struct generation *generation, const char *removed)
{
        struct change_link *link = &generation->change;
        if (changes->n_subscribers == 0)
                return;
        if (removed != NULL) {
                add_removal(changes, generation, removed);
                return;
        }
        list_remove(&link->in_changes);
        if (generation->state == GENERATION_UNLOADED) {
                add_removal(changes, generation, generation_name(generation));
                return;
        }
        link->number = ++changes->last;
        list_append(&changes->all, &link->in_changes);
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
        const struct list *pos = &changes->all;
        if (!subscriber->active || subscriber->number == changes->last)
                return false;
        /* The newest are searched first, since most subscribers lack few. */
        while (pos->prev != &changes->all &&
               container_of(pos->prev, struct change_link, in_changes)->number > subscriber->number)
                pos = pos->prev;
        for (; pos != &changes->all; pos = pos->next) {
                const struct change_link *link = container_of(pos, struct change_link, in_changes);
                *next = state_of(link);
                if (link->removal)
                        pass_removals(subscriber, next->removal - 1);
                if (subject == NULL || strcmp(next->name, subject) == 0 ||
                    (!link->removal && generation_has_name(container_of(link, struct generation, change), subject)))
                        return true;
                changes_advance(subscriber, next);
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
