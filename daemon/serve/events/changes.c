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
                               .code = generation_error(g)->code,
                               .text = generation_error(g)->text};
}

void changes_deinit(struct changes *changes)
{
        list_each_item_safe (struct change_link, link, &changes->all, in_changes) {
                list_remove(&link->in_changes);
                if (link->removal)
                        free(container_of(link, struct removal, link));
        }
        memset(changes->removals, 0, sizeof(changes->removals));
}

void changes_init(struct changes *changes)
{
        *changes = (struct changes){.last = 0};
        list_init(&changes->all);
        list_init(&changes->subscribers);
}

/* The removal of this number is not stored: those that were not notified of it have lost it. */
static void lose(const struct changes *changes, uint64_t number)
{
        list_each_item (struct subscriber, subscriber, &changes->subscribers, link)
                subscriber->lost += subscriber->number < number;
}

static void add_removal(struct changes *changes, const struct generation *g, const char *name)
{
        const char *text = generation_error(g)->text;
        size_t name_size = strlen(name) + 1, text_size = strlen(text) + 1;
        struct removal *removal = malloc(sizeof(*removal) + name_size + text_size);
        changes->last++;
        if (removal == NULL) {
                lose(changes, changes->last);
                return;
        }
        struct removal **oldest = &changes->removals[changes->next++ % CHANGES_REMOVALS];
        if (*oldest != NULL) {
                lose(changes, (*oldest)->link.number);
                list_remove(&(*oldest)->link.in_changes);
                free(*oldest);
        }
        *oldest = removal;
        removal->link = (struct change_link){.number = changes->last, .removal = true};
        removal->change = state_of(&g->change);
        removal->change.number = changes->last;
        removal->change.state = generation_state_name(GENERATION_UNLOADED);
        removal->change.name = memcpy(removal->texts, name, name_size);
        removal->change.text = memcpy(removal->texts + name_size, text, text_size);
        list_append(&changes->all, &removal->link.in_changes);
}

void changes_add(struct changes *changes, struct generation *generation, const char *removed)
{
        struct change_link *link = &generation->change;
        if (list_empty(&changes->subscribers))
                return;
        if (removed == NULL)
                list_remove(&link->in_changes);
        if (removed == NULL && generation->state == GENERATION_UNLOADED)
                removed = generation_name(generation);
        if (removed != NULL) {
                add_removal(changes, generation, removed);
                return;
        }
        link->number = ++changes->last;
        list_append(&changes->all, &link->in_changes);
}

/* ---- subscribers ---- */

void subscriber_init(struct subscriber *subscriber)
{
        *subscriber = (struct subscriber){.subject = NULL};
        list_init(&subscriber->link);
}

void changes_subscribe(struct changes *changes, struct subscriber *subscriber, char *subject)
{
        changes_unsubscribe(changes, subscriber);
        subscriber->subject = subject;
        subscriber->number = changes->last;
        list_append(&changes->subscribers, &subscriber->link);
}

void changes_unsubscribe(struct changes *changes, struct subscriber *subscriber)
{
        if (list_empty(&subscriber->link)) { /* most connections never subscribe */
                require(subscriber->subject == NULL);
                return;
        }
        list_remove(&subscriber->link);
        free(subscriber->subject);
        subscriber_init(subscriber);
        if (list_empty(&changes->subscribers))
                changes_deinit(changes);
}

bool changes_peek(const struct changes *changes, struct subscriber *subscriber, struct change *next)
{
        const char *subject = subscriber->subject;
        const struct list *pos = &changes->all;
        if (list_empty(&subscriber->link) || subscriber->number == changes->last)
                return false;
        /* The newest are searched first, since most subscribers lack few. */
        while (pos->prev != &changes->all &&
               container_of(pos->prev, struct change_link, in_changes)->number > subscriber->number)
                pos = pos->prev;
        for (; pos != &changes->all; pos = pos->next) {
                const struct change_link *link = container_of(pos, struct change_link, in_changes);
                *next = state_of(link);
                if (subject == NULL || strcmp(next->name, subject) == 0 ||
                    (!link->removal && generation_has_name(container_of(link, struct generation, change), subject)))
                        return true;
        }
        subscriber->number = changes->last;
        return false;
}
