/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to list: a page of models, whose `next` says behind which name the following one begins, and is missing
 * from the last. A name shifts nothing that comes or goes between two pages.
 *
 * Each page looks at all there is, twice: for its names, which are the first behind the one that was told, and for
 * what goes by them. So its work grows with the models as they do, and only what it tells is sorted.
 */
#include "daemon/serve/reply.h"

#include <string.h>

/* Names in one reply, and their bytes: what one more takes is far below the rest of a frame. */
#define LIST_PAGE 64
#define LIST_BYTES (FRAME_MAX / 2)

struct entry {
        const char *name;
        struct generation *generation; /* NULL: it is wanted */
        const struct wanted *wanted;   /* of this name; NULL: it is not */
};

/* What a page is made from. */
struct page {
        const struct server *server;
        const char *after; /* NULL: from the start */
        struct wanted *wanted;
        size_t n_wanted;
        const char *names[LIST_PAGE]; /* the first, in order */
        size_t n_names, most;
        bool more; /* there are others behind them */
        struct entry *entries;
        size_t n;
};

/* ---- its names ---- */

static void note_name(struct page *page, const char *name)
{
        size_t from = 0, to = page->n_names;
        if (page->after != NULL && strcmp(name, page->after) <= 0)
                return;
        while (from < to) {
                size_t middle = (from + to) / 2;
                int r = strcmp(name, page->names[middle]);
                if (r == 0)
                        return;
                if (r < 0)
                        to = middle;
                else
                        from = middle + 1;
        }
        if (page->n_names == page->most) {
                page->more = true;
                page->n_names--;
        }
        if (from > page->n_names) { /* behind the last that has room */
                page->n_names++;
                return;
        }
        memmove(page->names + from + 1, page->names + from, (page->n_names - from) * sizeof(page->names[0]));
        page->names[from] = name;
        page->n_names++;
}

static void find_names(struct page *page)
{
        for (size_t i = 0; i < page->n_wanted; i++)
                note_name(page, page->wanted[i].name);
        list_each (pos, &page->server->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names))
                        note_name(page, g->last_name);
                list_each (name, &g->names)
                        note_name(page, container_of(name, struct model_name, link)->text);
        }
}

/* ---- what goes by them ---- */

static bool is_on_page(const struct page *page, const char *name)
{
        return page->n_names > 0 && strcmp(name, page->names[page->n_names - 1]) <= 0 &&
               (page->after == NULL || strcmp(name, page->after) > 0);
}

static bool add(struct page *page, const char *name, struct generation *g, const struct wanted *wanted)
{
        if (!is_on_page(page, name))
                return true;
        struct entry *entries = with_room(page->entries, page->n, sizeof(*entries));
        if (entries == NULL)
                return false;
        page->entries = entries;
        page->entries[page->n++] = (struct entry){name, g, wanted};
        return true;
}

/* What is wanted first, in its order. */
static int by_name(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        if (r != 0)
                return r;
        if (x->generation == NULL && y->generation == NULL)
                return (x->wanted > y->wanted) - (x->wanted < y->wanted);
        if (x->generation == NULL || y->generation == NULL)
                return (x->generation != NULL) - (y->generation != NULL);
        return group_compare(x->generation, y->generation);
}

/* What is wanted is told of with what is there, and by itself where nothing has the name; once. */
static void settle(struct page *page)
{
        struct entry *e = page->entries;
        size_t n = 0;
        for (size_t i = 0, end; i < page->n; i = end) {
                const char *name = e[i].name;
                const struct wanted *wanted = e[i].wanted;
                bool there = false;
                for (end = i; end < page->n && strcmp(e[end].name, name) == 0; end++)
                        there = there || (e[end].generation != NULL && !list_empty(&e[end].generation->names));
                for (size_t k = i; k < end; k++)
                        if (e[k].generation != NULL || (!there && k == i))
                                e[n++] = (struct entry){name, e[k].generation, wanted};
        }
        page->n = n;
}

static bool collect(struct page *page)
{
        bool ok = true;
        for (size_t i = 0; ok && i < page->n_wanted; i++)
                ok = add(page, page->wanted[i].name, NULL, &page->wanted[i]);
        list_each (pos, &page->server->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names))
                        ok = ok && add(page, g->last_name, g, NULL);
                list_each (name, &g->names)
                        ok = ok && add(page, container_of(name, struct model_name, link)->text, g, NULL);
        }
        if (page->n > 0)
                qsort(page->entries, page->n, sizeof(*page->entries), by_name);
        settle(page);
        return ok;
}

/* ---- writing ---- */

/* How many entries, from the first on, are one model. */
static size_t take_group(const struct entry *entries, size_t n, struct group *group)
{
        *group = (struct group){.name = entries[0].name};
        if (entries[0].generation == NULL)
                return 1;
        while (group->n < n && group->n < GROUP_MAX && strcmp(entries[group->n].name, entries[0].name) == 0 &&
               group_same(entries[group->n].generation, entries[0].generation)) {
                group->members[group->n] = entries[group->n].generation;
                group->n++;
        }
        return group->n;
}

/* As many models as fit; how many entries that are. */
static size_t write_models(struct writer *w, const struct page *page, size_t *n_models)
{
        size_t i = 0;
        for (*n_models = 0; i < page->n && w->buf.size < LIST_BYTES; ++*n_models) {
                const struct entry *first = &page->entries[i];
                struct group group;
                i += take_group(first, page->n - i, &group);
                if (group.n > 0)
                        reply_model(w, &group, first->wanted);
                else
                        reply_wanted(w, first->wanted);
        }
        return i;
}

static bool same_name(const struct entry *a, const struct entry *b)
{
        return strcmp(a->name, b->name) == 0;
}

/* The generations of one name stay together, since `after` is a name: where they do not fit one reply, those
 * that do are told. */
static void write_page(struct writer *w, const struct page *page, uint64_t id)
{
        struct writer models;
        size_t n_models;
        writer_init(&models);
        size_t end = write_models(&models, page, &n_models);
        while (end > 0 && end < page->n && same_name(&page->entries[end], &page->entries[end - 1]))
                end++;
        bool more = end < page->n || page->more;
        writer_reply(w, id, more ? 2 : 1);
        writer_key(w, "models");
        writer_array(w, n_models);
        writer_append(w, &models);
        writer_deinit(&models);
        if (more)
                writer_kstr(w, "next", page->entries[end - 1].name);
}

void reply_list(struct writer *w, const struct server *server, const struct request *request)
{
        const struct req_list *req = &request->u.list;
        struct page page = {.server = server,
                            .after = req->after,
                            .most = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE};
        page.wanted = calloc(wanted_count(server) + 1, sizeof(*page.wanted));
        if (page.wanted != NULL) {
                page.n_wanted = wanted_collect(server, page.wanted);
                find_names(&page);
        }
        if (page.wanted != NULL && collect(&page))
                write_page(w, &page, request->id);
        else
                writer_error(w, request->id, STREAMER_ENOMEM, "no memory");
        free(page.entries);
        free(page.wanted);
}
