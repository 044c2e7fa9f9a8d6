/* SPDX-License-Identifier: Apache-2.0
 *
 * What is told of models that the settings want, and what clients may change of those that are not
 * there yet.
 */
#include "daemon/serve/preload_item.h"

#include <string.h>

void item_title(char out[SHOWN_SOURCE], const struct item *item)
{
        if (item->entry.name != NULL)
                snprintf(out, SHOWN_SOURCE, "%s", item->entry.name);
        else
                shown_source(out, item->entry.source);
}

/* ---- those that are not there yet ---- */

static struct item *find(const struct preload *preload, const char *name)
{
        list_each (pos, &preload->items) {
                struct item *item = container_of(pos, struct item, link);
                if (item->state != ITEM_READY && strcmp(item->name, name) == 0)
                        return item;
        }
        return NULL;
}

static void tell(const struct item *item, struct wanted *wanted)
{
        *wanted = (struct wanted){.name = item->name,
                                  .source = item->entry.source,
                                  .uid = geteuid(),
                                  .priority = item->priority,
                                  .tries = item->tries,
                                  .pinned = item->pin,
                                  .failed = item->state == ITEM_FAILED,
                                  .error = item->error.text,
                                  .code = item->error.code,
                                  .retry_at_ns = item->hopeless ? 0 : item->due_ns};
}

bool preload_find(const struct preload *preload, const char *name, struct wanted *wanted)
{
        const struct item *item = find(preload, name);
        if (item != NULL)
                tell(item, wanted);
        return item != NULL;
}

size_t preload_collect(const struct preload *preload, struct wanted *all)
{
        size_t n = 0;
        list_each (pos, &preload->items) {
                const struct item *item = container_of(pos, struct item, link);
                if (item->state != ITEM_READY)
                        tell(item, &all[n++]);
        }
        return n;
}

bool preload_pin(struct preload *preload, const char *name, bool pin)
{
        struct item *item = find(preload, name);
        if (item != NULL)
                item->pin = pin;
        return item != NULL;
}

/* ---- status ---- */

void preload_summarize(const struct preload *preload, struct preload_summary *summary)
{
        char shown[SHOWN_SOURCE];
        *summary = (struct preload_summary){0};
        list_each (pos, &preload->items) {
                const struct item *item = container_of(pos, struct item, link);
                /* One that is being tried again is no better for it yet. */
                bool failed = item->state == ITEM_FAILED || (item->state != ITEM_READY && item->tries > 1);
                summary->n++;
                summary->ready += item->state == ITEM_READY;
                if (failed && summary->failed++ == 0) {
                        item_title(shown, item);
                        snprintf(summary->title, sizeof(summary->title), "%.250s", shown);
                }
        }
}

static void write_item(struct writer *w, const struct item *item, uint64_t now)
{
        static const char *const states[] = {[ITEM_WAITING] = "waiting",
                                             [ITEM_LOOKING] = "loading",
                                             [ITEM_LOADING] = "loading",
                                             [ITEM_READY] = "ready",
                                             [ITEM_FAILED] = "failed"};
        char source[SHOWN_SOURCE];
        shown_source(source, item->entry.source);
        bool failed = item->state == ITEM_FAILED, again = failed && !item->hopeless;
        writer_map(w, 3u + (item->entry.name != NULL) + failed + again);
        writer_kstr(w, "source", source);
        if (item->entry.name != NULL)
                writer_kstr(w, "name", item->entry.name);
        writer_kstr(w, "state", states[item->state]);
        writer_ku64(w, "tries", item->tries);
        if (failed)
                writer_kstr(w, "error", item->error.text);
        if (again)
                writer_ku64(w, "retry_ns", item->due_ns > now ? item->due_ns - now : 0);
}

bool preload_next(const struct preload *preload, struct preload_row *row)
{
        const struct list *pos = row->item != NULL ? row->item->link.next : preload->items.next;
        for (; pos != &preload->items; pos = pos->next) {
                const struct item *item = container_of(pos, struct item, link);
                if (item->priority > row->priority || (item->priority == row->priority && item->place <= row->place))
                        continue;
                *row = (struct preload_row){item, item->priority, item->place};
                return true;
        }
        return false;
}

void preload_write(struct writer *w, const struct preload_row *row, uint64_t now)
{
        write_item(w, row->item, now);
}
