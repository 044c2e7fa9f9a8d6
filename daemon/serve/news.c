/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/news.h"

#include <stdlib.h>
#include <string.h>

/* ---- items ---- */

/* The names that it had when it changed; where it lost one, or all, that one. */
static size_t put_names(char *to, const struct generation *g)
{
        size_t used = 0;
        if (g->lost_name || list_empty(&g->names)) {
                used = strlen(g->last_name) + 1;
                if (to != NULL)
                        memcpy(to, g->last_name, used);
                return used + 1;
        }
        list_each (pos, &g->names) {
                const char *name = container_of(pos, struct model_name, link)->text;
                size_t len = strlen(name) + 1;
                if (to != NULL)
                        memcpy(to + used, name, len);
                used += len;
        }
        return used + 1;
}

static struct item *item_new(const struct news *news, const struct generation *g)
{
        bool failed = g->state == GENERATION_FAILED;
        size_t names = put_names(NULL, g), text = failed ? strlen(g->error.text) + 1 : 0;
        struct item *item = calloc(1, sizeof(*item) + names + text);
        if (item == NULL)
                return NULL;
        item->size = sizeof(*item) + names + text;
        item->names = (char *)(item + 1);
        put_names(item->names, g);
        if (failed) {
                item->code = g->error.code;
                item->text = memcpy(item->names + names, g->error.text, text);
        }
        item->ends = news->ends;
        item->number = g->number;
        item->bytes = g->data_bytes;
        item->tensors = g->n_tensors;
        item->device = g->device->name;
        item->state = generation_state_name(g->lost_name ? GENERATION_GONE : g->state);
        return item;
}

bool item_concerns(const struct item *item, const char *name)
{
        if (name == NULL)
                return true;
        for (const char *own = item->names; *own != '\0'; own += strlen(own) + 1)
                if (strcmp(own, name) == 0)
                        return true;
        return false;
}

static struct item *oldest(const struct news *news)
{
        return container_of(news->items.next, struct item, link);
}

static struct item *newest(const struct news *news)
{
        return container_of(news->items.prev, struct item, link);
}

static void drop_oldest(struct news *news)
{
        struct item *item = oldest(news);
        list_remove(&item->link);
        news->bytes -= item->size;
        if (item != &news->nothing)
                free(item);
}

/* The newest stays: who has heard of all stands at it. */
static void drop_heard(struct news *news)
{
        while (oldest(news) != newest(news) && oldest(news)->standing == 0)
                drop_oldest(news);
}

/* ---- news ---- */

void news_init(struct news *news)
{
        *news = (struct news){.n_listeners = 0};
        list_init(&news->items);
        list_init(&news->behind);
        list_init(&news->current);
        list_append(&news->items, &news->nothing.link);
}

void news_deinit(struct news *news)
{
        while (!list_empty(&news->items))
                drop_oldest(news);
}

int news_add(struct news *news, const struct generation *generation)
{
        if (news->n_listeners == 0)
                return 0;
        struct item *item = item_new(news, generation);
        if (item == NULL)
                return STREAMER_ENOMEM;
        list_append(&news->items, &item->link);
        news->bytes += item->size;
        list_append_all(&news->behind, &news->current);
        return 0;
}

/* ---- listeners ---- */

static void stand_at(struct news *news, struct listener *listener, struct item *item)
{
        listener->at = item;
        item->standing++;
        list_append(item == newest(news) ? &news->current : &news->behind, &listener->link);
}

static void step_off(struct listener *listener)
{
        listener->at->standing--;
        listener->at = NULL;
        list_remove(&listener->link);
}

void news_join(struct news *news, struct listener *listener)
{
        if (listener->at != NULL)
                step_off(listener);
        else
                news->n_listeners++;
        stand_at(news, listener, newest(news));
        drop_heard(news);
}

void news_leave(struct news *news, struct listener *listener)
{
        if (listener->at == NULL)
                return;
        step_off(listener);
        news->n_listeners--;
        drop_heard(news);
}

struct listener *news_behind(const struct news *news)
{
        return list_empty(&news->behind) ? NULL : container_of(news->behind.next, struct listener, link);
}

static struct item *item_for(const struct news *news, const struct listener *listener)
{
        if (listener->at == NULL || listener->at == newest(news))
                return NULL;
        return container_of(listener->at->link.next, struct item, link);
}

const struct item *news_peek(const struct news *news, const struct listener *listener)
{
        return item_for(news, listener);
}

const struct item *news_next(struct news *news, struct listener *listener)
{
        struct item *item = item_for(news, listener);
        if (item == NULL)
                return NULL;
        step_off(listener);
        stand_at(news, listener, item);
        drop_heard(news);
        return item;
}
