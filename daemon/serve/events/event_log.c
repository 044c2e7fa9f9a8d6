/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/event_log.h"

#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

/* The names at the time of the change; if a name was removed, that one. */
static size_t put_names(char *to, const struct generation *g)
{
        size_t used = 0;
        if (g->lost_name || list_empty(&g->names)) {
                used = strlen(g->last_name) + 1;
                if (to != NULL)
                        memcpy(to, g->last_name, used);
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

static struct model_event *model_event_new(const struct event_log *event_log, const struct generation *g)
{
        bool failed = g->state == GENERATION_FAILED;
        size_t names = put_names(NULL, g), text = failed ? strlen(g->error.text) + 1 : 0;
        struct model_event *event = calloc(1, sizeof(*event) + names + text);
        if (event == NULL)
                return NULL;
        event->size = sizeof(*event) + names + text;
        event->names = (char *)(event + 1);
        put_names(event->names, g);
        if (failed) {
                event->code = g->error.code;
                event->text = memcpy(event->names + names, g->error.text, text);
        }
        event->ends = event_log->ends;
        event->number = g->number;
        event->bytes = g->data_bytes;
        event->tensors = g->n_tensors;
        event->device = g->device->name;
        event->state = generation_state_name(g->lost_name ? GENERATION_UNLOADED : g->state);
        return event;
}

bool model_event_concerns(const struct model_event *event, const char *name)
{
        if (name == NULL)
                return true;
        for (const char *own = event->names; *own != '\0'; own += strlen(own) + 1)
                if (strcmp(own, name) == 0)
                        return true;
        return false;
}

static struct model_event *oldest(const struct event_log *event_log)
{
        return container_of(event_log->events.next, struct model_event, link);
}

static struct model_event *newest(const struct event_log *event_log)
{
        return container_of(event_log->events.prev, struct model_event, link);
}

static void drop_oldest(struct event_log *event_log)
{
        struct model_event *event = oldest(event_log);
        list_remove(&event->link);
        event_log->bytes -= event->size;
        if (event != &event_log->origin)
                free(event);
}

/* The newest stays: it is the position of subscribers that are up to date. */
static void drop_delivered(struct event_log *event_log)
{
        while (oldest(event_log) != newest(event_log) && oldest(event_log)->positions == 0)
                drop_oldest(event_log);
}

/* ---- the log ---- */

void event_log_init(struct event_log *event_log)
{
        *event_log = (struct event_log){.n_subscribers = 0};
        list_init(&event_log->events);
        list_init(&event_log->pending);
        list_init(&event_log->up_to_date);
        list_append(&event_log->events, &event_log->origin.link);
}

void event_log_deinit(struct event_log *event_log)
{
        while (!list_empty(&event_log->events))
                drop_oldest(event_log);
}

int event_log_add(struct event_log *event_log, const struct generation *generation)
{
        if (event_log->n_subscribers == 0)
                return 0;
        struct model_event *event = model_event_new(event_log, generation);
        if (event == NULL)
                return STREAMER_ENOMEM;
        list_append(&event_log->events, &event->link);
        event_log->bytes += event->size;
        list_append_all(&event_log->pending, &event_log->up_to_date);
        return 0;
}

/* ---- subscribers ---- */

static void position_at(struct event_log *event_log, struct subscriber *subscriber, struct model_event *event)
{
        subscriber->at = event;
        event->positions++;
        list_append(event == newest(event_log) ? &event_log->up_to_date : &event_log->pending, &subscriber->link);
}

static void position_leave(struct subscriber *subscriber)
{
        subscriber->at->positions--;
        subscriber->at = NULL;
        list_remove(&subscriber->link);
}

void event_log_subscribe(struct event_log *event_log, struct subscriber *subscriber)
{
        if (subscriber->at != NULL)
                position_leave(subscriber);
        else
                event_log->n_subscribers++;
        position_at(event_log, subscriber, newest(event_log));
        drop_delivered(event_log);
}

void event_log_unsubscribe(struct event_log *event_log, struct subscriber *subscriber)
{
        if (subscriber->at == NULL)
                return;
        position_leave(subscriber);
        event_log->n_subscribers--;
        drop_delivered(event_log);
}

struct subscriber *event_log_next_subscriber(const struct event_log *event_log)
{
        return list_empty(&event_log->pending) ? NULL : container_of(event_log->pending.next, struct subscriber, link);
}

struct model_event *event_log_peek(const struct event_log *event_log, const struct subscriber *subscriber)
{
        if (subscriber->at == NULL || subscriber->at == newest(event_log))
                return NULL;
        return container_of(subscriber->at->link.next, struct model_event, link);
}

const struct model_event *event_log_next(struct event_log *event_log, struct subscriber *subscriber)
{
        struct model_event *event = event_log_peek(event_log, subscriber);
        if (event == NULL)
                return NULL;
        position_leave(subscriber);
        position_at(event_log, subscriber, event);
        drop_delivered(event_log);
        return event;
}
